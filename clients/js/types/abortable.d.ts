/**
 * Abortable promises: waiting that an AbortSignal cuts short. It knows nothing of streams.
 * @module
 */
/**
 * The promise, unless the signal is aborted first: then its reason is thrown.
 * @template T
 * @param {Promise<T>} promise
 * @param {AbortSignal | undefined} signal
 * @returns {Promise<T>}
 */
export function abortable<T>(promise: Promise<T>, signal: AbortSignal | undefined): Promise<T>;
