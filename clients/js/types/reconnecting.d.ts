/** @typedef {"open" | "reconnecting" | "closed"} ConnectionState */
/** @typedef {{send(text: string): void, close(code?: number): void, readonly bufferedAmount?: number}} Transport A
 *   socket, as far as it is used here. */
/** @typedef {{receive(text: string): void, lost(lost: ConnectionLost): void}} TransportEvents What it calls. */
/** @typedef {(onready: (ready: Ready, transport: Transport) => TransportEvents, signal?: AbortSignal) =>
 *   Promise<void>} Dial */
/**
 * @typedef {object} Timeouts
 * @property {number} reconnectMs how long to try for another transport; 0: not at all
 * @property {number} silenceMs how long a transport may be silent before it counts as lost; 0: for ever
 */
/**
 * @typedef {object} ConnectionEvents
 * @property {(text: string) => void} receive
 * @property {() => boolean} awaiting whether anything is to come
 * @property {() => void} disconnected the transport is lost, and another is dialled
 * @property {() => void} reconnected there is another transport
 * @property {(lost: ConnectionLost) => void} lost there will be no other
 */
/** The transport that there is, and the next one where it is lost. */
export class Reconnecting {
    /** @param {Dial} dial @param {Timeouts} timeouts @param {ConnectionEvents} events */
    constructor(dial: Dial, timeouts: Timeouts, events: ConnectionEvents);
    ready: Ready;
    /** @type {Transport | null} */ transport: Transport | null;
    /** @param {AbortSignal} [signal] */
    open(signal?: AbortSignal): Promise<void>;
    /** What the server would not take, as it would end the connection, is refused here. @param {Frame} frame */
    send(frame: Frame): void;
    /** What was sent over this transport has been received: it works. @param {boolean} [moved] a stream has moved on */
    confirm(moved?: boolean): void;
    /** The server goes away, and nothing holds us there: another is dialled. */
    leave(): void;
    /** Close, and dial no other. @param {number} [code] */
    close(code?: number): void;
    #private;
}
export type ConnectionState = "open" | "reconnecting" | "closed";
/**
 * A
 *  socket, as far as it is used here.
 */
export type Transport = {
    send(text: string): void;
    close(code?: number): void;
    readonly bufferedAmount?: number;
};
/**
 * What it calls.
 */
export type TransportEvents = {
    receive(text: string): void;
    lost(lost: ConnectionLost): void;
};
export type Dial = (onready: (ready: Ready, transport: Transport) => TransportEvents, signal?: AbortSignal) => Promise<void>;
export type Timeouts = {
    /**
     * how long to try for another transport; 0: not at all
     */
    reconnectMs: number;
    /**
     * how long a transport may be silent before it counts as lost; 0: for ever
     */
    silenceMs: number;
};
export type ConnectionEvents = {
    receive: (text: string) => void;
    /**
     * whether anything is to come
     */
    awaiting: () => boolean;
    /**
     * the transport is lost, and another is dialled
     */
    disconnected: () => void;
    /**
     * there is another transport
     */
    reconnected: () => void;
    /**
     * there will be no other
     */
    lost: (lost: ConnectionLost) => void;
};
import type { Ready } from "./protocol.js";
import type { Frame } from "./protocol.js";
import { ConnectionLost } from "./errors.js";
