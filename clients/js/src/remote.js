/**
 * The page's side of a worker: a link like a connection, but that sockets and parsing are in the worker.
 *
 * Each stream has a shadow here: a core that is fed the same events. What it has waiting may be taken only
 * when the worker's own stream, asked for one chunk, has taken that.
 * @module
 * @import { ConnectOptions } from "./client.js"
 * @import { Close } from "./errors.js"
 * @import { FromPage, FromWorker, Hello, Port } from "./ports.js"
 * @import { Answer, Cancel, GoingAway, Question, Ready, Start, StreamEvent } from "./wire.js"
 */

import { Channel, Channels } from "./channel.js";
import { Client, pageAddress } from "./client.js";
import { ConnectionLost, connectionClosed, unpacked } from "./errors.js";
import { listen, listenFor } from "./ports.js";
import { Questions } from "./questions.js";
import { StreamCore } from "./stream.js";
import { subprotocols, websocketUrl } from "./url.js";
import { tell, unlessAborted } from "./waiting.js";

/**
 * Connect by way of a worker, which has called `exposeInWorker`. The client is the same in all else. Several
 * clients, of the same or of different servers, may share a worker.
 * @param {Port} worker a module Worker
 * @param {string | URL} [url] as for `connect`
 * @param {ConnectOptions} [options]
 */
export async function connectWorker(worker, url, { apiKey, signal } = {}) {
  signal?.throwIfAborted();
  const { port1: port, port2 } = new MessageChannel();
  /** @type {Hello} */
  const hello = {
    midstream: "connect",
    url: websocketUrl(url, pageAddress()),
    protocols: subprotocols(apiKey),
    port: port2,
  };
  const opened = linked(worker, port);
  worker.postMessage(hello, [port2]);
  try {
    return new Client(await unlessAborted(opened, signal));
  } catch (error) {
    port.postMessage({ op: "close" });
    throw error;
  }
}

/** @param {Port} worker @param {MessagePort} port @returns {Promise<Remote>} */
function linked(worker, port) {
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
      if (remote) return remote.hear(message);
      if (message.op === "ready") resolve((remote = new Remote(message.ready, port)));
      else if (message.op === "refused") reject(unpacked(message.error));
    });
  });
}

/** @param {string | undefined} why */
function workerEnded(why) {
  const message = "the worker ended" + (why ? `: ${why}` : "");
  return new ConnectionLost(message, { closeCode: null, retryable: false });
}

/** An open connection that a worker has. */
class Remote {
  ready;
  draining = false;
  /** @type {((event: GoingAway) => void) | null} */ ongoingaway = null;
  /** @type {Promise<Close>} */ closed;

  #port;
  #channels = new Channels();
  /** @type {Map<string, "asked" | "granted">} */ #turns = new Map();
  #questions = new Questions();
  /** @type {ConnectionLost | null} */ #lost = null;
  /** @type {(close: Close) => void} */ #ended = () => {};

  /** @param {Ready} ready @param {MessagePort} port */
  constructor(ready, port) {
    this.ready = ready;
    this.#port = port;
    this.closed = new Promise((resolve) => {
      this.#ended = resolve;
    });
  }

  /** @returns {"open" | "closed"} */
  get state() {
    return this.#lost ? "closed" : "open";
  }

  // -- out ------------------------------------------------------------------------------------------------

  /** @param {Start} frame @param {number | null} window @param {AbortSignal} [signal] */
  start(frame, window, signal) {
    if (this.#lost) throw this.#lost;
    const channel = this.#channels.add(new Channel(frame.request_id, new StreamCore(), this, signal));
    const started = this.#call(frame, window);
    started.catch((why) => this.#channels.refuse(channel, why));
    return { channel, started };
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
    return this.#call(frame, null);
  }

  /** @param {Cancel} frame */
  send(frame) {
    if (!this.#lost) this.#post({ op: "send", frame });
  }

  close() {
    this.#post({ op: "close" });
    this.lose(connectionClosed(1000, ""));
  }

  /** @param {Question} frame @param {number | null} window @returns {Promise<Answer>} */
  #call(frame, window) {
    const { ref, answered } = this.#questions.ask(frame);
    this.#post({ op: "request", ref, frame, window });
    return answered;
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
      case "answer": return this.#questions.answer(message.ref, message.event);
      case "failure": return this.#questions.refuse(message.ref, unpacked(message.error));
      case "closed": return this.lose(connectionClosed(message.close.code, message.close.reason));
      case "going_away":
        this.draining = true;
        tell(this.ongoingaway, message.event);
    }
  }

  /** @param {ConnectionLost} lost */
  lose(lost) {
    if (this.#lost) return;
    this.#lost = lost;
    this.#questions.refuseAll(lost);
    this.#channels.failAll(lost);
    this.#ended({ code: lost.closeCode ?? 1006, reason: lost.reason, retryable: lost.retryable });
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
