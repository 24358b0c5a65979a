/** The server's first words. Throws what is wrong with them. @param {string} text @returns {Ready} */
export function greeting(text: string): Ready;
/** An open connection, after its greeting. */
export class Connection {
    /** @param {Ready} ready @param {Wire} wire */
    constructor(ready: Ready, wire: Wire);
    ready: Ready;
    draining: boolean;
    /** @type {((event: GoingAway) => void) | null} */ ongoingaway: ((event: GoingAway) => void) | null;
    /** @type {Promise<Close>} */ closed: Promise<Close>;
    /** @returns {"open" | "closed"} */
    get state(): "open" | "closed";
    /**
     * Make a place for a stream's events, and start it.
     * @param {Start} frame @param {number | null} window @param {AbortSignal} [signal]
     */
    start(frame: Start, window: number | null, signal?: AbortSignal): {
        channel: Channel;
        started: Promise<Answer>;
    };
    /** @param {string} requestId @param {StreamCore} core */
    pull(requestId: string, core: StreamCore): import("./stream.js").Chunk | null;
    /** @param {Question} question @returns {Promise<Answer>} */
    request(question: Question): Promise<Answer>;
    /** @param {Frame} frame */
    send(frame: Frame): void;
    close(): void;
    /** @param {string} text */
    receive(text: string): void;
    /** The wire is gone: tell everybody who waits for something. @param {ConnectionLost} lost */
    lose(lost: ConnectionLost): void;
    #private;
}
/**
 * What a connection is made over.
 */
export type Wire = {
    send(text: string): void;
    close(code?: number): void;
};
import type { Ready } from "./wire.js";
import type { GoingAway } from "./wire.js";
import type { Close } from "./errors.js";
import type { Start } from "./wire.js";
import { Channel } from "./channel.js";
import type { Answer } from "./wire.js";
import { StreamCore } from "./stream.js";
import type { Question } from "./wire.js";
import type { Frame } from "./wire.js";
import { ConnectionLost } from "./errors.js";
