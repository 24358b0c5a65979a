/**
 * URLs: from the address that a person has at hand to the one of the server's WebSocket. It asks nobody but
 * the page for its address.
 * @module
 */

import { SUBPROTOCOL } from "./protocol.js";

const PATH = "/v1/realtime";
/** @type {Record<string, string>} */
const SCHEMES = { "ws:": "ws:", "wss:": "wss:", "http:": "ws:", "https:": "wss:" };

/**
 * `http://host:8000`, `wss://host/v1/realtime` or `https://host/a/prefix`, as the WebSocket's own URL.
 * @param {string | URL | undefined} url the server's; by default where the page came from
 * @param {string | undefined} page the page's own address, where there is a page
 */
export function websocketUrl(url, page) {
  const given = address(url ?? (page && new URL("/", page)), page);
  const scheme = given && SCHEMES[given.protocol];
  if (!given || !scheme || !given.host) {
    const right = 'expected one such as "http://127.0.0.1:8000"';
    throw new TypeError(`"${url ?? ""}" is no address of a server: ${right}`);
  }
  const { username, password } = (url && address(url, undefined)) || {}; // the page's own are the page's business
  if (username || password) throw new TypeError("the address of a server has no user and no password in it: what lets in is a key");
  const path = given.pathname.replace(/\/+$/, "");
  const full = path.endsWith(PATH) ? path : path + PATH;
  return `${scheme}//${given.host}${full}${given.search}`;
}

/**
 * Of a server, or of several.
 * @param {string | URL | (string | URL)[] | undefined} url @param {string | undefined} page
 */
export function websocketUrls(url, page) {
  const urls = Array.isArray(url) ? url : [url];
  if (!urls.length) throw new TypeError("there is no address of a server: expected at least one");
  return urls.map((one) => websocketUrl(one, page));
}

/**
 * Where one-time secrets are had, by the same addresses.
 * @param {string | URL | undefined} url @param {string | undefined} page
 */
export function secretUrl(url, page) {
  const there = new URL(websocketUrl(url, page));
  there.pathname += "/client_secrets";
  return there.href.replace(/^ws/, "http");
}

/** @returns {string | undefined} */
export function pageAddress() {
  return globalThis.location?.href;
}

/** @param {string | URL | undefined} url @param {string | undefined} base @returns {URL | null} */
function address(url, base) {
  try {
    return url === undefined ? null : new URL(url, base);
  } catch {
    return null;
  }
}

/**
 * The subprotocols to offer. A browser cannot set headers, so a key travels as one; never in the URL.
 * @param {string | undefined} apiKey
 */
export function subprotocols(apiKey) {
  return apiKey ? [SUBPROTOCOL, `bearer.${base64url(apiKey)}`] : [SUBPROTOCOL];
}

/** @param {string} text */
function base64url(text) {
  const bytes = String.fromCharCode(...new TextEncoder().encode(text));
  return btoa(bytes).replaceAll("+", "-").replaceAll("/", "_").replace(/=+$/, "");
}
