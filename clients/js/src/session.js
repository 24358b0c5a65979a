/**
 * A client's session, with many streams on it: frames out in order, events in, each to the stream it is about.
 *
 * It outlives its transports: over a new one it asks for what was missed, and sends again what was not received.
 * It knows no socket: text comes in, and goes out over the transport that there is. Nothing here waits for a
 * stream's reader: a stream with explicit credit can only be sent what was granted, so an unread one cannot delay
 * its neighbours.
 * @module
 * @import { Close, MidstreamError } from "./errors.js"
 * @import { PendingFrame } from "./pending-frames.js"
 * @import { Answer, Answered, Attached, ErrorEvent, GoingAway, OpeningFrame, RequestFrame, ServerEvent, StreamEvent } from "./protocol.js"
 * @import { ConnectionState, Dial, Timeouts } from "./reconnecting.js"
 * @import { ReadOptions, StreamCore } from "./stream-core.js"
 */

import { Backoff } from "./backoff.js";
import { notify } from "./callbacks.js";
import { Channel, Channels, channelFor } from "./stream-channel.js";
import { ConnectionLost, ProtocolError, connectionClosed, fromEvent, outcomeUnknown } from "./errors.js";
import { notTheSame, requestFinished, streamLost } from "./errors.js";
import { parseEvent } from "./event-parser.js";
import { Past } from "./past.js";
import { randomId } from "./options.js";
import { PendingFrames, opens } from "./pending-frames.js";
import { mayAnswer } from "./protocol.js";
import { Reconnecting } from "./reconnecting.js";
import { openingFrame, reopeningFrame, resendDecision } from "./recovery.js";
import { later } from "./retry-loop.js";

const NORMAL_CLOSURE = 1000;
const PROTOCOL_VIOLATION = 1002; // RFC 6455, 7.4.1

export class Session {
  draining = false;
  /** @type {((event: GoingAway) => void) | null} */ ongoingaway = null;
  /** @type {((state: ConnectionState) => void) | null} */ onstate = null;
  /** @type {Promise<Close>} */ closed;

  #connection;
  #reconnectMs;
  #channels = new Channels();
  #pending = new PendingFrames(`${randomId(3)}.`);
  /** @type {ConnectionLost | null} */ #lost = null;
  /** @type {(close: Close) => void} */ #resolveClosed = () => {};

