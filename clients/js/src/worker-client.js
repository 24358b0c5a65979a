/**
 * The page's side of a worker: a link like a connection, but that sockets and parsing are in the worker.
 *
 * Each stream has a shadow here: a core that is fed the same events. What it has waiting may be taken only
 * when the worker's own stream, asked for one chunk, has taken that.
 * @module
 * @import { ConnectOptions } from "./client.js"
 * @import { Close } from "./errors.js"
 * @import { FromPage, FromWorker, Hello, Port } from "./worker-messages.js"
 * @import { ApiKey } from "./dial.js"
 * @import { Reading, StreamCore } from "./stream-core.js"
 * @import { State } from "./reconnecting.js"
 * @import { GoingAway, Opening, Question, Ready, StreamEvent } from "./protocol.js"
 */

import { Channels, channelFor } from "./channel.js";
import { Client } from "./client.js";
import { ConnectionLost, connectionClosed, packed, unpacked } from "./errors.js";
import { listen, listenFor } from "./worker-messages.js";
import { checkPatience } from "./options.js";
import { Questions } from "./pending-frames.js";
import { pageAddress, websocketUrl } from "./url.js";
import { tell, unlessAborted } from "./abortable.js";

const PARTING_MS = 5000; // for a worker that has much to do; others take a moment

/**
 * Connect by way of a worker, which has called `exposeInWorker`. The client is the same in all else. Several
 * clients, of the same or of different servers, may share a worker.
 * @param {Port} worker a module Worker
 * @param {string | URL} [url] as for `connect`
 * @param {ConnectOptions} [options]
 */
export async function connectWorker(worker, url, options = {}) {
  const { apiKey, signal } = options;
  signal?.throwIfAborted();
  const { port1: port, port2 } = new MessageChannel();
  /** @type {Hello} */
  const hello = {
    midstream: "connect",
    url: websocketUrl(url, pageAddress()),
    ...checkPatience(options),
    port: port2,
  };
  const opened = linked(worker, port, apiKey);
  worker.postMessage(hello, [port2]);
  try {
    return new Client(await unlessAborted(opened, signal));
  } catch (error) {
    port.postMessage({ op: "close" });
    throw error;
  }
}

/** @param {Port} worker @param {MessagePort} port @param {ApiKey} [apiKey] @returns {Promise<Remote>} */
function linked(worker, port, apiKey) {
  /** @type {Remote | null} */
  let remote = null;
  return new Promise((resolve, reject) => {
    const fail = (/** @type {{message?: string}} */ { message }) => {
      const lost = workerEnded(message);
      remote ? remote.lose(lost) : reject(lost);
    };
    // A worker whose script does not load says so; one of Node's that dies takes its end of the port with it.
    worker.addEventListener?.("error", (event) => remote || fail(event));
    listenFor(port, "close", fail);
    listen(port, (/** @type {FromWorker} */ message) => {
      if (message.op === "key") return tellKey(port, apiKey);
      if (remote) return remote.hear(message);
      if (message.op === "ready") resolve((remote = new Remote(message.ready, port)));
      else if (message.op === "refused") reject(unpacked(message.error));
    });
  });
}

/** A function cannot cross to the worker, so it is asked here. @param {MessagePort} port @param {ApiKey} [apiKey] */
async function tellKey(port, apiKey) {
  try {
    port.postMessage({ op: "key", apiKey: typeof apiKey === "function" ? await apiKey() : apiKey });
  } catch (error) {
    port.postMessage({ op: "no_key", error: packed(error) });
  }
}

/** @param {string | undefined} why */
function workerEnded(why) {
  const message = "the worker ended" + (why ? `: ${why}` : "");
  return new ConnectionLost(message, { closeCode: null, retryable: false });
}

/** A connection that a worker has. */
class Remote {
  ready;
  draining = false;
  /** @type {State} */ state = "open";
  /** @type {((state: State) => void) | null} */ onstate = null;
  /** @type {((event: GoingAway) => void) | null} */ ongoingaway = null;
  /** @type {Promise<Close>} */ closed;

  #port;
  #channels = new Channels();
  /** @type {Map<string, "asked" | "granted">} */ #turns = new Map();
  #questions = new Questions();
  /** @type {ConnectionLost | null} */ #lost = null;
  /** @type {(close: Close) => void} */ #ended = () => {};
  /** @type {ReturnType<typeof setTimeout> | undefined} */ #parting;

