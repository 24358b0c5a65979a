/**
 * The client of a Web Worker: the page's side, a session like that of `session.js`, but that sockets and parsing are
 * in the worker.
 *
 * Each stream has a copy here: a core that is fed the same events. What it has buffered may be taken only when the
 * worker's own stream, asked for one chunk, has taken that.
 * @module
 * @import { ConnectOptions } from "./client.js"
 * @import { ApiKey } from "./dial.js"
 * @import { Close } from "./errors.js"
 * @import { Answer, GoingAway, OpeningFrame, Ready, RequestFrame, StreamEvent } from "./protocol.js"
 * @import { ConnectionState } from "./reconnecting.js"
 * @import { ReadOptions, StreamCore } from "./stream-core.js"
 * @import { ConnectMessage, PageMessage, PortLike, WorkerMessage } from "./worker-messages.js"
 */

import { abortable } from "./abortable.js";
import { notify } from "./callbacks.js";
import { Channels, channelFor } from "./stream-channel.js";
import { Client } from "./client.js";
import { ConnectionLost, connectionClosed, deserializeError, serializeError } from "./errors.js";
import { checkTimeouts } from "./options.js";
import { PendingFrames } from "./pending-frames.js";
import { pageAddress, websocketUrls } from "./url.js";
import { onMessage, onPortEvent } from "./worker-messages.js";

const CLOSE_TIMEOUT_MS = 5000; // for a worker that has much to do; others take a moment

/**
 * Connect by way of a worker, which has called `exposeInWorker`. The client is the same in all else. Several
 * clients, of the same or of different servers, may share a worker.
 * @param {PortLike} worker a module Worker
 * @param {string | URL | (string | URL)[]} [url] as for `connect`
 * @param {ConnectOptions} [options]
 */
export async function connectWorker(worker, url, options = {}) {
  const { apiKey, signal } = options;
  signal?.throwIfAborted();
  const { port1: port, port2 } = new MessageChannel();
  /** @type {ConnectMessage} */
  const message = {
    midstream: "connect",
    urls: websocketUrls(url, pageAddress()),
    ...checkTimeouts(options),
    port: port2,
  };
  const opened = openProxy(worker, port, apiKey);
  worker.postMessage(message, [port2]);
  try {
    return new Client(await abortable(opened, signal));
  } catch (error) {
    port.postMessage({ op: "close" });
    throw error;
  }
}

/** @param {PortLike} worker @param {MessagePort} port @param {ApiKey} [apiKey] @returns {Promise<SessionProxy>} */
function openProxy(worker, port, apiKey) {
  /** @type {SessionProxy | null} */
  let proxy = null;
  return new Promise((resolve, reject) => {
    const fail = (/** @type {{message?: string}} */ { message }) => {
      const lost = workerEnded(message);
      proxy ? proxy.lose(lost) : reject(lost);
    };
    // A worker whose script does not load says so; one of Node's that dies takes its end of the port with it.
    worker.addEventListener?.("error", (event) => proxy || fail(event));
    onPortEvent(port, "close", fail);
    onMessage(port, (/** @type {WorkerMessage} */ message) => {
      if (message.op === "key") return sendKey(port, apiKey);
      if (proxy) return proxy.receive(message);
      if (message.op === "ready") resolve((proxy = new SessionProxy(message.ready, port)));
      else if (message.op === "refused") reject(deserializeError(message.error));
    });
  });
}

/** A function cannot cross to the worker, so it is asked here. @param {MessagePort} port @param {ApiKey} [apiKey] */
async function sendKey(port, apiKey) {
  try {
    port.postMessage({ op: "key", apiKey: typeof apiKey === "function" ? await apiKey() : apiKey });
  } catch (error) {
    port.postMessage({ op: "no_key", error: serializeError(error) });
  }
}

/** @param {string | undefined} why */
function workerEnded(why) {
  const message = "the worker ended" + (why ? `: ${why}` : "");
  return new ConnectionLost(message, { closeCode: null, retryable: false });
}

/** A session that is in a worker. */
class SessionProxy {
  ready;
  draining = false;
  /** @type {ConnectionState} */ state = "open";
  /** @type {((state: ConnectionState) => void) | null} */ onstate = null;
  /** @type {((event: GoingAway) => void) | null} */ ongoingaway = null;
  /** @type {Promise<Close>} */ closed;

  #port;
  #channels = new Channels();
  /** @type {Map<string, "asked" | "granted">} */ #pulls = new Map();
  #pending = new PendingFrames();
  /** @type {ConnectionLost | null} */ #lost = null;
  /** @type {(close: Close) => void} */ #resolveClosed = () => {};
  /** @type {ReturnType<typeof setTimeout> | undefined} */ #closeTimer;

  /** @param {Ready} ready @param {MessagePort} port */
  constructor(ready, port) {
    this.ready = ready;
    this.#port = port;
    this.closed = new Promise((resolve) => {
      this.#resolveClosed = resolve;
    });
  }

