/** Records one stream: `client.start({ prompt, recorder: new Recorder() })`. */
export class Recorder {
    /** @param {number} [stream] its number in the file */
    constructor(stream?: number);
    /** The record so far, as a file has it. */
    get text(): string;
    /** Of the stream that is about to be started: its tokens come with ids and log probabilities. @param {Start} frame */
    begin(frame: Start): void;
    /**
     * For a fork of this stream: as it was up to there, and then as the fork goes on.
     * @param {number} at @param {number} [stream] its number in the file
     */
    fork(at: number, stream?: number): Recorder;
    /** What was asked took effect. @param {RequestFrame} frame @param {Answer} answer */
    answered(frame: RequestFrame, answer: Answer, ...args: any[]): void;
    /** @param {StreamEvent} event */
    receive(event: StreamEvent): void;
    #private;
}
import type { Start } from "./protocol.js";
import type { RequestFrame } from "./protocol.js";
import type { Answer } from "./protocol.js";
import type { StreamEvent } from "./protocol.js";
