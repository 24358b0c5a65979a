/**
 * A client's connection, with many streams on it: frames out in order, events in, each to the stream it is about.
 *
 * It outlives its wires: over a new one it asks for what was missed, and says again what was not heard. It knows
 * no socket: text comes in, and goes out over the wire that there is. Nothing here waits for a stream's reader:
 * a stream with explicit credit can only be sent what was granted, so an unread one cannot delay its neighbours.
 * @module
 * @import { Backoff } from "./backoff.js"
 * @import { Close, MidstreamError } from "./errors.js"
 * @import { Waiting } from "./pending-frames.js"
 * @import { Reading, StreamCore } from "./stream-core.js"
 * @import { Dial, Patience, State } from "./reconnecting.js"
 * @import { Answer, Attached, ErrorEvent, GoingAway, Opening, Question, ServerEvent } from "./protocol.js"
 */

import { Channel, Channels, channelFor } from "./channel.js";
import { ConnectionLost, ProtocolError, connectionClosed, fromEvent, outcomeUnknown } from "./errors.js";
import { streamLost } from "./errors.js";
import { parsed } from "./event-parser.js";
import { Questions } from "./pending-frames.js";
import { fate, opening, reopening } from "./recovery.js";
import { tell } from "./abortable.js";
import { Wires } from "./reconnecting.js";

const NORMAL_CLOSURE = 1000;
const PROTOCOL_VIOLATION = 1002; // RFC 6455, 7.4.1

export class Connection {
  draining = false;
  /** @type {((event: GoingAway) => void) | null} */ ongoingaway = null;
  /** @type {((state: State) => void) | null} */ onstate = null;
  /** @type {Promise<Close>} */ closed;

  #wires;
  #reconnectMs;
  #channels = new Channels();
  #questions = new Questions();
  /** @type {ConnectionLost | null} */ #lost = null;
  /** @type {(close: Close) => void} */ #ended = () => {};

