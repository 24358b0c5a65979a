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
export function unlessAborted(promise, signal) {
  if (!signal) return promise;
  return new Promise((resolve, reject) => {
    const abort = () => reject(signal.reason);
    if (signal.aborted) abort();
    signal.addEventListener("abort", abort, { once: true });
    promise.then(resolve, reject).finally(() => signal.removeEventListener("abort", abort));
  });
}

/**
 * Call what a user gave us to call. Its mistakes are reported as uncaught ones are, and stop nothing here.
 * @template T
 * @param {((news: T) => void) | null | undefined} call
 * @param {T} news
 */
export function tell(call, news) {
  try {
    call?.(news);
  } catch (error) {
    queueMicrotask(() => {
      throw error;
    });
  }
}
