/**
 * Connecting, and starting streams.
 * @module
 * @import { Channel } from "./channel.js"
 * @import { Close } from "./errors.js"
 * @import { ClientOptions, StartOptions } from "./options.js"
 * @import { SocketClass } from "./socket.js"
 * @import { Answer, Final, GoingAway, Params, Question, Ready } from "./wire.js"
 * @import { Start, StartFields, TokenLogprob } from "./wire.js"
 */

import { Stream } from "./handle.js";
import { DEFAULT_WINDOW, startFrame } from "./options.js";
import { openSocket } from "./socket.js";
import { subprotocols, websocketUrl } from "./url.js";
import { tell, unlessAborted } from "./waiting.js";

/**
 * @typedef {object} Link An open connection as a client sees it: here, or in a worker.
 * @property {Ready} ready
 * @property {boolean} draining
 * @property {"open" | "closed"} state
 * @property {Promise<Close>} closed
 * @property {((event: GoingAway) => void) | null} ongoingaway
 * @property {(frame: Start, window: number | null, signal?: AbortSignal) =>
 *   {channel: Channel, started: Promise<Answer>}} start
 * @property {(frame: Question) => Promise<Answer>} request
 * @property {() => void} close
 */

/**
 * @typedef {object} Completion A whole answer, and how it came about.
 * @property {string} text
 * @property {number[]} tokens their ids, if it was asked for with `return_tokens: true`
 * @property {TokenLogprob[]} logprobs
 * @property {string | null} model
 * @property {Final} final
 */

/**
 * @typedef {object} ConnectOptions
 * @property {string} [apiKey] the server's key, if it wants one
 * @property {AbortSignal} [signal] gives up connecting
 */

/**
 * Connect to a server.
 *
 * Throws ConnectionLost if there is none to be had. A browser does not tell why a server refused.
 * @param {string | URL} [url] ws, wss, http or https, with or without the path; by default where the page
 *   came from
 * @param {ConnectOptions & {WebSocket?: SocketClass}} [options] `WebSocket`: the class to use, where there is
 *   none by itself, as in Node before 22
 */
export async function connect(url, { apiKey, WebSocket, signal } = {}) {
  const protocols = subprotocols(apiKey);
  return new Client(await openSocket(websocketUrl(url, pageAddress()), { protocols, WebSocket, signal }));
}

/** @returns {string | undefined} */
export function pageAddress() {
  return globalThis.location?.href;
}

/** A connection to a server. Any number of streams may run on it at once. */
export class Client {
  /** Called once, when the connection has ended. @type {((close: Close) => void) | null} */
  onclose = null;
  /** Called when the server says that it goes away: streams go on until then, new ones are refused.
   * @type {((event: GoingAway) => void) | null} */
  ongoingaway = null;
  #link;

  /** @param {Link} link */
  constructor(link) {
    this.#link = link;
    link.ongoingaway = (event) => tell(this.ongoingaway, event);
    link.closed.then((close) => tell(this.onclose, close));
  }

  /** What the server said of itself: `models`, `limits`, `session_id`. */
  get ready() {
    return this.#link.ready;
  }

  /** @returns {"open" | "closed"} */
  get state() {
    return this.#link.state;
  }

  /** Whether the server has said that it is going away. */
  get draining() {
    return this.#link.draining;
  }

  /** Resolves when the connection has ended, whoever ended it. Never rejects. */
  get closed() {
    return this.#link.closed;
  }

  /**
   * Start a stream: the fields of `start` and the sampling parameters side by side. Resolves when the server
   * has accepted it, which is before it has its turn.
   *
   * Throws a MidstreamError if the server refuses it.
   * @param {StartOptions} options
   */
  async start({ window = DEFAULT_WINDOW, credit, signal, onevent, ...options }) {
    signal?.throwIfAborted();
    const frame = startFrame(options, window, credit);
    const { channel, started } = this.#link.start(frame, credit === "auto" ? null : window, signal);
    channel.onevent = onevent ?? null;
    await unlessAborted(started, signal);
    return new Stream(channel);
  }

  /**
   * Start a stream, wait for its end and return the whole. Throws StreamFailed if that is an error.
   * @param {StartFields & Params & Pick<ClientOptions, "signal" | "onevent">} options
   * @returns {Promise<Completion>}
   */
  async complete(options) {
    const stream = await this.start({ ...options, credit: "auto" });
    const logprobs = [];
    for await (const chunk of stream) logprobs.push(...(chunk.logprobs ?? []));
    const final = /** @type {Final} */ (stream.final);
    return { text: stream.text, tokens: stream.tokens, logprobs, model: stream.model, final };
  }

  /** Ask the server for a sign of life, and wait for it. */
  async ping() {
    await this.#link.request({ type: "ping" });
  }

  /** Close the connection. Streams still running end in ConnectionLost here, and are cancelled there. */
  close() {
    this.#link.close();
    return this.closed;
  }
}
