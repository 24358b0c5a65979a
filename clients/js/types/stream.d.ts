/**
 * A running stream of output, made by `client.start`.
 *
 * It is lazy: the server decodes as chunks are asked for, up to the window ahead. Leaving a `for await` over
 * it before its end, by `break`, `return` or an exception, cancels it; so do its `signal`, cancelling its
 * ReadableStream, and, some time later, dropping it. To read a part and go on later, use `next`, which says
 * nothing about what is wanted after it.
 *
 * Each method that steers waits for the server's acknowledgement and resolves to the exact index of the
 * output token from which on it holds. It throws a MidstreamError with code "request_finished" if the stream
 * ends first, and ConnectionLost if the connection does, or if it was lost so that nobody knows whether the
 * frame took effect. A connection that is made anew is otherwise not noticed here: the stream goes on, and
 * answers come. To steer from what was read rather than from what was decoded ahead, pass `at: chunk.end`.
 */
export class Stream {
    /** @param {Channel} channel */
    constructor(channel: Channel);
    /** Its name on the wire. */
    get requestId(): string;
    /** The model that answers. */
    get model(): string | null;
    /** The length of the prompt. */
    get promptTokens(): number | null;
    /** The sampling parameters in force, as the server resolved them. */
    get params(): Params;
    /** All text received that still stands. It may be ahead of the chunks taken; `rewind` shortens it. */
    get text(): string;
    /** What the model has said to itself, of what still stands: it is in no chunk. */
    get reasoning(): string;
    /** The calls of tools that still stand; the last may be incomplete: a whole one has an `end`. */
    get calls(): Call[];
    /** Where what it was told stands: results of calls, and turns of others. */
    get told(): import("./told.js").Told;
    /** What has come and still stands, as a turn of the conversation: the text, and the calls that are whole. */
    get message(): import("./protocol.js").Message;
    /** The ids of all tokens received that still stand, if it was started with `return_tokens: true`. */
    get tokens(): number[];
    /** How many output tokens were received and still stand; `consumed` of them were taken. */
    get index(): number;
    /** The index after the last token taken: where the next chunk begins. */
    get consumed(): number;
    /** The number of the last event that came: with `text`, `index` and `tokens` what `client.attach` goes on from. */
    get seq(): number;
    /**
     * Each time that nobody knew it any more, as when its server and engine had died, and it was started again from what
     * had come: at which `index` it went on, and whether it is `exact`, what it would have been. `onevent` hears of each, too.
     */
    get restarts(): {
        index: number;
        exact: boolean;
    }[];
    get state(): "finished" | "paused" | "running";
    /**
     * Why it is paused: "client" (somebody asked), "tool_call" (it waits for results), "guard" (it has found something),
     * "memory" (the server is short of it), "engine" (it failed, and is started anew), "loading" (its model is) or
     * "detached" (its connection was lost).
     */
    get pauseReason(): import("./protocol.js").PauseReason | null;
    /** How it ended, with usage and timing; null until it has. @returns {Final | null} */
    get final(): Final | null;
    /** Whether nothing more will come of it: it has ended, or is lost. */
    get ended(): boolean;
    set onevent(call: ((event: import("./protocol.js").StreamEvent) => void) | null);
    /** Called with every event of this stream, as on the wire, after it has been applied. */
    get onevent(): ((event: import("./protocol.js").StreamEvent) => void) | null;
    /**
     * The calls of tools, each once, as soon as it is whole. One that was rewound into, or amended, comes again when it
     * is, under the same id. It reads the stream, as iterating over it does: what it says beside them is in `text` and
     * `reasoning`.
     * @returns {AsyncIterableIterator<Call>}
     */
    toolCalls(): AsyncIterableIterator<Call>;
    /**
     * The next chunk, or null at the end. Throws StreamFailed if the stream ended in an error, and
     * ConnectionLost if the connection broke: after the chunks that came before.
     * @param {{timeout?: number}} [options] `timeout`: milliseconds after which a DOMException "TimeoutError"
     *   is thrown; the chunk is not lost
     * @returns {Promise<Chunk | null>}
     */
    next({ timeout }?: {
        timeout?: number;
    }): Promise<Chunk | null>;
    /**
     * The next chunk if it is here already, and a word to the server that it is wanted; null if it is not here,
     * or the stream has ended: see `final`.
     * @returns {Chunk | null}
     */
    tryNext(): Chunk | null;
    /** Wait for whatever comes next, or for the end of events. */
    news(): Promise<void>;
    /**
     * The same chunks for those who pipe. A chunk is asked for when one is read, and none ahead.
     * @returns {ReadableStream<Chunk>}
     */
    toReadableStream(): ReadableStream<Chunk>;
    /**
     * Stop decoding. With `kv: "release"` its memory is given up at once, to be rebuilt on `resume`.
     * @param {{kv?: Kv}} [options]
     */
    pause({ kv }?: {
        kv?: Kv;
    }): Promise<number>;
    /** Go on after a pause. */
    resume(): Promise<number>;
    /**
     * Change sampling parameters: the token at the resulting index is the first sampled with them.
     * @param {Params & {at?: number}} change
     */
    adjust({ at, ...params }: Params & {
        at?: number;
    }): Promise<number>;
    /**
     * Put text, messages or tokens into the context, before the output token at the resulting index.
     * @param {Injection} what
     */
    inject({ text, messages, tokens, at, grammar }: Injection): Promise<number>;
    /**
     * Tell the model what came of a call, for a stream that was started with `on_tool_call` "pause" or "continue".
     * What is no text is told as JSON. Results of one turn go in together: the stream goes on with the last of them.
     * @param {Call | string} call
     * @param {unknown} content
     */
    toolResult(call: Call | string, content: unknown): Promise<number>;
    /**
     * Tell the model that a call has ended with an error.
     * @param {Call | string} call
     * @param {string} error
     */
    toolError(call: Call | string, error: string): Promise<number>;
    /**
     * Say yes to a call that waits for it (`approvals` of the start). A no is a `toolError`.
     * @param {Call | string} call
     */
    approve(call: Call | string): Promise<number>;
    /**
     * Change a call's arguments: from the first token that changes on they are written anew, and the model closes the
     * call. With `partial` they are the beginning of their JSON, and the model writes on from there. What was approved of
     * it is not any more.
     * @param {Call | string} call
     * @param {string | object} args
     * @param {{partial?: boolean}} [options]
     */
    amend(call: Call | string, args: string | object, { partial }?: {
        partial?: boolean;
    }): Promise<number>;
    /**
     * Forget the output from token `to` on, and go on from there. `text` and `tokens` follow.
     * @param {number} to
     */
    rewind(to: number): Promise<number>;
    /** End it now, if it has not ended. Resolves to the length of its output. May be called again. */
    cancel(): Promise<number>;
    /** @returns {AsyncIterableIterator<Chunk>} */
    [Symbol.asyncIterator](): AsyncIterableIterator<Chunk>;
    #private;
}
import type { Params } from "./protocol.js";
import type { Call } from "./protocol.js";
import type { Final } from "./protocol.js";
import type { Chunk } from "./stream-core.js";
import type { Kv } from "./protocol.js";
import type { Injection } from "./protocol.js";
import type { Channel } from "./stream-channel.js";
