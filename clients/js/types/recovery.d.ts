/**
 * The frame as it is sent: where a client comes back by itself, its streams wait for it as long as it tries, or as
 * long as they may there, unless their user said otherwise.
 * @param {OpeningFrame} frame @param {number} reconnectMs @param {Pick<Limits, "max_grace_ms">} limits
 * @returns {OpeningFrame}
 */
export function openingFrame(frame: OpeningFrame, reconnectMs: number, { max_grace_ms }: Pick<Limits, "max_grace_ms">): OpeningFrame;
/**
 * A start is sent again as it was; an attach asks for what came after event `seq`. What nobody wants any more is not started.
 * @param {PendingFrame} pending @param {Pick<Channel, "requestId" | "core" | "abandoned">} channel @param {number} reconnectMs
 */
export function reopeningFrame(pending: PendingFrame, { requestId, core: { seq, epoch }, abandoned }: Pick<Channel, "requestId" | "core" | "abandoned">, reconnectMs: number): PendingFrame;
/**
 * @typedef {object} DeliveryState What is known of a frame that has no answer yet.
 * @property {boolean} sentHere it has been sent over this very connection
 * @property {boolean} sent it has been sent before
 * @property {boolean} received the server has it, and will answer
 * @property {boolean} answersLost instead of events there was a snapshot, in which an answer may have gone under
 */
/**
 * `send` it (again), `wait` for its answer, or its outcome is `unknown`.
 * @param {RequestFrame} frame
 * @param {DeliveryState} delivery
 * @returns {"send" | "wait" | "unknown"}
 */
export function resendDecision(frame: RequestFrame, { sentHere, sent, received, answersLost }: DeliveryState): "send" | "wait" | "unknown";
/** Whether to do it twice is to do it once. @param {RequestFrame} frame */
export function idempotent(frame: RequestFrame): boolean;
/**
 * What is known of a frame that has no answer yet.
 */
export type DeliveryState = {
    /**
     * it has been sent over this very connection
     */
    sentHere: boolean;
    /**
     * it has been sent before
     */
    sent: boolean;
    /**
     * the server has it, and will answer
     */
    received: boolean;
    /**
     * instead of events there was a snapshot, in which an answer may have gone under
     */
    answersLost: boolean;
};
import type { OpeningFrame } from "./protocol.js";
import type { Limits } from "./protocol.js";
import type { PendingFrame } from "./pending-frames.js";
import type { Channel } from "./stream-channel.js";
import type { RequestFrame } from "./protocol.js";
