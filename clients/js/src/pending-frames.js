/**
 * Pending frames: those that were sent, or are to be, and wait for their answers. It knows which event answers
 * which frame, not how they travel.
 * @module
 * @import { Backoff } from "./backoff.js"
 * @import { Answer, Final, RequestFrame } from "./protocol.js"
 */

import { outcomeUnknown, requestFinished } from "./errors.js";
import { ANSWERS } from "./protocol.js";
import { idempotent } from "./recovery.js";

/**
 * @typedef {object} PendingFrame A frame that waits for its answer: an event with its ref, or an error.
 * @property {string} ref
 * @property {RequestFrame} frame
 * @property {string | undefined} requestId
 * @property {object | null} transport what it was last sent over; null if it was not sent yet
 * @property {ReturnType<typeof setTimeout> | undefined} held until when it waits for a server that starts something new
 * @property {Backoff | null} backoff of one that is sent again while the server refuses it
 * @property {(event: Answer) => void} onanswer told at once, before any event that follows its answer
 * @property {Promise<Answer>} answered
 * @property {(event: Answer) => void} resolve
 * @property {(error: Error) => void} reject
 */

/** The pending frames of a session, by their refs. */
export class PendingFrames {
  /** @type {Map<string, PendingFrame>} */ #byRef = new Map();
  #count = 0;
  #prefix;

  /** @param {string} [prefix] so that no other client's refs, on the same stream, are ours */
  constructor(prefix = "") {
    this.#prefix = prefix;
  }

  /** @param {RequestFrame} frame @param {(event: Answer) => void} [onanswer] @returns {PendingFrame} */
  add(frame, onanswer = () => {}) {
    return this.#make(`${this.#prefix}${this.#count++}`, frame, onanswer);
  }

  /**
   * Once more what has had its answer, by its old ref: before all that has none.
   * @param {string} ref @param {RequestFrame} frame @param {(event: Answer) => void} onanswer
   */
  addAgain(ref, frame, onanswer) {
    const others = this.#byRef;
    this.#byRef = new Map();
    const pending = this.#make(ref, frame, onanswer);
    for (const [other, one] of others) this.#byRef.set(other, one);
    return pending;
  }

  /** @param {string} ref @param {RequestFrame} frame @param {(event: Answer) => void} onanswer @returns {PendingFrame} */
  #make(ref, frame, onanswer) {
    const requestId = "request_id" in frame ? frame.request_id : undefined;
    let [resolve, reject] = /** @type {any[]} */ ([]);
    /** @type {Promise<Answer>} */
    const answered = new Promise((...settlers) => ([resolve, reject] = settlers));
    const pending = { ref, frame, requestId, transport: null, held: undefined, backoff: null, onanswer, answered, resolve, reject };
    this.#byRef.set(ref, pending);
    return pending;
  }

  /** @param {string | undefined} ref */
  get(ref) {
    return ref === undefined ? undefined : this.#byRef.get(ref);
  }

  /** In the order in which they were added. @returns {PendingFrame[]} */
  all() {
    return [...this.#byRef.values()];
  }

  /** @param {string | undefined} requestId */
  ofStream(requestId) {
    return this.all().filter((pending) => pending.requestId === requestId);
  }

  /** The one that is to open the stream here. @param {string} requestId */
  opening(requestId) {
    return this.ofStream(requestId).find(({ frame }) => opens(frame));
  }

  /** @param {string | undefined} ref @param {Answer} event */
  receiveAnswer(ref, event) {
    // A frame with `at` is answered twice: the `rewound` that it caused is not yet what it waits for.
    const pending = this.get(ref);
    if (pending && ANSWERS[pending.frame.type] === event.type) this.resolve(ref, event);
  }

  /** This is its answer, of whatever type it is. @param {string | undefined} ref @param {Answer} event */
  resolve(ref, event) {
    const pending = this.#remove(ref);
    pending?.onanswer(event);
    pending?.resolve(event);
  }

  /** @param {string | undefined} ref @param {Error} error */
  reject(ref, error) {
    this.#remove(ref)?.reject(error);
  }

  /**
   * All that is pending of a stream that has ended is answered by its end: a cancel that crossed the final on its
   * way gets no answer of its own.
   * @param {Final} final @param {boolean} answersLost whether some may have been given, and not told
   */
  receiveFinal(final, answersLost) {
    for (const { ref, frame, requestId, transport } of this.ofStream(final.request_id)) {
      if (frame.type === "cancel" || opens(frame)) this.resolve(ref, final);
      else if (answersLost && transport && !idempotent(frame)) this.reject(ref, outcomeUnknown(frame.type, requestId));
      else this.reject(ref, requestFinished("the stream ended before the frame took effect", requestId));
    }
  }

  /** @param {string} requestId @param {Error} error */
  rejectOfStream(requestId, error) {
    for (const { ref } of this.ofStream(requestId)) this.reject(ref, error);
  }

  /** @param {Error} error */
  rejectAll(error) {
    for (const { ref } of this.all()) this.reject(ref, error);
  }

  /** @param {string | undefined} ref */
  #remove(ref) {
    const pending = this.get(ref);
    if (pending) this.#byRef.delete(pending.ref);
    return pending;
  }
}

/** @param {RequestFrame} frame */
export function opens({ type }) {
  return type === "start" || type === "attach";
}
