/**
 * Client secrets: one-time secrets over HTTP, which a key is changed into before a page connects. It knows one
 * request, and what its refusals mean; unlike those of a WebSocket's upgrade, a browser shows them.
 * @module
 */

import { ConnectionLost, MidstreamError, fromEvent } from "./errors.js";
import { ATTEMPT_TIMEOUT_MS, withTimeout } from "./retry-loop.js";
import { pageAddress, secretUrl } from "./url.js";

/**
 * @typedef {object} SecretOptions
 * @property {string} [apiKey] without it, a server that wants a key says so
 * @property {string} [origin] of the page that is to connect; by default the one that asks, or the server's own
 * @property {AbortSignal} [signal] gives up asking, as happens after ten seconds in any case
 */

/**
 * Ask the server for a secret with which one page connects once, within 30 seconds.
 *
 * Throws a MidstreamError where the server refuses, such as "unauthenticated" where a key is wanted or not known,
 * and ConnectionLost if there is no server to be had. From a page it works for the server's own pages only.
 * @param {string | URL} [url] as for `connect`
 * @param {SecretOptions} [options]
 * @returns {Promise<string>}
 */
export async function clientSecret(url, { apiKey, origin, signal } = {}) {
  const there = secretUrl(url, pageAddress());
  const headers = new Headers({ "Content-Type": "application/json" });
  if (apiKey) headers.set("Authorization", `Bearer ${checkedKey(apiKey)}`);
  const body = JSON.stringify({ origin });
  const ask = async (/** @type {AbortSignal} */ given) => {
    const response = await fetch(there, { method: "POST", headers, body, signal: given, cache: "no-store" });
    return { status: response.status, text: await response.text() };
  };
  signal?.throwIfAborted();
  const { status, text } = await withTimeout(ask, ATTEMPT_TIMEOUT_MS, signal).catch((why) => {
    if (signal?.aborted) throw signal.reason;
    throw noSecret(there, why.message, true);
  });
  const { secret, error } = parsed(text) ?? {};
  if (secret) return secret;
  throw error?.code ? fromEvent(error) : noSecret(there, `HTTP ${status}`, status >= 500);
}

/** @param {string} text @returns {any} */
function parsed(text) {
  try {
    return JSON.parse(text);
  } catch {
    return null;
  }
}

/** A header would not take it, and would say so in words of its own. @param {string} key */
function checkedKey(key) {
  if (/^[!-~]+$/.test(key)) return key;
  const message = "this is no key: a key has no blanks, and no letters beyond those of English";
  throw new MidstreamError(message, { code: "unauthenticated", status: 401 });
}

/** @param {string} url @param {string} why @param {boolean} retryable */
function noSecret(url, why, retryable) {
  return new ConnectionLost(`no client secret from ${url}: ${why}`, { closeCode: null, retryable });
}
