/**
 * The transcript of an answer: pieces of text at token indices, calls with what came of them, and marks of how it was
 * steered. Pure: no DOM, no stream. Every position is a `run` and an `index` in it. A run is one stream; an answer that
 * is taken up again after its end is written by several, one behind the other.
 *
 * @typedef {{ run: number, index: number }} Position
 * @typedef {Position & { count: number, text: string, tokens?: number[] | null }} Piece
 * @typedef {Position & { end: number, text: string }} Word
 * @typedef {import("/sdk/midstream.js").Message} Message @typedef {import("/sdk/midstream.js").Call} Call
 * @typedef {import("/sdk/midstream.js").CallState} CallState
 * @typedef {Position & { kind: "adjust", params: Record<string, number> }} AdjustMark
 * @typedef {Position & { kind: "inject", text?: string, messages?: { role: string, content: string }[] }} InjectMark
 * @typedef {Position & { kind: "rewind" }} RewindMark
 * @typedef {Position & { kind: "guard", name: string, does: string }} GuardMark
 * @typedef {AdjustMark | InjectMark | RewindMark | GuardMark} Mark
 * @typedef {Position & { call: Call, state: CallState, content?: string, error?: string, told: number | null, progress?: string }} CallEntry
 *   `told`: the token before which the model is told what came of it
 * @typedef {{ text: string, tokens?: number[] } | { messages: Message[] }} Part
 */
import { answerMessage, outcomeMessage } from "/sdk/midstream.js";

/** @param {Position} one @param {Position} other */
export const compare = (one, other) => one.run - other.run || one.index - other.index;

/** Where an answer's own words begin. */
export const START = { run: 0, index: 0 };

export class Transcript {
  /** @type {Position | null} from where on it may be another than it was */ #changed = START;

  constructor() {
    /** @type {Piece[]} */ this.pieces = [];
    /** @type {Mark[]} */ this.marks = [];
    /** @type {CallEntry[]} */ this.calls = [];
    /** @type {Word[]} */ this.words = [];
  }

  /** The output alone: nothing that was put in from outside. */
  get text() {
    return this.pieces.map((piece) => piece.text).join("");
  }

  /** From where on it may be another than when this was last asked; null where it is not. */
  takeChange() {
    const changed = this.#changed;
    this.#changed = null;
    return changed;
  }

  /** @param {Position} position */
  #change({ run, index }) {
    if (!this.#changed || compare({ run, index }, this.#changed) < 0) this.#changed = { run, index };
  }

  /** @param {Piece} piece */
  add(piece) {
    this.#change(this.#reached); // calls that were ahead of what is read may be so no longer
    this.pieces.push(piece);
    for (const part of piece.text.match(/\s*\S+|\s+/g) ?? []) this.#addWord(piece, part);
  }

  /** The calls of a run, as they stand now. @param {number} run @param {CallEntry[]} calls */
  show(run, calls) {
    const stood = this.calls.filter((call) => call.run === run);
    const differs = (/** @type {number} */ at) => stood[at]?.call.call_id !== calls[at]?.call.call_id || stood[at]?.index !== calls[at]?.index;
    for (let at = 0; at < Math.max(stood.length, calls.length); at++) {
      if (!differs(at)) continue;
      for (const call of [stood[at], calls[at]]) if (call) this.#change(call);
      break;
    }
    this.calls = [...this.calls.filter((call) => call.run !== run), ...calls];
  }

  /** Another, of what stands before `position`. @param {Position} position */
  before(position) {
    const other = new Transcript();
    other.marks = this.marks.filter((mark) => compare(mark, position) < 0);
    other.calls = this.calls.filter((call) => compare(call, position) < 0);
    for (const piece of this.#written(position)) other.add(piece);
    return other;
  }

  /** Marks at one position stand in the order in which they were made. @param {Mark} mark */
  mark(mark) {
    this.#change(mark);
    if (mark.kind === "adjust") {
      const existing = this.marks.find((other) => other.kind === "adjust" && compare(other, mark) === 0);
      if (existing?.kind === "adjust") {
        Object.assign(existing.params, mark.params);
        return;
      }
    }
    const after = this.marks.findIndex((other) => compare(other, mark) > 0);
    this.marks.splice(after < 0 ? this.marks.length : after, 0, mark);
  }

  /**
   * What was written from `position` on is void. Injections behind it are taken back; parameters stay in force, so
   * their marks move to where they now begin to matter. `length` is how many code points of this run's text stand.
   * @param {Position} position @param {number} [length]
   */
  cut(position, length) {
    this.#change(START); // its words are others
    const kept = this.#written(position);
    const moved = this.marks.filter((mark) => compare(mark, position) > 0 && mark.kind === "adjust");
    this.marks = this.marks.filter((mark) => compare(mark, position) <= 0);
    this.calls = this.calls.filter((call) => compare(call, position) < 0);
    this.pieces = [];
    this.words = [];
    for (const piece of length === undefined ? kept : truncateRun(kept, position.run, length)) this.add(piece);
    for (const mark of moved) this.mark({ ...mark, ...position });
  }

  /** The index behind what stands of a run. @param {number} run */
  end(run) {
    const last = this.pieces.at(-1);
    return last?.run === run ? last.index + last.count : 0;
  }

  /** @returns {Position} the end of what is read */
  get #reached() {
    const { run, index, count } = this.pieces.at(-1) ?? { ...START, count: 0 };
    return { run, index: index + count };
  }

