/** @typedef {{step: PastStep | null, index: number, count: number}} Step `step` is null where it cannot be said. */
export class Past {
    /** @param {Start} start */
    constructor(start: Start);
    /** Whether a client has paused it. */
    paused: boolean;
    /** Results that the server has, and has not put in: it waits for others. */
    get waiting(): {
        ref: string;
        frame: ToolResultFrame;
    }[];
    /**
     * Its start, with all that has come since; null where that cannot be said exactly.
     * @param {StreamCore} core @returns {Start | null}
     */
    start({ tokens, index, text, spans: { reasoning, calls, told } }: StreamCore): Start | null;
    /** @param {string} ref @param {RequestFrame} frame */
    sent(ref: string, frame: RequestFrame): void;
    /** @param {string} ref */
    refused(ref: string): void;
    /** The stream's next event; `calls` are those that stand with it. @param {StreamEvent} event @param {Call[]} calls */
    receive(event: StreamEvent, calls: Call[]): void;
    /**
     * An answer that a snapshot stands for, which is about to come.
     * @param {RequestFrame} frame @param {Exclude<Answered, {type: "error"}>} answer @param {StreamCore} core
     */
    receiveMissed(frame: RequestFrame, answer: Exclude<Answered, {
        type: "error";
    }>, core: StreamCore): void;
    /** It stands for events that never came. @param {Snapshot} snapshot */
    miss({ index, params, paused, injected_tokens }: Snapshot): void;
    #private;
}
/**
 * `step` is null where it cannot be said.
 */
export type Step = {
    step: PastStep | null;
    index: number;
    count: number;
};
import type { ToolResultFrame } from "./protocol.js";
import type { StreamCore } from "./stream-core.js";
import type { Start } from "./protocol.js";
import type { RequestFrame } from "./protocol.js";
import type { StreamEvent } from "./protocol.js";
import type { Call } from "./protocol.js";
import type { Answered } from "./protocol.js";
import type { Snapshot } from "./protocol.js";
import type { PastStep } from "./protocol.js";
