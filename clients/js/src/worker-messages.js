/**
 * What passes between a page and its worker, as types, and how to listen to either side.
 *
 * Each client has a MessagePort of its own, so that many share a worker without knowing of each other.
 * @module
 * @import { Close, packed } from "./errors.js"
 * @import { Reading } from "./stream-core.js"
 * @import { Patience, State } from "./reconnecting.js"
 * @import { Answer, GoingAway, Opening, Question, Ready, StreamEvent } from "./protocol.js"
 */

/** @typedef {ReturnType<typeof packed>} Packed */

/**
 * @typedef {Patience & {midstream: "connect", url: string, port: MessagePort}} Hello
 */

/**
 * @typedef {{op: "begin", ref: string, frame: Opening, reading: Reading}
 *   | {op: "request", ref: string, frame: Question}
 *   | {op: "next", requestId: string}
 *   | {op: "key", apiKey: string | undefined}
 *   | {op: "no_key", error: Packed}
 *   | {op: "close"}} FromPage
 */

/**
 * @typedef {{op: "key"}
 *   | {op: "ready", ready: Ready}
 *   | {op: "refused", error: Packed}
 *   | {op: "event", event: StreamEvent}
 *   | {op: "turn", requestId: string}
 *   | {op: "lost", requestId: string, error: Packed}
 *   | {op: "state", state: State, ready: Ready}
 *   | {op: "answer", ref: string, event: Answer}
 *   | {op: "failure", ref: string, error: Packed}
 *   | {op: "going_away", event: GoingAway}
 *   | {op: "closed", close: Close}} FromWorker
 */

/**
 * @typedef {object} Port A Worker, a worker's own scope, a MessagePort, or the like of these in Node.
 * @property {(message: any, transfer?: any) => void} postMessage
 * @property {(type: any, listener: (event: any) => void) => void} [addEventListener]
 * @property {(type: any, listener: (data: any) => void) => void} [on]
 */

/** @param {Port} port @param {(message: any) => void} hear */
export function listen(port, hear) {
  if (port.addEventListener) port.addEventListener("message", ({ data }) => hear(data));
  else port.on?.("message", hear);
  if (port instanceof MessagePort) port.start();
}

/** @param {Port} port @param {"error" | "close"} type @param {(what: any) => void} hear */
export function listenFor(port, type, hear) {
  if (port.addEventListener) port.addEventListener(type, hear);
  else port.on?.(type, hear);
}
