/**
 * Frames that wait for their answers. It knows which event answers which frame, not how they travel.
 * @module
 * @import { Answer, Final, Question } from "./wire.js"
 */

import { finished } from "./errors.js";
import { ANSWERS } from "./wire.js";

/**
 * @typedef {object} Waiting
 * @property {string | undefined} requestId
 * @property {string} answer the type of the event that it waits for
 * @property {(event: Answer) => void} resolve
 * @property {(error: Error) => void} reject
 */

export class Questions {
  /** @type {Map<string, Waiting>} */ #waiting = new Map();
  #asked = 0;

  /** @param {Question} frame @returns {{ref: string, answered: Promise<Answer>}} */
  ask(frame) {
    const ref = String(this.#asked++);
    const requestId = "request_id" in frame ? frame.request_id : undefined;
    const answered = new Promise((resolve, reject) => {
      this.#waiting.set(ref, { requestId, answer: ANSWERS[frame.type], resolve, reject });
    });
    return { ref, answered };
  }

  /** @param {string | undefined} ref @param {Answer} event */
  answer(ref, event) {
    // A frame with `at` is answered twice: the `rewound` that it caused is not yet what it waits for.
    if (ref !== undefined && this.#waiting.get(ref)?.answer === event.type) this.#take(ref)?.resolve(event);
  }

  /** @param {string | undefined} ref @param {Error} error */
  refuse(ref, error) {
    if (ref !== undefined) this.#take(ref)?.reject(error);
  }

  /**
   * Whoever still waits for something of a stream that has ended has his answer now: a cancel that crossed
   * the final on its way gets none of its own.
   * @param {Final} final
   */
  end(final) {
    for (const [ref, { requestId, answer }] of this.#waiting) {
      if (requestId !== final.request_id) continue;
      if (answer === "final") this.answer(ref, final);
      else this.refuse(ref, finished("the stream ended before the frame took effect", requestId));
    }
  }

  /** @param {Error} error */
  refuseAll(error) {
    for (const ref of this.#waiting.keys()) this.refuse(ref, error);
  }

  /** @param {string} ref */
  #take(ref) {
    const waiting = this.#waiting.get(ref);
    this.#waiting.delete(ref);
    return waiting;
  }
}
