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
export function connect(url?: string | URL | (string | URL)[], options?: ConnectOptions & {
    WebSocket?: SocketClass;
}): Promise<Client>;
/** A connection to a server. Any number of streams may run on it at once. */
export class Client {
    /** @param {ClientSession} session */
    constructor(session: ClientSession);
    /** Called once, when the connection has ended for good. @type {((close: Close) => void) | null} */
    onclose: ((close: Close) => void) | null;
    /** Called with each new `state`. @type {((state: ConnectionState) => void) | null} */
    onstate: ((state: ConnectionState) => void) | null;
    /** Called when the server says that it goes away: streams go on until then, new ones are refused.
     * @type {((event: GoingAway) => void) | null} */
    ongoingaway: ((event: GoingAway) => void) | null;
    /** What the server said of itself, when it was last connected to: `models`, `limits`, `session_id`. */
    get ready(): Ready;
    /**
     * "reconnecting" while a connection that was lost is made anew: streams wait, and what is asked for is sent
     * when it is there. "closed" is for good.
     */
    get state(): ConnectionState;
    /** Whether the server has said that it is going away. */
    get draining(): boolean;
    /** Resolves when the connection has ended for good, whoever ended it. Never rejects. */
    get closed(): Promise<Close>;
    /**
     * Start a stream: the fields of `start` and the sampling parameters side by side. Resolves when the server
     * has accepted it, which is before it has its turn.
     *
     * Throws a MidstreamError if the server refuses it.
     * @param {StartOptions} options
     */
    start({ window, credit, signal, onevent, recorder, ...options }: StartOptions): Promise<Stream>;
    /**
     * A stream that begins as another one stands before output token `at`, or behind all that has come of it, and is one
     * of its own from there. The other notices nothing, and may have ended. It has the other's parameters, but for those
     * given, and a seed of its own: with the same seed it is the same text. Its first chunk is what it begins with.
     * @param {Stream | string} stream
     * @param {Omit<StartOptions, "prompt" | "messages" | "fork"> & {at?: number}} [options]
     */
    fork(stream: Stream | string, { at, ...options }?: Omit<StartOptions, "prompt" | "messages" | "fork"> & {
        at?: number;
    }): Promise<Stream>;
    /**
     * Run an agent: one stream from this question, or these messages, to its answer, and its tools run for it.
     * @param {Agent} agent @param {string | Message[]} question
     * @param {RunOptions} [options] what is different this time
     */
    run(agent: Agent, question: string | Message[], options?: RunOptions): Promise<Run>;
    /**
     * Take over a stream that was started elsewhere, such as by this page before it was loaded anew. Whoever had it
     * loses it. It must have been started with `on_disconnect: "pause"` or "continue" to outlive its starter, and is
     * as before when this client closes. A stream that has ended can be had for some minutes, too.
     *
     * Throws a MidstreamError, "unknown_request" or "request_expired", if the server knows nothing of it.
     * @param {string} requestId
     * @param {AttachOptions} [options]
     */
    attach(requestId: string, { after, had, window, credit, signal, onevent }?: AttachOptions): Promise<Stream>;
    /**
     * Start a stream, wait for its end and return the whole. Throws StreamFailed if that is an error.
     * @param {AskedFields & Params & Pick<ClientOptions, "signal" | "onevent">} options
     * @returns {Promise<Completion>}
     */
    complete(options: AskedFields & Params & Pick<ClientOptions, "signal" | "onevent">): Promise<Completion>;
    /**
     * Have it answered by a value of this JSON schema, to which the output is held. Throws a ParseError if there is no
     * such value in the end, as where `max_tokens` is too few.
     * @template [T=any]
     * @param {object | boolean} schema
     * @param {AskedFields & Params & Pick<ClientOptions, "signal" | "onevent">} options
     * @returns {Promise<T>}
     */
    parse<T = any>(schema: object | boolean, options: AskedFields & Params & Pick<ClientOptions, "signal" | "onevent">): Promise<T>;
    /** Ask the server for a sign of life, and wait for it. */
    ping(): Promise<void>;
    /**
     * Close the connection for good. Streams still running end in ConnectionLost here, and are cancelled there, but
     * for those whose start named `on_disconnect`, and those that were taken over.
     */
    close(): Promise<Close>;
    #private;
}
/**
 * The session as a client sees it: here, or in a worker.
 */
export type ClientSession = {
    ready: Ready;
    draining: boolean;
    state: ConnectionState;
    closed: Promise<Close>;
    ongoingaway: ((event: GoingAway) => void) | null;
    onstate: ((state: ConnectionState) => void) | null;
    begin: (frame: OpeningFrame, readOptions: ReadOptions, signal?: AbortSignal) => {
        channel: Channel;
        started: Promise<Answer>;
    };
    request: (frame: RequestFrame) => Promise<Answer>;
    close: () => void;
};
/**
 * A whole answer, and how it came about.
 */
export type Completion = {
    text: string;
    reasoning: string;
    /**
     * those that are whole
     */
    toolCalls: Call[];
    /**
     * the answer as a turn of the conversation, calls and all
     */
    message: Message;
    /**
     * their ids, if it was asked for with `return_tokens: true`
     */
    tokens: number[];
    logprobs: TokenLogprob[];
    model: string | null;
    final: Final;
};
export type ConnectOptions = {
    /**
     * the server's key, if it wants one, or a one-time secret; or a function that is asked
     * for either, anew before every attempt to connect
     */
    apiKey?: ApiKey | undefined;
    /**
     * gives up connecting
     */
    signal?: AbortSignal | undefined;
    /**
     * how long to try to come back when the connection is lost: 60000 by default.
     * 0 turns that off, and a connection that is lost is the end of all its streams
     */
    reconnectMs?: number | undefined;
    /**
     * how long the server may say nothing at all, not even when asked for a sign of
     * life, while something is awaited of it: then the connection counts as lost. 30000 by default; 0: for ever
     */
    silenceMs?: number | undefined;
};
import type { SocketClass } from "./dial.js";
import type { Close } from "./errors.js";
import type { ConnectionState } from "./reconnecting.js";
import type { GoingAway } from "./protocol.js";
import type { Ready } from "./protocol.js";
import type { StartOptions } from "./options.js";
import { Stream } from "./stream.js";
import type { Agent } from "./agent.js";
import type { Message } from "./protocol.js";
import type { RunOptions } from "./agent.js";
import { Run } from "./agent-run.js";
import type { AttachOptions } from "./options.js";
import type { AskedFields } from "./options.js";
import type { Params } from "./protocol.js";
import type { ClientOptions } from "./options.js";
import type { OpeningFrame } from "./protocol.js";
import type { ReadOptions } from "./stream-core.js";
import type { Channel } from "./stream-channel.js";
import type { Answer } from "./protocol.js";
import type { RequestFrame } from "./protocol.js";
import type { Call } from "./protocol.js";
import type { TokenLogprob } from "./protocol.js";
import type { Final } from "./protocol.js";
import type { ApiKey } from "./dial.js";
