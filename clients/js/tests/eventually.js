/**
 * `eventually`: waiting for a condition that must come true, and failing where it does not.
 * @module
 */

import assert from "node:assert/strict";

const TIMEOUT_MS = 30_000; // nothing is expected to take a tenth of it
const POLL_MS = 5; // who asks all the time takes it from those who are waited for
const { setTimeout } = globalThis; // not that of a test which stands still

/**
 * The first of its values that is one.
 * @template T
 * @param {() => T | Promise<T>} look
 * @returns {Promise<NonNullable<T>>}
 */
export async function eventually(look) {
  const timeout = AbortSignal.timeout(TIMEOUT_MS);
  while (!timeout.aborted) {
    const found = await look();
    if (found) return found;
    await new Promise((resolve) => setTimeout(resolve, POLL_MS));
  }
  assert.fail(`it never came to that: ${look}`);
}
