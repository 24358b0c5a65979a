/**
 * The place of a stream that is to be started, or taken over.
 * @param {Opening} frame @param {Reading} reading @param {Line} line @param {AbortSignal} [signal]
 */
export function channelFor(frame: Opening, { window, had }: Reading, line: Line, signal?: AbortSignal): Channel;
/**
 * @typedef {object} Line A stream's way to the server: a connection, or a worker that has one.
 * @property {(requestId: string, core: StreamCore) => Chunk | null} pull ask for the next chunk, and take it
 *   if it is here
 * @property {(frame: Question) => Promise<Answer>} request send a frame and wait for its answer
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
    /** Called when no more events will come, though there was no final. @type {((why: Error) => void) | null} */
    onfail: ((why: Error) => void) | null;
    /** Whether frames for it may be sent: its connection has it, and knows what was heard of those before. */
    here: boolean;
    /** Whether it was told anew by a snapshot since it was lost. */
    retold: boolean;
    /** Whether it may outlive its client: its user said what is to become of it. */
    outlives: boolean;
    /** Whether nobody wants it any more. */
    abandoned: boolean;
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
    /** @param {string | undefined} requestId */
    get(requestId: string | undefined): Channel | undefined;
    all(): Channel[];
    /** Nothing follows a final. @param {StreamEvent} event */
    feed(event: StreamEvent): void;
    /** @param {MidstreamError} failure */
    failAll(failure: MidstreamError): void;
    /** The server refused a stream, or has lost it. @param {Channel} channel @param {MidstreamError} why */
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
};
import type { Opening } from "./protocol.js";
import type { Reading } from "./stream-core.js";
import { StreamCore } from "./stream-core.js";
import { MidstreamError } from "./errors.js";
import type { StreamEvent } from "./protocol.js";
import type { Chunk } from "./stream-core.js";
import type { Steering } from "./protocol.js";
import type { Answer } from "./protocol.js";
import type { Question } from "./protocol.js";
