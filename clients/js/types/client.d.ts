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
export function connect(url?: string | URL, { apiKey, WebSocket, signal }?: ConnectOptions & {
    WebSocket?: SocketClass;
}): Promise<Client>;
/** @returns {string | undefined} */
export function pageAddress(): string | undefined;
/** A connection to a server. Any number of streams may run on it at once. */
export class Client {
    /** @param {Link} link */
    constructor(link: Link);
    /** Called once, when the connection has ended. @type {((close: Close) => void) | null} */
    onclose: ((close: Close) => void) | null;
    /** Called when the server says that it goes away: streams go on until then, new ones are refused.
     * @type {((event: GoingAway) => void) | null} */
    ongoingaway: ((event: GoingAway) => void) | null;
    /** What the server said of itself: `models`, `limits`, `session_id`. */
    get ready(): Ready;
    /** @returns {"open" | "closed"} */
    get state(): "open" | "closed";
    /** Whether the server has said that it is going away. */
    get draining(): boolean;
    /** Resolves when the connection has ended, whoever ended it. Never rejects. */
    get closed(): Promise<Close>;
    /**
     * Start a stream: the fields of `start` and the sampling parameters side by side. Resolves when the server
     * has accepted it, which is before it has its turn.
     *
     * Throws a MidstreamError if the server refuses it.
     * @param {StartOptions} options
     */
    start({ window, credit, signal, onevent, ...options }: StartOptions): Promise<Stream>;
    /**
     * Start a stream, wait for its end and return the whole. Throws StreamFailed if that is an error.
     * @param {StartFields & Params & Pick<ClientOptions, "signal" | "onevent">} options
     * @returns {Promise<Completion>}
     */
    complete(options: StartFields & Params & Pick<ClientOptions, "signal" | "onevent">): Promise<Completion>;
    /** Ask the server for a sign of life, and wait for it. */
    ping(): Promise<void>;
    /** Close the connection. Streams still running end in ConnectionLost here, and are cancelled there. */
    close(): Promise<Close>;
    #private;
}
/**
 * An open connection as a client sees it: here, or in a worker.
 */
export type Link = {
    ready: Ready;
    draining: boolean;
    state: "open" | "closed";
    closed: Promise<Close>;
    ongoingaway: ((event: GoingAway) => void) | null;
    start: (frame: Start, window: number | null, signal?: AbortSignal) => {
        channel: Channel;
        started: Promise<Answer>;
    };
    request: (frame: Question) => Promise<Answer>;
    close: () => void;
};
/**
 * A whole answer, and how it came about.
 */
export type Completion = {
    text: string;
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
     * the server's key, if it wants one
     */
    apiKey?: string | undefined;
    /**
     * gives up connecting
     */
    signal?: AbortSignal | undefined;
};
import type { SocketClass } from "./socket.js";
import type { Close } from "./errors.js";
import type { GoingAway } from "./wire.js";
import type { Ready } from "./wire.js";
import type { StartOptions } from "./options.js";
import { Stream } from "./handle.js";
import type { StartFields } from "./wire.js";
import type { Params } from "./wire.js";
import type { ClientOptions } from "./options.js";
import type { Start } from "./wire.js";
import type { Channel } from "./channel.js";
import type { Answer } from "./wire.js";
import type { Question } from "./wire.js";
import type { TokenLogprob } from "./wire.js";
import type { Final } from "./wire.js";
