/**
 * @typedef {object} Line A stream's way to the server: a connection, or a worker that has one.
 * @property {(requestId: string, core: StreamCore) => Chunk | null} pull ask for the next chunk, and take it
 *   if it is here
 * @property {(frame: Question) => Promise<Answer>} request send a frame and wait for its answer
 * @property {(frame: Cancel) => void} send send a frame if that is still possible
 */
export class Channel {
    /**
     * @param {string} requestId
     * @param {StreamCore} core
     * @param {Line} line
     * @param {AbortSignal} [signal]
     */
    constructor(requestId: string, core: StreamCore, line: Line, signal?: AbortSignal);
    requestId: string;
    core: StreamCore;
    signal: AbortSignal | undefined;
    /** Why no more events will come, if none will. @type {MidstreamError | null} */
    failure: MidstreamError | null;
    /** @type {((event: StreamEvent) => void) | null} */
    onevent: ((event: StreamEvent) => void) | null;
    /** @returns {Chunk | null} */
    pull(): Chunk | null;
    /** @param {Steering} frame */
    request(frame: Steering): Promise<Answer>;
    /** @param {StreamEvent} event */
    feed(event: StreamEvent): void;
    /** No more events will come. @param {MidstreamError} failure */
    fail(failure: MidstreamError): void;
    /** Wait for the next event, or the end of events. */
    news(): Promise<void>;
    wake(): void;
    /** Nobody wants this stream any more: cancel it. */
    abandon(): void;
    #private;
}
/** Every stream of a connection by its name: where events go. */
export class Channels {
    /** @param {Channel} channel */
    add(channel: Channel): Channel;
    /** @param {string} requestId */
    get(requestId: string): Channel | undefined;
    /** Nothing follows a final. @param {StreamEvent} event */
    feed(event: StreamEvent): void;
    /** @param {MidstreamError} failure */
    failAll(failure: MidstreamError): void;
    /** The server refused a stream: it never was. @param {Channel} channel @param {MidstreamError} why */
    refuse(channel: Channel, why: MidstreamError): void;
    #private;
}
/**
 * A stream's way to the server: a connection, or a worker that has one.
 */
export type Line = {
    /**
     * ask for the next chunk, and take it
     * if it is here
     */
    pull: (requestId: string, core: StreamCore) => Chunk | null;
    /**
     * send a frame and wait for its answer
     */
    request: (frame: Question) => Promise<Answer>;
    /**
     * send a frame if that is still possible
     */
    send: (frame: Cancel) => void;
};
import type { StreamCore } from "./stream.js";
import { MidstreamError } from "./errors.js";
import type { StreamEvent } from "./wire.js";
import type { Chunk } from "./stream.js";
import type { Steering } from "./wire.js";
import type { Answer } from "./wire.js";
import type { Question } from "./wire.js";
import type { Cancel } from "./wire.js";