  /** @param {Dial} dial @param {Patience} patience */
  constructor(dial, patience) {
    this.#reconnectMs = patience.reconnectMs;
    this.#wires = new Wires(dial, patience, {
      receive: (text) => this.#receive(text),
      wanted: () => this.#questions.all().length + this.#channels.all().length > 0,
      broken: () => this.#broken(),
      restored: () => this.#restored(),
      lose: (lost) => this.lose(lost),
    });
    this.closed = new Promise((resolve) => {
      this.#ended = resolve;
    });
  }

  /** For the first time: where that fails, it has failed. @param {AbortSignal} [signal] */
  open(signal) {
    return this.#wires.open(signal);
  }

  get ready() {
    return this.#wires.ready;
  }

  /** @returns {State} */
  get state() {
    if (this.#lost) return "closed";
    return this.#wires.current ? "open" : "reconnecting";
  }

  // -- out ------------------------------------------------------------------------------------------------

  /**
   * Make a place for a stream's events, and start it or take it over.
   * @param {Opening} frame @param {Reading} reading @param {AbortSignal} [signal]
   */
  begin(frame, reading, signal) {
    if (this.#lost) throw this.#lost;
    const channel = this.#channels.add(channelFor(frame, reading, this, signal));
    const waiting = this.#questions.ask(opening(frame, this.#reconnectMs));
    waiting.answered.catch((why) => this.#channels.refuse(channel, why));
    if (this.#wires.current) this.#bring(channel, waiting);
    return { channel, started: waiting.answered };
  }

  /** @param {string} requestId @param {StreamCore} core */
  pull(requestId, core) {
    const limit = core.ask();
    if (limit !== null && this.#channels.get(requestId)?.here) {
      this.#wires.send({ type: "credit", request_id: requestId, limit });
    }
    return core.take();
  }

  /** @param {Question} question @returns {Promise<Answer>} */
  async request(question) {
    if (this.#lost) throw this.#lost;
    const waiting = this.#questions.ask(question);
    if (this.#channels.get(waiting.requestId)?.here ?? this.#wires.current) this.#say(waiting);
    return waiting.answered;
  }

  close() {
    if (this.#lost) return;
    for (const { requestId, outlives } of this.#channels.all()) {
      if (!outlives) this.#wires.send({ type: "cancel", request_id: requestId });
    }
    this.#wires.close(NORMAL_CLOSURE);
    this.lose(connectionClosed(NORMAL_CLOSURE, ""));
  }

  /** @param {Waiting} waiting */
  #say(waiting) {
    waiting.wire = this.#wires.current;
    this.#wires.send({ ...waiting.frame, ref: waiting.ref });
  }

  // -- in -------------------------------------------------------------------------------------------------

  /** @param {string} text */
  #receive(text) {
    try {
      this.#dispatch(parsed(text));
    } catch (error) {
      if (!(error instanceof ProtocolError)) throw error;
      this.#wires.close();
      const { message } = error;
      this.lose(new ConnectionLost(message, { closeCode: PROTOCOL_VIOLATION, reason: message, retryable: false }));
    }
  }

  /** @param {ServerEvent} event */
  #dispatch(event) {
    if (event.type === "error") {
      this.#refused(event);
    } else if (event.type === "going_away") {
      this.draining = true;
      tell(this.ongoingaway, event);
    } else if (event.type === "pong") {
      this.#questions.answer(event.ref, event);
    } else if (event.type === "attached") {
      this.#attached(event);
    } else if ("request_id" in event) {
      this.#wires.works(); // a stream is on a wire only when it was brought there
      this.#channels.feed(event);
      if (event.type !== "token" && event.type !== "snapshot") this.#questions.answer(event.ref, event);
      if (event.type === "final") this.#questions.end(event);
    }
  }

  /** @param {ErrorEvent} event */
  #refused(event) {
    const waiting = this.#questions.get(event.ref);
    const taken = event.code === "request_taken" ? this.#channels.get(event.request_id) : null;
    if (taken) this.#fail(taken, fromEvent(event));
    else if (waiting?.backoff && event.retryable) this.#askAgain(waiting, waiting.backoff, event);
    // If nobody waits, it is of a grant that crossed the stream's end, or a word before the server closes.
    else this.#questions.refuse(event.ref, fromEvent(event));
  }

  // -- lost, and there again ------------------------------------------------------------------------------

  #broken() {
    for (const channel of this.#channels.all()) channel.here = channel.retold = false;
    tell(this.onstate, this.state);
  }

  #restored() {
    this.draining = false;
    for (const channel of this.#channels.all()) this.#bring(channel, this.#reopening(channel));
    for (const waiting of this.#questions.all()) {
      if (!this.#channels.get(waiting.requestId)) this.#say(waiting);
    }
    tell(this.onstate, this.state);
  }

  /** As a stream was to come to the last wire, or by being asked for. @param {Channel} channel */
  #reopening(channel) {
    const waiting = this.#questions.opening(channel.requestId);
    return reopening(waiting ?? this.#askFor(channel), channel.core.seq, this.#reconnectMs);
  }

  /** @param {Channel} channel */
  #askFor(channel) {
    const { requestId } = channel;
    const waiting = this.#questions.ask({ type: "attach", request_id: requestId, after: -1 });
    waiting.answered.catch((why) => this.#fail(channel, streamLost(requestId, why)));
    return waiting;
  }

  /** @param {Channel} channel @param {Waiting} waiting */
  #bring(channel, waiting) {
    this.#say(waiting);
    // What follows a start is heard behind it. Which frames an attached stream lacks, only `attached` says.
    if (waiting.frame.type === "start") this.#catchUp(channel, []);
  }

  /** The stream is here, with all that was missed. @param {Attached} event */
  #attached(event) {
    this.#wires.works();
    const channel = this.#channels.get(event.request_id);
    if (channel) {
      const { requestId, core: { granted: limit } } = channel;
      if (limit) this.#wires.send({ type: "credit", request_id: requestId, limit });
      this.#catchUp(channel, event.pending ?? []);
    }
    this.#questions.settle(this.#questions.opening(event.request_id)?.ref, event);
  }

  /** Say what has not been heard, in its order. @param {Channel} channel @param {string[]} pending */
  #catchUp(channel, pending) {
    channel.here = true;
    for (const waiting of this.#questions.of(channel.requestId)) {
      const { ref, frame, wire } = waiting;
      const known = { here: wire === this.#wires.current, sent: wire !== null, pending: pending.includes(ref) };
      const what = fate(frame, { ...known, retold: channel.retold });
      if (what === "say") this.#say(waiting);
      if (what === "unknown") this.#questions.refuse(ref, outcomeUnknown(frame.type, channel.requestId));
    }
  }

  /** The server cannot have the stream yet. @param {Waiting} waiting @param {Backoff} backoff @param {ErrorEvent} why */
  #askAgain(waiting, backoff, why) {
    const wait = backoff.next(performance.now());
    if (wait === null) return this.#questions.refuse(waiting.ref, fromEvent(why));
    const wire = this.#wires.current;
    setTimeout(() => {
      if (this.#wires.current !== wire || this.#questions.get(waiting.ref) !== waiting) return;
      if (this.#channels.get(waiting.requestId)?.abandoned) this.#questions.refuse(waiting.ref, fromEvent(why));
      else this.#say(waiting);
    }, Math.max(wait, why.retry_after_ms ?? 0));
  }

  /** One stream is lost, and no other. @param {Channel} channel @param {MidstreamError} why */
  #fail(channel, why) {
    this.#channels.refuse(channel, why);
    this.#questions.refuseOf(channel.requestId, why);
  }

  /** It is the end: tell everybody who waits for something. @param {ConnectionLost} lost */
  lose(lost) {
    if (this.#lost) return;
    this.#lost = lost;
    this.#questions.refuseAll(lost);
    this.#channels.failAll(lost);
    this.#ended({ code: lost.closeCode ?? 1006, reason: lost.reason, retryable: lost.retryable });
    tell(this.onstate, this.state);
  }
}
