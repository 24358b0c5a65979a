export class StreamCalls {
    /**
     * @param {Agent} agent @param {Stream} stream @param {(event: ToolProgress | ToolOutcome) => void} tell
     * @param {(why: Error) => void} fail where nobody can say whether a call may run, or what came of it cannot be told
     */
    constructor(agent: Agent, stream: Stream, tell: (event: ToolProgress | ToolOutcome) => void, fail: (why: Error) => void);
    /**
     * As another's were before output token `at`, for a fork of its stream. What was put in right there may have come behind
     * the fork, and is told again: where it did not, it is refused. @param {StreamCalls} other @param {number} at
     */
    inherit(other: StreamCalls, at: number): void;
    /** What came of the calls that stand. @returns {Outcome[]} */
    get outcomes(): Outcome[];
    /** @param {Call} call @returns {CallState} */
    state(call: Call): CallState;
    /** It does not run, and the model is told so. @param {Call} call @param {string} [why] */
    refuse(call: Call, why?: string): Promise<number>;
    /** What it returned, by hand: if its tool runs, nobody waits for that any more. @param {Call} call @param {unknown} content */
    give(call: Call, content: unknown): Promise<number>;
    /** @param {StreamEvent} event */
    receive(event: StreamEvent): void;
    /** Its stream has ended, or is lost: nobody waits for what still runs. */
    end(): void;
    #private;
}
/**
 * What came of a call, and the token
 *   before which the model is told it; null where it is not yet.
 */
export type Outcome = {
    call: Call;
    content?: string;
    error?: string;
    index: number | null;
};
export type ToolProgress = {
    type: "tool_progress";
    call: Call;
} & Progress;
export type ToolOutcome = {
    type: "tool_outcome";
    call: Call;
    content?: string;
    error?: string;
};
/**
 * `said`: the server was told, or is being told.
 */
export type Known = {
    call: Call;
    content?: string;
    error?: string;
    said: boolean;
};
/**
 * `asking`: for a yes; `waiting`: for a result by hand
 */
export type CallState = "writing" | "asking" | "running" | "waiting" | "answered" | "failed";
import type { Call } from "./protocol.js";
import type { StreamEvent } from "./protocol.js";
import type { Agent } from "./agent.js";
import type { Stream } from "./stream.js";
import type { Progress } from "./tool-runs.js";
