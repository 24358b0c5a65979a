/**
 * The tree of branches: every answer of the conversation and the forks of each, to be walked by mouse or keys. Knows
 * DOM and the conversation's turns; what walking means is passed to it.
 *
 * @typedef {import("./conversation.js").Turn} Turn @typedef {import("./answer-card.js").AnswerCard} AnswerCard
 */
import { firstFrom } from "./answer-transcript.js";
import { element } from "./dom.js";
import { sanitize } from "./sanitize.js";

const WORDS = 6;

export class BranchTree {
  #tree;
  #walk;
  /** @type {Map<AnswerCard, HTMLElement>} */ #items = new Map();
  /** @type {Turn[] | null} those that are to be drawn */ #turns = null;

  /** @param {HTMLElement} tree @param {(card: AnswerCard) => void} walk */
  constructor(tree, walk) {
    this.#tree = tree;
    this.#walk = walk;
    tree.addEventListener("keydown", (event) => this.#key(event));
  }

  /** At most once a frame, however many tokens it brought: each answer of the conversation is looked at. @param {Turn[]} turns */
  draw(turns) {
    const due = this.#turns !== null;
    this.#turns = turns;
    if (!due) requestAnimationFrame(() => this.#drawAll());
  }

  #drawAll() {
    const turns = this.#turns ?? [];
    this.#turns = null;
    const cards = turns.flatMap((turn) => turn.cards);
    for (const [card, item] of this.#items) {
      if (cards.includes(card)) continue;
      item.remove();
      this.#items.delete(card);
    }
    for (const turn of turns) for (const card of turn.cards) this.#draw(card, turn);
    if (!this.#tree.querySelector("[tabindex='0']")) this.#aim([...this.#items.values()][0]);
  }

  /** @param {AnswerCard} card @param {Turn} turn */
  #draw(card, turn) {
    const { answer } = card;
    const item = this.#items.get(card) ?? this.#add(card, turn);
    const [line] = item.children;
    const { words: all } = answer.transcript;
    const own = answer.origin ? firstFrom(all, answer.origin.at) : 0;
    const from = answer.origin ? `from token ${answer.origin.at.index}` : sanitize(turn.question).slice(0, 40);
    const words = all.slice(own, own + WORDS).map(({ text }) => sanitize(text.trim())).join(" ");
    const shown = [answer.label, from, words].join("\n");
    if (item.dataset.shown !== shown) {
      item.dataset.shown = shown;
      line.replaceChildren(element("b", "", answer.label), element("small", "", from), element("bdi", "", words));
    }
    item.dataset.state = answer.running ? answer.state : "ended";
    const here = card === turn.chosen;
    if (item.getAttribute("aria-selected") !== String(here)) item.setAttribute("aria-selected", String(here));
  }

  /** @param {AnswerCard} card @param {Turn} turn */
  #add(card, turn) {
    const item = element("li");
    item.setAttribute("role", "treeitem");
    item.tabIndex = -1;
    const line = element("div", "line");
    line.addEventListener("click", () => this.#choose(item, card));
    item.append(line);
    const parent = turn.cards.find(({ answer }) => answer === card.answer.origin?.answer);
    (parent ? this.#group(/** @type {HTMLElement} */ (this.#items.get(parent))) : this.#tree).append(item);
    this.#items.set(card, item);
    return item;
  }

  /** @param {HTMLElement} item */
  #group(item) {
    const found = item.querySelector(":scope > ul");
    if (found) return found;
    const group = element("ul");
    group.setAttribute("role", "group");
    item.setAttribute("aria-expanded", "true");
    item.append(group);
    return group;
  }

  /** @param {HTMLElement} item @param {AnswerCard} card */
  #choose(item, card) {
    this.#aim(item);
    this.#walk(card);
  }

  /** The one that Tab goes to. @param {HTMLElement | undefined} item */
  #aim(item) {
    for (const other of this.#items.values()) other.tabIndex = other === item ? 0 : -1;
  }

  /** @param {KeyboardEvent} event */
  #key(event) {
    const items = /** @type {HTMLElement[]} */ ([...this.#tree.querySelectorAll("[role=treeitem]")]);
    const item = /** @type {HTMLElement} */ (event.target);
    const at = items.indexOf(item);
    const parent = item.parentElement?.closest("[role=treeitem]");
    const to = /** @type {Record<string, Element | null | undefined>} */ ({
      ArrowDown: items[at + 1], ArrowUp: items[at - 1], Home: items[0], End: items.at(-1),
      ArrowRight: item.querySelector("[role=treeitem]"), ArrowLeft: parent,
    })[event.key];
    const card = [...this.#items].find(([, one]) => one === item)?.[0];
    if ((event.key === "Enter" || event.key === " ") && card) this.#choose(item, card);
    else if (to instanceof HTMLElement) {
      this.#aim(to);
      to.focus();
    } else return;
    event.preventDefault();
    event.stopPropagation();
  }
}
