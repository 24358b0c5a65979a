/**
 * @typedef {boolean | string | Record<string, any>} Verdict Whether a call may run: yes; no; no, and the model is told
 *   why; or yes, with these arguments instead.
 */
/**
 * @typedef {object} AgentFields
 * @property {FunctionTool[]} [tools] one without `run` is answered by hand: `run.give`
 * @property {string} [system] what the model is told before all else
 * @property {string[] | true} [approvals] the tools, or all, of which each call waits for a yes
 * @property {(call: Call) => Verdict | Promise<Verdict>} [approve] is asked for that yes; without it somebody says
 *   `run.approve`, `run.amend` or `run.refuse`
 * @property {"pause" | "continue"} [onToolCall] whether the model waits for results, or goes on meanwhile
 * @property {number} [maxCalls] one more, with those that are taken back, ends the run in a LimitReached
 * @property {number} [toolTimeoutMs] the longest that a tool may take
 * @property {object | boolean} [output] a JSON schema that the answer fits
 */
/**
 * @typedef {Omit<StartOptions, "tools" | "approvals" | "on_tool_call" | "messages" | "prompt" | "fork" | "onevent" | "grammar">
 *   & {onevent?: (event: import("./agent-run.js").RunEvent) => void}} RunOptions
 */
/** @typedef {AgentFields & RunOptions} AgentOptions */
/** `client.run(agent, question)` runs one. */
export class Agent {
    /** @param {AgentOptions} options what is not the agent's own is as for `client.start` */
    constructor({ tools, system, approvals, approve, onToolCall, maxCalls, toolTimeoutMs, output, ...options }: AgentOptions);
    /** @type {FunctionTool[]} */ tools: FunctionTool[];
    system: string | undefined;
    approvals: true | string[] | undefined;
    approve: ((call: Call) => Verdict | Promise<Verdict>) | undefined;
    onToolCall: "pause" | "continue";
    maxCalls: number;
    toolTimeoutMs: number | undefined;
    output: boolean | object | undefined;
    options: {
        /**
         * cancels the stream
         */
        signal?: AbortSignal | undefined;
        /**
         * how many tokens may be decoded ahead of the chunks taken; 1 is pure pull
         */
        window?: number | undefined;
        stop?: string | string[] | undefined;
        /**
         * from -8 to 8
         */
        priority?: number | undefined;
        temperature?: number | undefined;
        top_p?: number | undefined;
        top_k?: number | undefined;
        min_p?: number | undefined;
        max_tokens?: number | undefined;
        seed?: number | undefined;
        repetition_penalty?: number | undefined;
        presence_penalty?: number | undefined;
        frequency_penalty?: number | undefined;
        logit_bias?: Record<number, number> | undefined;
        /**
         * how many alternatives to report for each token
         */
        logprobs?: number | null | undefined;
        ignore_eos?: boolean | undefined;
        min_tokens?: number | undefined;
        reasoning_tokens?: number | null | undefined;
        /**
         * what output is held to, and what becomes of what breaks it
         */
        guards?: import("./protocol.js").Guard[] | null | undefined;
        /**
         * a name of one's own, up to 128 characters; a random one by default
         */
        request_id?: string | undefined;
        model?: string | undefined;
        /**
         * tokens in a chunk
         */
        stream_interval?: number | undefined;
        /**
         * the longest that the stream may live
         */
        timeout_ms?: number | undefined;
        /**
         * what becomes of it when the connection ends; by
         * default "pause" where the client connects anew by itself
         */
        on_disconnect?: "cancel" | "pause" | "continue" | undefined;
        /**
         * how long it then waits for somebody to come
         */
        grace_ms?: number | undefined;
        /**
         * whether it waits for a model that is to be loaded, or is refused
         */
        on_cold?: "wait" | "refuse" | undefined;
        /**
         * chunks carry token ids
         */
        return_tokens?: boolean | undefined;
        /**
         * "auto", "none", "required", or the name of the one to be called
         */
        tool_choice?: (string | import("./protocol.js").NamedTool) | undefined;
        /**
         * false: the first call that is whole ends the stream
         */
        parallel_tool_calls?: boolean | undefined;
        /**
         * how long its memory is held while it waits for results
         */
        tool_hold_ms?: number | undefined;
        /**
         * no string, number or word among a call's arguments is told in parts
         */
        whole_arguments?: boolean | undefined;
        /**
         * explicit credit to begin with; "auto" leaves it to the server, which
         * then decodes as fast as this connection is read, whether or not chunks are taken
         */
        credit?: ("auto" | import("./protocol.js").Credit) | undefined;
        /**
         * records the stream: its chunks then have token ids and log probabilities
         */
        recorder?: import("./recorder.js").Recorder | undefined;
        onevent?: (event: import("./agent-run.js").RunEvent) => void;
    };
    /** The conversation that a run begins with. @param {string | Message[]} question @returns {Message[]} */
    messages(question: string | Message[]): Message[];
    /** What every stream of it starts with, its forks too. */
    get fields(): {};
}
/**
 * Whether a call may run: yes; no; no, and the model is told
 *   why; or yes, with these arguments instead.
 */
export type Verdict = boolean | string | Record<string, any>;
export type AgentFields = {
    /**
     * one without `run` is answered by hand: `run.give`
     */
    tools?: FunctionTool[] | undefined;
    /**
     * what the model is told before all else
     */
    system?: string | undefined;
    /**
     * the tools, or all, of which each call waits for a yes
     */
    approvals?: true | string[] | undefined;
    /**
     * is asked for that yes; without it somebody says
     * `run.approve`, `run.amend` or `run.refuse`
     */
    approve?: ((call: Call) => Verdict | Promise<Verdict>) | undefined;
    /**
     * whether the model waits for results, or goes on meanwhile
     */
    onToolCall?: "pause" | "continue" | undefined;
    /**
     * one more, with those that are taken back, ends the run in a LimitReached
     */
    maxCalls?: number | undefined;
    /**
     * the longest that a tool may take
     */
    toolTimeoutMs?: number | undefined;
    /**
     * a JSON schema that the answer fits
     */
    output?: boolean | object | undefined;
};
export type RunOptions = Omit<StartOptions, "tools" | "approvals" | "on_tool_call" | "messages" | "prompt" | "fork" | "onevent" | "grammar"> & {
    onevent?: (event: import("./agent-run.js").RunEvent) => void;
};
export type AgentOptions = AgentFields & RunOptions;
import type { FunctionTool } from "./tools.js";
import type { Call } from "./protocol.js";
import type { Message } from "./protocol.js";
import type { StartOptions } from "./options.js";
