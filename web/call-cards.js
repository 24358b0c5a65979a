/**
 * The calls of an answer as cards: their arguments fill in while they come, and when all are whole the reader says
 * what they returned. Knows DOM and calls; does not know the answer that they stand in.
 *
 * @typedef {import("/sdk/midstream.js").Call} Call
 */
import { element } from "./dom.js";
import { sanitize } from "./sanitize.js";

export class CallCards {
  element = element("form", "calls");
  /** @type {Map<string, Card>} by the id of their call */ #cards = new Map();
  #send = element("button", "", "Give results");

  /** @param {(results: string[]) => void} onresults one for each call, in their order */
  constructor(onresults) {
    this.element.append(this.#send);
    this.element.addEventListener("submit", (event) => {
      event.preventDefault();
      onresults([...this.#cards.values()].map((card) => card.result));
    });
  }

  /** @param {Call[]} calls @param {boolean} wanted whether results are */
  draw(calls, wanted) {
    const ids = new Set(calls.map((call) => call.call_id));
    for (const [id, card] of this.#cards) {
      if (ids.has(id)) continue;
      card.element.remove();
      this.#cards.delete(id);
    }
    for (const call of calls) this.#card(call.call_id).draw(call, wanted);
    this.element.hidden = !calls.length;
    this.#send.hidden = !wanted;
  }

  /** @param {string} id */
  #card(id) {
    let card = this.#cards.get(id);
    if (!card) {
      this.#cards.set(id, (card = new Card()));
      this.#send.before(card.element);
    }
    return card;
  }
}

class Card {
  element = element("section", "call");
  #name = element("h4");
  #progress = element("span", "progress");
  #given = element("pre");
  #field = element("label", "field");
  #result = element("textarea");
  /** @type {Call | null} */ #drawn = null;

  constructor() {
    const head = element("header");
    head.append(this.#name, this.#progress);
    this.#result.rows = 2;
    this.#result.placeholder = "What it returned";
    this.#field.append(this.#result);
    this.element.append(head, this.#given, this.#field);
  }

  get result() {
    return this.#result.value;
  }

  /** @param {Call} call @param {boolean} wanted */
  draw(call, wanted) {
    this.#field.hidden = !wanted;
    if (call === this.#drawn) return;
    this.#drawn = call;
    const name = sanitize(call.name);
    const whole = call.end !== undefined;
    this.#name.textContent = name;
    this.#progress.textContent = whole ? `tokens ${call.index} to ${call.end}` : "writing";
    this.#given.textContent = sanitize(whole ? indented(call.arguments) : call.arguments);
    this.element.setAttribute("aria-label", `Call of ${name}`);
    this.element.setAttribute("aria-busy", String(!whole));
    this.#result.setAttribute("aria-label", `What ${name} returned`);
  }
}

/** @param {string} json */
function indented(json) {
  try {
    return JSON.stringify(JSON.parse(json), null, 2);
  } catch {
    return json;
  }
}
