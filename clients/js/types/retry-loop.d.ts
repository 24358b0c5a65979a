/**
 * Try until it works. Throws why it did not when no time is left, or when trying again is of no use, and
 * returns, with nothing done, when `signal` is aborted.
 * @param {(signal: AbortSignal) => Promise<unknown>} attempt
 * @param {Backoff} backoff
 * @param {AbortSignal} signal gives up
 * @param {any} why what made it necessary
 */
export function retry(attempt: (signal: AbortSignal) => Promise<unknown>, backoff: Backoff, signal: AbortSignal, why: any): Promise<unknown>;
/**
 * An attempt that is given up when `signal` is aborted, or where it takes longer.
 * @template T
 * @param {(signal: AbortSignal) => Promise<T>} attempt @param {number} ms @param {AbortSignal} [signal]
 */
export function withTimeout<T>(attempt: (signal: AbortSignal) => Promise<T>, ms: number, signal?: AbortSignal): Promise<T>;
/**
 * Call it then. What is only to be asked again, for which a server may say a day, keeps no program of Node's running: the
 * socket does, as long as there is one.
 * @param {number} ms @param {(value?: any) => void} call
 */
export function later(ms: number, call: (value?: any) => void): void;
/** How long one attempt may take: where packets vanish, a socket waits for minutes. */
export const ATTEMPT_TIMEOUT_MS: 10000;
import type { Backoff } from "./backoff.js";
