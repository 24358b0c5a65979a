/** @param {RequestFrame} frame */
export function opens({ type }: RequestFrame): boolean;
/**
 * @typedef {object} PendingFrame A frame that waits for its answer: an event with its ref, or an error.
 * @property {string} ref
 * @property {RequestFrame} frame
 * @property {string | undefined} requestId
 * @property {object | null} transport what it was last sent over; null if it was not sent yet
 * @property {ReturnType<typeof setTimeout> | undefined} held until when it waits for a server that starts something new
 * @property {Backoff | null} backoff of one that is sent again while the server refuses it
 * @property {(event: Answer) => void} onanswer told at once, before any event that follows its answer
 * @property {Promise<Answer>} answered
 * @property {(event: Answer) => void} resolve
 * @property {(error: Error) => void} reject
 */
/** The pending frames of a session, by their refs. */
export class PendingFrames {
    /** @param {string} [prefix] so that no other client's refs, on the same stream, are ours */
    constructor(prefix?: string);
    /** @param {RequestFrame} frame @param {(event: Answer) => void} [onanswer] @returns {PendingFrame} */
    add(frame: RequestFrame, onanswer?: (event: Answer) => void): PendingFrame;
    /**
     * Once more what has had its answer, by its old ref: before all that has none.
     * @param {string} ref @param {RequestFrame} frame @param {(event: Answer) => void} onanswer
     */
    addAgain(ref: string, frame: RequestFrame, onanswer: (event: Answer) => void): PendingFrame;
    /** @param {string | undefined} ref */
    get(ref: string | undefined): PendingFrame | undefined;
    /** In the order in which they were added. @returns {PendingFrame[]} */
    all(): PendingFrame[];
    /** @param {string | undefined} requestId */
    ofStream(requestId: string | undefined): PendingFrame[];
    /** The one that is to open the stream here. @param {string} requestId */
    opening(requestId: string): PendingFrame | undefined;
    /** @param {string | undefined} ref @param {Answer} event */
    receiveAnswer(ref: string | undefined, event: Answer): void;
    /** This is its answer, of whatever type it is. @param {string | undefined} ref @param {Answer} event */
    resolve(ref: string | undefined, event: Answer): void;
    /** @param {string | undefined} ref @param {Error} error */
    reject(ref: string | undefined, error: Error): void;
    /**
     * All that is pending of a stream that has ended is answered by its end: a cancel that crossed the final on its
     * way gets no answer of its own.
     * @param {Final} final @param {boolean} answersLost whether some may have been given, and not told
     */
    receiveFinal(final: Final, answersLost: boolean): void;
    /** @param {string} requestId @param {Error} error */
    rejectOfStream(requestId: string, error: Error): void;
    /** @param {Error} error */
    rejectAll(error: Error): void;
    #private;
}
/**
 * A frame that waits for its answer: an event with its ref, or an error.
 */
export type PendingFrame = {
    ref: string;
    frame: RequestFrame;
    requestId: string | undefined;
    /**
     * what it was last sent over; null if it was not sent yet
     */
    transport: object | null;
    /**
     * until when it waits for a server that starts something new
     */
    held: ReturnType<typeof setTimeout> | undefined;
    /**
     * of one that is sent again while the server refuses it
     */
    backoff: Backoff | null;
    /**
     * told at once, before any event that follows its answer
     */
    onanswer: (event: Answer) => void;
    answered: Promise<Answer>;
    resolve: (event: Answer) => void;
    reject: (error: Error) => void;
};
import type { RequestFrame } from "./protocol.js";
import type { Answer } from "./protocol.js";
import type { Final } from "./protocol.js";
import type { Backoff } from "./backoff.js";
