/**
 * `http://host:8000`, `wss://host/v1/realtime` or `https://host/a/prefix`, as the WebSocket's own URL.
 * @param {string | URL | undefined} url the server's; by default where the page came from
 * @param {string | undefined} page the page's own address, where there is a page
 */
export function websocketUrl(url: string | URL | undefined, page: string | undefined): string;
/**
 * Of a server, or of several.
 * @param {string | URL | (string | URL)[] | undefined} url @param {string | undefined} page
 */
export function websocketUrls(url: string | URL | (string | URL)[] | undefined, page: string | undefined): string[];
/**
 * Where one-time secrets are had, by the same addresses.
 * @param {string | URL | undefined} url @param {string | undefined} page
 */
export function secretUrl(url: string | URL | undefined, page: string | undefined): string;
/** @returns {string | undefined} */
export function pageAddress(): string | undefined;
/**
 * The subprotocols to offer. A browser cannot set headers, so a key travels as one; never in the URL.
 * @param {string | undefined} apiKey
 */
export function subprotocols(apiKey: string | undefined): string[];
