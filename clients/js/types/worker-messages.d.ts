/**
 * Messages between a page and its worker, as types, and how to listen for them on either side.
 *
 * Each client has a MessagePort of its own, so that many share a worker without knowing of each other.
 * @module
 * @import { Close, serializeError } from "./errors.js"
 * @import { Answer, GoingAway, OpeningFrame, Ready, RequestFrame, StreamEvent } from "./protocol.js"
 * @import { ConnectionState, Timeouts } from "./reconnecting.js"
 * @import { ReadOptions } from "./stream-core.js"
 */
/** @typedef {ReturnType<typeof serializeError>} SerializedError */
/**
 * @typedef {Timeouts & {midstream: "connect", urls: string[], port: MessagePort}} ConnectMessage
 */
/**
 * @typedef {{op: "begin", ref: string, frame: OpeningFrame, readOptions: ReadOptions}
 *   | {op: "request", ref: string, frame: RequestFrame}
 *   | {op: "next", requestId: string}
 *   | {op: "key", apiKey: string | undefined}
 *   | {op: "no_key", error: SerializedError}
 *   | {op: "close"}} PageMessage
 */
/**
 * @typedef {{op: "key"}
 *   | {op: "ready", ready: Ready}
 *   | {op: "refused", error: SerializedError}
 *   | {op: "event", event: StreamEvent}
 *   | {op: "turn", requestId: string}
 *   | {op: "lost", requestId: string, error: SerializedError}
 *   | {op: "state", state: ConnectionState, ready: Ready}
 *   | {op: "answer", ref: string, event: Answer}
 *   | {op: "failure", ref: string, error: SerializedError}
 *   | {op: "going_away", event: GoingAway}
 *   | {op: "closed", close: Close}} WorkerMessage
 */
/**
 * @typedef {object} PortLike A Worker, a worker's own scope, a MessagePort, or the like of these in Node.
 * @property {(message: any, transfer?: any) => void} postMessage
 * @property {(type: any, listener: (event: any) => void) => void} [addEventListener]
 * @property {(type: any, listener: (data: any) => void) => void} [on]
 */
/** @param {PortLike} port @param {(message: any) => void} receive */
export function onMessage(port: PortLike, receive: (message: any) => void): void;
/** @param {PortLike} port @param {"error" | "close"} type @param {(what: any) => void} receive */
export function onPortEvent(port: PortLike, type: "error" | "close", receive: (what: any) => void): void;
export type SerializedError = ReturnType<typeof serializeError>;
export type ConnectMessage = Timeouts & {
    midstream: "connect";
    urls: string[];
    port: MessagePort;
};
export type PageMessage = {
    op: "begin";
    ref: string;
    frame: OpeningFrame;
    readOptions: ReadOptions;
} | {
    op: "request";
    ref: string;
    frame: RequestFrame;
} | {
    op: "next";
    requestId: string;
} | {
    op: "key";
    apiKey: string | undefined;
} | {
    op: "no_key";
    error: SerializedError;
} | {
    op: "close";
};
export type WorkerMessage = {
    op: "key";
} | {
    op: "ready";
    ready: Ready;
} | {
    op: "refused";
    error: SerializedError;
} | {
    op: "event";
    event: StreamEvent;
} | {
    op: "turn";
    requestId: string;
} | {
    op: "lost";
    requestId: string;
    error: SerializedError;
} | {
    op: "state";
    state: ConnectionState;
    ready: Ready;
} | {
    op: "answer";
    ref: string;
    event: Answer;
} | {
    op: "failure";
    ref: string;
    error: SerializedError;
} | {
    op: "going_away";
    event: GoingAway;
} | {
    op: "closed";
    close: Close;
};
/**
 * A Worker, a worker's own scope, a MessagePort, or the like of these in Node.
 */
export type PortLike = {
    postMessage: (message: any, transfer?: any) => void;
    addEventListener?: ((type: any, listener: (event: any) => void) => void) | undefined;
    on?: ((type: any, listener: (data: any) => void) => void) | undefined;
};
import type { serializeError } from "./errors.js";
import type { Timeouts } from "./reconnecting.js";
import type { OpeningFrame } from "./protocol.js";
import type { ReadOptions } from "./stream-core.js";
import type { RequestFrame } from "./protocol.js";
import type { Ready } from "./protocol.js";
import type { StreamEvent } from "./protocol.js";
import type { ConnectionState } from "./reconnecting.js";
import type { Answer } from "./protocol.js";
import type { GoingAway } from "./protocol.js";
import type { Close } from "./errors.js";
