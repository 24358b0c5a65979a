/**
 * Every record of a file, in the order of their starts. Throws RecordError for the first line that is not right.
 * @param {string} text @returns {StreamRecord[]}
 */
export function parseRecords(text: string): StreamRecord[];
export const RECORD_VERSION: 1;
/** A file is no record; the message says where and why. */
export class RecordError extends Error {
}
export type LineFields = {
    type: string;
    stream: number;
};
export type StartLine = LineFields & {
    type: "start";
    record: number;
    request_id: string;
    model: string;
    fingerprint: string | null;
    prompt?: string | number[];
    messages?: Message[];
    fork?: {
        request_id: string;
        at?: number;
    };
    tools?: Tool[];
    tool_choice?: ToolChoice;
    parallel_tool_calls?: boolean;
    on_tool_call?: "finish" | "pause" | "continue";
    prompt_tokens: number;
    params: Params;
};
export type TokensLine = LineFields & {
    type: "tokens";
    index: number;
    text: string;
    tokens: number[];
    logprobs?: number[];
};
export type PauseLine = LineFields & {
    type: "pause";
    index: number;
    kv?: "hold" | "release";
};
export type ResumeLine = LineFields & {
    type: "resume";
    index: number;
};
export type AdjustLine = LineFields & {
    type: "adjust";
    index: number;
    params: Params;
};
export type InjectLine = LineFields & {
    type: "inject";
    index: number;
    text?: string;
    messages?: Message[];
    tokens?: number[];
    grammar?: "fit" | "anew";
};
export type RewindLine = LineFields & {
    type: "rewind";
    index: number;
};
/**
 * It goes on as a fork of it does, whose parameters differ in these
 */
export type ForkedLine = LineFields & {
    type: "forked";
    index: number;
    params: Params;
    on_tool_call?: "finish" | "pause" | "continue";
};
/**
 * It waits for results of its calls.
 */
export type WaitsLine = LineFields & {
    type: "waits";
    index: number;
};
/**
 * `call`: its number among those that stood
 */
export type ToolResultLine = LineFields & {
    type: "tool_result";
    index: number;
    call: number;
    content?: string;
    error?: string;
};
export type AmendLine = LineFields & {
    type: "amend";
    index: number;
    call: number;
    arguments: string | object;
    partial?: boolean;
};
/**
 * Output from `index` on is void
 */
export type GuardLine = LineFields & {
    type: "guard";
    index: number;
    name: string;
    do: "rewind" | "pause" | "finish" | "tell";
};
export type MovedLine = LineFields & {
    type: "moved";
    index: number;
    fingerprint: string;
};
export type LostLine = LineFields & {
    type: "lost";
    index: number;
    why: string;
};
export type FinalLine = LineFields & {
    type: "final";
    index: number;
    finish_reason: string;
    stop_reason?: string;
};
export type ControlLine = PauseLine | ResumeLine | AdjustLine | InjectLine | RewindLine | ForkedLine | WaitsLine | ToolResultLine | AmendLine;
export type Line = StartLine | TokensLine | ControlLine | GuardLine | MovedLine | LostLine | FinalLine;
/**
 * One stream's lines, those behind the first in their order.
 */
export type StreamRecord = {
    start: StartLine;
    lines: Line[];
};
import type { Message } from "./protocol.js";
import type { Tool } from "./protocol.js";
import type { ToolChoice } from "./protocol.js";
import type { Params } from "./protocol.js";
