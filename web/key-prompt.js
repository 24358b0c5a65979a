/**
 * The server's key, where it wants one: asked for in a small form, kept by this page, and in this tab's storage only
 * where its owner says so. Knows the form; what a key opens is told to it, and it tells of a new one by `onkey`.
 */
import { the } from "./dom.js";

const KEPT = "midstream.key";

export class Unlock {
  key = sessionStorage.getItem(KEPT) ?? "";
  /** @type {() => void} */ onkey = () => {};
  #dialog = the("unlock", HTMLDialogElement);
  #input = the("key", HTMLInputElement);
  #keep = the("keep-key", HTMLInputElement);
  #why = the("unlock-why", HTMLElement);
  #go = the("unlock-go", HTMLButtonElement);

  constructor() {
    the("unlock-form", HTMLFormElement).addEventListener("submit", (event) => {
      event.preventDefault();
      this.#take(this.#input.value.trim());
    });
    the("unlock-later", HTMLButtonElement).addEventListener("click", () => this.#dialog.close());
  }

  /** Ask for a key, or for another. @param {string} why the last one did not do; "": there was none */
  ask(why) {
    this.forget();
    this.#say(why);
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
    if (this.#dialog.open) this.#say(why);
  }

  forget() {
    this.key = "";
    sessionStorage.removeItem(KEPT);
  }

  /** @param {string} key */
  #take(key) {
    if (!key) return this.#input.focus();
    this.key = key;
    if (this.#keep.checked) sessionStorage.setItem(KEPT, key);
    this.#say("");
    this.#go.disabled = true;
    this.onkey();
  }

  /** @param {string} why */
  #say(why) {
    this.#go.disabled = false;
    this.#why.textContent = why;
    this.#why.hidden = !why;
    this.#input.setAttribute("aria-invalid", String(Boolean(why)));
  }
}
