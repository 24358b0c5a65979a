/**
 * The client: connecting to a server, and starting streams there.
 * @module
 * @import { Agent, RunOptions } from "./agent.js"
 * @import { Channel } from "./stream-channel.js"
 * @import { ApiKey, SocketClass } from "./dial.js"
 * @import { Close } from "./errors.js"
 * @import { AskedFields, AttachOptions, ClientOptions, StartOptions } from "./options.js"
 * @import { Answer, Final, GoingAway, OpeningFrame, Params, Ready, RequestFrame } from "./protocol.js"
 * @import { Call, Message, TokenLogprob } from "./protocol.js"
 * @import { ConnectionState } from "./reconnecting.js"
 * @import { ReadOptions } from "./stream-core.js"
 */

import { abortable } from "./abortable.js";
import { Run } from "./agent-run.js";
import { notify } from "./callbacks.js";
import { openSession } from "./dial.js";
import { parsedAnswer } from "./errors.js";
import { DEFAULT_WINDOW, attachFrame, checkTimeouts, checkWindow, startFrame } from "./options.js";
import { Stream } from "./stream.js";
import { pageAddress, websocketUrls } from "./url.js";

/**
 * @typedef {object} ClientSession The session as a client sees it: here, or in a worker.
 * @property {Ready} ready
 * @property {boolean} draining
 * @property {ConnectionState} state
 * @property {Promise<Close>} closed
 * @property {((event: GoingAway) => void) | null} ongoingaway
 * @property {((state: ConnectionState) => void) | null} onstate
 * @property {(frame: OpeningFrame, readOptions: ReadOptions, signal?: AbortSignal) =>
 *   {channel: Channel, started: Promise<Answer>}} begin
 * @property {(frame: RequestFrame) => Promise<Answer>} request
 * @property {() => void} close
 */

/**
 * @typedef {object} Completion A whole answer, and how it came about.
 * @property {string} text
 * @property {string} reasoning
 * @property {Call[]} toolCalls those that are whole
 * @property {Message} message the answer as a turn of the conversation, calls and all
 * @property {number[]} tokens their ids, if it was asked for with `return_tokens: true`
 * @property {TokenLogprob[]} logprobs
 * @property {string | null} model
 * @property {Final} final
 */

/**
 * @typedef {object} ConnectOptions
 * @property {ApiKey} [apiKey] the server's key, if it wants one, or a one-time secret; or a function that is asked
 *   for either, anew before every attempt to connect
 * @property {AbortSignal} [signal] gives up connecting
 * @property {number} [reconnectMs] how long to try to come back when the connection is lost: 60000 by default.
 *   0 turns that off, and a connection that is lost is the end of all its streams
 * @property {number} [silenceMs] how long the server may say nothing at all, not even when asked for a sign of
 *   life, while something is awaited of it: then the connection counts as lost. 30000 by default; 0: for ever
 */

/**
 * Connect to a server.
 *
 * Throws ConnectionLost if there is none to be had. A browser does not tell why a server refused. A connection
 * that is lost later is made anew by itself, and streams go on where they were.
 * @param {string | URL | (string | URL)[]} [url] ws, wss, http or https, with or without the path; by default where
 *   the page came from. A list is of servers that have the same engines: each client begins with any of them, and goes
 *   on to the next when its connection is lost
 * @param {ConnectOptions & {WebSocket?: SocketClass}} [options] `WebSocket`: the class to use, where there is
 *   none by itself, as in Node before 22
 */
export async function connect(url, options = {}) {
  const { apiKey, WebSocket, signal } = options;
  const how = { apiKey, WebSocket, ...checkTimeouts(options) };
  return new Client(await openSession(websocketUrls(url, pageAddress()), how, signal));
}

/** A connection to a server. Any number of streams may run on it at once. */
export class Client {
  /** Called once, when the connection has ended for good. @type {((close: Close) => void) | null} */
  onclose = null;
  /** Called with each new `state`. @type {((state: ConnectionState) => void) | null} */
  onstate = null;
  /** Called when the server says that it goes away: streams go on until then, new ones are refused.
   * @type {((event: GoingAway) => void) | null} */
  ongoingaway = null;
  #session;

  /** @param {ClientSession} session */
  constructor(session) {
    this.#session = session;
    session.ongoingaway = (event) => notify(this.ongoingaway, event);
    session.onstate = (state) => notify(this.onstate, state);
    session.closed.then((close) => notify(this.onclose, close));
  }

  /** What the server said of itself, when it was last connected to: `models`, `limits`, `session_id`. */
  get ready() {
    return this.#session.ready;
  }

  /**
   * "reconnecting" while a connection that was lost is made anew: streams wait, and what is asked for is sent
   * when it is there. "closed" is for good.
   */
  get state() {
    return this.#session.state;
  }

