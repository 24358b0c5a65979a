/** @typedef {"open" | "reconnecting" | "closed"} State */
/** @typedef {{send(text: string): void, close(code?: number): void}} Wire What text goes over. */
/** @typedef {{receive(text: string): void, lose(lost: ConnectionLost): void}} Ear Who hears of a wire. */
/** @typedef {(greet: (ready: Ready, wire: Wire) => Ear, signal?: AbortSignal) => Promise<void>} Dial */
/**
 * @typedef {object} Hearer
 * @property {(text: string) => void} receive
 * @property {() => void} broken the wire is gone, and another is sought
 * @property {() => void} restored there is another wire
 * @property {(lost: ConnectionLost) => void} lose there will be no other
 */
export class Wires {
    /** @param {Dial} dial @param {number} reconnectMs 0: never @param {Hearer} hearer */
    constructor(dial: Dial, reconnectMs: number, hearer: Hearer);
    ready: Ready;
    /** @type {Wire | null} */ current: Wire | null;
    /** @param {AbortSignal} [signal] */
    open(signal?: AbortSignal): Promise<void>;
    /** @param {Frame} frame */
    send(frame: Frame): void;
    /** What was said over this wire has been heard: it works. */
    works(): void;
    /** Close, and seek no other. @param {number} [code] */
    close(code?: number): void;
    #private;
}
export type State = "open" | "reconnecting" | "closed";
/**
 * What text goes over.
 */
export type Wire = {
    send(text: string): void;
    close(code?: number): void;
};
/**
 * Who hears of a wire.
 */
export type Ear = {
    receive(text: string): void;
    lose(lost: ConnectionLost): void;
};
export type Dial = (greet: (ready: Ready, wire: Wire) => Ear, signal?: AbortSignal) => Promise<void>;
export type Hearer = {
    receive: (text: string) => void;
    /**
     * the wire is gone, and another is sought
     */
    broken: () => void;
    /**
     * there is another wire
     */
    restored: () => void;
    /**
     * there will be no other
     */
    lose: (lost: ConnectionLost) => void;
};
import type { Ready } from "./wire.js";
import type { Frame } from "./wire.js";
import { ConnectionLost } from "./errors.js";
