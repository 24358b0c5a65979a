/**
 * The calls of an answer as cards: their arguments fill in while they come, and what may be done with each stands below
 * it. Knows DOM and calls; what is done is passed to it.
 *
 * @typedef {import("/sdk/midstream.js").Call} Call
 * @typedef {import("./answer-transcript.js").CallEntry} CallEntry
 * @typedef {import("./call-editor.js").Mode} Mode
 * @typedef {object} Actions
 * @property {() => unknown} halt @property {() => unknown} resume
 * @property {(call: Call) => unknown} approve @property {(call: Call, why: string) => unknown} refuse
 * @property {(call: Call, content: string) => unknown} give
 * @property {(call: Call, given: string, partial: boolean) => unknown} amend
 * @property {(entry: CallEntry) => unknown} rewind @property {(entry: CallEntry) => unknown} fork
 */
import { CallEditor } from "./call-editor.js";
import { button, element } from "./dom.js";
import { sanitize } from "./sanitize.js";

const STATES = /** @type {Record<string, string>} */ ({
  writing: "writing", asking: "waits for your yes", running: "runs", waiting: "waits for you", answered: "returned", failed: "failed",
});

/** What may be done with a call that is in each state, where its answer is being written. @type {Record<string, string[]>} */
const ACTS = {
  writing: ["halt"], halted: ["amend", "resume"], asking: ["approve", "amend", "refuse"], running: ["give", "amend", "rewind"],
  waiting: ["amend", "refuse", "rewind"], answered: ["amend", "rewind", "fork"], failed: ["amend", "rewind", "fork"], ended: ["rewind", "fork"],
};

/** Of JSON that is indented: each line has blanks for each of them, and what a model nests in 20 KB would be 80 MB. */
const MOST_LEVELS = 12;

export class CallCards {
  /** @type {Map<string, Card>} by the id of their call */ #cards = new Map();
  #actions;

  /** @param {Actions} actions */
  constructor(actions) {
    this.#actions = actions;
  }

  /** @param {CallEntry} entry */
  element({ call }) {
    return this.#card(call).element;
  }

  /** @param {CallEntry[]} entries @param {"live" | "halted" | "ended"} answer */
  draw(entries, answer) {
    const ids = new Set(entries.map(({ call }) => call.call_id));
    for (const id of this.#cards.keys()) if (!ids.has(id)) this.#cards.delete(id);
    for (const entry of entries) this.#card(entry.call).draw(entry, answer);
  }

  /** @param {Call} call */
  #card({ call_id }) {
    const card = this.#cards.get(call_id) ?? new Card(this.#actions);
    this.#cards.set(call_id, card);
    return card;
  }
}

class Card {
  element = element("section", "call");
  #name = element("h4");
  #progress = element("span", "progress");
  #given = element("pre");
  #result = element("pre", "result");
  #acts = element("div", "acts");
  /** @type {unknown[]} */ #drawn = [];
  /** @type {CallEntry | null} */ #entry = null;
  #editor;
  #buttons;

  /** @param {Actions} actions */
  constructor(actions) {
    const entry = () => /** @type {CallEntry} */ (this.#entry);
    const edit = (/** @type {Mode} */ mode) => () => this.#editor.open(mode, entry().call);
    this.#editor = new CallEditor({ ...actions, onclose: () => this.#acts.querySelector("button")?.focus({ preventScroll: true }) });
    this.#buttons = /** @type {Record<string, HTMLButtonElement>} */ ({
      halt: button("Stop here", actions.halt),
      resume: button("Go on", actions.resume),
      approve: button("Approve", () => actions.approve(entry().call), "primary"),
      amend: button("Change", edit("amend")),
      refuse: button("Refuse", edit("refuse")),
      give: button("Answer it myself", edit("give")),
      rewind: button("Back to before it", () => actions.rewind(entry()), "plain"),
      fork: button("Fork before it", () => actions.fork(entry()), "plain"),
    });
    const head = element("header");
    head.append(this.#name, this.#progress);
    this.#acts.append(...Object.values(this.#buttons));
    this.element.append(head, this.#given, this.#result, this.#editor.element, this.#acts);
  }

  /** @param {CallEntry} entry @param {"live" | "halted" | "ended"} answer */
  draw(entry, answer) {
    const { call, state, content, error, progress } = entry;
    this.#entry = entry;
    const shown = [call, call.approval, state, content, error, progress, answer]; // of a call another object says more
    if (shown.every((one, at) => one === this.#drawn[at])) return;
    this.#drawn = shown;
    const name = sanitize(call.name);
    const whole = call.end !== undefined;
    const writing = answer !== "ended" && !whole;
    const may = ACTS[answer === "ended" ? "ended" : writing && answer === "halted" ? "halted" : state];
    this.#name.textContent = name;
    this.#progress.textContent = this.#said(entry, answer) + (progress && state === "running" ? `, ${sanitize(progress)}` : "");
    this.#given.textContent = sanitize(whole ? indented(call.arguments) : call.arguments);
    this.#result.textContent = sanitize(error ?? indented(content ?? ""));
    this.#result.hidden = content === undefined && error === undefined;
    this.element.dataset.state = answer === "ended" && !["answered", "failed"].includes(state) ? "ended" : state;
    this.element.setAttribute("aria-label", `Call of ${name}`);
    this.element.setAttribute("aria-busy", String(writing && answer === "live"));
    for (const [act, made] of Object.entries(this.#buttons)) made.hidden = !may.includes(act);
    this.#editor.follow(call, answer !== "ended" && state === "waiting" ? "give" : answer === "ended" ? "close" : null);
  }

  /** @param {CallEntry} entry @param {"live" | "halted" | "ended"} answer */
  #said({ call, state }, answer) {
    if (call.end === undefined) return answer === "live" ? "writing" : answer === "halted" ? "stopped here" : "broken off";
    const open = answer !== "ended" || ["answered", "failed"].includes(state);
    return `${open ? STATES[state] : "not run"}, tokens ${call.index} to ${call.end}`;
  }
}

/** @param {string} json */
function indented(json) {
  try {
    const value = JSON.parse(json);
    return typeof value === "object" && hasLevels(value, MOST_LEVELS) ? JSON.stringify(value, null, 2) : json;
  } catch {
    return json;
  }
}

/** Whether it is nested no deeper. @param {unknown} value @param {number} most @returns {boolean} */
function hasLevels(value, most) {
  return typeof value !== "object" || value === null || (most > 0 && Object.values(value).every((one) => hasLevels(one, most - 1)));
}
