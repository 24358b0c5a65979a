/**
 * What the client has told a stream beside its own words, and where that stands: results of calls, and turns of others.
 *
 * A result of several that belong together waits in the server until the last of them, or the end of the model's turn:
 * docs/protocol.md, `tool_result`. Events, and frames with their answers, in; pure.
 * @module
 * @import { Answer, Injected, Message, RequestFrame } from "./protocol.js"
 */
/** @typedef {{index: number, length: number}} Place The output token before which something stands, and how much text does. */
export class Told {
    /** @type {Map<string, Place>} by call */ results: Map<string, Place>;
    /** @type {{place: Place, messages: Message[]}[]} */ turns: {
        place: Place;
        messages: Message[];
    }[];
    /** @type {string[]} the refs of results that are told once more */ again: string[];
    /** @type {Set<string>} calls whose results somebody may have taken back */ doubtful: Set<string>;
    /** Whether the stream has the call's result, or the server for it. @param {string} callId */
    has(callId: string): boolean;
    /** What was asked took effect. @param {RequestFrame} frame @param {Answer} answer @param {number} length of the text */
    answered(frame: RequestFrame, answer: Answer, length: number): void;
    /** Where it answers nobody, it is of results that waited for the end of a turn. @param {Injected} event @param {number} length of the text */
    receive({ ref, reason, index, count }: Injected, length: number): void;
    /** Output from `index` on is void; these calls are left, and whole. @param {number} index @param {string[]} calls */
    rewind(index: number, calls: string[]): void;
    /** What has happened is not known, but that what stood before this token stands. @param {number} until */
    miss(until: number): void;
    /** Of a fork: it has what stood there. @param {Told} parent @param {number} at */
    inherit({ results, turns }: Told, at: number): void;
    #private;
}
/**
 * The output token before which something stands, and how much text does.
 */
export type Place = {
    index: number;
    length: number;
};
import type { Message } from "./protocol.js";
import type { RequestFrame } from "./protocol.js";
import type { Answer } from "./protocol.js";
import type { Injected } from "./protocol.js";