  /** @param {Dial} dial @param {Timeouts} timeouts */
  constructor(dial, timeouts) {
    this.#reconnectMs = timeouts.reconnectMs;
    this.#connection = new Reconnecting(dial, timeouts, {
      receive: (text) => this.#receive(text),
      awaiting: () => this.#pending.all().length + this.#channels.all().length > 0,
      disconnected: () => this.#disconnected(),
      reconnected: () => this.#reconnected(),
      lost: (lost) => this.lose(lost),
    });
    this.closed = new Promise((resolve) => {
      this.#resolveClosed = resolve;
    });
  }

  /** For the first time: where that fails, it has failed. @param {AbortSignal} [signal] */
  open(signal) {
    return this.#connection.open(signal);
  }

  get ready() {
    return this.#connection.ready;
  }

  /** @returns {ConnectionState} */
  get state() {
    if (this.#lost) return "closed";
    return this.#connection.transport ? "open" : "reconnecting";
  }

  // -- out ------------------------------------------------------------------------------------------------

  /**
   * Make a place for a stream's events, and start it or take it over.
   * @param {OpeningFrame} frame @param {ReadOptions} readOptions @param {AbortSignal} [signal]
   */
  begin(frame, readOptions, signal) {
    if (this.#lost) throw this.#lost;
    const channel = this.#channels.add(channelFor(frame, readOptions, this, signal));
    const opening = openingFrame(frame, this.#reconnectMs, this.ready.limits);
    const pending = this.#pending.add(opening);
    if (opening.type === "start") channel.past = new Past(opening);
    pending.answered.catch((why) => this.#fail(channel, why));
    if (this.#connection.transport) this.#open(channel, pending);
    return { channel, started: pending.answered };
  }

  /** @param {string} requestId @param {StreamCore} core */
  pull(requestId, core) {
    const limit = core.extendCredit();
    const channel = this.#channels.get(requestId);
    if (limit !== null && channel?.open && channel.core === core) {
      this.#connection.send({ type: "credit", request_id: requestId, limit });
    }
    return core.take();
  }

  /** @param {RequestFrame} frame @param {(event: Answer) => void} [onanswer] @returns {Promise<Answer>} */
  async request(frame, onanswer) {
    if (this.#lost) throw this.#lost;
    if (frame.type === "cancel") this.#giveUp(frame.request_id);
    const pending = this.#pending.add(frame, onanswer);
    const past = this.#channels.get(pending.requestId)?.past;
    past?.sent(pending.ref, frame);
    pending.answered.catch(() => past?.refused(pending.ref)); // nothing more is heard of it
    if (this.#channels.get(pending.requestId)?.open ?? this.#connection.transport) this.#send(pending);
    return pending.answered;
  }

  /** What no server has heard of is none's to cancel; and nobody has what has not begun. @param {string} requestId */
  #giveUp(requestId) {
    const channel = this.#channels.get(requestId);
    if (!channel) return;
    if (channel.said && channel.own) {
      channel.abandoned ||= channel.core.model === null;
      return;
    }
    channel.left = channel.said > 0;
    if (channel.left) throw requestFinished("nobody has attached to it", requestId);
    const why = requestFinished("it was cancelled before it was asked for", requestId);
    this.#fail(channel, why);
    throw why;
  }

  close() {
    if (this.#lost) return;
    for (const { requestId, outlives, said } of this.#channels.all()) {
      if (said && !outlives) this.#connection.send({ type: "cancel", request_id: requestId });
    }
    this.#connection.close(NORMAL_CLOSURE);
    this.lose(connectionClosed(NORMAL_CLOSURE, ""));
  }

  /** What JSON cannot say, as a BigInt, or no server takes is refused: kept, it would fail every reconnecting. @param {PendingFrame} pending */
  #send(pending) {
    pending.transport = this.#connection.transport;
    try {
      this.#connection.send({ ...pending.frame, ref: pending.ref });
    } catch (error) {
      this.#pending.reject(pending.ref, /** @type {Error} */ (error));
    }
  }

  // -- in -------------------------------------------------------------------------------------------------

  /** @param {string} text */
  #receive(text) {
    try {
      this.#receiveEvent(parseEvent(text));
    } catch (error) {
      // Fields that are missing, or of another type, throw what they will. Uncaught, that ends a program, or nobody hears of it.
      const known = error instanceof ProtocolError;
      const message = known ? error.message : `an event that makes no sense (${error}): ${String(text).slice(0, 100)}`;
      this.#connection.close();
      const lost = new ConnectionLost(message, { closeCode: PROTOCOL_VIOLATION, reason: message, retryable: false });
      lost.cause = error;
      this.lose(lost);
    }
  }

  /** @param {ServerEvent} event */
  #receiveEvent(event) {
    if (event.type === "error") {
      this.#receiveError(event);
    } else if (event.type === "going_away") {
      this.draining = true;
      notify(this.ongoingaway, event);
    } else if (event.type === "pong") {
      this.#pending.receiveAnswer(event.ref, event);
    } else if (event.type === "attached") {
      this.#receiveAttached(event);
    } else if ("request_id" in event) {
      const channel = this.#channels.get(event.request_id);
      this.#connection.confirm(event.type === "token"); // a stream has events on a transport only when it was opened there
      const restarting = this.#restarting(event.request_id);
      if (restarting) this.#receiveRestarted(restarting, event);
      else this.#receiveOfStream(event);
      if (mayAnswer(event)) this.#pending.receiveAnswer(event.ref, event);
      if (event.type === "started") this.#openForks(event.request_id);
      if (event.type === "final") {
        this.#pending.receiveFinal(event, Boolean(channel?.answersLost));
        this.#openForks(event.request_id);
        this.#leaveIfIdle();
      }
    }
  }

  /** @param {StreamEvent} event */
  #receiveOfStream(event) {
    const channel = this.#channels.get(event.request_id);
    if (event.type === "snapshot" && channel) for (const answer of event.answered ?? []) this.#receiveMissed(channel, answer);
    this.#channels.receive(event);
  }

  /** An answer that a snapshot stands for. @param {Channel} channel @param {Answered} answer */
  #receiveMissed(channel, answer) {
    const pending = this.#pending.get(answer.ref);
    if (!pending) return;
    if (answer.type === "error") return this.#pending.reject(answer.ref, fromEvent(answer));
    channel.past?.receiveMissed(pending.frame, answer, channel.core);
    this.#pending.receiveAnswer(answer.ref, answer);
  }

  /** @param {ErrorEvent} event */
  #receiveError(event) {
    const pending = this.#pending.get(event.ref);
    const taken = event.code === "request_taken" ? this.#channels.get(event.request_id) : null;
    if (taken) this.#fail(taken, fromEvent(event));
    else if (pending && opens(pending.frame) && event.code === "draining" && this.#reconnectMs) this.#hold(pending, event);
    else if (pending?.backoff && event.retryable) this.#sendLater(pending, pending.backoff, event);
    // If nothing is pending, it is of a grant that crossed the stream's end, or a word before the server closes.
    else this.#pending.reject(event.ref, fromEvent(event));
  }

  // -- a server that goes away ----------------------------------------------------------------------------

  /**
   * It takes nothing new: the stream waits for the next connection, as long as one would be sought.
   * @param {PendingFrame} pending @param {ErrorEvent} why
   */
  #hold(pending, why) {
    this.draining = true;
    const channel = this.#channels.get(pending.requestId);
    if (channel) {
      channel.open = false;
      channel.said--; // whoever has its name there is somebody else
      if (!channel.wanted) this.#fail(channel, fromEvent(why));
    }
    pending.held ??= setTimeout(() => this.#pending.reject(pending.ref, fromEvent(why)), this.#reconnectMs);
    pending.answered.finally(() => clearTimeout(pending.held)).catch(() => {});
    this.#leaveIfIdle();
  }

  /** Where nothing but starts that wait for another connection would miss this one. */
  #leaveIfIdle() {
    if (!this.draining) return;
    const channels = this.#channels.all();
    const waits = (/** @type {Channel} */ { requestId, open }) => {
      const opening = open ? undefined : this.#pending.opening(requestId);
      return opening?.held || this.#waitsForItsStream(opening);
    };
    if (channels.length && channels.every(waits)) this.#connection.leave();
  }

  // -- disconnected, and reconnected ----------------------------------------------------------------------

  #disconnected() {
    for (const channel of this.#channels.all()) channel.open = channel.answersLost = false;
    notify(this.onstate, this.state);
  }

  #reconnected() {
    this.draining = false;
    for (const channel of this.#channels.all()) if (!channel.open) this.#open(channel, this.#reopening(channel));
    for (const pending of this.#pending.all()) {
      if (!this.#channels.get(pending.requestId)) this.#send(pending);
    }
    notify(this.onstate, this.state);
  }

  /** As a stream was to be opened over the last transport, or by attaching to it. @param {Channel} channel */
  #reopening(channel) {
    const pending = this.#pending.opening(channel.requestId);
    return reopeningFrame(pending ?? this.#attach(channel), channel, this.#reconnectMs);
  }

  /** @param {Channel} channel */
  #attach(channel) {
    const { requestId } = channel;
    const pending = this.#pending.add({ type: "attach", request_id: requestId, after: -1 });
    pending.answered.catch((why) => {
      if (!this.#startAgain(channel, why)) this.#fail(channel, streamLost(requestId, why));
    });
    return pending;
  }

  /** @param {Channel} channel @param {PendingFrame} pending */
  #open(channel, pending) {
    if (this.#waitsForItsStream(pending)) return;
    channel.said++;
    this.#send(pending);
    // What follows a start is received behind it. Which frames an attached stream lacks, only `attached` says.
    if (pending.frame.type === "start" && !channel.core.restarting) this.#resend(channel, []);
  }

  /**
   * Whether it forks one that may have to be started first, perhaps again, where nobody knows it any more; a start that is
   * said again may be put off. None waits for itself, nor for one that does for it. @param {PendingFrame | undefined} opening
   */
  #waitsForItsStream(opening) {
    const forked = this.#channels.get(forkedBy(opening));
    const fork = this.#channels.get(opening?.requestId);
    if (!forked || !fork || forked.number >= fork.number) return false;
    return !forked.open || Boolean(this.#pending.opening(forked.requestId)?.backoff);
  }

  /** Those that waited for this stream, which is open, or is none. @param {string} requestId */
  #openForks(requestId) {
    for (const opening of this.#pending.all().filter((pending) => forkedBy(pending) === requestId)) {
      const channel = this.#channels.get(opening.requestId);
      if (channel && !channel.open && this.#connection.transport) this.#open(channel, this.#reopening(channel));
    }
  }

  // -- started again --------------------------------------------------------------------------------------

  /**
   * Where nobody knows the stream any more; whether it can go on from what has come of it.
   * @param {Channel} channel @param {Error & {code?: string}} why
   */
  #startAgain(channel, why) {
    const { requestId, core, abandoned } = channel;
    const start = why.code === "unknown_request" && !abandoned && !core.restarting && channel.past?.start(core);
    if (!start || !this.#connection.transport) return false;
    core.restart();
    const pending = this.#pending.add(start);
    pending.backoff = new Backoff(this.#reconnectMs);
    pending.answered.catch((error) => this.#fail(channel, streamLost(requestId, error)));
    this.#send(pending);
    return true;
  }

  /** @param {string} requestId */
  #restarting(requestId) {
    const channel = this.#channels.get(requestId);
    return channel?.core.restarting ? channel : null;
  }

  /** The first events of the stream as which it goes on. @param {Channel} channel @param {StreamEvent} event */
  #receiveRestarted(channel, event) {
    const { core, requestId } = channel;
    if (!core.goesOnWith(event)) {
      this.#fail(channel, notTheSame(requestId));
      this.#connection.send({ type: "cancel", request_id: requestId });
    } else if (event.type === "snapshot") {
      const missing = core.missing(event);
      channel.receive(core.restarted(event, (channel.past?.waiting ?? []).map(({ ref }) => ref)));
      for (const lost of missing) channel.receive(lost);
      this.#goOn(channel);
    }
  }

  /** It was started again. What has no answer had no effect on what it began with. @param {Channel} channel */
  #goOn(channel) {
    const { requestId, core: { granted: limit }, past } = channel;
    if (past?.paused) this.#connection.send({ type: "pause", request_id: requestId });
    for (const { ref } of [...(past?.waiting ?? [])].reverse()) this.#again(channel, ref, new Backoff(Infinity));
    if (limit) this.#connection.send({ type: "credit", request_id: requestId, limit });
    channel.answersLost = false;
    this.#resend(channel, []);
  }

  /**
   * A result that waited elsewhere, which whoever gave it says no more: he has had his answer. Where it is refused for now, or
   * nobody knows whether it was heard, it is said once more.
   * @param {Channel} channel @param {string} ref @param {Backoff} backoff
   */
  #again(channel, ref, backoff) {
    const { requestId, core, past } = channel;
    const frame = past?.waiting.find((waiting) => waiting.ref === ref)?.frame;
    if (!frame || this.#pending.get(ref) || this.#channels.get(requestId) !== channel) return;
    past?.sent(ref, frame);
    const pending = this.#pending.addAgain(ref, frame, (answer) => core.answered(frame, answer));
    pending.answered.catch((why) => {
      if (!why.retryable && !(why instanceof ConnectionLost)) return;
      const wait = Number(backoff.next(performance.now(), why.retryAfterMs ?? 0));
      later(wait, () => this.#again(channel, ref, backoff));
    });
    if (channel.open) this.#send(pending);
  }

  /** The stream is here, with all that was missed. @param {Attached} event */
  #receiveAttached(event) {
    this.#connection.confirm();
    const channel = this.#channels.get(event.request_id);
    this.#pending.resolve(this.#pending.opening(event.request_id)?.ref, event);
    if (channel) {
      const { requestId, core: { granted: limit } } = channel;
      channel.core.epoch = event.epoch ?? 0;
      channel.own = true;
      if (limit) this.#connection.send({ type: "credit", request_id: requestId, limit });
      this.#resend(channel, event.pending ?? []);
    }
  }

  /** Send again what was not received, in its order. @param {Channel} channel @param {string[]} received */
  #resend(channel, received) {
    channel.open = true;
    for (const pending of this.#pending.ofStream(channel.requestId)) {
      const { ref, frame, transport } = pending;
      const sentHere = transport === this.#connection.transport;
      const delivery = { sentHere, sent: transport !== null, received: received.includes(ref) };
      const decision = resendDecision(frame, { ...delivery, answersLost: channel.answersLost });
      if (decision === "send") this.#send(pending);
      if (decision === "unknown") this.#pending.reject(ref, outcomeUnknown(frame.type, channel.requestId));
    }
    if (channel.abandoned) this.#connection.send({ type: "cancel", request_id: channel.requestId }); // another server may have refused that
    this.#openForks(channel.requestId);
  }

  /**
   * The server cannot have the stream yet.
   * @param {PendingFrame} pending @param {Backoff} backoff @param {ErrorEvent} why
   */
  #sendLater(pending, backoff, why) {
    const wait = backoff.next(performance.now(), why.retry_after_ms);
    if (wait === null) return this.#pending.reject(pending.ref, fromEvent(why));
    const { transport } = this.#connection;
    const channel = this.#channels.get(pending.requestId);
    if (!channel) return;
    channel.said--;
    const timer = setTimeout(() => {
      if (this.#connection.transport !== transport || this.#pending.get(pending.ref) !== pending) return;
      if (!channel.wanted) return this.#pending.reject(pending.ref, fromEvent(why));
      channel.said++;
      this.#send(reopeningFrame(pending, channel, this.#reconnectMs));
    }, wait);
    pending.answered.finally(() => clearTimeout(timer)).catch(() => {});
  }

  /** One stream is lost, and no other. @param {Channel} channel @param {MidstreamError} why */
  #fail(channel, why) {
    if (this.#channels.get(channel.requestId) !== channel) return; // who has its name now is another
    this.#channels.drop(channel, why);
    this.#pending.rejectOfStream(channel.requestId, why);
    this.#openForks(channel.requestId);
  }

  /** It is the end: whoever waits for something is told. @param {ConnectionLost} lost */
  lose(lost) {
    if (this.#lost) return;
    this.#lost = lost;
    this.#pending.rejectAll(lost);
    this.#channels.failAll(lost);
    this.#resolveClosed({ code: lost.closeCode ?? 1006, reason: lost.reason, retryable: lost.retryable });
    notify(this.onstate, this.state);
  }
}

/** The name of the stream of which it is to begin a fork. @param {PendingFrame | undefined} opening */
function forkedBy(opening) {
  return opening?.frame.type === "start" ? opening.frame.fork?.request_id : undefined;
}
