/**
 * The conversation: questions, each with one answer or several beside each other, forks of those behind them, and
 * which of all it goes on with. Knows answers and where they stand on the page; knows no sockets.
 *
 * @typedef {import("/sdk/midstream.js").Message} Message
 * @typedef {import("./answer-transcript.js").Position} Position
 * @typedef {{ question: string, cards: AnswerCard[], chosen: AnswerCard, element: HTMLElement }} Turn
 */
import { AnswerCard } from "./answer-card.js";
import { Answer } from "./answer-state.js";
import { button, element } from "./dom.js";
import { sanitize } from "./sanitize.js";
import { forget, keep, recall } from "./tab-storage.js";

/** @typedef {import("./answer-state.js").Settings} Settings @typedef {import("./connection.js").Client} Client */

const STORAGE_KEY = "midstream.turns";
const LOST_KEY = "midstream.conversation.lost";

export class Conversation {
  /** @type {Turn[]} */ turns = [];
  /** @type {() => void} */ onchange = () => {};
  /** @type {(event: any) => void} */ onguard = () => {};
  /** How many turns went before those that are here, since the storage was too small. */ #lost = 0;
  #container;
  #client;
  #settings;

  /** @param {HTMLElement} container @param {() => Client | null} client @param {() => Settings} settings */
  constructor(container, client, settings) {
    this.#container = container;
    this.#client = client;
    this.#settings = settings;
    this.#restore();
    addEventListener("pagehide", () => this.#keep());
    // A browser may discard a tab that nobody sees, and says nothing more to it.
    document.addEventListener("visibilitychange", () => document.visibilityState === "hidden" && this.#keep());
  }

  get cards() {
    return this.turns.flatMap((turn) => turn.cards);
  }

  get running() {
    return this.cards.filter((card) => card.answer.running);
  }

  /** Ask, and have it answered `times` times at once. @param {string} question @param {number} times */
  ask(question, times) {
    const before = [...this.#history(), { role: "user", content: question }];
    const labels = times > 1 ? [..."ABCD"].slice(0, times).map((letter) => `Answer ${letter}`) : ["Answer"];
    const first = new Answer(this.#client, before, labels[0]);
    this.#answer(this.#add(question, [first, ...labels.slice(1).map((label) => first.another(label))]));
  }

  /** @param {Turn} turn */
  #answer(turn) {
    const { params, ...rest } = this.#settings();
    turn.cards.forEach(({ answer }, at) => {
      const seed = params.seed === undefined ? {} : { seed: params.seed + at }; // the same seed would say the same
      answer.write({ ...rest, params: { ...params, ...seed } });
    });
    turn.element.scrollIntoView({ block: "end" });
  }

  stop() {
    return Promise.all(this.running.map((card) => card.answer.stop()));
  }

  /** All that run pause, or, where none is left to pause, go on. */
  toggle() {
    const writing = this.running.filter((card) => card.answer.state !== "paused");
    return Promise.all((writing.length ? writing : this.running).map((card) => card.toggle()));
  }

  /** @param {Record<string, any>} params */
  adjust(params) {
    return Promise.all(this.running.map((card) => card.answer.adjust(params)));
  }

  /** At once, however long what runs takes to end: what is asked behind it is another conversation. */
  clear() {
    this.stop();
    this.turns = [];
    this.#lost = 0;
    this.#container.replaceChildren();
    forget(STORAGE_KEY);
    this.onchange();
  }

  /** @returns {Message[]} */
  #history() {
    return this.turns.flatMap(({ question, chosen }) => [{ role: "user", content: question }, ...chosen.answer.messages]);
  }

  /** @param {string} question @param {Answer[]} answers @param {number} [chosen] */
  #add(question, answers, chosen = 0) {
    const section = element("section", "turn");
    const said = element("h2", "question");
    said.append(element("bdi", "", sanitize(question)));
    const beside = element("div", "answers");
    section.append(said, beside);
    const cards = answers.map((answer) => this.#card(answer));
    const turn = { question, cards, chosen: cards[chosen], element: section };
    for (const card of cards) this.#place(turn, card);
    this.turns.push(turn);
    this.#show(turn);
    this.#container.append(section);
    return turn;
  }

  /** @param {Answer} answer */
  #card(answer) {
    answer.onguard = (event) => this.onguard(event);
    return new AnswerCard(answer, this.#settings, () => this.onchange());
  }

  /** Of several answers the conversation goes on with one. @param {Turn} turn @param {AnswerCard} card */
  #place(turn, card) {
    turn.element.querySelector(".answers")?.append(card.element);
    card.onfork = (at) => this.fork(turn, card, at);
    const keep = button("Keep", () => this.walk(card), "keep");
    keep.title = "The conversation goes on with this answer";
    card.element.querySelector("header")?.append(keep);
  }

  /** Another answer, which goes on from there in its own way. @param {Turn} turn @param {AnswerCard} card @param {Position} at */
  fork(turn, card, at) {
    const fork = this.#card(card.answer.forked(at, `Answer ${turn.cards.length + 1}`));
    turn.cards.push(fork);
    this.#place(turn, fork);
    this.walk(fork);
    fork.answer.write(this.#settings());
    return fork;
  }

  /** Have this one seen, and the conversation go on with it. @param {AnswerCard} card */
  walk(card) {
    const turn = this.turns.find(({ cards }) => cards.includes(card));
    if (!turn) return;
    turn.chosen = card;
    this.#show(turn);
    this.onchange();
    card.element.scrollIntoView({ block: "nearest" });
  }

  /** Answers stand beside each other, and of each one branch: the chosen one, or the one that was seen before. @param {Turn} turn */
  #show(turn) {
    const columns = Map.groupBy(turn.cards, (card) => rootOf(card.answer));
    turn.element.classList.toggle("several", columns.size > 1);
    const beside = /** @type {HTMLElement} */ (turn.element.querySelector(".answers"));
    beside.dataset.count = String(columns.size);
    for (const branches of columns.values()) {
      const seen = branches.includes(turn.chosen) ? turn.chosen : branches.find(({ element }) => !element.hidden) ?? branches[0];
      for (const card of branches) {
        const chosen = card === turn.chosen;
        card.element.hidden = card !== seen;
        card.element.classList.toggle("chosen", chosen);
        const keep = /** @type {HTMLButtonElement} */ (card.element.querySelector(".keep"));
        keep.hidden = columns.size < 2;
        keep.setAttribute("aria-pressed", String(chosen));
      }
    }
  }

  /** As much as the storage takes: what is said last is what the next question is about. */
  #keep() {
    /** @type {Map<string, number>} */ const messages = new Map(); // each once, however many answers it stands before
    const kept = this.turns.map((turn) => JSON.stringify(keepable(turn, messages)));
    const said = [...messages.keys()].join(",");
    forget(STORAGE_KEY);
    let from = 0;
    while (from < kept.length && !keep(STORAGE_KEY, `{"messages":[${said}],"turns":[${kept.slice(from).join(",")}]}`)) from++;
    keep(LOST_KEY, String(this.#lost + from));
  }

  #restore() {
    const kept = recall(STORAGE_KEY);
    forget(STORAGE_KEY); // taken once: what cannot be read does not stand in the way for ever
    this.#lost = Number(recall(LOST_KEY));
    if (this.#lost) this.#container.append(element("p", "problem", lostWords(this.#lost)));
    const { messages, turns } = kept ? JSON.parse(kept) : { messages: [], turns: [] };
    for (const { question, answers: had, chosen } of turns) {
      /** @type {Answer[]} */
      const answers = had.map((/** @type {any} */ one) =>
        Answer.from(this.#client, { ...one, question: one.question.map((/** @type {number} */ at) => messages[at]) }));
      answers.forEach((answer, at) => {
        const { origin } = had[at];
        if (origin) answer.origin = { answer: answers[origin.of], at: origin.at };
      });
      this.#add(question, answers, chosen);
    }
  }
}

/** @param {Turn} turn @param {Map<string, number>} messages where what answers are asked is put */
function keepable({ question, cards, chosen }, messages) {
  const answers = cards.map(({ answer }) => {
    const asked = answer.question.map((message) => numberOf(JSON.stringify(message), messages));
    return { ...answer.toJSON(), question: asked, origin: originOf(answer, cards) };
  });
  return { question, chosen: cards.indexOf(chosen), answers };
}

/** Where it stands, or is put now. @param {string} said @param {Map<string, number>} messages */
function numberOf(said, messages) {
  const number = messages.get(said) ?? messages.size;
  messages.set(said, number);
  return number;
}

/** @param {number} turns */
function lostWords(turns) {
  const which = turns > 1 ? `The first ${turns} questions and their answers are` : "The first question and its answers are";
  return `${which} gone: this browser keeps no more when a page is loaded anew. What you ask next is asked without them.`;
}

/** The answer that it began with, fork by fork. @param {Answer} answer @returns {Answer} */
function rootOf(answer) {
  return answer.origin ? rootOf(answer.origin.answer) : answer;
}

/** @param {Answer} answer @param {AnswerCard[]} cards */
function originOf({ origin }, cards) {
  return origin && { of: cards.findIndex((card) => card.answer === origin.answer), at: origin.at };
}
