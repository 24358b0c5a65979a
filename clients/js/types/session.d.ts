export class Connection {
    /** @param {Dial} dial @param {Patience} patience */
    constructor(dial: Dial, patience: Patience);
    draining: boolean;
    /** @type {((event: GoingAway) => void) | null} */ ongoingaway: ((event: GoingAway) => void) | null;
    /** @type {((state: State) => void) | null} */ onstate: ((state: State) => void) | null;
    /** @type {Promise<Close>} */ closed: Promise<Close>;
    /** For the first time: where that fails, it has failed. @param {AbortSignal} [signal] */
    open(signal?: AbortSignal): Promise<void>;
    get ready(): import("./protocol.js").Ready;
    /** @returns {State} */
    get state(): State;
    /**
     * Make a place for a stream's events, and start it or take it over.
     * @param {Opening} frame @param {Reading} reading @param {AbortSignal} [signal]
     */
    begin(frame: Opening, reading: Reading, signal?: AbortSignal): {
        channel: Channel;
        started: Promise<Answer>;
    };
    /** @param {string} requestId @param {StreamCore} core */
    pull(requestId: string, core: StreamCore): import("./stream-core.js").Chunk | null;
    /** @param {Question} question @returns {Promise<Answer>} */
    request(question: Question): Promise<Answer>;
    close(): void;
    /** It is the end: tell everybody who waits for something. @param {ConnectionLost} lost */
    lose(lost: ConnectionLost): void;
    #private;
}
import type { GoingAway } from "./protocol.js";
import type { State } from "./reconnecting.js";
import type { Close } from "./errors.js";
import type { Opening } from "./protocol.js";
import type { Reading } from "./stream-core.js";
import { Channel } from "./channel.js";
import type { Answer } from "./protocol.js";
import type { StreamCore } from "./stream-core.js";
import type { Question } from "./protocol.js";
import { ConnectionLost } from "./errors.js";
import type { Dial } from "./reconnecting.js";
import type { Patience } from "./reconnecting.js";
