/**
 * The text of an answer on the page: each word can be clicked, or reached with the arrow keys, to go on from it; calls
 * stand among the words. Knows DOM and `Transcript`; knows no stream. Everything said by a model goes through `textContent`.
 */
import { compare } from "./answer-transcript.js";
import { sanitize } from "./sanitize.js";

/** @typedef {import("./answer-transcript.js").Transcript} Transcript @typedef {import("./answer-transcript.js").Position} Position */
/** @typedef {import("./answer-transcript.js").Word} Word @typedef {import("./answer-transcript.js").Mark} Mark */
/** @typedef {import("./answer-transcript.js").CallEntry} CallEntry @typedef {Word | Mark | CallEntry} Item */

const NAMES = /** @type {Record<string, string>} */ ({
  temperature: "temperature", top_p: "top-p", top_k: "top-k", min_p: "min-p", repetition_penalty: "repetition",
  presence_penalty: "presence", frequency_penalty: "frequency", max_tokens: "at most",
});

const HOVER_MS = 1200;

export class AnswerText {
  /** @type {{ item: Item, text: string, nodes: ChildNode[] }[]} */ #drawn = [];
  /** @type {WeakMap<Element, Word>} */ #words = new WeakMap();
  #cursor = -1;
  /** @type {ReturnType<typeof setTimeout> | undefined} */ #hoverTimer;
  #card;

