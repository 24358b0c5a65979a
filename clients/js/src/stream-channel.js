/**
 * A channel: one stream's place in the session. It brings events to the core, and wakes who waits for them.
 *
 * The session holds channels, and a channel does not know the object that the user holds: when that is dropped,
 * it goes, and the stream is cancelled.
 * @module
 * @import { Answer, OpeningFrame, RequestFrame, Steering, StreamEvent } from "./protocol.js"
 * @import { Past } from "./past.js"
 * @import { Recorder } from "./recorder.js"
 * @import { Chunk, ReadOptions } from "./stream-core.js"
 */

import { notify } from "./callbacks.js";
import { MidstreamError, requestFinished } from "./errors.js";
import { MAX_ANSWERED } from "./protocol.js";
import { StreamCore } from "./stream-core.js";

let count = 0; // of the channels so far

/**
 * @typedef {object} ChannelSession The session as a channel sees it: here, or in a worker.
 * @property {(requestId: string, core: StreamCore) => Chunk | null} pull ask for the next chunk, and take it
 *   if it is here
 * @property {(frame: RequestFrame, onanswer?: (event: Answer) => void) => Promise<Answer>} request send a frame and
 *   wait for its answer; `onanswer` is told before any event that follows it
 */

/** What the session knows of a stream, and the stream of the session. */
export class Channel {
  number = count++; // later ones were asked for later
  requestId;
  core;
  signal;
  /** Why no more events will come, if none will. @type {MidstreamError | null} */
  failure = null;
  /** @type {((event: StreamEvent) => void) | null} */
  onevent = null;
  /** Sees what happens to it. @type {Recorder | null} */
  recorder = null;
  /** What would start it again; null where this client has not started it. @type {Past | null} */
  past = null;
  /** Called when no more events will come, though there was no final. @type {((why: Error) => void) | null} */
  onfail = null;

  /** Whether frames for it may be sent: it is open on this connection, and what was received before is known. */
  open = false;
  /** Whether a snapshot stood in for events since the connection was lost, and perhaps for answers that it does not tell. */
  answersLost = false;
  /** Whether it may outlive its client: its user said what is to become of it. */
  outlives = false;
  /** Whether nobody wants it any more. */
  abandoned = false;
  /** Whether it is this client's to cancel: what is attached to is somebody else's, until it is here; */
  own = true;
  /** and is left as it was where that was given up. */
  left = false;
  /** The event behind which it was attached to. */
  after = -1;
  /** How many servers may have heard of it, and have not refused it. */
  said = 0;

