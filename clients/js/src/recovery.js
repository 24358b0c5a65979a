/**
 * How streams come to a connection, and what becomes of a frame that was asked for and not answered when its
 * stream comes to another. Pure: it knows frames, not how they travel.
 * @module
 * @import { Waiting } from "./pending-frames.js"
 * @import { Opening, Question } from "./protocol.js"
 */

import { Backoff } from "./backoff.js";

const MOST_GRACE_MS = 86_400_000; // the wire's

/**
 * The frame as it is sent: where a client comes back by itself, its streams wait for it as long as it tries,
 * unless their user said otherwise.
 * @param {Opening} frame @param {number} reconnectMs
 * @returns {Opening}
 */
export function opening(frame, reconnectMs) {
  if (frame.type !== "start" || !reconnectMs || frame.on_disconnect) return { ...frame };
  const grace_ms = Math.min(Math.ceil(reconnectMs), MOST_GRACE_MS);
  return { on_disconnect: "pause", grace_ms, ...frame };
}

/**
 * A start is said again as it was; an attach asks for what came after event `seq`.
 * @param {Waiting} waiting @param {number} seq @param {number} reconnectMs
 */
export function reopening(waiting, seq, reconnectMs) {
  if (waiting.frame.type === "attach") waiting.frame.after = seq;
  waiting.backoff ??= new Backoff(reconnectMs);
  return waiting;
}

/**
 * @typedef {object} Whereabouts
 * @property {boolean} here it has been sent over this very wire
 * @property {boolean} sent it has been sent before
 * @property {boolean} pending the server has it, and will answer
 * @property {boolean} retold instead of events there was a snapshot, in which an answer may have gone under
 */

/**
 * `say` it (again), `wait` for its answer, or its outcome is `unknown`.
 * @param {Question} frame
 * @param {Whereabouts} whereabouts
 * @returns {"say" | "wait" | "unknown"}
 */
export function fate(frame, { here, sent, pending, retold }) {
  if (here || pending) return "wait";
  return sent && retold && !idempotent(frame) ? "unknown" : "say";
}

/** Whether to do it twice is to do it once. @param {Question} frame */
function idempotent(frame) {
  if (frame.type === "adjust") return frame.at === undefined;
  return ["pause", "resume", "cancel"].includes(frame.type);
}