  // -- out ------------------------------------------------------------------------------------------------

  /** @param {OpeningFrame} frame @param {ReadOptions} readOptions @param {AbortSignal} [signal] */
  begin(frame, readOptions, signal) {
    if (this.#lost) throw this.#lost;
    const copied = { ...readOptions, window: null }; // credit is the worker's affair
    const channel = this.#channels.add(channelFor(frame, copied, this, signal));
    const { ref, answered } = this.#pending.add(frame);
    answered.catch((why) => this.#channels.drop(channel, why));
    this.#ask({ op: "begin", ref, frame, readOptions });
    return { channel, started: answered };
  }

  /** One request for the next chunk at a time, and none of a stream that is lost: its name may be another's. @param {string} requestId @param {StreamCore} core */
  pull(requestId, core) {
    if (core.final || this.#channels.get(requestId)?.core !== core) return core.take();
    const chunk = this.#pulls.get(requestId) === "granted" ? core.take() : null;
    if (chunk) {
      this.#pulls.delete(requestId);
    } else if (this.#pulls.get(requestId) !== "asked") {
      // Also where the chunk that was granted has been rewound since.
      this.#pulls.set(requestId, "asked");
      this.#post({ op: "next", requestId });
    }
    return chunk;
  }

  /** @param {RequestFrame} frame @param {(event: Answer) => void} [onanswer] */
  async request(frame, onanswer) {
    if (this.#lost) throw this.#lost;
    const { ref, answered } = this.#pending.add(frame, onanswer);
    this.#ask({ op: "request", ref, frame });
    return answered;
  }

  /** What cannot be copied to the worker, as a function, is refused. @param {Extract<PageMessage, {ref: string}>} message */
  #ask(message) {
    try {
      this.#post(message);
    } catch (error) {
      this.#pending.reject(message.ref, /** @type {Error} */ (error));
    }
  }

  /**
   * It has ended, as `closed` says, when the worker has sent what there was to send: it may be terminated then.
   * That one was terminated before, few browsers say: its word is not waited for without end.
   */
  close() {
    if (this.#lost) return;
    this.#post({ op: "close" });
    const lost = this.#end(connectionClosed(1000, ""));
    this.#closeTimer = setTimeout(() => this.lose(lost), CLOSE_TIMEOUT_MS);
  }

  /** @param {PageMessage} message */
  #post(message) {
    this.#port.postMessage(message);
  }

  // -- in -------------------------------------------------------------------------------------------------

  /** @param {WorkerMessage} message */
  receive(message) {
    switch (message.op) {
      case "event":
        return this.#receiveEvent(message.event);
      case "turn": return this.#grant(message.requestId);
      case "answer": return this.#pending.resolve(message.ref, message.event);
      case "failure": return this.#pending.reject(message.ref, deserializeError(message.error));
      case "lost": return this.#fail(message.requestId, deserializeError(message.error));
      case "state": return this.#receiveState(message.state, message.ready);
      case "closed": return this.lose(connectionClosed(message.close.code, message.close.reason));
      case "going_away":
        this.draining = true;
        notify(this.ongoingaway, message.event);
    }
  }

  /** @param {ConnectionLost} lost */
  lose(lost) {
    clearTimeout(this.#closeTimer);
    const { closeCode, reason, retryable } = this.#lost ?? this.#end(lost);
    this.#resolveClosed({ code: closeCode ?? 1006, reason, retryable });
  }

  /** @param {ConnectionLost} lost */
  #end(lost) {
    this.#lost = lost;
    this.state = "closed";
    this.#pending.rejectAll(lost);
    this.#channels.failAll(lost);
    notify(this.onstate, this.state);
    return lost;
  }

  /** @param {ConnectionState} state @param {Ready} ready */
  #receiveState(state, ready) {
    this.state = state;
    this.ready = ready;
    this.draining = false;
    notify(this.onstate, state);
  }

  /** @param {string} requestId @param {any} why */
  #fail(requestId, why) {
    const channel = this.#channels.get(requestId);
    if (channel) this.#channels.drop(channel, why);
    this.#pulls.delete(requestId);
    this.#pending.rejectOfStream(requestId, why);
  }

  /** @param {StreamEvent} event */
  #receiveEvent(event) {
    this.#channels.receive(event);
    if (event.type !== "final") return;
    this.#pulls.delete(event.request_id);
    // What else was asked the worker answers, which may have come to it before this.
    for (const { ref, frame } of this.#pending.ofStream(event.request_id)) {
      if (frame.type === "cancel") this.#pending.resolve(ref, event);
    }
  }

  /** @param {string} requestId */
  #grant(requestId) {
    const channel = this.#channels.get(requestId);
    if (!channel) return;
    this.#pulls.set(requestId, "granted");
    channel.wake();
  }
}