  /**
   * @param {Transcript} transcript @param {(entry: CallEntry) => HTMLElement} card of a call
   * @param {(word: Word) => void} onchoose @param {(text: string) => void} onpoint
   */
  constructor(transcript, card, onchoose, onpoint) {
    this.transcript = transcript;
    this.#card = card;
    this.element = document.createElement("div");
    this.element.className = "prose";
    this.element.tabIndex = 0;
    this.element.setAttribute("role", "group");
    this.element.setAttribute("aria-label", "Text of the answer. Left and right choose a word, Enter goes on from it");
    this.text = this.element.appendChild(document.createElement("bdi"));
    this.element.addEventListener("click", (event) => this.#click(event, onchoose, onpoint));
    this.element.addEventListener("pointermove", (event) => this.#hover(event));
    this.element.addEventListener("pointerleave", () => this.#highlight(Infinity));
    this.element.addEventListener("blur", () => this.#moveCursor(-1, onpoint));
    this.element.addEventListener("keydown", (event) => this.#key(event, onchoose, onpoint));
  }

  /** Bring the page up to date with the transcript: what has not changed is not touched, nor looked at. */
  draw() {
    const from = this.transcript.takeChange();
    if (!from) return;
    let stands = this.#drawn.length;
    while (stands && compare(this.#drawn[stands - 1].item, from) >= 0) stands--;
    const items = [...this.transcript.items(from)];
    const drawn = this.#drawn.slice(stands);
    let same = 0;
    while (same < drawn.length && same < items.length && this.#isDrawn(drawn[same], items[same])) same++;
    for (const { nodes } of this.#drawn.splice(stands + same)) nodes.forEach((node) => node.remove());
    for (const item of items.slice(same)) {
      const before = this.#drawn.at(-1);
      const nodes = this.#nodes(item, !before || "call" in before.item);
      this.text.append(...nodes);
      this.#drawn.push({ item, text: textOf(item), nodes });
    }
  }

  /** @param {{ item: Item, text: string }} drawn @param {Item} item */
  #isDrawn(drawn, item) {
    if ("call" in item) return "call" in drawn.item && drawn.text === textOf(item); // its card draws itself
    return drawn.item === item && drawn.text === textOf(item);
  }

  /** @param {Item} item @param {boolean} first @returns {ChildNode[]} */
  #nodes(item, first) {
    if ("call" in item) return [this.#card(item)];
    return "kind" in item ? markNodes(item) : this.#wordNodes(item, first);
  }

  /** @param {Word} word @param {boolean} first models begin with a space that nobody wants to see */
  #wordNodes(word, first) {
    const lead = /^\s*/.exec(word.text)?.[0] ?? "";
    const span = document.createElement("span");
    span.className = "word";
    span.dataset.index = String(word.index);
    span.textContent = sanitize(word.text.slice(lead.length));
    this.#words.set(span, word);
    return lead && !first ? [document.createTextNode(sanitize(lead)), span] : [span];
  }

  get #spans() {
    return /** @type {HTMLElement[]} */ ([...this.text.querySelectorAll(".word")]);
  }

  /**
   * A finger has shown nothing before it taps: its first tap on a word only points.
   * @param {MouseEvent} event @param {(word: Word) => void} onchoose @param {(text: string) => void} onpoint
   */
  #click(event, onchoose, onpoint) {
    if (!getSelection()?.isCollapsed) return; // somebody who selects text wants to copy it
    const word = event.target instanceof HTMLElement ? this.#words.get(event.target) : undefined;
    if (!word) return;
    const at = this.#spans.indexOf(/** @type {HTMLElement} */ (event.target));
    const finger = event instanceof PointerEvent && event.pointerType === "touch";
    if (finger && at !== this.#cursor) return this.#moveCursor(at, onpoint);
    this.#moveCursor(-1, onpoint);
    onchoose(word);
  }

  /** Only while the pointer moves: one that lies still is in nobody's way. @param {PointerEvent} event */
  #hover({ target, pointerType, movementX, movementY }) {
    if (pointerType === "touch" || !(movementX || movementY)) return;
    const at = target instanceof HTMLElement ? this.#spans.indexOf(target) : -1;
    this.#highlight(at < 0 ? Infinity : at);
    clearTimeout(this.#hoverTimer);
    this.#hoverTimer = setTimeout(() => this.#highlight(Infinity), HOVER_MS);
  }

  /** What would be forgotten is shown before it is. @param {number} from */
  #highlight(from) {
    this.#spans.forEach((span, at) => span.classList.toggle("void", at >= from));
  }

  /** @param {KeyboardEvent} event @param {(word: Word) => void} onchoose @param {(text: string) => void} onpoint */
  #key(event, onchoose, onpoint) {
    if (event.target !== this.element || event.altKey || event.ctrlKey || event.metaKey) return;
    const last = this.#spans.length - 1;
    const from = this.#cursor < 0 ? last + 1 : this.#cursor;
    const moves = /** @type {Record<string, number>} */ ({
      ArrowLeft: from - 1, ArrowRight: from + 1, ArrowUp: from - 10, ArrowDown: from + 10, Home: 0, End: last,
    });
    if (event.key in moves && last >= 0) {
      this.#moveCursor(Math.min(Math.max(moves[event.key], 0), last), onpoint);
      event.preventDefault();
    } else if (event.key === "Enter" && this.#cursor >= 0) {
      const word = this.#words.get(this.#spans[this.#cursor]);
      this.#moveCursor(-1, onpoint);
      if (word) onchoose(word);
      event.preventDefault();
    }
  }

  /** @param {number} at @param {(text: string) => void} onpoint */
  #moveCursor(at, onpoint) {
    const spans = this.#spans;
    spans[this.#cursor]?.classList.remove("cursor");
    this.#cursor = at;
    this.#highlight(at < 0 ? Infinity : at);
    if (at < 0) return;
    spans[at].classList.add("cursor");
    spans[at].scrollIntoView({ block: "nearest" });
    onpoint(`${spans[at].textContent}, token ${spans[at].dataset.index}`);
  }
}

/** @param {Item} item */
function textOf(item) {
  if ("call" in item) return item.call.call_id;
  return "kind" in item ? describe(item) : item.text;
}

/** @param {Mark} mark */
export function describe(mark) {
  if (mark.kind === "rewind") return "went on differently";
  if (mark.kind === "guard") return `${mark.name}: ${mark.does}`;
  if (mark.kind === "inject") return mark.messages ? mark.messages[0].content : mark.text ?? "";
  return Object.entries(mark.params).map(([name, value]) => `${NAMES[name] ?? name} ${value}`).join(", ");
}

/** @param {Mark} mark @returns {ChildNode[]} */
function markNodes(mark) {
  const element = document.createElement(mark.kind === "inject" ? "ins" : "span");
  const aside = mark.kind === "inject" && mark.messages !== undefined;
  element.className = `mark ${mark.kind}${aside ? " message" : ""}`;
  element.dataset.index = String(mark.index);
  element.setAttribute("role", "note");
  element.title = `before token ${mark.index}`;
  const text = mark.kind === "rewind" ? "\u21ba" : describe(mark);
  element.textContent = sanitize(text.trimStart());
  element.setAttribute("aria-label", `${ariaLabel(mark)}, at token ${mark.index}`);
  return text.startsWith(" ") ? [document.createTextNode(" "), element] : [element];
}

/** @param {Mark} mark */
function ariaLabel(mark) {
  const words = describe(mark);
  if (mark.kind === "inject") return `${mark.messages ? "You said" : "You put in"}: ${sanitize(words)}`;
  return words;
}
