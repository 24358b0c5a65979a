/**
 * Errors: what can go wrong, as exceptions. Knows the protocol's errors and close codes, and which are worth a retry.
 * @module
 * @import { ErrorEvent, Final, Frame } from "./protocol.js"
 */

import { RETRYABLE_CLOSE_CODES } from "./protocol.js";

const NO_CLOSE_FRAME = 1006; // RFC 6455, 7.1.5
const DAY_MS = 86_400_000;

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
  constructor(message, { code, status = null, retryable = false, retryAfterMs = null, requestId = null }) {
    super(message);
    this.name = "MidstreamError";
    /** The wire's code, or "stream_failed", "parse_error", "connection_lost", "protocol_error". */
    this.code = code;
    /** The HTTP status that the error corresponds to, if it came from the server. */
    this.status = status;
    /** Whether the same may succeed if it is tried again later. */
    this.retryable = retryable;
    /** How long to wait before that, if the server said: a day at most, of whatever it said. */
    this.retryAfterMs = retryAfterMs;
    /** The stream that it is about, if it is about one. */
    this.requestId = requestId;
  }
}

/** The stream ended with finish reason "error". What came before stays in `stream.text`. */
export class StreamFailed extends MidstreamError {
  /** @param {Final} final */
  constructor(final) {
    super(final.stop_reason ?? "the stream ended in an error", {
      code: "stream_failed",
      requestId: final.request_id,
    });
    this.name = "StreamFailed";
    this.final = final;
  }
}

/** The answer ended before it was the value that was asked for. `text` is what there is of it. */
export class ParseError extends MidstreamError {
  /** @param {string} text @param {Final} final */
  constructor(text, final) {
    const message = `the answer ended before it was whole (${final.finish_reason})`;
    super(message, { code: "parse_error", requestId: final.request_id });
    this.name = "ParseError";
    this.text = text;
    this.final = final;
  }
}

/** An answer that is held to a schema. Throws a ParseError where it is no whole value. @param {string} text @param {Final} final */
export function parsedAnswer(text, final) {
  try {
    return JSON.parse(text);
  } catch {
    throw new ParseError(text, final);
  }
}

/** A run of an agent had more calls than that may make, and was cancelled. */
export class LimitReached extends MidstreamError {
  /** @param {string} message @param {string} requestId */
  constructor(message, requestId) {
    super(message, { code: "limit_reached", requestId });
    this.name = "LimitReached";
  }
}

/** The connection could not be made, or broke, or was closed: by either side. */
export class ConnectionLost extends MidstreamError {
  /** @param {string} message @param {LossDetails} how */
  constructor(message, { closeCode, reason = "", retryable, requestId }) {
    super(message, { code: "connection_lost", retryable, requestId });
    this.name = "ConnectionLost";
    /** The WebSocket close code; null if there never was a connection. */
    this.closeCode = closeCode;
    this.reason = reason;
  }
}

/** The server said what the protocol does not allow: a fault of the server's, or of this package. */
export class ProtocolError extends MidstreamError {
  /** @param {string} message */
  constructor(message) {
    super(message, { code: "protocol_error" });
    this.name = "ProtocolError";
  }
}

/** @param {ErrorEvent} event */
export function fromEvent(event) {
  const after = event.retry_after_ms ?? null;
  return new MidstreamError(event.message, {
    code: event.code,
    status: event.status,
    retryable: event.retryable,
    retryAfterMs: after && Math.min(after, DAY_MS),
    requestId: event.request_id ?? null,
  });
}

/**
 * What the client itself knows that the server would answer.
 * @param {string} message
 * @param {string | undefined} requestId
 */
export function requestFinished(message, requestId) {
  return new MidstreamError(message, { code: "request_finished", status: 409, requestId });
}

/**
 * Of a message that would end the connection, and all of its streams.
 * @param {Frame} frame @param {number} bytes @param {number} most
 */
export function tooLarge(frame, bytes, most) {
  const message = `this "${frame.type}" would be a message of ${bytes} bytes, and the server takes ${most} at most`;
  const requestId = "request_id" in frame ? frame.request_id : null;
  return new MidstreamError(message, { code: "too_large", status: 413, requestId });
}

/** @param {number} closeCode @param {string} reason */
export function connectionClosed(closeCode, reason) {
  const message = `the connection was closed with code ${closeCode}` + (reason && `: ${reason}`);
  return new ConnectionLost(message, {
    closeCode,
    reason,
    retryable: RETRYABLE_CLOSE_CODES.includes(closeCode),
  });
}

/** There may be a server, which says nothing. @param {number} ms */
export function notAnswered(ms) {
  return new ConnectionLost(`the server did not answer within ${ms} ms`, { closeCode: null, retryable: true });
}

/** No close frame came, and nothing else either. @param {number} ms */
export function silenceTimedOut(ms) {
  const message = `the server was silent for ${ms} ms, and gave no sign of life when it was asked for one`;
  return new ConnectionLost(message, { closeCode: NO_CLOSE_FRAME, reason: message, retryable: true });
}

/**
 * Why there was no reconnecting.
 * @param {ConnectionLost} lost
 * @param {any} why
 */
export function reconnectFailed(lost, why) {
  const { closeCode, reason, retryable } = lost;
  const message = `${lost.message}, and there was no coming back` + (why === lost ? "" : `: ${why.message}`);
  return new ConnectionLost(message, { closeCode, reason, retryable: why.retryable ?? retryable });
}

/**
 * The connection is there again, and the server no longer has one of its streams.
 * @param {string} requestId
 * @param {Error} why
 */
export function streamLost(requestId, why) {
  const message = `the connection broke, and the server no longer has this stream: start it anew (${why.message})`;
  return new ConnectionLost(message, { closeCode: null, retryable: false, requestId });
}

/** It waited for its client as long as it was to. @param {string} requestId */
export function streamDetached(requestId) {
  const message = "the stream was cancelled, because its connection was lost and nobody came back to it in time";
  return new ConnectionLost(message, { closeCode: null, retryable: false, requestId });
}

/** Started again, it is another stream. @param {string} requestId */
export function notTheSame(requestId) {
  const message = "nobody knew this stream any more, and started again it does not begin as it stood";
  return new ConnectionLost(message, { closeCode: null, retryable: false, requestId });
}

/**
 * A frame whose answer was lost with a connection, and which must not be sent twice.
 * @param {string} type
 * @param {string | undefined} requestId
 */
export function outcomeUnknown(type, requestId) {
  const message = `the connection broke before "${type}" was answered, and whether it took effect is not known`;
  return new ConnectionLost(`${message}: read on, and decide by the text whether to ask for it again`, {
    closeCode: null,
    retryable: false,
    requestId,
  });
}

/**
 * An error as what a message to another thread can carry: the classes do not cross by themselves.
 * @param {any} error
 */
export function serializeError(error) {
  const { name, message, code, status, retryable, retryAfterMs, requestId, closeCode, reason } = error;
  return { name, message, code, status, retryable, retryAfterMs, requestId, closeCode, reason };
}

/** @param {ReturnType<typeof serializeError>} error @returns {Error} */
export function deserializeError(error) {
  if (error.name === "ConnectionLost") return new ConnectionLost(error.message, error);
  // What is not ours, such as an error of a user's function, knows no `retryable`.
  return error.retryable === undefined ? new TypeError(error.message) : new MidstreamError(error.message, error);
}
