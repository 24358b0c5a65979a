/**
 * `eventually`: waiting for a condition that must come true, and failing where it does not.
 * @module
 */

import assert from "node:assert/strict";

const TIMEOUT_MS = 30_000; // nothing is expected to take a tenth of it

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
    await new Promise((resolve) => setImmediate(resolve));
  }
  assert.fail(`it never came to that: ${look}`);
}
