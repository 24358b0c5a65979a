/**
 * The worker's side: sockets and parsing, for the clients of a page.
 *
 * Streams run here. The page sees their events as they come, but the streams move on here, and so in the
 * engine, only when the page asks for the next chunk: one question at a time.
 * @module
 * @import { Connection } from "./session.js"
 * @import { FromPage, FromWorker, Hello, Port } from "./worker-messages.js"
 * @import { SocketClass } from "./dial.js"
 * @import { Reading } from "./stream-core.js"
 * @import { Answer, Opening, Question } from "./protocol.js"
 */

import { finished, packed, unpacked } from "./errors.js";
import { Stream } from "./stream.js";
import { listen, listenFor } from "./worker-messages.js";
import { openConnection } from "./dial.js";

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
async function serve({ url, reconnectMs, silenceMs, port }, WebSocket) {
  const gone = new AbortController();
  listenFor(port, "close", () => gone.abort());
  listen(port, (message) => message.op === "close" && gone.abort());
  try {
    const how = { apiKey: () => askPage(port), WebSocket, reconnectMs, silenceMs };
    const connection = await openConnection(url, how, gone.signal);
    new Counterpart(connection, port, gone.signal);
  } catch (error) {
    port.postMessage({ op: "refused", error: packed(error) });
    port.close();
  }
}

/**
 * The key is the page's to know, before every attempt to connect.
 * @param {MessagePort} port @returns {Promise<string | undefined>}
 */
function askPage(port) {
  return new Promise((resolve, reject) => {
    const answered = new AbortController();
    const hear = (/** @type {MessageEvent<FromPage>} */ { data }) => {
      if (data.op !== "key" && data.op !== "no_key") return;
      answered.abort();
      if (data.op === "key") resolve(data.apiKey);
      else reject(unpacked(data.error));
    };
    port.addEventListener("message", hear, { signal: answered.signal });
    port.postMessage({ op: "key" });
  });
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
    connection.onstate = (state) => {
      if (state !== "closed") this.#post({ op: "state", state, ready: connection.ready });
    };
    connection.closed.then((close) => {
      this.#post({ op: "closed", close });
      port.close();
    });
    listen(port, (message) => this.#hear(message));
    this.#post({ op: "ready", ready: connection.ready });
  }

  /** @param {FromPage} message */
  #hear(message) {
    if (message.op === "begin") this.#answer(message.ref, () => this.#begin(message.frame, message.reading));
    else if (message.op === "request") this.#answer(message.ref, () => this.#request(message.frame));
    else if (message.op === "next") this.#next(message.requestId);
  }

  /** @param {string} ref @param {() => Promise<Answer>} ask */
  async #answer(ref, ask) {
    try {
      this.#post({ op: "answer", ref, event: await ask() });
    } catch (error) {
      this.#post({ op: "failure", ref, error: packed(error) });
    }
  }

  /** @param {Question} frame */
  #request(frame) {
    // The page cannot know yet; the server would not answer a cancel.
    if (frame.type !== "ping" && !this.#streams.has(frame.request_id)) {
      throw finished("the stream has ended", frame.request_id);
    }
    return this.#connection.request(frame);
  }

  /** @param {Opening} frame @param {Reading} reading */
  #begin(frame, reading) {
    const { channel, started } = this.#connection.begin(frame, reading);
    channel.onevent = (event) => {
      if (event.type === "final") this.#streams.delete(event.request_id);
      this.#post({ op: "event", event });
    };
    channel.onfail = (why) => {
      this.#streams.delete(channel.requestId);
      this.#post({ op: "lost", requestId: channel.requestId, error: packed(why) });
    };
    this.#streams.set(frame.request_id, new Stream(channel));
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
