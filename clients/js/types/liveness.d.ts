/** Watch one wire, until it is stopped. @param {number} silenceMs 0: do not @param {Watched} watched */
export function watch(silenceMs: number, { wanted, ask, gone }: Watched): {
    heard: () => void;
    stop: () => void;
};
/**
 * @typedef {object} Watched
 * @property {() => boolean} wanted whether anything is to be heard of: where not, silence is no sign
 * @property {() => void} ask ask for a sign of life
 * @property {() => void} gone there was none
 */
/**
 * Pure: it counts thirds of the time that a silence may last, one to the question and one to its answer. It has
 * no clock, so that a page that slept, or was busy, does not take that for the server's silence.
 */
export class Pulse {
    /** Anything at all came. */
    heard(): void;
    /** Another third has passed. @param {boolean} wanted @returns {"well" | "ask" | "gone"} */
    third(wanted: boolean): "well" | "ask" | "gone";
    #private;
}
export type Watched = {
    /**
     * whether anything is to be heard of: where not, silence is no sign
     */
    wanted: () => boolean;
    /**
     * ask for a sign of life
     */
    ask: () => void;
    /**
     * there was none
     */
    gone: () => void;
};
