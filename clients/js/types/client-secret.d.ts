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
export function clientSecret(url?: string | URL, { apiKey, origin, signal }?: SecretOptions): Promise<string>;
export type SecretOptions = {
    /**
     * without it, a server that wants a key says so
     */
    apiKey?: string | undefined;
    /**
     * of the page that is to connect; by default the one that asks, or the server's own
     */
    origin?: string | undefined;
    /**
     * gives up asking, as happens after ten seconds in any case
     */
    signal?: AbortSignal | undefined;
};
