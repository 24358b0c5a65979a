/**
 * A stream's place on its connection: it brings events to the core, and wakes who waits for them.
 *
 * The connection holds channels, and a channel does not know the object that the user holds: when that is
 * dropped, it goes, and the stream is cancelled.
 * @module
 * @import { Chunk, Reading } from "./stream-core.js"
 * @import { Answer, Opening, Question, Steering, StreamEvent } from "./protocol.js"
 */

import { MidstreamError, finished } from "./errors.js";
import { StreamCore } from "./stream-core.js";
import { tell } from "./abortable.js";

/**
 * @typedef {object} Line A stream's way to the server: a connection, or a worker that has one.
 * @property {(requestId: string, core: StreamCore) => Chunk | null} pull ask for the next chunk, and take it
 *   if it is here
 * @property {(frame: Question) => Promise<Answer>} request send a frame and wait for its answer
 */

export class Channel {
  requestId;
  core;
  signal;
  /** Why no more events will come, if none will. @type {MidstreamError | null} */
  failure = null;
  /** @type {((event: StreamEvent) => void) | null} */
  onevent = null;
  /** Called when no more events will come, though there was no final. @type {((why: Error) => void) | null} */
  onfail = null;

  /** Whether frames for it may be sent: its connection has it, and knows what was heard of those before. */
  here = false;
  /** Whether it was told anew by a snapshot since it was lost. */
  retold = false;
  /** Whether it may outlive its client: its user said what is to become of it. */
  outlives = false;
  /** Whether nobody wants it any more. */
  abandoned = false;

  #line;
  /** @type {Promise<void> | null} */ #news = null;
  #ring = () => {};
  #abort = () => {
    this.abandon();
    this.wake();
  };

  /**
   * @param {string} requestId
   * @param {StreamCore} core
   * @param {Line} line
   * @param {AbortSignal} [signal]
   */
  constructor(requestId, core, line, signal) {
    this.requestId = requestId;
    this.core = core;
    this.signal = signal;
    this.#line = line;
    signal?.addEventListener("abort", this.#abort, { once: true });
  }

  /** @returns {Chunk | null} */
  pull() {
    return this.#line.pull(this.requestId, this.core);
  }

  /** @param {Steering} frame */
  async request(frame) {
    if (this.core.final) throw finished("the stream has ended", this.requestId);
    if (this.failure) throw this.failure;
    return this.#line.request(frame);
  }

  /** @param {StreamEvent} event */
  feed(event) {
    if (!this.core.on(event)) return;
    if (event.type === "final") this.#unhook();
    if (event.type === "snapshot") this.retold = true;
    tell(this.onevent, event);
    this.wake();
  }

  /** No more events will come. @param {MidstreamError} failure */
  fail(failure) {
    this.failure = failure;
    this.#unhook();
    tell(this.onfail, failure);
    this.wake();
  }

  /** Wait for the next event, or the end of events. */
  news() {
    this.#news ??= new Promise((resolve) => {
      this.#ring = resolve;
    });
    return this.#news;
  }

  wake() {
    this.#news = null;
    this.#ring();
  }

  /** Nobody wants this stream any more: cancel it. */
  abandon() {
    if (this.core.final || this.failure || this.abandoned) return;
    this.abandoned = true;
    this.#line.request({ type: "cancel", request_id: this.requestId }).catch(() => {}); // it is gone: all is well
  }

  #unhook() {
    this.signal?.removeEventListener("abort", this.#abort);
  }
}

/**
 * The place of a stream that is to be started, or taken over.
 * @param {Opening} frame @param {Reading} reading @param {Line} line @param {AbortSignal} [signal]
 */
export function channelFor(frame, { window, had }, line, signal) {
  const start = frame.type === "start" ? frame : null;
  const core = new StreamCore(window, start?.stream_interval, start?.credit);
  if (frame.type === "attach" && had) core.standAt(frame.after, had);
  const channel = new Channel(frame.request_id, core, line, signal);
  channel.outlives = !start || start.on_disconnect !== undefined;
  return channel;
}

/** Every stream of a connection by its name: where events go. */
export class Channels {
  /** @type {Map<string, Channel>} */ #byName = new Map();

  /** @param {Channel} channel */
  add(channel) {
    const { requestId } = channel;
    if (this.#byName.has(requestId)) {
      const message = `"${requestId}" is running on this connection already`;
      throw new MidstreamError(message, { code: "request_conflict", status: 409, requestId });
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

  /** Nothing follows a final. @param {StreamEvent} event */
  feed(event) {
    const channel = this.get(event.request_id);
    if (event.type === "final") this.#byName.delete(event.request_id);
    channel?.feed(event);
  }

  /** @param {MidstreamError} failure */
  failAll(failure) {
    for (const channel of this.#byName.values()) channel.fail(failure);
    this.#byName.clear();
  }

  /** The server refused a stream, or has lost it. @param {Channel} channel @param {MidstreamError} why */
  refuse(channel, why) {
    if (this.get(channel.requestId) !== channel) return;
    this.#byName.delete(channel.requestId);
    channel.fail(why);
  }
}
