/**
 * Made by `client.run`. It is read by iterating over its events, by `answer`, or, where `onevent` was given, as its stream is.
 * Leaving a loop over it before its end cancels it, and every tool that runs for it.
 */
export class Run {
    /** @param {Client} client @param {Agent} agent @param {string | Message[]} question @param {RunOptions} given */
    static start(client: Client, agent: Agent, question: string | Message[], { onevent, ...given }: RunOptions): Promise<Run>;
    /**
     * Events may come before the stream itself does.
     * @param {(receive: (event: StreamEvent) => void) => Promise<Stream>} open @param {(stream: Stream) => Run} make
     */
    static #begin(open: (receive: (event: StreamEvent) => void) => Promise<Stream>, make: (stream: Stream) => Run): Promise<Run>;
    /**
     * @param {Client} client @param {Agent} agent @param {Message[]} question @param {Stream} stream
     * @param {RunOptions["onevent"]} onevent
     */
    constructor(client: Client, agent: Agent, question: Message[], stream: Stream, onevent: RunOptions["onevent"]);
    /** To be steered. */
    stream: Stream;
    /**
     * Another run, which begins as this one stands before output token `at`, or behind all that has come. Results that stand
     * there stand in it too, and the others are told to it as they were to this one.
     * @param {{at?: number} & RunOptions} [options]
     */
    fork({ at, onevent, ...given }?: {
        at?: number;
    } & RunOptions): Promise<Run>;
    /** What came of each call that stands. @returns {Outcome[]} */
    get outcomes(): Outcome[];
    /** Where a call that stands has got to. @param {Call} call @returns {CallState} */
    state(call: Call): CallState;
    /** The whole conversation so far: with another question behind it, the next run's. @returns {Message[]} */
    get messages(): Message[];
    /**
     * Read it to its end: what it says behind the last results, or, where the agent has an `output`, the value of that.
     * Throws as reading its stream does, a LimitReached, and a ParseError where there is no such value.
     */
    answer(): Promise<any>;
    /** A call that waits for a yes may run. @param {Call} call */
    approve(call: Call): Promise<number>;
    /** A call does not run, and the model is told so. @param {Call} call @param {string} [why] */
    refuse(call: Call, why?: string): Promise<number>;
    /**
     * A call has other arguments, or, with `partial`, begins with this text, and the model writes on. What waits for a yes
     * still does.
     * @param {Call} call @param {Record<string, any> | string} given @param {{partial?: boolean}} [options]
     */
    amend(call: Call, given: Record<string, any> | string, options?: {
        partial?: boolean;
    }): Promise<number>;
    /** Say what a call returned, by hand. @param {Call} call @param {unknown} content */
    give(call: Call, content: unknown): Promise<number>;
    /** Every event of the stream, and what tools do. @returns {AsyncIterableIterator<RunEvent>} */
    [Symbol.asyncIterator](): AsyncIterableIterator<RunEvent>;
    #private;
}
/**
 * What the server says, and what tools do.
 */
export type RunEvent = StreamEvent | ToolProgress | ToolOutcome;
import type { Stream } from "./stream.js";
import type { RunOptions } from "./agent.js";
import type { Outcome } from "./stream-calls.js";
import type { Call } from "./protocol.js";
import type { CallState } from "./stream-calls.js";
import type { Message } from "./protocol.js";
import type { Client } from "./client.js";
import type { Agent } from "./agent.js";
import type { StreamEvent } from "./protocol.js";
import type { ToolProgress } from "./stream-calls.js";
import type { ToolOutcome } from "./stream-calls.js";
