/**
 * The page's connection: opened, watched, and opened again when there was none, or none to be had any more: a
 * client that loses its own finds back by itself. Knows the SDK, waiting times and whether a worker is wanted;
 * knows no streams and no DOM.
 *
 * @typedef {"connecting" | "open" | "reconnecting" | "waiting" | "refused"} State `reconnecting`: by itself, with
 *   all that runs; `waiting` for the next try; `refused`: no try will
 */
import { connect, connectWorker } from "/sdk/midstream.js";

/** @typedef {Awaited<ReturnType<typeof connect>>} Client */

const FIRST_MS = 400;
const MOST_MS = 8000;
const OURS = 1000; // a normal close: the page's own doing
const LOST = "The connection is lost. It is being made again, and what was being written goes on where it was.";
const NEVER_OPENED = 1006; // no close frame came: the network, or a server that is gone

export class Connection {
  /** @type {State} */ state = "connecting";
  /** @type {Client | null} */ client = null;
  /** @type {string} */ why = "";
  /** When the next try is due, in the clock of `performance.now`. */ due = 0;
  /** @type {() => void} */ onchange = () => {};
  inWorker = false;
  apiKey = "";
  #tries = 0;
  #life = 0; // counts connections, so that news of an earlier one is known as such
  /** @type {Worker | null} */ #worker = null;
  /** @type {ReturnType<typeof setTimeout> | undefined} */ #timer;

  /** Connect now, in place of whatever there is. */
  async open() {
    clearTimeout(this.#timer);
    const life = ++this.#life;
    this.#drop();
    this.#set("connecting", "");
    try {
      const client = await this.#dial();
      if (life !== this.#life) return void client.close();
      this.client = client;
      this.#tries = 0;
      client.onstate = (state) => life === this.#life && this.#turn(state);
      client.ongoingaway = () => this.#set("open", "The server is going away; what runs may finish.");
      client.closed.then((close) => life === this.#life && this.#lost(close));
      this.#set("open", "");
    } catch (error) {
      if (life === this.#life) this.#lost(/** @type {any} */ (error));
    }
  }

  /** @param {boolean} inWorker */
  use(inWorker) {
    this.inWorker = inWorker;
    return this.open();
  }

  #dial() {
    const options = this.apiKey ? { apiKey: this.apiKey } : {};
    if (!this.inWorker) return connect(undefined, options);
    this.#worker = new Worker(new URL("./worker.js", import.meta.url), { type: "module", name: "midstream" });
    return connectWorker(this.#worker, undefined, options);
  }

  #drop() {
    const worker = this.#worker;
    if (this.client) this.client.close().then(() => worker?.terminate());
    else worker?.terminate();
    this.client = this.#worker = null;
  }

  /** @param {string} state the client's */
  #turn(state) {
    if (state === "open") this.#set("open", "");
    if (state === "reconnecting") this.#set("reconnecting", LOST);
  }

  /** @param {{ code: number | string, closeCode?: number | null, reason?: string, retryable: boolean }} how */
  #lost(how) {
    this.client = null;
    const code = how.closeCode ?? how.code;
    if (!how.retryable && ![OURS, NEVER_OPENED, "connection_lost"].includes(code)) {
      this.#set("refused", `${how.reason || "The server closed the connection for good"} (${code}).`);
      return;
    }
    const wait = Math.min(FIRST_MS * 2 ** this.#tries++, MOST_MS) * (0.75 + Math.random() / 2);
    this.due = performance.now() + wait;
    this.#timer = setTimeout(() => this.open(), wait);
    this.#set("waiting", "The server cannot be reached. Is it running, and are you online?");
  }

  /** @param {State} state @param {string} why */
  #set(state, why) {
    this.state = state;
    this.why = why;
    this.onchange();
  }
}
