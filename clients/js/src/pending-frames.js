/**
 * Frames that wait for their answers. It knows which event answers which frame, not how they travel.
 * @module
 * @import { Backoff } from "./backoff.js"
 * @import { Answer, Final, Question } from "./protocol.js"
 */

import { finished } from "./errors.js";
import { ANSWERS } from "./protocol.js";

/**
 * @typedef {object} Waiting
 * @property {string} ref
 * @property {Question} frame
 * @property {string | undefined} requestId
 * @property {object | null} wire what it was last sent over; null if it was not sent yet
 * @property {Backoff | null} backoff of one that is asked again while the server refuses it
 * @property {Promise<Answer>} answered
 * @property {(event: Answer) => void} resolve
 * @property {(error: Error) => void} reject
 */

export class Questions {
  /** @type {Map<string, Waiting>} */ #waiting = new Map();
  #asked = 0;

  /** @param {Question} frame @returns {Waiting} */
  ask(frame) {
    const ref = String(this.#asked++);
    const requestId = "request_id" in frame ? frame.request_id : undefined;
    let [resolve, reject] = /** @type {any[]} */ ([]);
    /** @type {Promise<Answer>} */
    const answered = new Promise((...ways) => ([resolve, reject] = ways));
    const waiting = { ref, frame, requestId, wire: null, backoff: null, answered, resolve, reject };
    this.#waiting.set(ref, waiting);
    return waiting;
  }

  /** @param {string | undefined} ref */
  get(ref) {
    return ref === undefined ? undefined : this.#waiting.get(ref);
  }

  /** In the order in which they were asked. @returns {Waiting[]} */
  all() {
    return [...this.#waiting.values()];
  }

  /** @param {string | undefined} requestId */
  of(requestId) {
    return this.all().filter((waiting) => waiting.requestId === requestId);
  }

  /** The one that is to bring a stream here. @param {string} requestId */
  opening(requestId) {
    return this.of(requestId).find(({ frame }) => opens(frame));
  }

  /** @param {string | undefined} ref @param {Answer} event */
  answer(ref, event) {
    // A frame with `at` is answered twice: the `rewound` that it caused is not yet what it waits for.
    const waiting = this.get(ref);
    if (waiting && ANSWERS[waiting.frame.type] === event.type) this.settle(ref, event);
  }

  /** This is its answer, of whatever type it is. @param {string | undefined} ref @param {Answer} event */
  settle(ref, event) {
    this.#take(ref)?.resolve(event);
  }

  /** @param {string | undefined} ref @param {Error} error */
  refuse(ref, error) {
    this.#take(ref)?.reject(error);
  }

  /**
   * Whoever still waits for something of a stream that has ended has his answer now: a cancel that crossed
   * the final on its way gets none of its own.
   * @param {Final} final
   */
  end(final) {
    for (const { ref, frame, requestId } of this.of(final.request_id)) {
      if (frame.type === "cancel" || opens(frame)) this.settle(ref, final);
      else this.refuse(ref, finished("the stream ended before the frame took effect", requestId));
    }
  }

  /** @param {string} requestId @param {Error} error */
  refuseOf(requestId, error) {
    for (const { ref } of this.of(requestId)) this.refuse(ref, error);
  }

  /** @param {Error} error */
  refuseAll(error) {
    for (const { ref } of this.all()) this.refuse(ref, error);
  }

  /** @param {string | undefined} ref */
  #take(ref) {
    const waiting = this.get(ref);
    if (waiting) this.#waiting.delete(waiting.ref);
    return waiting;
  }
}

/** @param {Question} frame */
function opens({ type }) {
  return type === "start" || type === "attach";
}
