/**
 * The page's connection to the server: opened, watched, and opened again when there was none, or none to be had any
 * more: a client that loses its own finds back by itself. Knows the SDK, waiting times and whether a worker is wanted;
 * knows no streams and no DOM. A key goes over HTTP, for a secret that opens one socket: the answer says what is wrong
 * with it, where a browser's WebSocket says nothing.
 *
 * @typedef {"connecting" | "open" | "reconnecting" | "waiting" | "locked" | "refused"} State `reconnecting`: by
 *   itself, with all that runs; `waiting` for the next try; `locked`: another key is wanted; `refused`: no try will do
 */
import { clientSecret, connect, connectWorker } from "/sdk/midstream.js";
import { sanitize } from "./sanitize.js";

/** @typedef {Awaited<ReturnType<typeof connect>>} Client */
/** @typedef {{ code: number | string, closeCode?: number | null, status?: number | null, message?: string,
 *   reason?: string, retryable?: boolean }} Loss  what is not the SDK's own, such as a timeout, knows no `retryable` */

const FIRST_MS = 400;
const MAX_MS = 8000;
const RETRYABLE = [1000, 1001, 1006, 1011, 1012, 1013, "connection_lost"]; // 1000 is the page's own doing
const REVOKED = 4401;
const SECRET_TIMEOUT_MS = 5000; // an HTTP connection that was kept may be as dead as the socket that was lost
const WORKER_TIMEOUT_MS = 20_000; // its script comes by HTTP, too, before it asks for a secret, and connects
const LOST = "The connection is lost. It is being made again, and what was being written goes on where it was.";
const UNREACHABLE = "The server cannot be reached. Is it running, and are you online?";

export class Connection {
  /** @type {State} */ state = "connecting";
  /** @type {Client | null} */ client = null;
  /** @type {string} */ why = "";
  /** When the next try is due, in the clock of `performance.now`. */ due = 0;
  /** @type {() => void} */ onchange = () => {};
  inWorker = false;
  #key;
  #tries = 0;
  #generation = 0; // counts connections, so that news of an earlier one is known as such
  /** @type {Worker | null} */ #worker = null;
  /** @type {ReturnType<typeof setTimeout> | undefined} */ #timer;

  /** @param {() => string} key the server's, or nothing */
  constructor(key) {
    this.#key = key;
  }

  /** Connect now, in place of whatever there is. */
  async open() {
    clearTimeout(this.#timer);
    const generation = ++this.#generation;
    this.#drop();
    this.#set("connecting", "");
    try {
      const client = await this.#dial();
      if (generation !== this.#generation) return void client.close();
      this.client = client;
      this.#tries = 0;
      client.onstate = (state) => generation === this.#generation && this.#receiveState(state);
      client.ongoingaway = () => this.#set("open", "The server is going away; what runs may finish.");
      client.closed.then((close) => generation === this.#generation && this.#lost(close));
      this.#set("open", "");
    } catch (error) {
      if (generation === this.#generation) this.#lost(/** @type {any} */ (error));
    }
  }

  /** @param {boolean} inWorker */
  use(inWorker) {
    this.inWorker = inWorker;
    return this.open();
  }

  #dial() {
    let asked = false;
    const apiKey = () => {
      if (asked && !this.#key()) return undefined; // none was wanted: to come back, a socket is enough
      asked = true;
      return clientSecret(undefined, { apiKey: this.#key(), signal: AbortSignal.timeout(SECRET_TIMEOUT_MS) });
    };
    const options = { apiKey };
    if (!this.inWorker) return connect(undefined, options);
    this.#worker = new Worker(new URL("./worker.js", import.meta.url), { type: "module", name: "midstream" });
    return connectWorker(this.#worker, undefined, { ...options, signal: AbortSignal.timeout(WORKER_TIMEOUT_MS) });
  }

  #drop() {
    const worker = this.#worker;
    if (this.client) this.client.close().then(() => worker?.terminate());
    else worker?.terminate();
    this.client = this.#worker = null;
  }

  /** @param {string} state the client's */
  #receiveState(state) {
    if (state === "open") this.#set("open", "");
    if (state === "reconnecting") this.#set("reconnecting", LOST);
  }

  /** @param {Loss} how */
  #lost(how) {
    this.client = null;
    const code = how.closeCode ?? how.code;
    if (code === "unauthenticated" || code === REVOKED) return this.#set("locked", this.#wrongKey(code));
    if (how.retryable === false && !RETRYABLE.includes(code)) {
      const said = how.reason || (how.status && how.message) || "The server closed the connection for good";
      return this.#set("refused", `${said} (${code}).`);
    }
    const wait = Math.min(FIRST_MS * 2 ** this.#tries++, MAX_MS) * (0.75 + Math.random() / 2);
    this.due = performance.now() + wait;
    this.#timer = setTimeout(() => this.open(), wait);
    this.#set("waiting", how.status && how.message ? how.message : UNREACHABLE);
  }

  /** @param {number | string} code @returns {string} "" where none was shown */
  #wrongKey(code) {
    if (code === REVOKED) return "Your key was revoked, and what was being written with it is stopped.";
    return this.#key() && "The server does not know this key. It may be mistyped, or have been revoked.";
  }

  /** @param {State} state @param {string} why */
  #set(state, why) {
    this.state = state;
    this.why = sanitize(why);
    this.onchange();
  }
}