  /** @param {Ready} ready @param {MessagePort} port */
  constructor(ready, port) {
    this.ready = ready;
    this.#port = port;
    this.closed = new Promise((resolve) => {
      this.#ended = resolve;
    });
  }

  // -- out ------------------------------------------------------------------------------------------------

  /** @param {Opening} frame @param {Reading} reading @param {AbortSignal} [signal] */
  begin(frame, reading, signal) {
    if (this.#lost) throw this.#lost;
    const shadow = { ...reading, window: null }; // credit is the worker's affair
    const channel = this.#channels.add(channelFor(frame, shadow, this, signal));
    const { ref, answered } = this.#questions.ask(frame);
    this.#post({ op: "begin", ref, frame, reading });
    answered.catch((why) => this.#channels.refuse(channel, why));
    return { channel, started: answered };
  }

  /** One request for the next chunk at a time. @param {string} requestId @param {StreamCore} core */
  pull(requestId, core) {
    if (core.final || this.#lost) return core.take();
    const chunk = this.#turns.get(requestId) === "granted" ? core.take() : null;
    if (chunk) {
      this.#turns.delete(requestId);
    } else if (this.#turns.get(requestId) !== "asked") {
      // Also where the chunk that was granted has been rewound since.
      this.#turns.set(requestId, "asked");
      this.#post({ op: "next", requestId });
    }
    return chunk;
  }

  /** @param {Question} frame */
  async request(frame) {
    if (this.#lost) throw this.#lost;
    const { ref, answered } = this.#questions.ask(frame);
    this.#post({ op: "request", ref, frame });
    return answered;
  }

  /**
   * It has ended, as `closed` says, when the worker has sent what there was to send: it may be terminated then.
   * That one was terminated before, few browsers say: its word is not waited for without end.
   */
  close() {
    if (this.#lost) return;
    this.#post({ op: "close" });
    const lost = this.#end(connectionClosed(1000, ""));
    this.#parting = setTimeout(() => this.lose(lost), PARTING_MS);
  }

  /** @param {FromPage} message */
  #post(message) {
    this.#port.postMessage(message);
  }

  // -- in -------------------------------------------------------------------------------------------------

  /** @param {FromWorker} message */
  hear(message) {
    switch (message.op) {
      case "event":
        return this.#feed(message.event);
      case "turn": return this.#grant(message.requestId);
      case "answer": return this.#questions.settle(message.ref, message.event);
      case "failure": return this.#questions.refuse(message.ref, unpacked(message.error));
      case "lost": return this.#fail(message.requestId, unpacked(message.error));
      case "state": return this.#turn(message.state, message.ready);
      case "closed": return this.lose(connectionClosed(message.close.code, message.close.reason));
      case "going_away":
        this.draining = true;
        tell(this.ongoingaway, message.event);
    }
  }

  /** @param {ConnectionLost} lost */
  lose(lost) {
    clearTimeout(this.#parting);
    const { closeCode, reason, retryable } = this.#lost ?? this.#end(lost);
    this.#ended({ code: closeCode ?? 1006, reason, retryable });
  }

  /** @param {ConnectionLost} lost */
  #end(lost) {
    this.#lost = lost;
    this.state = "closed";
    this.#questions.refuseAll(lost);
    this.#channels.failAll(lost);
    tell(this.onstate, this.state);
    return lost;
  }

  /** @param {State} state @param {Ready} ready */
  #turn(state, ready) {
    this.state = state;
    this.ready = ready;
    this.draining = false;
    tell(this.onstate, state);
  }

  /** @param {string} requestId @param {any} why */
  #fail(requestId, why) {
    const channel = this.#channels.get(requestId);
    if (channel) this.#channels.refuse(channel, why);
    this.#turns.delete(requestId);
    this.#questions.refuseOf(requestId, why);
  }

  /** @param {StreamEvent} event */
  #feed(event) {
    this.#channels.feed(event);
    if (event.type !== "final") return;
    this.#turns.delete(event.request_id);
    this.#questions.end(event);
  }

  /** @param {string} requestId */
  #grant(requestId) {
    const channel = this.#channels.get(requestId);
    if (!channel) return;
    this.#turns.set(requestId, "granted");
    channel.wake();
  }
}
