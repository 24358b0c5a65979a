/**
 * Try until it works. Throws why it did not when no time is left, or when trying again is of no use, and
 * returns, with nothing done, when `signal` is aborted.
 * @param {(signal: AbortSignal) => Promise<unknown>} attempt
 * @param {Backoff} backoff
 * @param {AbortSignal} signal gives up
 * @param {any} why what made it necessary
 */
export function retry(attempt: (signal: AbortSignal) => Promise<unknown>, backoff: Backoff, signal: AbortSignal, why: any): Promise<void>;
import type { Backoff } from "./backoff.js";
