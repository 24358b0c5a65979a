/**
 * The editor below a call: its arguments are changed there, or it is said what it returned, or why it may not run.
 * Knows DOM and one call; what is done is passed to it.
 *
 * @typedef {import("/sdk/midstream.js").Call} Call
 * @typedef {"amend" | "give" | "refuse"} Mode
 */
import { button, element } from "./dom.js";
import { sanitize } from "./sanitize.js";

const MODES = {
  amend: { label: (/** @type {string} */ name) => `Arguments of ${name}`, hint: "", go: "Use these" },
  give: { label: (/** @type {string} */ name) => `What ${name} returned`, hint: "What it returned", go: "Return this" },
  refuse: { label: (/** @type {string} */ name) => `Why ${name} may not run`, hint: "Why not? The model is told", go: "Refuse" },
};

export class CallEditor {
  element = element("form", "editor");
  #text = element("textarea");
  #go = element("button");
  #on = button("Write on from this", () => this.#send(true));
  #leave = button("Leave", () => this.#back(), "plain");
  /** @type {Mode | null} */ #mode = null;
  /** @type {Call | null} */ #call = null;
  /** Whether the call waits for somebody to say what it returned. */ #awaited = false;
  #actions;

  /**
   * @param {Pick<import("./call-cards.js").Actions, "amend" | "give" | "refuse"> & { onclose: () => void }} actions
   */
  constructor(actions) {
    this.#actions = actions;
    const row = element("div", "acts");
    row.append(this.#go, this.#on, this.#leave);
    this.#text.rows = 2;
    this.#text.spellcheck = false;
    this.element.append(this.#text, row);
    this.element.hidden = true;
    this.element.addEventListener("submit", (event) => {
      event.preventDefault();
      this.#send(false);
    });
    this.element.addEventListener("keydown", (event) => {
      if (event.key !== "Escape") return;
      event.stopPropagation();
      this.#back();
    });
  }

  /** @param {Mode} mode @param {Call} call @param {boolean} [focus] */
  open(mode, call, focus = true) {
    const name = sanitize(call.name);
    this.#mode = mode;
    this.#call = call;
    this.#text.value = mode === "amend" ? call.arguments : "";
    this.#text.placeholder = MODES[mode].hint;
    this.#text.setAttribute("aria-label", MODES[mode].label(name));
    this.#go.textContent = MODES[mode].go;
    this.#on.hidden = mode !== "amend";
    this.#showLeave();
    this.element.hidden = false;
    if (focus) this.#text.focus();
  }

  /** Left: where the call waits for somebody no button but this editor's says what it returned, so it goes back to that. */
  #back() {
    if (!this.#awaited || !this.#call) this.close();
    else if (this.#mode !== "give") this.open("give", this.#call);
  }

  close() {
    if (this.element.hidden) return;
    this.element.hidden = true;
    this.#mode = null;
    this.#actions.onclose();
  }

  /** The call as it is now. Where it waits for somebody the editor asks what it returned. @param {Call} call @param {"give" | "close" | null} due */
  follow(call, due) {
    const over = due === "close" || (due !== "give" && this.#awaited && this.#mode === "give");
    this.#call = call;
    this.#awaited = due === "give";
    if (over) this.close();
    else if (this.#awaited && !this.#mode) this.open("give", call, false);
    this.#showLeave();
  }

  #showLeave() {
    this.#leave.hidden = this.#awaited && this.#mode === "give"; // there is nothing else to do
  }

  /** @param {boolean} partial */
  async #send(partial) {
    const mode = this.#mode, call = this.#call, { value } = this.#text;
    if (!mode || !call) return;
    const done = await (mode === "amend" ? this.#actions.amend(call, value, partial) : this.#actions[mode](call, value));
    if (done === false || done === null) return;
    mode === "amend" ? this.#back() : this.close();
  }
}