  #session;
  /** @type {Promise<void> | null} */ #nextEvent = null;
  #resolveNextEvent = () => {};
  #abort = () => {
    this.abandon();
    this.wake();
  };

  /**
   * @param {string} requestId
   * @param {StreamCore} core
   * @param {ChannelSession} session
   * @param {AbortSignal} [signal]
   */
  constructor(requestId, core, session, signal) {
    this.requestId = requestId;
    this.core = core;
    this.signal = signal;
    this.#session = session;
    signal?.addEventListener("abort", this.#abort, { once: true });
  }

  /** Whether a server is to hear of it. Of what was given up only one that may have it: anywhere else whoever has its name is somebody else. */
  get wanted() {
    return this.said > 0 || !this.abandoned;
  }

  /** @returns {Chunk | null} */
  pull() {
    return this.#session.pull(this.requestId, this.core);
  }

  /** @param {Steering} frame */
  async request(frame) {
    if (this.core.final) throw requestFinished("the stream has ended", this.requestId);
    if (this.failure) throw this.failure;
    return this.#session.request(frame, (answer) => {
      this.core.answered(frame, answer);
      this.recorder?.answered(frame, answer);
    });
  }

  /** @param {StreamEvent} event */
  receive(event) {
    const missed = event.type === "snapshot" && event.seq !== this.core.seq + 1;
    if (!this.core.receive(event)) return;
    if (event.type === "final") this.#removeAbortListener();
    // Of what a fork begins with nothing is told that was answered. Another server's may be counted right behind what has come.
    if (event.type === "snapshot" && (missed || event.answered)) {
      this.past?.miss(event);
      this.core.told.miss(this.core.spans.stoodUntil);
      this.answersLost = (event.answered ?? { length: MAX_ANSWERED }).length >= MAX_ANSWERED;
    }
    this.past?.receive(event, this.core.spans.calls);
    this.recorder?.receive(event);
    notify(this.onevent, event);
    this.wake();
  }

  /** No more events will come. @param {MidstreamError} failure */
  fail(failure) {
    this.failure = failure;
    this.#removeAbortListener();
    notify(this.onfail, failure);
    this.wake();
  }

  /** Wait for the next event, or the end of events. */
  nextEvent() {
    this.#nextEvent ??= new Promise((resolve) => {
      this.#resolveNextEvent = resolve;
    });
    return this.#nextEvent;
  }

  wake() {
    this.#nextEvent = null;
    this.#resolveNextEvent();
  }

  /** What has come where another attach was given up. @param {Channel} left */
  takeUp({ core, open, said }) {
    Object.assign(this, { core, open, said });
  }

  /** Nobody wants this stream any more: cancel it. */
  abandon() {
    if (this.core.final || this.failure || this.abandoned) return;
    if (this.own) this.abandoned = true;
    else this.left = true;
    this.#session.request({ type: "cancel", request_id: this.requestId }).catch(() => {}); // it is gone: all is well
  }

  #removeAbortListener() {
    this.signal?.removeEventListener("abort", this.#abort);
  }
}

/**
 * The channel of a stream that is to be started, or taken over.
 * @param {OpeningFrame} frame @param {ReadOptions} readOptions @param {ChannelSession} session
 * @param {AbortSignal} [signal]
 */
export function channelFor(frame, { window, had }, session, signal) {
  const start = frame.type === "start" ? frame : null;
  const core = new StreamCore(window, start?.stream_interval, start?.credit);
  if (frame.type === "attach" && had) core.startAt(frame.after, had);
  const channel = new Channel(frame.request_id, core, session, signal);
  channel.after = core.seq;
  channel.own = start !== null;
  channel.outlives = !start || start.on_disconnect !== undefined;
  return channel;
}

/** Every channel of a session by its stream's name: where events go. */
export class Channels {
  /** @type {Map<string, Channel>} */ #byName = new Map();

  /** @param {Channel} channel */
  add(channel) {
    const { requestId } = channel;
    const known = this.#byName.get(requestId);
    if (known?.left && !channel.own && known.after === channel.after) channel.takeUp(known);
    else if (known) {
      const message = `"${requestId}" is running on this connection already`;
      const conflict = new MidstreamError(message, { code: "request_conflict", status: 409, requestId });
      channel.fail(conflict); // else its signal would cancel the one that has the name
      throw conflict;
    }
    this.#byName.set(requestId, channel);
    return channel;
  }

  /** @param {string | undefined} requestId */
  get(requestId) {
    return requestId === undefined ? undefined : this.#byName.get(requestId);
  }

  all() {
    return [...this.#byName.values()];
  }

  /** Nothing follows a final; one that cannot come is none, and whoever waits is told with all others. @param {StreamEvent} event */
  receive(event) {
    this.get(event.request_id)?.receive(event);
    if (event.type === "final") this.#byName.delete(event.request_id);
  }

  /** @param {MidstreamError} failure */
  failAll(failure) {
    for (const channel of this.#byName.values()) channel.fail(failure);
    this.#byName.clear();
  }

  /** The server refused a stream, or has lost it. @param {Channel} channel @param {MidstreamError} why */
  drop(channel, why) {
    if (this.get(channel.requestId) !== channel) return;
    this.#byName.delete(channel.requestId);
    channel.fail(why);
  }
}
