/**
 * The settings form, with sliders for sampling parameters: what an answer starts with, and what changes in one that
 * runs. Knows names, ranges and the page's form; what is done with a change is `onadjust`'s business.
 */
import { element } from "./dom.js";
import { StructureBoxes } from "./structure-boxes.js";

/** @typedef {{ name: string, label: string, value: number, min: number, max: number, step: number, hint: string }} Slider */

/** @type {Slider[]} */
const SLIDERS = [
  { name: "temperature", label: "Temperature", value: 0.7, min: 0, max: 2, step: 0.05, hint: "0 always takes the likeliest" },
  { name: "top_p", label: "Top-p", value: 0.95, min: 0.05, max: 1, step: 0.01, hint: "the likeliest, up to this much probability" },
  { name: "top_k", label: "Top-k", value: 0, min: 0, max: 200, step: 1, hint: "the likeliest, so many; 0 is all" },
  { name: "min_p", label: "Min-p", value: 0, min: 0, max: 0.5, step: 0.01, hint: "none less likely than this share of the likeliest" },
  { name: "repetition_penalty", label: "Repetition", value: 1.1, min: 1, max: 2, step: 0.01, hint: "against what was said; 1 is off" },
  { name: "presence_penalty", label: "Presence", value: 0, min: -2, max: 2, step: 0.05, hint: "towards new words" },
  { name: "frequency_penalty", label: "Frequency", value: 0, min: -2, max: 2, step: 0.05, hint: "against words said often" },
];
const DEBOUNCE_MS = 160; // a slider that is being dragged is applied when it rests

export class SettingsForm {
  /** @type {(params: Record<string, number>) => void} */ onadjust = () => {};
  /** @type {(pace: number) => void} */ onpace = () => {};
  /** @type {Map<string, HTMLInputElement>} */ #inputs = new Map();
  /** @type {Record<string, number>} */ #changed = {};
  /** @type {ReturnType<typeof setTimeout> | undefined} */ #timer;
  #form;
  #boxes;

  /** @param {HTMLFormElement} form */
  constructor(form) {
    this.#form = form;
    this.#boxes = new StructureBoxes(form);
    form.querySelector(".sliders")?.append(...SLIDERS.map((slider) => this.#slider(slider)));
    form.addEventListener("submit", (event) => event.preventDefault());
    const pace = this.#field("pace");
    pace.addEventListener("input", () => this.onpace(Number(pace.value) || 0));
  }

  /** What an answer starts with. */
  get settings() {
    /** @type {Record<string, any>} */
    const params = Object.fromEntries([...this.#inputs].map(([name, input]) => [name, input.valueAsNumber]));
    const max = this.#field("max_tokens").valueAsNumber;
    const min = this.#field("min_tokens").valueAsNumber;
    const seed = this.#field("seed").valueAsNumber;
    const stop = this.#field("stop").value;
    if (max) params.max_tokens = max;
    if (min) params.min_tokens = min;
    if (!Number.isNaN(seed)) params.seed = seed;
    if (stop) params.stop = [stop];
    const window = Math.max(this.#field("window").valueAsNumber || 64, 1);
    const { grammar, tools } = this.#boxes.options;
    if (grammar) params.grammar = grammar;
    return { params, window, pace: this.#field("pace").valueAsNumber || 0, tools };
  }

  /** Whether an answer can start with them; where not, what stands in its way is shown. */
  report() {
    return this.#boxes.report();
  }

  /** A step up or down, as by a key. @param {string} name @param {number} steps */
  nudge(name, steps) {
    const input = this.#inputs.get(name);
    if (!input) return;
    steps > 0 ? input.stepUp(steps) : input.stepDown(-steps);
    input.dispatchEvent(new Event("input", { bubbles: true }));
  }

  /** @param {string} name */
  #field(name) {
    return /** @type {HTMLInputElement} */ (this.#form.elements.namedItem(name));
  }

  /** @param {Slider} slider */
  #slider({ name, label, hint, ...range }) {
    const input = element("input");
    Object.assign(input, { type: "range", id: `slider-${name}`, name, ...rangeAttributes(range) });
    input.setAttribute("aria-describedby", `hint-${name}`);
    const shown = element("output", "", input.value);
    const title = element("label", "", label);
    title.htmlFor = shown.htmlFor.value = input.id;
    const note = element("small", "", hint);
    note.id = `hint-${name}`;
    input.addEventListener("input", () => {
      shown.textContent = input.value;
      this.#change(name, input.valueAsNumber);
    });
    this.#inputs.set(name, input);
    const row = element("div", "slider");
    row.append(title, shown, input, note);
    return row;
  }

  /** @param {string} name @param {number} value */
  #change(name, value) {
    this.#changed[name] = value;
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => {
      const params = this.#changed;
      this.#changed = {};
      this.onadjust(params);
    }, DEBOUNCE_MS);
  }
}

/** A range's ends must stand before its value, or the value is bent to others. @param {Omit<Slider, "name" | "label" | "hint">} range */
function rangeAttributes({ min, max, step, value }) {
  return { min: String(min), max: String(max), step: String(step), value: String(value) };
}
