/**
 * The retry loop: an attempt is made until it succeeds, with backoff in between. It knows timers, and a browser's
 * word that there is a network; not what is attempted, nor what becomes of it then.
 * @module
 * @import { Backoff } from "./backoff.js"
 */

import { notAnswered } from "./errors.js";

/** How long one attempt may take: where packets vanish, a socket waits for minutes. */
export const ATTEMPT_TIMEOUT_MS = 10_000;

/**
 * Try until it works. Throws why it did not when no time is left, or when trying again is of no use, and
 * returns, with nothing done, when `signal` is aborted.
 * @param {(signal: AbortSignal) => Promise<unknown>} attempt
 * @param {Backoff} backoff
 * @param {AbortSignal} signal gives up
 * @param {any} why what made it necessary
 */
export async function retry(attempt, backoff, signal, why) {
  for (let wait; (wait = backoff.next(performance.now(), why.retryAfterMs ?? 0)) !== null; ) {
    await delay(wait, signal);
    if (signal.aborted) return;
    try {
      return await withTimeout(attempt, Math.min(ATTEMPT_TIMEOUT_MS, backoff.left(performance.now())), signal);
    } catch (error) {
      if (signal.aborted) return;
      why = error;
      if (why.retryable === false) break;
    }
  }
  throw why;
}

/**
 * Time has passed, or there is a network again, or nobody waits any more.
 * @param {number} ms @param {AbortSignal} signal
 */
function delay(ms, signal) {
  return new Promise((resolve) => {
    const finish = () => {
      clearTimeout(timer);
      globalThis.removeEventListener?.("online", finish);
      signal.removeEventListener("abort", finish);
      resolve(undefined);
    };
    const timer = setTimeout(finish, ms);
    globalThis.addEventListener?.("online", finish);
    signal.addEventListener("abort", finish);
  });
}

/**
 * An attempt that is given up when `signal` is aborted, or where it takes longer.
 * @template T
 * @param {(signal: AbortSignal) => Promise<T>} attempt @param {number} ms @param {AbortSignal} [signal]
 */
export async function withTimeout(attempt, ms, signal) {
  const own = new AbortController();
  const stop = () => own.abort(signal?.reason);
  const timer = setTimeout(() => own.abort(notAnswered(ms)), ms);
  signal?.addEventListener("abort", stop);
  try {
    return await attempt(own.signal);
  } finally {
    clearTimeout(timer);
    signal?.removeEventListener("abort", stop);
  }
}

/**
 * Call it then. What is only to be asked again, for which a server may say a day, keeps no program of Node's running: the
 * socket does, as long as there is one.
 * @param {number} ms @param {(value?: any) => void} call
 */
export function later(ms, call) {
  /** @type {any} */
  const timer = setTimeout(call, ms);
  timer.unref?.();
}
