/**
 * @typedef {object} ClientOptions What concerns the client alone, and is not sent.
 * @property {number} [window] how many tokens may be decoded ahead of the chunks taken; 1 is pure pull
 * @property {"auto" | Credit} [credit] explicit credit to begin with; "auto" leaves it to the server, which
 *   then decodes as fast as this connection is read, whether or not chunks are taken
 * @property {AbortSignal} [signal] cancels the stream
 * @property {(event: StreamEvent) => void} [onevent] called with every event of the stream, from `started` on
 * @property {Recorder} [recorder] records the stream: its chunks then have token ids and log probabilities
 */
/**
 * @typedef {object} ToolOptions What the model may call.
 * @property {AnyTool[]} [tools] functions with their `run`, or as OpenAI's API has them
 * @property {string | NamedTool} [tool_choice] "auto", "none", "required", or the name of the one to be called
 */
/** @typedef {Omit<StartFields, "tools" | "tool_choice"> & ToolOptions} AskedFields */
/** @typedef {AskedFields & Params & ClientOptions} StartOptions */
/**
 * @typedef {object} AttachOptions
 * @property {number} [after] the `seq` of the last event that is here already; -1, the default, for none
 * @property {Had} [had] with `after`: what stood then, as a stream has it in `text`, `index` and `tokens`
 * @property {number} [window] as for `start`
 * @property {"auto"} [credit] where the stream was started so
 * @property {AbortSignal} [signal] cancels the stream; before it is here, gives up attaching, and leaves it as it was
 * @property {(event: StreamEvent) => void} [onevent]
 */
/**
 * The `attach` frame for a stream of which this is here already.
 * @param {string} requestId @param {number} after @param {Had | undefined} had
 * @returns {Attach}
 */
export function attachFrame(requestId: string, after: number, had: Had | undefined): Attach;
/**
 * How long to try to reconnect, and how long to bear silence.
 * @param {Partial<Timeouts>} options
 * @returns {Timeouts}
 */
export function checkTimeouts({ reconnectMs, silenceMs }: Partial<Timeouts>): Timeouts;
/** A time as timers take it; Infinity is the longest that they know. @param {string} name @param {number} ms */
export function checkTime(name: string, ms: number): number;
/** @param {number} window */
export function checkWindow(window: number): number;
/**
 * The `start` frame for these options, sorted into its own fields and the sampling parameters.
 * @param {AskedFields & Params} options
 * @param {number} window
 * @param {"auto" | Credit | undefined} credit
 * @returns {Start}
 */
export function startFrame(options: AskedFields & Params, window: number, credit: "auto" | Credit | undefined): Start;
/**
 * What a stream starts with: its window, but for pure pull, which decodes nothing unasked.
 * @param {Credit | undefined} credit
 * @param {number} window
 * @param {number} interval
 */
export function explicitCredit(credit: Credit | undefined, window: number, interval: number): {
    limit: number;
    prefetch?: number;
};
/** @param {Params} options @returns {Params} */
export function adjustment(options: Params): Params;
/** Not `crypto.randomUUID`, which a page that came by plain http does not have. @param {number} [length] in bytes */
export function randomId(length?: number): string;
export const DEFAULT_WINDOW: 64;
/**
 * What concerns the client alone, and is not sent.
 */
export type ClientOptions = {
    /**
     * how many tokens may be decoded ahead of the chunks taken; 1 is pure pull
     */
    window?: number | undefined;
    /**
     * explicit credit to begin with; "auto" leaves it to the server, which
     * then decodes as fast as this connection is read, whether or not chunks are taken
     */
    credit?: "auto" | Credit | undefined;
    /**
     * cancels the stream
     */
    signal?: AbortSignal | undefined;
    /**
     * called with every event of the stream, from `started` on
     */
    onevent?: ((event: StreamEvent) => void) | undefined;
    /**
     * records the stream: its chunks then have token ids and log probabilities
     */
    recorder?: Recorder | undefined;
};
/**
 * What the model may call.
 */
export type ToolOptions = {
    /**
     * functions with their `run`, or as OpenAI's API has them
     */
    tools?: AnyTool[] | undefined;
    /**
     * "auto", "none", "required", or the name of the one to be called
     */
    tool_choice?: string | NamedTool | undefined;
};
export type AskedFields = Omit<StartFields, "tools" | "tool_choice"> & ToolOptions;
export type StartOptions = AskedFields & Params & ClientOptions;
export type AttachOptions = {
    /**
     * the `seq` of the last event that is here already; -1, the default, for none
     */
    after?: number | undefined;
    /**
     * with `after`: what stood then, as a stream has it in `text`, `index` and `tokens`
     */
    had?: Had | undefined;
    /**
     * as for `start`
     */
    window?: number | undefined;
    /**
     * where the stream was started so
     */
    credit?: "auto" | undefined;
    /**
     * cancels the stream; before it is here, gives up attaching, and leaves it as it was
     */
    signal?: AbortSignal | undefined;
    onevent?: ((event: StreamEvent) => void) | undefined;
};
import type { Had } from "./stream-core.js";
import type { Attach } from "./protocol.js";
import type { Timeouts } from "./reconnecting.js";
import type { Params } from "./protocol.js";
import type { Credit } from "./protocol.js";
import type { Start } from "./protocol.js";
import type { StreamEvent } from "./protocol.js";
import type { Recorder } from "./recorder.js";
import type { AnyTool } from "./tools.js";
import type { NamedTool } from "./protocol.js";
import type { StartFields } from "./protocol.js";
