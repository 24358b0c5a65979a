/** @typedef {{done: number, total?: number, message?: string}} Progress */
/**
 * @typedef {object} ToolContext What a tool is told beside its arguments.
 * @property {Call} call
 * @property {AbortSignal} signal aborted when nobody wants the result any more: the call was taken back or changed, its
 *   stream has ended, or it takes too long
 * @property {(done: number, total?: number, message?: string) => void} progress says how far it is
 */
/** @typedef {{content: string} | {error: string}} Result */
export class ToolRuns {
    /**
     * @param {FunctionTool[]} tools
     * @param {{timeoutMs?: number, onprogress: (call: Call, progress: Progress) => void,
     *   onresult: (call: Call, result: Result) => void}} options
     */
    constructor(tools: FunctionTool[], { timeoutMs, onprogress, onresult }: {
        timeoutMs?: number;
        onprogress: (call: Call, progress: Progress) => void;
        onresult: (call: Call, result: Result) => void;
    });
    /** Whether its tool runs. @param {Call} call */
    has(call: Call): boolean;
    /** These may run, and no others: they are whole, and have no result. @param {Call[]} calls */
    follow(calls: Call[]): void;
    #private;
}
export type Progress = {
    done: number;
    total?: number;
    message?: string;
};
/**
 * What a tool is told beside its arguments.
 */
export type ToolContext = {
    call: Call;
    /**
     * aborted when nobody wants the result any more: the call was taken back or changed, its
     * stream has ended, or it takes too long
     */
    signal: AbortSignal;
    /**
     * says how far it is
     */
    progress: (done: number, total?: number, message?: string) => void;
};
export type Result = {
    content: string;
} | {
    error: string;
};
import type { Call } from "./protocol.js";
import type { FunctionTool } from "./tools.js";
