/**
 * Recovery after a reconnect: how a stream is opened again on another connection, and which of its pending frames
 * are sent again. Pure: it knows frames, not how they travel.
 * @module
 * @import { PendingFrame } from "./pending-frames.js"
 * @import { Limits, OpeningFrame, RequestFrame } from "./protocol.js"
 * @import { Channel } from "./stream-channel.js"
 */

import { Backoff } from "./backoff.js";

const MAX_GRACE_MS = 86_400_000; // the protocol's

/**
 * The frame as it is sent: where a client comes back by itself, its streams wait for it as long as it tries, or as
 * long as they may there, unless their user said otherwise.
 * @param {OpeningFrame} frame @param {number} reconnectMs @param {Pick<Limits, "max_grace_ms">} limits
 * @returns {OpeningFrame}
 */
export function openingFrame(frame, reconnectMs, { max_grace_ms = MAX_GRACE_MS }) {
  if (frame.type !== "start" || !reconnectMs || frame.on_disconnect) return { ...frame };
  const grace_ms = Math.min(Math.ceil(reconnectMs), max_grace_ms);
  return { on_disconnect: "pause", grace_ms, ...frame };
}

/**
 * A start is sent again as it was; an attach asks for what came after event `seq`. What nobody wants any more is not started.
 * @param {PendingFrame} pending @param {Pick<Channel, "requestId" | "core" | "abandoned">} channel @param {number} reconnectMs
 */
export function reopeningFrame(pending, { requestId, core: { seq, epoch }, abandoned }, reconnectMs) {
  if (abandoned) pending.frame = { type: "attach", request_id: requestId, after: seq };
  if (pending.frame.type === "attach") {
    pending.frame.after = seq;
    if (epoch) pending.frame.epoch = epoch;
  }
  pending.backoff ??= new Backoff(reconnectMs);
  return pending;
}

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
export function resendDecision(frame, { sentHere, sent, received, answersLost }) {
  if (sentHere || received) return "wait";
  return sent && answersLost && !idempotent(frame) ? "unknown" : "send";
}

/** Whether to do it twice is to do it once. @param {RequestFrame} frame */
export function idempotent(frame) {
  if (frame.type === "adjust") return frame.at === undefined;
  return ["pause", "resume", "cancel"].includes(frame.type);
}