  /** Whether the server has said that it is going away. */
  get draining() {
    return this.#session.draining;
  }

  /** Resolves when the connection has ended for good, whoever ended it. Never rejects. */
  get closed() {
    return this.#session.closed;
  }

  /**
   * Start a stream: the fields of `start` and the sampling parameters side by side. Resolves when the server
   * has accepted it, which is before it has its turn.
   *
   * Throws a MidstreamError if the server refuses it.
   * @param {StartOptions} options
   */
  async start({ window = DEFAULT_WINDOW, credit, signal, onevent, recorder, ...options }) {
    signal?.throwIfAborted();
    const frame = startFrame(options, window, credit);
    recorder?.begin(frame);
    return this.#begin(frame, { window: credit === "auto" ? null : window }, signal, onevent, recorder);
  }

  /**
   * A stream that begins as another one stands before output token `at`, or behind all that has come of it, and is one
   * of its own from there. The other notices nothing, and may have ended. It has the other's parameters, but for those
   * given, and a seed of its own: with the same seed it is the same text. Its first chunk is what it begins with.
   * @param {Stream | string} stream
   * @param {Omit<StartOptions, "prompt" | "messages" | "fork"> & {at?: number}} [options]
   */
  fork(stream, { at, ...options } = {}) {
    const of = typeof stream === "string" ? { request_id: stream, at } : { request_id: stream.requestId, at: at ?? stream.index };
    return this.start({ ...options, fork: of });
  }

  /**
   * Run an agent: one stream from this question, or these messages, to its answer, and its tools run for it.
   * @param {Agent} agent @param {string | Message[]} question
   * @param {RunOptions} [options] what is different this time
   */
  run(agent, question, options = {}) {
    return Run.start(this, agent, question, options);
  }

  /**
   * Take over a stream that was started elsewhere, such as by this page before it was loaded anew. Whoever had it
   * loses it. It must have been started with `on_disconnect: "pause"` or "continue" to outlive its starter, and is
   * as before when this client closes. A stream that has ended can be had for some minutes, too.
   *
   * Throws a MidstreamError, "unknown_request" or "request_expired", if the server knows nothing of it.
   * @param {string} requestId
   * @param {AttachOptions} [options]
   */
  async attach(requestId, { after = -1, had, window = DEFAULT_WINDOW, credit, signal, onevent } = {}) {
    signal?.throwIfAborted();
    const frame = attachFrame(requestId, after, had);
    const readOptions = { window: credit === "auto" ? null : checkWindow(window), had };
    return this.#begin(frame, readOptions, signal, onevent);
  }

  /**
   * @param {OpeningFrame} frame @param {ReadOptions} readOptions @param {AbortSignal} [signal]
   * @param {ClientOptions["onevent"]} [onevent] @param {ClientOptions["recorder"]} [recorder]
   */
  async #begin(frame, readOptions, signal, onevent, recorder) {
    const { channel, started } = this.#session.begin(frame, readOptions, signal);
    channel.onevent = onevent ?? null;
    channel.recorder = recorder ?? null;
    await abortable(started, signal);
    channel.own = true;
    return new Stream(channel);
  }

  /**
   * Start a stream, wait for its end and return the whole. Throws StreamFailed if that is an error.
   * @param {AskedFields & Params & Pick<ClientOptions, "signal" | "onevent">} options
   * @returns {Promise<Completion>}
   */
  async complete(options) {
    const stream = await this.start({ ...options, credit: "auto" });
    const logprobs = [];
    for await (const chunk of stream) logprobs.push(...(chunk.logprobs ?? []));
    const final = /** @type {Final} */ (stream.final);
    const { text, reasoning, tokens, message, model } = stream;
    const toolCalls = stream.calls.filter((call) => call.end !== undefined);
    return { text, reasoning, toolCalls, message, tokens, logprobs, model, final };
  }

  /**
   * Have it answered by a value of this JSON schema, to which the output is held. Throws a ParseError if there is no
   * such value in the end, as where `max_tokens` is too few.
   * @template [T=any]
   * @param {object | boolean} schema
   * @param {AskedFields & Params & Pick<ClientOptions, "signal" | "onevent">} options
   * @returns {Promise<T>}
   */
  async parse(schema, options) {
    const { text, final } = await this.complete({ ...options, grammar: { json_schema: schema } });
    return parsedAnswer(text, final);
  }

  /** Ask the server for a sign of life, and wait for it. */
  async ping() {
    await this.#session.request({ type: "ping" });
  }

  /**
   * Close the connection for good. Streams still running end in ConnectionLost here, and are cancelled there, but
   * for those whose start named `on_disconnect`, and those that were taken over.
   */
  close() {
    this.#session.close();
    return this.closed;
  }
}
