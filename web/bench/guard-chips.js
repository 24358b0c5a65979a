/**
 * The guards that answers are held to, as chips: put there and taken away by hand, and lit up when they act. Knows DOM
 * and the shape of a guard; where they are in force is its user's business.
 *
 * @typedef {{ name: string, do: string, [rule: string]: any }} Guard
 */
import { button, element } from "../dom.js";
import { announce } from "../screen-reader.js";
import { sanitize } from "../sanitize.js";

const LIT_MS = 2400;
const DOES = /** @type {Record<string, string>} */ ({ rewind: "goes back", pause: "pauses", finish: "ends it", tell: "tells" });

/** @type {Record<string, { hint: string, words: (value: string) => string, rule: (value: string) => Record<string, any> }>} */
const KINDS = {
  says: { hint: "a pattern, such as \\d{16}", words: (value) => `never says ${value}`, rule: (value) => ({ regex: value }) },
  calls: { hint: "a tool, such as write_cell", words: (value) => `never calls ${value}`, rule: (value) => ({ tool: value }) },
  "calls at most": { hint: "so many", words: (value) => `at most ${value} calls`, rule: (value) => ({ budget: { calls: Number(value) } }) },
  "writes at most": { hint: "so many tokens", words: (value) => `at most ${value} tokens`, rule: (value) => ({ budget: { tokens: Number(value) } }) },
};

export class GuardChips {
  /** @type {(guards: Guard[]) => void} */ onchange = () => {};
  /** @type {Map<string, { guard: Guard, chip: HTMLElement, count: HTMLElement, acted: number, timer?: ReturnType<typeof setTimeout> }>} */
  #chips = new Map();
  #list;

  /** @param {HTMLElement} list @param {HTMLFormElement} form */
  constructor(list, form) {
    this.#list = list;
    const field = (/** @type {string} */ name) => /** @type {HTMLInputElement & HTMLSelectElement} */ (form.elements.namedItem(name));
    const [kind, value, act] = ["kind", "value", "do"].map(field);
    kind.append(...Object.keys(KINDS).map((name) => new Option(KINDS[name].words("\u2026"), name)));
    act.append(...Object.keys(DOES).map((name) => new Option(DOES[name], name)));
    const hint = () => (value.placeholder = KINDS[kind.value].hint);
    kind.addEventListener("change", hint);
    hint();
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      const given = value.value.trim();
      const number = kind.value.endsWith("at most");
      value.setCustomValidity(!given ? "What?" : number && !(Number(given) >= 1) ? "A number of 1 or more." : "");
      if (!value.reportValidity()) return;
      value.value = "";
      this.add({ name: KINDS[kind.value].words(given).slice(0, 64), do: act.value, ...KINDS[kind.value].rule(given) });
    });
    value.addEventListener("input", () => value.setCustomValidity(""));
  }

  get guards() {
    return [...this.#chips.values()].map(({ guard }) => guard);
  }

  /** One of the same name is in its place. @param {Guard} guard */
  add(guard) {
    this.#chips.get(guard.name)?.chip.remove();
    const chip = element("li", "guard-chip");
    const count = element("b");
    const away = button("\u00d7", () => this.#remove(guard.name), "plain");
    away.setAttribute("aria-label", `Take away the guard: ${guard.name}`);
    chip.append(element("span", "lamp"), element("bdi", "", sanitize(guard.name)), element("small", "", DOES[guard.do]), count, away);
    this.#chips.set(guard.name, { guard, chip, count, acted: 0 });
    this.#list.append(chip);
    this.onchange(this.guards);
  }

  /** @param {string} name */
  #remove(name) {
    this.#chips.get(name)?.chip.remove();
    this.#chips.delete(name);
    this.onchange(this.guards);
  }

  /** One acts: its chip lights up. @param {{ name: string, do: string, detail?: string }} event */
  receive({ name, do: does, detail = "" }) {
    const chip = this.#chips.get(name);
    if (!chip) return;
    chip.count.textContent = `\u00d7${++chip.acted}`;
    chip.chip.classList.add("lit");
    chip.chip.title = sanitize(detail);
    clearTimeout(chip.timer);
    chip.timer = setTimeout(() => chip.chip.classList.remove("lit"), LIT_MS);
    announce(`The guard \u201c${name}\u201d ${DOES[does]}`);
  }
}
