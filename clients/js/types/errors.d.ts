/** An answer that is held to a schema. Throws a ParseError where it is no whole value. @param {string} text @param {Final} final */
export function parsedAnswer(text: string, final: Final): any;
/** @param {ErrorEvent} event */
export function fromEvent(event: ErrorEvent): MidstreamError;
/**
 * What the client itself knows that the server would answer.
 * @param {string} message
 * @param {string | undefined} requestId
 */
export function requestFinished(message: string, requestId: string | undefined): MidstreamError;
/**
 * Of a message that would end the connection, and all of its streams.
 * @param {Frame} frame @param {number} bytes @param {number} most
 */
export function tooLarge(frame: Frame, bytes: number, most: number): MidstreamError;
/** @param {number} closeCode @param {string} reason */
export function connectionClosed(closeCode: number, reason: string): ConnectionLost;
/** There may be a server, which says nothing. @param {number} ms */
export function notAnswered(ms: number): ConnectionLost;
/** No close frame came, and nothing else either. @param {number} ms */
export function silenceTimedOut(ms: number): ConnectionLost;
/**
 * Why there was no reconnecting.
 * @param {ConnectionLost} lost
 * @param {any} why
 */
export function reconnectFailed(lost: ConnectionLost, why: any): ConnectionLost;
/**
 * The connection is there again, and the server no longer has one of its streams.
 * @param {string} requestId
 * @param {Error} why
 */
export function streamLost(requestId: string, why: Error): ConnectionLost;
/** It waited for its client as long as it was to. @param {string} requestId */
export function streamDetached(requestId: string): ConnectionLost;
/** Started again, it is another stream. @param {string} requestId */
export function notTheSame(requestId: string): ConnectionLost;
/**
 * A frame whose answer was lost with a connection, and which must not be sent twice.
 * @param {string} type
 * @param {string | undefined} requestId
 */
export function outcomeUnknown(type: string, requestId: string | undefined): ConnectionLost;
/**
 * An error as what a message to another thread can carry: the classes do not cross by themselves.
 * @param {any} error
 */
export function serializeError(error: any): {
    name: any;
    message: any;
    code: any;
    status: any;
    retryable: any;
    retryAfterMs: any;
    requestId: any;
    closeCode: any;
    reason: any;
};
/** @param {ReturnType<typeof serializeError>} error @returns {Error} */
export function deserializeError(error: ReturnType<typeof serializeError>): Error;
/**
 * @typedef {object} ErrorDetails
 * @property {string} code
 * @property {number | null} [status]
 * @property {boolean} [retryable]
 * @property {number | null} [retryAfterMs]
 * @property {string | null} [requestId]
 */
/** @typedef {{code: number, reason: string, retryable: boolean}} Close How a connection ended. */
/**
 * @typedef {object} LossDetails How a connection was lost, or one stream of it.
 * @property {number | null} closeCode
 * @property {string} [reason]
 * @property {boolean} retryable
 * @property {string | null} [requestId]
 */
/** Every error of the service and of the connection to it. `code` is the wire's, such as "rate_limited". */
export class MidstreamError extends Error {
    /** @param {string} message @param {ErrorDetails} particulars */
    constructor(message: string, { code, status, retryable, retryAfterMs, requestId }: ErrorDetails);
    /** The wire's code, or "stream_failed", "parse_error", "connection_lost", "protocol_error". */
    code: string;
    /** The HTTP status that the error corresponds to, if it came from the server. */
    status: number | null;
    /** Whether the same may succeed if it is tried again later. */
    retryable: boolean;
    /** How long to wait before that, if the server said: a day at most, of whatever it said. */
    retryAfterMs: number | null;
    /** The stream that it is about, if it is about one. */
    requestId: string | null;
}
/** The stream ended with finish reason "error". What came before stays in `stream.text`. */
export class StreamFailed extends MidstreamError {
    /** @param {Final} final */
    constructor(final: Final);
    final: Final;
}
/** The answer ended before it was the value that was asked for. `text` is what there is of it. */
export class ParseError extends MidstreamError {
    /** @param {string} text @param {Final} final */
    constructor(text: string, final: Final);
    text: string;
    final: Final;
}
/** A run of an agent had more calls than that may make, and was cancelled. */
export class LimitReached extends MidstreamError {
    /** @param {string} message @param {string} requestId */
    constructor(message: string, requestId: string);
}
/** The connection could not be made, or broke, or was closed: by either side. */
export class ConnectionLost extends MidstreamError {
    /** @param {string} message @param {LossDetails} how */
    constructor(message: string, { closeCode, reason, retryable, requestId }: LossDetails);
    /** The WebSocket close code; null if there never was a connection. */
    closeCode: number | null;
    reason: string;
}
/** The server said what the protocol does not allow: a fault of the server's, or of this package. */
export class ProtocolError extends MidstreamError {
    /** @param {string} message */
    constructor(message: string);
}
export type ErrorDetails = {
    code: string;
    status?: number | null | undefined;
    retryable?: boolean | undefined;
    retryAfterMs?: number | null | undefined;
    requestId?: string | null | undefined;
};
/**
 * How a connection ended.
 */
export type Close = {
    code: number;
    reason: string;
    retryable: boolean;
};
/**
 * How a connection was lost, or one stream of it.
 */
export type LossDetails = {
    closeCode: number | null;
    reason?: string | undefined;
    retryable: boolean;
    requestId?: string | null | undefined;
};
import type { Final } from "./protocol.js";
import type { ErrorEvent } from "./protocol.js";
import type { Frame } from "./protocol.js";
