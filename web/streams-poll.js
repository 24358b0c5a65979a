/**
 * Which streams the server has, asked for once a second. Knows the route, the key and what is answered; shows nothing.
 *
 * @typedef {{ request_id: string, tenant: string, state: "queued" | "running" | "paused" | "stalled",
 *   paused: string | null, age_s: number, tokens: number, tokens_per_s: number, credit: number,
 *   context_tokens: number }} Listed
 * @typedef {{ connections: number, tokens_per_s: number, kv_used_tokens: number, kv_cached_tokens: number,
 *   kv_free_tokens: number }} Totals
 * @typedef {{ streams: Listed[], total: number, states: Record<string, number>, server: Totals | null }} Listing
 */

const EVERY_MS = 1000;
const MOST = 50;

/**
 * Until the signal is aborted; or until the server says no, which it would say again.
 * @param {() => string} key @param {AbortSignal} signal
 * @param {(listing: Listing | null, why: string) => void} heard
 */
export async function watch(key, signal, heard) {
  while (!signal.aborted) {
    const { listing, why, over } = await asked(key(), signal);
    if (signal.aborted) return;
    heard(listing, why);
    if (over) return;
    await new Promise((rested) => setTimeout(rested, EVERY_MS));
  }
}

/**
 * @param {string} key @param {AbortSignal} signal
 * @returns {Promise<{ listing: Listing | null, why: string, over?: boolean }>}
 */
async function asked(key, signal) {
  try {
    /** @type {Record<string, string>} */ const headers = key ? { Authorization: `Bearer ${key}` } : {};
    const answer = await fetch(`/v1/streams?limit=${MOST}`, { headers, signal, cache: "no-store" });
    if (answer.ok) return { listing: await answer.json(), why: "" };
    return { listing: null, why: `The server does not tell (${answer.status}).`, over: answer.status < 500 };
  } catch {
    return { listing: null, why: "The server does not answer." };
  }
}
