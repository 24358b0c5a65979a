/**
 * What a model says to itself, folded: a line says that it does, and how much, and unfolds to the words. Knows DOM
 * and texts; does not know the answer that it stands in.
 */
import { element } from "./dom.js";
import { sanitize } from "./sanitize.js";

export class ReasoningFold {
  element = element("details", "reasoning");
  #title = element("summary");
  #words = element("bdi");
  #shown = "";
  #count = 0; // of its words

  constructor() {
    this.element.append(this.#title, this.#words);
    this.element.hidden = true;
    this.element.addEventListener("toggle", () => this.#fill());
  }

  /** @param {string} text @param {boolean} going whether there is more to come */
  draw(text, going) {
    this.element.hidden = !text;
    this.element.classList.toggle("going", going);
    const stood = text.startsWith(this.#shown) ? this.#shown : "";
    const more = text.slice(stood.length);
    const split = /\S\S/.test(stood.slice(-1) + more.slice(0, 1)); // a word is, and its beginning was counted
    this.#count = (stood ? this.#count : 0) + wordsIn(more) - Number(split);
    this.#title.textContent = `${going ? "Reasoning\u2026" : "Reasoning"} \u00b7 ${this.#count} ${this.#count === 1 ? "word" : "words"}`;
    this.#shown = text;
    if (!stood) this.#fill();
    else if (more && this.element.open) this.#words.append(sanitize(more));
  }

  /** Nobody pays for words that nobody sees. */
  #fill() {
    this.#words.textContent = this.element.open ? sanitize(this.#shown) : "";
  }
}

/** @param {string} text */
const wordsIn = (text) => text.match(/\S+/g)?.length ?? 0;
