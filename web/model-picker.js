/**
 * The picker of a model: those that the server has, and which of them are not loaded. It asks again when somebody is
 * about to choose. Which model an answer is asked of is not its business.
 */
import { sanitize } from "./sanitize.js";

/** @typedef {import("../clients/js/src/protocol.js").CatalogModel} CatalogModel */

/** @type {Record<string, string>} */
const STATES = { cold: "not loaded", loading: "loading\u2026", unloading: "unloading\u2026" };

const TIMEOUT_MS = 5000; // on a line that is dead, what is asked in vain holds one of the browser's few connections

export class ModelPicker {
  #select;
  #key;
  #looking = false;

  /** @param {HTMLSelectElement} select @param {() => string} key */
  constructor(select, key) {
    this.#select = select;
    this.#key = key;
    for (const near of ["focus", "pointerenter"]) select.addEventListener(near, () => void this.#look());
  }

  get value() {
    return this.#select.value;
  }

  /** @param {{ name: string, state?: string }[]} models the default first */
  show(models) {
    const options = [...this.#select.options];
    const same = options.length === models.length && models.every(({ name }, at) => name === options[at].value);
    if (!same) this.#select.replaceChildren(...models.map(({ name }) => new Option(name, name, false, name === this.value)));
    for (const [at, option] of [...this.#select.options].entries()) {
      const state = STATES[models[at].state ?? "ready"];
      const name = sanitize(models[at].name);
      option.textContent = state ? `${name} (${state})` : name;
    }
  }

  async #look() {
    if (this.#looking) return;
    this.#looking = true;
    try {
      /** @type {Record<string, string>} */ const headers = this.#key() ? { Authorization: `Bearer ${this.#key()}` } : {};
      const answer = await fetch("/v1/models", { headers, cache: "no-store", signal: AbortSignal.timeout(TIMEOUT_MS) });
      if (!answer.ok) return;
      /** @type {{ id: string, state?: string }[]} */ const models = (await answer.json()).data;
      this.show(models.map(({ id, state }) => ({ name: id, state })));
    } catch {
      // What it shows is what was so.
    } finally {
      this.#looking = false;
    }
  }
}
