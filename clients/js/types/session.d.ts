export class Session {
    /** @param {Dial} dial @param {Timeouts} timeouts */
    constructor(dial: Dial, timeouts: Timeouts);
    draining: boolean;
    /** @type {((event: GoingAway) => void) | null} */ ongoingaway: ((event: GoingAway) => void) | null;
    /** @type {((state: ConnectionState) => void) | null} */ onstate: ((state: ConnectionState) => void) | null;
    /** @type {Promise<Close>} */ closed: Promise<Close>;
    /** For the first time: where that fails, it has failed. @param {AbortSignal} [signal] */
    open(signal?: AbortSignal): Promise<void>;
    get ready(): import("./protocol.js").Ready;
    /** @returns {ConnectionState} */
    get state(): ConnectionState;
    /**
     * Make a place for a stream's events, and start it or take it over.
     * @param {OpeningFrame} frame @param {ReadOptions} readOptions @param {AbortSignal} [signal]
     */
    begin(frame: OpeningFrame, readOptions: ReadOptions, signal?: AbortSignal): {
        channel: Channel;
        started: Promise<Answer>;
    };
    /** @param {string} requestId @param {StreamCore} core */
    pull(requestId: string, core: StreamCore): import("./stream-core.js").Chunk | null;
    /** @param {RequestFrame} frame @param {(event: Answer) => void} [onanswer] @returns {Promise<Answer>} */
    request(frame: RequestFrame, onanswer?: (event: Answer) => void): Promise<Answer>;
    close(): void;
    /** It is the end: whoever waits for something is told. @param {ConnectionLost} lost */
    lose(lost: ConnectionLost): void;
    #private;
}
import type { GoingAway } from "./protocol.js";
import type { ConnectionState } from "./reconnecting.js";
import type { Close } from "./errors.js";
import type { OpeningFrame } from "./protocol.js";
import type { ReadOptions } from "./stream-core.js";
import { Channel } from "./stream-channel.js";
import type { Answer } from "./protocol.js";
import type { StreamCore } from "./stream-core.js";
import type { RequestFrame } from "./protocol.js";
import { ConnectionLost } from "./errors.js";
import type { Dial } from "./reconnecting.js";
import type { Timeouts } from "./reconnecting.js";
