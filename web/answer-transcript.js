/**
 * The transcript of an answer: pieces of text at token indices, and marks of how it was steered.
 * Pure: no DOM, no stream. Every position is a `run` and an `index` in it. A run is one stream; an answer that is
 * taken up again after its end is written by several, one behind the other.
 *
 * @typedef {{ run: number, index: number }} Position
 * @typedef {Position & { count: number, text: string, tokens?: number[] | null }} Piece
 * @typedef {Position & { end: number, text: string }} Word
 * @typedef {{ role: string, content: string }} Message
 * @typedef {Position & { kind: "adjust", params: Record<string, number> }} AdjustMark
 * @typedef {Position & { kind: "inject", text?: string, messages?: Message[] }} InjectMark
 * @typedef {Position & { kind: "rewind" }} RewindMark
 * @typedef {AdjustMark | InjectMark | RewindMark} Mark
 * @typedef {{ text: string, tokens?: number[] } | { messages: Message[] }} Part
 */

/** @param {Position} one @param {Position} other */
export const compare = (one, other) => one.run - other.run || one.index - other.index;

export class Transcript {
  constructor() {
    /** @type {Piece[]} */ this.pieces = [];
    /** @type {Mark[]} */ this.marks = [];
    /** @type {Word[]} */ this.words = [];
  }

  /** The output alone: nothing that was put in from outside. */
  get text() {
    return this.pieces.map((piece) => piece.text).join("");
  }

  /** @param {Piece} piece */
  add(piece) {
    this.pieces.push(piece);
    for (const part of piece.text.match(/\s*\S+|\s+/g) ?? []) this.#addWord(piece, part);
  }

  /** Marks at one position stand in the order in which they were made. @param {Mark} mark */
  mark(mark) {
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
    const kept = this.pieces.filter((piece) => compare(piece, position) < 0).map((piece) => pieceBefore(piece, position));
    const moved = this.marks.filter((mark) => compare(mark, position) > 0 && mark.kind === "adjust");
    this.marks = this.marks.filter((mark) => compare(mark, position) <= 0);
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

  /** Words and marks in reading order: a mark stands before the first word that it had to do with. */
  *items() {
    let next = 0;
    for (const word of this.words) {
      while (next < this.marks.length && compare(this.marks[next], word) <= 0) yield this.marks[next++];
      yield word;
    }
    yield* this.marks.slice(next);
  }

  /** Output and injections in order, up to `position`: what a model must be given to go on from there. @returns {Part[]} */
  parts(position = { run: Infinity, index: 0 }) {
    const injected = this.marks.filter((mark) => mark.kind === "inject" && compare(mark, position) <= 0);
    const written = this.pieces.filter((piece) => compare(piece, position) < 0).map((piece) => pieceBefore(piece, position));
    /** @type {Part[]} */ const parts = [];
    for (const piece of written) {
      while (injected.length && compare(injected[0], piece) <= 0) append(parts, injected.shift());
      append(parts, piece);
    }
    for (const mark of injected) append(parts, mark);
    return parts;
  }

  /** The answer as turns of a conversation. @returns {Message[]} */
  messages() {
    /** @type {Message[]} */ const messages = [];
    for (const part of this.parts()) {
      const last = messages.at(-1);
      if ("messages" in part) messages.push(...part.messages);
      else if (last?.role === "assistant") last.content += part.text;
      else messages.push({ role: "assistant", content: part.text });
    }
    return messages;
  }

  /** @param {Piece} piece @param {string} part */
  #addWord(piece, part) {
    const last = this.words.at(-1);
    const end = piece.index + piece.count;
    if (!last || (last.text.trim() && /^\s/.test(part)) || last.run !== piece.run) {
      this.words.push({ run: piece.run, index: piece.index, end, text: part });
      return;
    }
    if (!last.text.trim()) last.index = piece.index; // a word begins where it can be seen
    last.text += part;
    last.end = end;
  }
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
