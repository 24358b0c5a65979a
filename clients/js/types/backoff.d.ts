/**
 * Exponential backoff: how long to wait before the next attempt, and when to give up. Pure: it is told the time, and
 * given its random numbers.
 * @module
 */
export const BASE_MS: 100;
export const CAP_MS: 5000;
/** Exponential waits, each anywhere between nothing and its limit (full jitter), so that many do not come at once. */
export class Backoff {
    /** @param {number} forMs how long to go on trying @param {() => number} [random] from 0 to 1 */
    constructor(forMs: number, random?: () => number);
    /**
     * How long to wait before the next attempt; null where the time does not reach for one. A server that says when is
     * asked no sooner; what is past, or no number, is no time.
     * @param {number} now in milliseconds @param {unknown} [retryAfterMs]
     */
    next(now: number, retryAfterMs?: unknown): number | null;
    /** How long it may still be tried: time counts from the first question on. @param {number} now */
    left(now: number): number;
    /**
     * What was tried had worked, for so long: the next time begins anew. Where that is less than was waited for it, waits go on
     * to grow: a server that answers, and dies of it, is not asked again and again at once.
     * @param {number} lastedMs
     */
    reset(lastedMs: number): void;
    #private;
}
