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

  constructor() {
    this.element.append(this.#title, this.#words);
    this.element.hidden = true;
    this.element.addEventListener("toggle", () => this.#fill());
  }

  /** @param {string} text @param {boolean} going whether there is more to come */
  draw(text, going) {
    this.element.hidden = !text;
    this.element.classList.toggle("going", going);
    const words = text.split(/\s+/).filter(Boolean).length;
    this.#title.textContent = `${going ? "Reasoning\u2026" : "Reasoning"} \u00b7 ${words} ${words === 1 ? "word" : "words"}`;
    this.#shown = text;
    this.#fill();
  }

  /** Nobody pays for words that nobody sees. */
  #fill() {
    const text = this.element.open ? sanitize(this.#shown) : "";
    if (this.#words.textContent !== text) this.#words.textContent = text;
  }
}
