/**
 * What the client has told a stream beside its own words, and where that stands: results of calls, and turns of others.
 *
 * A result of several that belong together waits in the server until the last of them, or the end of the model's turn:
 * docs/protocol.md, `tool_result`. Events, and frames with their answers, in; pure.
 * @module
 * @import { Answer, Injected, Message, RequestFrame } from "./protocol.js"
 */

/** @typedef {{index: number, length: number}} Place The output token before which something stands, and how much text does. */

export class Told {
  /** @type {Map<string, Place>} by call */ results = new Map();
  /** @type {{place: Place, messages: Message[]}[]} */ turns = [];
  /** @type {string[]} the refs of results that are told once more */ again = [];
  /** @type {Set<string>} calls whose results somebody may have taken back */ doubtful = new Set();
  /** @type {Set<string>} calls whose results wait */ #waiting = new Set();

  /** Whether the stream has the call's result, or the server for it. @param {string} callId */
  has(callId) {
    return this.results.has(callId) || this.#waiting.has(callId);
  }

  /** What was asked took effect. @param {RequestFrame} frame @param {Answer} answer @param {number} length of the text */
  answered(frame, answer, length) {
    if (answer.type !== "injected") return;
    const place = { index: answer.index, length };
    if (frame.type === "inject" && frame.messages) {
      for (const { tool_call_id = "" } of frame.messages) this.#waiting.delete(tool_call_id); // those calls have a result now
      this.turns.push({ place, messages: frame.messages });
    }
    if (frame.type !== "tool_result") return;
    this.#waiting.add(frame.call_id);
    if (answer.count) this.#putIn(place);
  }

  /** Where it answers nobody, it is of results that waited for the end of a turn. @param {Injected} event @param {number} length of the text */
  receive({ ref, reason, index, count }, length) {
    if (count && !reason && (!ref || this.again.includes(ref))) this.#putIn({ index, length });
  }

  /** Output from `index` on is void; these calls are left, and whole. @param {number} index @param {string[]} calls */
  rewind(index, calls) {
    for (const [call, place] of this.results) if (place.index > index || !calls.includes(call)) this.results.delete(call);
    for (const call of this.#waiting) if (!calls.includes(call)) this.#waiting.delete(call);
    this.turns = this.turns.filter(({ place }) => place.index <= index);
  }

  /** What has happened is not known, but that what stood before this token stands. @param {number} until */
  miss(until) {
    this.doubtful = new Set([...this.results].filter(([, { index }]) => index > until).map(([call]) => call));
  }

  /** Of a fork: it has what stood there. @param {Told} parent @param {number} at */
  inherit({ results, turns }, at) {
    for (const [call, place] of results) if (place.index <= at) this.results.set(call, place);
    this.turns.push(...turns.filter(({ place }) => place.index <= at));
  }

  /** @param {Place} place */
  #putIn(place) {
    for (const call of this.#waiting) this.results.set(call, place);
    this.#waiting.clear();
  }
}
