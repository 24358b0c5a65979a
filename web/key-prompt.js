/**
 * The prompt for an API key, where the server wants one: a small form. The key is kept by this page, and in this
 * tab's storage only where its owner says so. Knows the form, not what a key opens; it tells of a new one by `onkey`.
 */
import { byId } from "./dom.js";
import { forget, keep, recall } from "./tab-storage.js";

const STORAGE_KEY = "midstream.key";

export class KeyPrompt {
  key = recall(STORAGE_KEY) ?? "";
  /** @type {() => void} */ onkey = () => {};
  #dialog = byId("key-prompt", HTMLDialogElement);
  #input = byId("key", HTMLInputElement);
  #keep = byId("keep-key", HTMLInputElement);
  #why = byId("key-prompt-why", HTMLElement);
  #submitButton = byId("key-prompt-go", HTMLButtonElement);

  constructor() {
    byId("key-prompt-form", HTMLFormElement).addEventListener("submit", (event) => {
      event.preventDefault();
      this.#submit(this.#input.value.trim());
    });
    byId("key-prompt-later", HTMLButtonElement).addEventListener("click", () => this.#dialog.close());
  }

  /** Ask for a key, or for another. @param {string} why the last one did not do; "": there was none */
  ask(why) {
    this.forget();
    this.#showProblem(why);
    if (!this.#dialog.open) this.#dialog.showModal();
    this.#input.select();
  }

  /** It did for now, or is not the question. */
  done() {
    this.#input.value = "";
    this.#dialog.close();
  }

  /** What stands in the way now is not the key. @param {string} why */
  wait(why) {
    if (this.#dialog.open) this.#showProblem(why);
  }

  forget() {
    this.key = "";
    forget(STORAGE_KEY);
  }

  /** @param {string} key */
  #submit(key) {
    if (!key) return this.#input.focus();
    this.key = key;
    if (this.#keep.checked) keep(STORAGE_KEY, key);
    this.#showProblem("");
    this.#submitButton.disabled = true;
    this.onkey();
  }

  /** @param {string} why */
  #showProblem(why) {
    this.#submitButton.disabled = false;
    this.#why.textContent = why;
    this.#why.hidden = !why;
    this.#input.setAttribute("aria-invalid", String(Boolean(why)));
  }
}
