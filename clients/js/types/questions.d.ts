/**
 * @typedef {object} Waiting
 * @property {string | undefined} requestId
 * @property {string} answer the type of the event that it waits for
 * @property {(event: Answer) => void} resolve
 * @property {(error: Error) => void} reject
 */
export class Questions {
    /** @param {Question} frame @returns {{ref: string, answered: Promise<Answer>}} */
    ask(frame: Question): {
        ref: string;
        answered: Promise<Answer>;
    };
    /** @param {string | undefined} ref @param {Answer} event */
    answer(ref: string | undefined, event: Answer): void;
    /** @param {string | undefined} ref @param {Error} error */
    refuse(ref: string | undefined, error: Error): void;
    /**
     * Whoever still waits for something of a stream that has ended has his answer now: a cancel that crossed
     * the final on its way gets none of its own.
     * @param {Final} final
     */
    end(final: Final): void;
    /** @param {Error} error */
    refuseAll(error: Error): void;
    #private;
}
export type Waiting = {
    requestId: string | undefined;
    /**
     * the type of the event that it waits for
     */
    answer: string;
    resolve: (event: Answer) => void;
    reject: (error: Error) => void;
};
import type { Question } from "./wire.js";
import type { Answer } from "./wire.js";
import type { Final } from "./wire.js";
