/**
 * The conversation: questions, each with one answer or several beside each other, and which of them it goes on
 * with. Knows answers and where they stand on the page; knows no sockets.
 *
 * @typedef {import("./transcript.js").Message} Message
 * @typedef {{ question: string, cards: Card[], chosen: number, element: HTMLElement }} Turn
 */
import { Answer } from "./answer.js";
import { Card } from "./answer-card.js";
import { button, element } from "./dom.js";
import { visible } from "./sanitize.js";

/** @typedef {import("./answer.js").Settings} Settings @typedef {import("./connection.js").Client} Client */

const KEPT = "midstream.conversation";

export class Conversation {
  /** @type {Turn[]} */ turns = [];
  /** @type {() => void} */ onchange = () => {};
  #place;
  #client;
  #settings;

  /** @param {HTMLElement} place @param {() => Client | null} client @param {() => Settings} settings */
  constructor(place, client, settings) {
    this.#place = place;
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
    const turn = this.#add(question, labels.map((label) => new Answer(this.#client, before, label)));
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
    this.#place.replaceChildren();
    sessionStorage.removeItem(KEPT);
    this.onchange();
  }

  /** @returns {Message[]} */
  #history() {
    return this.turns.flatMap(({ question, cards, chosen }) => [
      { role: "user", content: question },
      ...cards[chosen].answer.writing.messages(),
    ]);
  }

  /** @param {string} question @param {Answer[]} answers @param {number} [chosen] */
  #add(question, answers, chosen = 0) {
    const place = element("section", answers.length > 1 ? "turn several" : "turn");
    const said = element("h2", "question");
    said.append(element("bdi", "", visible(question)));
    const beside = element("div", "answers");
    beside.dataset.count = String(answers.length);
    place.append(said, beside);
    const cards = answers.map((answer) => new Card(answer, this.#settings, () => this.onchange()));
    beside.append(...cards.map((card) => card.element));
    const turn = { question, cards, chosen, element: place };
    if (cards.length > 1) cards.forEach((card, at) => this.#offer(turn, card, at));
    this.turns.push(turn);
    this.#place.append(place);
    return turn;
  }

  /** Of several answers the conversation goes on with one. @param {Turn} turn @param {Card} card @param {number} at */
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
    const kept = this.turns.map(({ question, cards, chosen }) => {
      return { question, chosen, answers: cards.map((card) => card.answer) };
    });
    sessionStorage.setItem(KEPT, JSON.stringify(kept));
  }

  #restore() {
    const kept = sessionStorage.getItem(KEPT);
    sessionStorage.removeItem(KEPT); // taken once: what cannot be read does not stand in the way for ever
    for (const { question, answers, chosen } of kept ? JSON.parse(kept) : []) {
      this.#add(question, answers.map((/** @type {any} */ one) => Answer.from(this.#client, one)), chosen);
    }
  }
}
