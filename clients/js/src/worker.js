/**
 * The worker's side: sockets and parsing, for the clients of a page.
 *
 * Streams run here. The page sees their events as they come, but the streams move on here, and so in the
 * engine, only when the page asks for the next chunk: one question at a time.
 * @module
 * @import { Connection } from "./connection.js"
 * @import { FromPage, FromWorker, Hello, Port } from "./ports.js"
 * @import { SocketClass } from "./socket.js"
 * @import { Question, Start } from "./wire.js"
 */

import { finished, packed } from "./errors.js";
import { Stream } from "./handle.js";
import { listen, listenFor } from "./ports.js";
import { openSocket } from "./socket.js";

/**
 * Serve the page that made this worker: the other side of `connectWorker`.
 * @param {{WebSocket?: SocketClass, scope?: Port}} [options] In Node: `scope` is `parentPort`
 */
export function exposeInWorker({ WebSocket, scope = /** @type {any} */ (globalThis) } = {}) {
  listen(scope, (message) => {
    if (message?.midstream === "connect") serve(message, WebSocket);
  });
}

/** @param {Hello} hello @param {SocketClass | undefined} WebSocket */
async function serve({ url, protocols, port }, WebSocket) {
  const gone = new AbortController();
  listenFor(port, "close", () => gone.abort());
  listen(port, (message) => message.op === "close" && gone.abort());
  try {
    new Counterpart(await openSocket(url, { protocols, WebSocket, signal: gone.signal }), port, gone.signal);
  } catch (error) {
    port.postMessage({ op: "refused", error: packed(error) });
    port.close();
  }
}

/** What stands here for one client of the page. */
class Counterpart {
  #connection;
  #port;
  /** @type {Map<string, Stream>} */ #streams = new Map();

  /** @param {Connection} connection @param {MessagePort} port @param {AbortSignal} gone */
  constructor(connection, port, gone) {
    this.#connection = connection;
    this.#port = port;
    gone.addEventListener("abort", () => connection.close());
    connection.ongoingaway = (event) => this.#post({ op: "going_away", event });
    connection.closed.then((close) => {
      this.#post({ op: "closed", close });
      port.close();
    });
    listen(port, (message) => this.#hear(message));
    this.#post({ op: "ready", ready: connection.ready });
  }

  /** @param {FromPage} message */
  #hear(message) {
    if (message.op === "request") this.#request(message.ref, message.frame, message.window);
    else if (message.op === "next") this.#next(message.requestId);
    else if (message.op === "send") this.#connection.send(message.frame);
  }

  /** @param {string} ref @param {Question} frame @param {number | null} window */
  async #request(ref, frame, window) {
    try {
      this.#post({ op: "answer", ref, event: await this.#answered(frame, window) });
    } catch (error) {
      this.#post({ op: "failure", ref, error: packed(error) });
    }
  }

  /** @param {Question} frame @param {number | null} window */
  #answered(frame, window) {
    if (frame.type === "start") return this.#start(frame, window);
    // The page cannot know yet; the server would not answer a cancel.
    if (frame.type !== "ping" && !this.#streams.has(frame.request_id)) {
      throw finished("the stream has ended", frame.request_id);
    }
    return this.#connection.request(frame);
  }

  /** @param {Start} frame @param {number | null} window */
  #start(frame, window) {
    const { channel, started } = this.#connection.start(frame, window);
    channel.onevent = (event) => {
      if (event.type === "final") this.#streams.delete(event.request_id);
      this.#post({ op: "event", event });
    };
    this.#streams.set(frame.request_id, new Stream(channel));
    started.catch(() => this.#streams.delete(frame.request_id));
    return started;
  }

  /** Why there is no next chunk the page learns from the stream's events. @param {string} requestId */
  async #next(requestId) {
    await this.#streams.get(requestId)?.next().catch(() => null);
    this.#post({ op: "turn", requestId });
  }

  /** @param {FromWorker} message */
  #post(message) {
    this.#port.postMessage(message);
  }
}
