/**
 * How long to wait before the next try, and when to give up. Pure: it is told the time, and given its chance.
 * @module
 */

export const BASE_MS = 100;
export const CAP_MS = 5000;

/** Exponential waits, each anywhere between nothing and its most, so that many clients do not come at once. */
export class Backoff {
  #forMs;
  #chance;
  #tries = 0;
  /** @type {number | null} */ #until = null;

  /** @param {number} forMs how long to go on trying @param {() => number} [chance] from 0 to 1 */
  constructor(forMs, chance = Math.random) {
    this.#forMs = forMs;
    this.#chance = chance;
  }

  /** How long to wait before the next try; null when there is none. @param {number} now in milliseconds */
  next(now) {
    const left = this.left(now);
    if (left <= 0) return null;
    return Math.min(this.#chance() * Math.min(BASE_MS * 2 ** this.#tries++, CAP_MS), left);
  }

  /** How long it may still be tried: time counts from the first question on. @param {number} now */
  left(now) {
    this.#until ??= now + this.#forMs;
    return this.#until - now;
  }

  /** What was tried has worked: the next time begins anew. */
  reset() {
    this.#tries = 0;
    this.#until = null;
  }
}
