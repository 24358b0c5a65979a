/**
 * Connecting anew, again and again. It knows timers, and a browser's word that there is a network; not what is
 * connected to, nor what becomes of it then.
 * @module
 * @import { Backoff } from "./backoff.js"
 */

/** How long one try may take: where packets vanish, a socket waits for minutes. */
const TRY_MS = 10_000;

/**
 * Try until it works. Throws why it did not when no time is left, or when trying again is of no use, and
 * returns, with nothing done, when `gone` is aborted.
 * @param {(signal: AbortSignal) => Promise<unknown>} attempt
 * @param {Backoff} backoff
 * @param {AbortSignal} gone
 * @param {any} why what made it necessary
 */
export async function redial(attempt, backoff, gone, why) {
  for (let wait; (wait = backoff.next(performance.now())) !== null; ) {
    await rest(wait, gone);
    if (gone.aborted) return;
    try {
      return await limited(attempt, Math.min(TRY_MS, backoff.left(performance.now())), gone);
    } catch (error) {
      if (gone.aborted) return;
      why = error;
      if (why.retryable === false) break;
    }
  }
  throw why;
}

/**
 * Time has passed, or there is a network again, or nobody waits any more.
 * @param {number} ms @param {AbortSignal} gone
 */
function rest(ms, gone) {
  return new Promise((resolve) => {
    const over = () => {
      clearTimeout(timer);
      globalThis.removeEventListener?.("online", over);
      gone.removeEventListener("abort", over);
      resolve(undefined);
    };
    const timer = setTimeout(over, ms);
    globalThis.addEventListener?.("online", over);
    gone.addEventListener("abort", over);
  });
}

/**
 * @param {(signal: AbortSignal) => Promise<unknown>} attempt @param {number} ms @param {AbortSignal} gone
 */
async function limited(attempt, ms, gone) {
  const enough = new AbortController();
  const stop = () => enough.abort(new Error("the server did not answer"));
  const timer = setTimeout(stop, ms);
  gone.addEventListener("abort", stop);
  try {
    await attempt(enough.signal);
  } finally {
    clearTimeout(timer);
    gone.removeEventListener("abort", stop);
  }
}
