/**
 * @typedef {object} Waiting
 * @property {string} ref
 * @property {Question} frame
 * @property {string | undefined} requestId
 * @property {object | null} wire what it was last sent over; null if it was not sent yet
 * @property {Backoff | null} backoff of one that is asked again while the server refuses it
 * @property {Promise<Answer>} answered
 * @property {(event: Answer) => void} resolve
 * @property {(error: Error) => void} reject
 */
export class Questions {
    /** @param {Question} frame @returns {Waiting} */
    ask(frame: Question): Waiting;
    /** @param {string | undefined} ref */
    get(ref: string | undefined): Waiting | undefined;
    /** In the order in which they were asked. @returns {Waiting[]} */
    all(): Waiting[];
    /** @param {string | undefined} requestId */
    of(requestId: string | undefined): Waiting[];
    /** The one that is to bring a stream here. @param {string} requestId */
    opening(requestId: string): Waiting | undefined;
    /** @param {string | undefined} ref @param {Answer} event */
    answer(ref: string | undefined, event: Answer): void;
    /** This is its answer, of whatever type it is. @param {string | undefined} ref @param {Answer} event */
    settle(ref: string | undefined, event: Answer): void;
    /** @param {string | undefined} ref @param {Error} error */
    refuse(ref: string | undefined, error: Error): void;
    /**
     * Whoever still waits for something of a stream that has ended has his answer now: a cancel that crossed
     * the final on its way gets none of its own.
     * @param {Final} final
     */
    end(final: Final): void;
    /** @param {string} requestId @param {Error} error */
    refuseOf(requestId: string, error: Error): void;
    /** @param {Error} error */
    refuseAll(error: Error): void;
    #private;
}
export type Waiting = {
    ref: string;
    frame: Question;
    requestId: string | undefined;
    /**
     * what it was last sent over; null if it was not sent yet
     */
    wire: object | null;
    /**
     * of one that is asked again while the server refuses it
     */
    backoff: Backoff | null;
    answered: Promise<Answer>;
    resolve: (event: Answer) => void;
    reject: (error: Error) => void;
};
import type { Question } from "./protocol.js";
import type { Answer } from "./protocol.js";
import type { Final } from "./protocol.js";
import type { Backoff } from "./backoff.js";
