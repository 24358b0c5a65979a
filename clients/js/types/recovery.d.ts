/**
 * The frame as it is sent: where a client comes back by itself, its streams wait for it as long as it tries,
 * unless their user said otherwise.
 * @param {Opening} frame @param {number} reconnectMs
 * @returns {Opening}
 */
export function opening(frame: Opening, reconnectMs: number): Opening;
/**
 * A start is said again as it was; an attach asks for what came after event `seq`.
 * @param {Waiting} waiting @param {number} seq @param {number} reconnectMs
 */
export function reopening(waiting: Waiting, seq: number, reconnectMs: number): Waiting;
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
export function fate(frame: Question, { here, sent, pending, retold }: Whereabouts): "say" | "wait" | "unknown";
export type Whereabouts = {
    /**
     * it has been sent over this very wire
     */
    here: boolean;
    /**
     * it has been sent before
     */
    sent: boolean;
    /**
     * the server has it, and will answer
     */
    pending: boolean;
    /**
     * instead of events there was a snapshot, in which an answer may have gone under
     */
    retold: boolean;
};
import type { Opening } from "./protocol.js";
import type { Waiting } from "./pending-frames.js";
import type { Question } from "./protocol.js";
