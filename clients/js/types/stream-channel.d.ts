/**
 * The channel of a stream that is to be started, or taken over.
 * @param {OpeningFrame} frame @param {ReadOptions} readOptions @param {ChannelSession} session
 * @param {AbortSignal} [signal]
 */
export function channelFor(frame: OpeningFrame, { window, had }: ReadOptions, session: ChannelSession, signal?: AbortSignal): Channel;
/**
 * @typedef {object} ChannelSession The session as a channel sees it: here, or in a worker.
 * @property {(requestId: string, core: StreamCore) => Chunk | null} pull ask for the next chunk, and take it
 *   if it is here
 * @property {(frame: RequestFrame, onanswer?: (event: Answer) => void) => Promise<Answer>} request send a frame and
 *   wait for its answer; `onanswer` is told before any event that follows it
 */
/** What the session knows of a stream, and the stream of the session. */
export class Channel {
    /**
     * @param {string} requestId
     * @param {StreamCore} core
     * @param {ChannelSession} session
     * @param {AbortSignal} [signal]
     */
    constructor(requestId: string, core: StreamCore, session: ChannelSession, signal?: AbortSignal);
    number: number;
    requestId: string;
    core: StreamCore;
    signal: AbortSignal | undefined;
    /** Why no more events will come, if none will. @type {MidstreamError | null} */
    failure: MidstreamError | null;
    /** @type {((event: StreamEvent) => void) | null} */
    onevent: ((event: StreamEvent) => void) | null;
    /** Sees what happens to it. @type {Recorder | null} */
    recorder: Recorder | null;
    /** What would start it again; null where this client has not started it. @type {Past | null} */
    past: Past | null;
    /** Called when no more events will come, though there was no final. @type {((why: Error) => void) | null} */
    onfail: ((why: Error) => void) | null;
    /** Whether frames for it may be sent: it is open on this connection, and what was received before is known. */
    open: boolean;
    /** Whether a snapshot stood in for events since the connection was lost, and perhaps for answers that it does not tell. */
    answersLost: boolean;
    /** Whether it may outlive its client: its user said what is to become of it. */
    outlives: boolean;
    /** Whether nobody wants it any more. */
    abandoned: boolean;
    /** Whether it is this client's to cancel: what is attached to is somebody else's, until it is here; */
    own: boolean;
    /** and is left as it was where that was given up. */
    left: boolean;
    /** The event behind which it was attached to. */
    after: number;
    /** How many servers may have heard of it, and have not refused it. */
    said: number;
    /** Whether a server is to hear of it. Of what was given up only one that may have it: anywhere else whoever has its name is somebody else. */
    get wanted(): boolean;
    /** @returns {Chunk | null} */
    pull(): Chunk | null;
    /** @param {Steering} frame */
    request(frame: Steering): Promise<Answer>;
    /** @param {StreamEvent} event */
    receive(event: StreamEvent): void;
    /** No more events will come. @param {MidstreamError} failure */
    fail(failure: MidstreamError): void;
    /** Wait for the next event, or the end of events. */
    nextEvent(): Promise<void>;
    wake(): void;
    /** What has come where another attach was given up. @param {Channel} left */
    takeUp({ core, open, said }: Channel): void;
    /** Nobody wants this stream any more: cancel it. */
    abandon(): void;
    #private;
}
/** Every channel of a session by its stream's name: where events go. */
export class Channels {
    /** @param {Channel} channel */
    add(channel: Channel): Channel;
    /** @param {string | undefined} requestId */
    get(requestId: string | undefined): Channel | undefined;
    all(): Channel[];
    /** Nothing follows a final; one that cannot come is none, and whoever waits is told with all others. @param {StreamEvent} event */
    receive(event: StreamEvent): void;
    /** @param {MidstreamError} failure */
    failAll(failure: MidstreamError): void;
    /** The server refused a stream, or has lost it. @param {Channel} channel @param {MidstreamError} why */
    drop(channel: Channel, why: MidstreamError): void;
    #private;
}
/**
 * The session as a channel sees it: here, or in a worker.
 */
export type ChannelSession = {
    /**
     * ask for the next chunk, and take it
     * if it is here
     */
    pull: (requestId: string, core: StreamCore) => Chunk | null;
    /**
     * send a frame and
     * wait for its answer; `onanswer` is told before any event that follows it
     */
    request: (frame: RequestFrame, onanswer?: (event: Answer) => void) => Promise<Answer>;
};
import type { OpeningFrame } from "./protocol.js";
import type { ReadOptions } from "./stream-core.js";
import { StreamCore } from "./stream-core.js";
import { MidstreamError } from "./errors.js";
import type { StreamEvent } from "./protocol.js";
import type { Recorder } from "./recorder.js";
import type { Past } from "./past.js";
import type { Chunk } from "./stream-core.js";
import type { Steering } from "./protocol.js";
import type { Answer } from "./protocol.js";
import type { RequestFrame } from "./protocol.js";
