/**
 * The conversation: questions, each with one answer or several beside each other, and which of them it goes on
 * with. Knows answers and where they stand on the page; knows no sockets.
 *
 * @typedef {import("/sdk/midstream.js").Message} Message
 * @typedef {{ question: string, results?: string[], cards: AnswerCard[], chosen: number, element: HTMLElement }} Turn
 *   `results`: what the calls of the turn before returned, where that is what was said
 */
import { AnswerCard } from "./answer-card.js";
import { Answer } from "./answer-state.js";
import { button, element } from "./dom.js";
import { sanitize } from "./sanitize.js";

/** @typedef {import("./answer-state.js").Settings} Settings @typedef {import("./connection.js").Client} Client */

const STORAGE_KEY = "midstream.conversation";

export class Conversation {
  /** @type {Turn[]} */ turns = [];
  /** @type {() => void} */ onchange = () => {};
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
    this.#answer(this.#add({ question }, labels.map((label) => new Answer(this.#client, before, label))));
  }

  /** What the calls of the last answer returned, for the model to go on. @param {string[]} results */
  give(results) {
    const last = this.turns[this.turns.length - 1];
    const { calls } = last.cards[last.chosen].answer;
    const question = calls.map(({ name }, at) => `${name}: ${results[at]}`).join("\n");
    const before = this.#history(results);
    this.#answer(this.#add({ question, results }, [new Answer(this.#client, before, "Answer")]));
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

  /** @param {Record<string, number>} params */
  adjust(params) {
    return Promise.all(this.running.map((card) => card.answer.adjust(params)));
  }

  async clear() {
    await this.stop();
    this.turns = [];
    this.#container.replaceChildren();
    sessionStorage.removeItem(STORAGE_KEY);
    this.onchange();
  }

  /** With what the last answer's calls returned, if that is known. @param {string[]} [results] @returns {Message[]} */
  #history(results) {
    return this.turns.flatMap(({ question, results: had, cards, chosen }, at) => {
      const next = this.turns[at + 1];
      const said = cards[chosen].answer.messages(next ? next.results : results);
      return had ? said : [{ role: "user", content: question }, ...said];
    });
  }

  /** @param {{ question: string, results?: string[] }} asked @param {Answer[]} answers @param {number} [chosen] */
  #add({ question, results }, answers, chosen = 0) {
    for (const card of this.turns.at(-1)?.cards ?? []) card.settle();
    const section = element("section", answers.length > 1 ? "turn several" : "turn");
    const said = element("h2", "question");
    said.append(element("bdi", "", sanitize(question)));
    const beside = element("div", "answers");
    beside.dataset.count = String(answers.length);
    section.append(said, beside);
    const cards = answers.map((answer) => new AnswerCard(answer, this.#settings, () => this.onchange()));
    beside.append(...cards.map((card) => card.element));
    const turn = { question, results, cards, chosen, element: section };
    cards.forEach((card, at) => {
      card.onresults = (results) => {
        turn.chosen = at; // the conversation goes on with the one that is answered
        this.give(results);
      };
    });
    if (cards.length > 1) cards.forEach((card, at) => this.#offer(turn, card, at));
    this.turns.push(turn);
    this.#container.append(section);
    return turn;
  }

  /** Of several answers the conversation goes on with one. @param {Turn} turn @param {AnswerCard} card @param {number} at */
  #offer(turn, card, at) {
    const choose = button("Keep", () => {
      turn.chosen = at;
      turn.cards.forEach((other) => {
        other.element.classList.toggle("chosen", other === card);
        other.element.querySelector(".keep")?.setAttribute("aria-pressed", String(other === card));
      });
    }, "keep");
    choose.title = "The conversation goes on with this answer";
    choose.setAttribute("aria-pressed", String(at === turn.chosen));
    card.element.classList.toggle("chosen", at === turn.chosen);
    card.element.querySelector("header")?.append(choose);
  }

  #keep() {
    const kept = this.turns.map(({ question, results, cards, chosen }) => {
      return { question, results, chosen, answers: cards.map((card) => card.answer) };
    });
    sessionStorage.setItem(STORAGE_KEY, JSON.stringify(kept));
  }

  #restore() {
    const kept = sessionStorage.getItem(STORAGE_KEY);
    sessionStorage.removeItem(STORAGE_KEY); // taken once: what cannot be read does not stand in the way for ever
    for (const { question, results, answers, chosen } of kept ? JSON.parse(kept) : []) {
      this.#add({ question, results }, answers.map((/** @type {any} */ one) => Answer.from(this.#client, one)), chosen);
    }
  }
}