  /**
   * Words, marks and calls at `from` or behind it, in reading order: what is no word stands before the first that it had
   * to do with.
   * @param {Position} [from]
   */
  *items(from = START) {
    const reached = this.#reached;
    const calls = this.calls.filter((call) => compare(call, reached) <= 0); // others are ahead of what is read
    const notes = [...this.marks, ...calls].filter((note) => compare(note, from) >= 0).sort(compare);
    let next = 0;
    for (let at = firstFrom(this.words, from); at < this.words.length; at++) {
      const word = this.words[at];
      while (next < notes.length && compare(notes[next], word) <= 0) yield notes[next++];
      yield word;
    }
    yield* notes.slice(next);
  }

  /** Output and injections in order, from one position to another: what a model must be given to go on from there. @returns {Part[]} */
  parts(from = START, to = { run: Infinity, index: 0 }) {
    const injected = this.marks.filter((mark) => mark.kind === "inject" && compare(mark, to) < 0 && compare(mark, from) >= 0);
    /** @type {Part[]} */ const parts = [];
    for (const piece of this.#written(to).filter((piece) => compare(piece, from) >= 0)) {
      while (injected.length && compare(injected[0], piece) <= 0) append(parts, injected.shift());
      append(parts, piece);
    }
    for (const mark of injected) append(parts, mark);
    return parts;
  }

  /**
   * The answer for a model that goes on with it: turns that are closed, for results were told behind them, and what
   * was written since.
   * @returns {{ turns: Message[], parts: Part[] }}
   */
  standing() {
    /** @type {Message[]} */ const turns = [];
    /** @type {Position} */ let from = START;
    for (const told of this.#results()) {
      turns.push(...said(this.parts(from, told[0]), told.map(({ call }) => call)), ...told.map(outcomeMessage));
      from = told[0];
    }
    return { turns, parts: this.parts(from) };
  }

  /** The answer as turns of a conversation. @returns {Message[]} */
  messages() {
    const { turns, parts } = this.standing();
    return [...turns, ...said(parts, [])];
  }

  /** Calls of which the model was told what came of them, each with the position of that; those told together beside each other. */
  #results() {
    const told = this.calls.flatMap(({ run, told, ...rest }) => (told === null ? [] : [{ ...rest, run, index: told }]));
    const places = told.filter((one, at) => told.findIndex((other) => compare(one, other) === 0) === at).sort(compare);
    return places.map((place) => told.filter((one) => compare(one, place) === 0));
  }

  /** @param {Position} position */
  #written(position) {
    return this.pieces.filter((piece) => compare(piece, position) < 0).map((piece) => pieceBefore(piece, position));
  }

  /** Whether something that is no word stands between them. @param {Word} word @param {Piece} piece */
  #parted({ run, end }, piece) {
    const between = (/** @type {Position} */ place) => compare(place, { run, index: end }) >= 0 && compare(place, piece) <= 0;
    return this.calls.some(between) || this.marks.some((mark) => mark.kind === "inject" && mark.messages && between(mark));
  }

  /** @param {Piece} piece @param {string} part */
  #addWord(piece, part) {
    const last = this.words.at(-1);
    const end = piece.index + piece.count;
    if (!last || (last.text.trim() && /^\s/.test(part)) || last.run !== piece.run || this.#parted(last, piece)) {
      this.words.push({ run: piece.run, index: piece.index, end, text: part });
      return;
    }
    this.#change(last);
    if (!last.text.trim()) last.index = piece.index; // a word begins where it can be seen
    last.text += part;
    last.end = end;
  }
}

/**
 * Where in `words` the first stands that begins at `position` or behind it. What is drawn with each token does not walk
 * through all that was said.
 * @param {Word[]} words @param {Position} position
 */
export function firstFrom(words, position) {
  let low = 0, high = words.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (compare(words[middle], position) < 0) low = middle + 1;
    else high = middle;
  }
  return low;
}

/** Parts as turns. @param {Part[]} parts @param {Call[]} calls that were made in the last of them @returns {Message[]} */
function said(parts, calls) {
  /** @type {Message[]} */ const messages = [];
  let text = "";
  for (const part of parts) {
    if ("text" in part) text += part.text;
    else {
      messages.push(...(text ? [answerMessage(text, [])] : []), ...part.messages);
      text = "";
    }
  }
  return text || calls.length ? [...messages, answerMessage(text, calls)] : messages;
}

/** Output goes back as the tokens that it was made of, where they are known. @param {Part[]} parts @param {any} piece */
function append(parts, { messages, text, tokens }) {
  const last = parts.at(-1);
  if (messages) parts.push({ messages });
  else if (last && "text" in last && !last.tokens === !tokens) {
    last.text += text;
    if (tokens) last.tokens?.push(...tokens);
  } else parts.push(tokens ? { text, tokens: [...tokens] } : { text });
}

/** What of a piece stands before `position`. @param {Piece} piece @param {Position} position @returns {Piece} */
function pieceBefore(piece, position) {
  const count = piece.run === position.run ? Math.min(piece.count, position.index - piece.index) : piece.count;
  return count === piece.count ? piece : { ...piece, count, tokens: piece.tokens?.slice(0, count) };
}

/** @param {Piece[]} pieces @param {number} run @param {number} length */
function truncateRun(pieces, run, length) {
  let left = length;
  return pieces.map((piece) => {
    if (piece.run !== run) return piece;
    const points = [...piece.text].slice(0, Math.max(left, 0));
    left -= points.length;
    return { ...piece, text: points.join("") };
  });
}

/** What `inject` takes to put a part into a context. @param {Part} part */
export function injection(part) {
  if ("messages" in part) return part;
  return part.tokens ? { tokens: part.tokens } : { text: part.text };
}
