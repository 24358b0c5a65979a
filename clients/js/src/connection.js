/**
 * One connection with many streams on it: frames out in order, events in, each to the stream it is about.
 *
 * It knows no socket: text is given to it, and it gives text to `transmit`. Nothing here waits for a stream's
 * reader: a stream with explicit credit can only be sent what was granted, so an unread stream cannot delay
 * its neighbours.
 * @module
 * @import { Close } from "./errors.js"
 * @import { Answer, Frame, GoingAway, Question, Ready, ServerEvent, Start } from "./wire.js"
 */

import { Channel, Channels } from "./channel.js";
import { ConnectionLost, ProtocolError, connectionClosed, fromEvent } from "./errors.js";
import { Questions } from "./questions.js";
import { StreamCore } from "./stream.js";
import { tell } from "./waiting.js";
import { VERSION } from "./wire.js";

/** @typedef {{send(text: string): void, close(code?: number): void}} Wire What a connection is made over. */

const NORMAL_CLOSURE = 1000;
const PROTOCOL_VIOLATION = 1002; // RFC 6455, 7.4.1

/** The server's first words. Throws what is wrong with them. @param {string} text @returns {Ready} */
export function greeting(text) {
  const event = parsed(text);
  if (event.type === "error") throw fromEvent(event);
  if (event.type === "ready" && event.protocol === VERSION) return event;
  throw new ProtocolError(`expected "ready" of protocol ${VERSION}, got ${text.slice(0, 100)}`);
}

/** An open connection, after its greeting. */
export class Connection {
  ready;
  draining = false;
  /** @type {((event: GoingAway) => void) | null} */ ongoingaway = null;
  /** @type {Promise<Close>} */ closed;

  #wire;
  #channels = new Channels();
  #questions = new Questions();
  /** @type {ConnectionLost | null} */ #lost = null;
  /** @type {(close: Close) => void} */ #ended = () => {};

  /** @param {Ready} ready @param {Wire} wire */
  constructor(ready, wire) {
    this.ready = ready;
    this.#wire = wire;
    this.closed = new Promise((resolve) => {
      this.#ended = resolve;
    });
  }

  /** @returns {"open" | "closed"} */
  get state() {
    return this.#lost ? "closed" : "open";
  }

  // -- out ------------------------------------------------------------------------------------------------

  /**
   * Make a place for a stream's events, and start it.
   * @param {Start} frame @param {number | null} window @param {AbortSignal} [signal]
   */
  start(frame, window, signal) {
    if (this.#lost) throw this.#lost;
    const core = new StreamCore(window, frame.stream_interval, frame.credit);
    const channel = this.#channels.add(new Channel(frame.request_id, core, this, signal));
    const started = this.request(frame);
    started.catch((why) => this.#channels.refuse(channel, why));
    return { channel, started };
  }

  /** @param {string} requestId @param {StreamCore} core */
  pull(requestId, core) {
    const limit = core.ask();
    if (limit !== null) this.send({ type: "credit", request_id: requestId, limit });
    return core.take();
  }

  /** @param {Question} question @returns {Promise<Answer>} */
  async request(question) {
    if (this.#lost) throw this.#lost;
    const { ref, answered } = this.#questions.ask(question);
    this.send({ ...question, ref });
    return answered;
  }

  /** @param {Frame} frame */
  send(frame) {
    if (!this.#lost) this.#wire.send(JSON.stringify(frame));
  }

  close() {
    this.#wire.close(NORMAL_CLOSURE);
    this.lose(connectionClosed(NORMAL_CLOSURE, ""));
  }

  // -- in -------------------------------------------------------------------------------------------------

  /** @param {string} text */
  receive(text) {
    if (this.#lost) return;
    try {
      this.#dispatch(parsed(text));
    } catch (error) {
      if (!(error instanceof ProtocolError)) throw error;
      this.#wire.close();
      const how = { closeCode: PROTOCOL_VIOLATION, reason: error.message, retryable: false };
      this.lose(new ConnectionLost(error.message, how));
    }
  }

  /** The wire is gone: tell everybody who waits for something. @param {ConnectionLost} lost */
  lose(lost) {
    if (this.#lost) return;
    this.#lost = lost;
    this.#questions.refuseAll(lost);
    this.#channels.failAll(lost);
    this.#ended({ code: lost.closeCode ?? 1006, reason: lost.reason, retryable: lost.retryable });
  }

  /** @param {ServerEvent} event */
  #dispatch(event) {
    if (event.type === "error") {
      // If nobody waits, it is of a grant that crossed the stream's end, or a word before the server closes.
      this.#questions.refuse(event.ref, fromEvent(event));
    } else if (event.type === "going_away") {
      this.draining = true;
      tell(this.ongoingaway, event);
    } else if (event.type === "pong") {
      this.#questions.answer(event.ref, event);
    } else if ("request_id" in event) {
      this.#channels.feed(event);
      if (event.type !== "token" && event.type !== "snapshot") this.#questions.answer(event.ref, event);
      if (event.type === "final") this.#questions.end(event);
    }
  }
}

/** @param {string} text @returns {ServerEvent} */
function parsed(text) {
  let event;
  try {
    event = JSON.parse(text);
  } catch {
    throw new ProtocolError(`an event that cannot be read: ${String(text).slice(0, 100)}`);
  }
  if (typeof event?.type === "string") return event;
  throw new ProtocolError(`an event without a type: ${text.slice(0, 100)}`);
}
