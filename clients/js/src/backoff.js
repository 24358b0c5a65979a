/**
 * Exponential backoff: how long to wait before the next attempt, and when to give up. Pure: it is told the time, and
 * given its random numbers.
 * @module
 */

export const BASE_MS = 100;
export const CAP_MS = 5000;

/** Exponential waits, each anywhere between nothing and its limit (full jitter), so that many do not come at once. */
export class Backoff {
  #forMs;
  #random;
  #attempts = 0;
  #spanMs = 0; // of the last wait
  /** @type {number | null} */ #deadline = null;

  /** @param {number} forMs how long to go on trying @param {() => number} [random] from 0 to 1 */
  constructor(forMs, random = Math.random) {
    this.#forMs = forMs;
    this.#random = random;
  }

  /**
   * How long to wait before the next attempt; null where the time does not reach for one. A server that says when is
   * asked no sooner; what is past, or no number, is no time.
   * @param {number} now in milliseconds @param {unknown} [retryAfterMs]
   */
  next(now, retryAfterMs) {
    const left = this.left(now);
    const after = Number(retryAfterMs) > 0 ? Number(retryAfterMs) : 0;
    if (left <= 0 || after > left) return null;
    this.#spanMs = Math.min(BASE_MS * 2 ** this.#attempts++, CAP_MS);
    return Math.min(after + this.#random() * this.#spanMs, left);
  }

  /** How long it may still be tried: time counts from the first question on. @param {number} now */
  left(now) {
    this.#deadline ??= now + this.#forMs;
    return this.#deadline - now;
  }

  /**
   * What was tried had worked, for so long: the next time begins anew. Where that is less than was waited for it, waits go on
   * to grow: a server that answers, and dies of it, is not asked again and again at once.
   * @param {number} lastedMs
   */
  reset(lastedMs) {
    if (lastedMs >= this.#spanMs) this.#attempts = 0;
    this.#deadline = null;
  }
}
