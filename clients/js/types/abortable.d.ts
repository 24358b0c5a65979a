/**
 * Two small things about waiting and telling, that know nothing of streams.
 * @module
 */
/**
 * The promise, unless the signal is aborted first: then its reason is thrown.
 * @template T
 * @param {Promise<T>} promise
 * @param {AbortSignal | undefined} signal
 * @returns {Promise<T>}
 */
export function unlessAborted<T>(promise: Promise<T>, signal: AbortSignal | undefined): Promise<T>;
/**
 * Call what a user gave us to call. Its mistakes are reported as uncaught ones are, and stop nothing here.
 * @template T
 * @param {((news: T) => void) | null | undefined} call
 * @param {T} news
 */
export function tell<T>(call: ((news: T) => void) | null | undefined, news: T): void;
