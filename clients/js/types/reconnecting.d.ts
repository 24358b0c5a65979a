/** @typedef {"open" | "reconnecting" | "closed"} State */
/** @typedef {{send(text: string): void, close(code?: number): void}} Wire What text goes over. */
/** @typedef {{receive(text: string): void, lose(lost: ConnectionLost): void}} Ear Who hears of a wire. */
/** @typedef {(greet: (ready: Ready, wire: Wire) => Ear, signal?: AbortSignal) => Promise<void>} Dial */
/**
 * @typedef {object} Patience
 * @property {number} reconnectMs how long to try for another wire; 0: not at all
 * @property {number} silenceMs how long a wire may be silent before it counts as lost; 0: for ever
 */
/**
 * @typedef {object} Hearer
 * @property {(text: string) => void} receive
 * @property {() => boolean} wanted whether anything is to come
 * @property {() => void} broken the wire is gone, and another is sought
 * @property {() => void} restored there is another wire
 * @property {(lost: ConnectionLost) => void} lose there will be no other
 */
export class Wires {
    /** @param {Dial} dial @param {Patience} patience @param {Hearer} hearer */
    constructor(dial: Dial, patience: Patience, hearer: Hearer);
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
export type Patience = {
    /**
     * how long to try for another wire; 0: not at all
     */
    reconnectMs: number;
    /**
     * how long a wire may be silent before it counts as lost; 0: for ever
     */
    silenceMs: number;
};
export type Hearer = {
    receive: (text: string) => void;
    /**
     * whether anything is to come
     */
    wanted: () => boolean;
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
import type { Ready } from "./protocol.js";
import type { Frame } from "./protocol.js";
import { ConnectionLost } from "./errors.js";
