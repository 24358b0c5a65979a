/**
 * Autocomplete as you type: each key cancels the request before it, and a short rest starts the next. Knows the SDK
 * and its own corner of the page.
 */
import { byId } from "./dom.js";
import { explain } from "./error-messages.js";
import { sanitize } from "./sanitize.js";

/** @typedef {import("./connection.js").Client} Client */

const DEBOUNCE_MS = 140;
const MAX_TOKENS = 24; // of a suggestion

export class Autocomplete {
  #client;
  #model;
  #text = byId("typed", HTMLTextAreaElement);
  #before = byId("before", HTMLElement);
  #ghost = byId("ghost", HTMLElement);
  #note = byId("typing-note", HTMLElement);
  #asked = 0;
  #cancelled = 0;
  /** @type {AbortController | null} */ #request = null;
  /** @type {ReturnType<typeof setTimeout> | undefined} */ #timer;

  /** @param {() => Client | null} client @param {() => string} model */
  constructor(client, model) {
    this.#client = client;
    this.#model = model;
    this.#text.addEventListener("input", () => this.#typed());
    this.#text.addEventListener("keydown", (event) => this.#key(event));
  }

  /** End what runs; there is nothing to suggest any more. */
  cancel() {
    clearTimeout(this.#timer);
    if (this.#request) {
      this.#request.abort();
      this.#request = null;
      this.#cancelled++;
    }
    this.#show("");
  }

  #typed() {
    this.cancel();
    if (this.#text.value.trim()) this.#timer = setTimeout(() => this.#ask(), DEBOUNCE_MS);
  }

  async #ask() {
    const client = this.#client();
    if (!client) return;
    const request = (this.#request = new AbortController());
    this.#asked++;
    try {
      const prompt = this.#text.value;
      const options = { prompt, model: this.#model() || undefined, max_tokens: MAX_TOKENS, temperature: 0.2, repetition_penalty: 1.1, on_disconnect: /** @type {const} */ ("cancel") };
      const stream = await client.start({ ...options, signal: request.signal });
      for await (const { text } of stream) {
        if (request.signal.aborted) return;
        this.#show(this.#ghost.dataset.text + text);
      }
    } catch (error) {
      if (!request.signal.aborted) this.#note.textContent = explain(error);
      return;
    } finally {
      if (this.#request === request) this.#request = null;
    }
    this.#count();
  }

  /** @param {string} suggestion */
  #show(suggestion) {
    this.#before.textContent = this.#text.value;
    this.#ghost.dataset.text = suggestion;
    this.#ghost.textContent = sanitize(suggestion);
    this.#text.style.height = "auto";
    this.#text.style.height = `${Math.max(this.#text.scrollHeight, this.#before.parentElement?.scrollHeight ?? 0)}px`;
    this.#count();
  }

  #count() {
    this.#note.textContent = `${this.#asked} asked, ${this.#cancelled} cancelled by the next key`;
  }

  /** @param {KeyboardEvent} event */
  #key(event) {
    const suggestion = this.#ghost.dataset.text ?? "";
    if (!suggestion) return;
    const word = event.key === "ArrowRight" && (event.ctrlKey || event.altKey);
    if (event.key === "Tab" && !event.shiftKey) this.#accept(suggestion);
    else if (word && this.#text.selectionStart === this.#text.value.length) this.#accept(/^\s*\S+/.exec(suggestion)?.[0] ?? suggestion);
    else if (event.key === "Escape") this.cancel();
    else return;
    event.preventDefault();
    event.stopPropagation();
  }

  /** @param {string} suggestion */
  #accept(suggestion) {
    this.#text.setRangeText(suggestion, this.#text.value.length, this.#text.value.length, "end");
    this.#typed();
  }
}
