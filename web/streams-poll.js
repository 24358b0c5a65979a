/**
 * Polling of the server's stream list, once a second. Knows the route, the key and what is answered; shows nothing.
 *
 * @typedef {{ request_id: string, tenant: string, state: "queued" | "running" | "paused" | "stalled",
 *   paused: string | null, age_s: number, tokens: number, tokens_per_s: number, credit: number,
 *   context_tokens: number }} ListedStream
 * @typedef {{ connections: number, tokens_per_s: number, kv_used_tokens: number, kv_cached_tokens: number,
 *   kv_free_tokens: number }} Totals
 * @typedef {{ streams: ListedStream[], total: number, states: Record<string, number>, server: Totals | null }} Listing
 */

const INTERVAL_MS = 1000;
const TIMEOUT_MS = 5000; // on a line that is dead nothing says so, and the last numbers would stand for ever
const LIMIT = 50;
const TOO_MANY = 429; // requests for now

/**
 * Until the signal is aborted; or until the server says no, which it would say again.
 * @param {() => string} key @param {AbortSignal} signal
 * @param {(listing: Listing | null, why: string) => void} receive
 */
export async function pollStreams(key, signal, receive) {
  while (!signal.aborted) {
    const { listing, why, over } = await fetchListing(key(), signal);
    if (signal.aborted) return;
    receive(listing, why);
    if (over) return;
    await new Promise((rested) => setTimeout(rested, INTERVAL_MS));
  }
}

/**
 * @param {string} key @param {AbortSignal} signal
 * @returns {Promise<{ listing: Listing | null, why: string, over?: boolean }>}
 */
async function fetchListing(key, signal) {
  try {
    /** @type {Record<string, string>} */ const headers = key ? { Authorization: `Bearer ${key}` } : {};
    const within = AbortSignal.any([signal, AbortSignal.timeout(TIMEOUT_MS)]);
    const answer = await fetch(`/v1/streams?limit=${LIMIT}`, { headers, signal: within, cache: "no-store" });
    if (answer.ok) return { listing: await answer.json(), why: "" };
    return { listing: null, why: `The server does not tell (${answer.status}).`, over: answer.status < 500 && answer.status !== TOO_MANY };
  } catch {
    return { listing: null, why: "The server does not answer." };
  }
}
