/**
 * Watch one connection, until it is stopped.
 * @param {number} silenceMs 0: do not
 * @param {LivenessCallbacks} callbacks
 */
export function watchLiveness(silenceMs: number, { awaiting, unsent, ping, dead }: LivenessCallbacks): {
    receive: () => void;
    stop: () => void;
};
/**
 * Liveness detection: pings a server that is silent, and tells when it is dead. Where a cable was pulled, no socket
 * says so. It knows how long a silence may last and when one matters; not what is received, nor what becomes of a
 * connection that is given up.
 * @module
 */
/**
 * @typedef {object} LivenessCallbacks
 * @property {() => boolean} awaiting whether anything is awaited: where not, silence is no sign
 * @property {() => number} unsent how much waits to be sent: where that becomes less, the server takes it
 * @property {() => void} ping ask for a sign of life
 * @property {() => void} dead there was none
 */
/**
 * Pure: it counts thirds of the time that a silence may last, one to the ping and one to its answer. It has
 * no clock, so that a page that slept, or was busy, does not take that for the server's silence.
 */
export class LivenessCheck {
    /** Anything at all came. */
    receive(): void;
    /** Another third has passed. @param {boolean} awaiting @returns {"alive" | "ping" | "dead"} */
    tick(awaiting: boolean): "alive" | "ping" | "dead";
    #private;
}
export type LivenessCallbacks = {
    /**
     * whether anything is awaited: where not, silence is no sign
     */
    awaiting: () => boolean;
    /**
     * how much waits to be sent: where that becomes less, the server takes it
     */
    unsent: () => number;
    /**
     * ask for a sign of life
     */
    ping: () => void;
    /**
     * there was none
     */
    dead: () => void;
};
