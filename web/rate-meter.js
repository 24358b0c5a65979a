/** A meter of the token rate: tokens a second, and when the first one came. Knows a clock; knows no stream and no DOM. */

const SPAN_MS = 1500;

export class RateMeter {
  /** @type {number | null} */ firstMs = null;
  #begun;
  #now;
  /** @type {{ at: number, count: number }[]} */ #recent = [];

  /** @param {() => number} [now] */
  constructor(now = () => performance.now()) {
    this.#now = now;
    this.#begun = now();
  }

  /** @param {number} count */
  record(count) {
    const at = this.#now();
    this.firstMs ??= at - this.#begun;
    this.#recent.push({ at, count });
  }

  /** Tokens a second, over the last moments. */
  get rate() {
    const now = this.#now();
    while (this.#recent.length && this.#recent[0].at < now - SPAN_MS) this.#recent.shift();
    if (!this.#recent.length) return 0;
    const span = Math.min(SPAN_MS, Math.max(now - this.#begun - (this.firstMs ?? 0), 250));
    return (this.#recent.reduce((sum, { count }) => sum + count, 0) * 1000) / span;
  }
}
