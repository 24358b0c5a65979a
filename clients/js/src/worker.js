/**
 * The Web Worker's side: sockets and parsing, for the clients of a page.
 *
 * Streams run here. The page sees their events as they come, but the streams move on here, and so in the
 * engine, only when the page asks for the next chunk: one at a time.
 * @module
 * @import { SocketClass } from "./dial.js"
 * @import { Answer, OpeningFrame, RequestFrame } from "./protocol.js"
 * @import { Session } from "./session.js"
 * @import { ReadOptions } from "./stream-core.js"
 * @import { ConnectMessage, PageMessage, PortLike, WorkerMessage } from "./worker-messages.js"
 */

import { openSession } from "./dial.js";
import { deserializeError, requestFinished, serializeError } from "./errors.js";
import { Stream } from "./stream.js";
import { onMessage, onPortEvent } from "./worker-messages.js";

/**
 * Serve the page that made this worker: the other side of `connectWorker`.
 * @param {{WebSocket?: SocketClass, scope?: PortLike}} [options] In Node: `scope` is `parentPort`
 */
export function exposeInWorker({ WebSocket, scope = /** @type {any} */ (globalThis) } = {}) {
  onMessage(scope, (message) => {
    if (message?.midstream === "connect") serve(message, WebSocket);
  });
}

/** @param {ConnectMessage} message @param {SocketClass | undefined} WebSocket */
async function serve({ urls, reconnectMs, silenceMs, port }, WebSocket) {
  const gone = new AbortController();
  onPortEvent(port, "close", () => gone.abort());
  onMessage(port, (message) => message.op === "close" && gone.abort());
  try {
    const how = { apiKey: () => requestKey(port), WebSocket, reconnectMs, silenceMs };
    const session = await openSession(urls, how, gone.signal);
    new SessionHost(session, port, gone.signal);
  } catch (error) {
    port.postMessage({ op: "refused", error: serializeError(error) });
    port.close();
  }
}

/**
 * The key is the page's to know, before every attempt to connect.
 * @param {MessagePort} port @returns {Promise<string | undefined>}
 */
function requestKey(port) {
  return new Promise((resolve, reject) => {
    const answered = new AbortController();
    const receive = (/** @type {MessageEvent<PageMessage>} */ { data }) => {
      if (data.op !== "key" && data.op !== "no_key") return;
      answered.abort();
      if (data.op === "key") resolve(data.apiKey);
      else reject(deserializeError(data.error));
    };
    port.addEventListener("message", receive, { signal: answered.signal });
    port.postMessage({ op: "key" });
  });
}

/** The session of one client of the page. */
class SessionHost {
  #session;
  #port;
  /** @type {Map<string, Stream>} */ #streams = new Map();

  /** @param {Session} session @param {MessagePort} port @param {AbortSignal} gone */
  constructor(session, port, gone) {
    this.#session = session;
    this.#port = port;
    gone.addEventListener("abort", () => session.close());
    session.ongoingaway = (event) => this.#post({ op: "going_away", event });
    session.onstate = (state) => {
      if (state !== "closed") this.#post({ op: "state", state, ready: session.ready });
    };
    session.closed.then((close) => {
      this.#post({ op: "closed", close });
      port.close();
    });
    onMessage(port, (message) => this.#receive(message));
    this.#post({ op: "ready", ready: session.ready });
  }

  /** @param {PageMessage} message */
  #receive(message) {
    if (message.op === "begin") this.#answer(message.ref, () => this.#begin(message.frame, message.readOptions));
    else if (message.op === "request") this.#request(message.ref, message.frame);
    else if (message.op === "next") this.#next(message.requestId);
  }

  /** @param {string} ref @param {() => Promise<Answer>} ask */
  async #answer(ref, ask) {
    try {
      this.#post({ op: "answer", ref, event: await ask() });
    } catch (error) {
      this.#post({ op: "failure", ref, error: serializeError(error) });
    }
  }

  /** @param {string} ref @param {RequestFrame} frame */
  async #request(ref, frame) {
    try {
      // The page cannot know yet; the server would not answer a cancel.
      if (frame.type !== "ping" && !this.#streams.has(frame.request_id)) {
        throw requestFinished("the stream has ended", frame.request_id);
      }
      await this.#session.request(frame, (event) => this.#post({ op: "answer", ref, event }));
    } catch (error) {
      this.#post({ op: "failure", ref, error: serializeError(error) });
    }
  }

  /** @param {OpeningFrame} frame @param {ReadOptions} readOptions */
  #begin(frame, readOptions) {
    const { channel, started } = this.#session.begin(frame, readOptions);
    channel.onevent = (event) => {
      if (event.type === "final") this.#streams.delete(event.request_id);
      this.#post({ op: "event", event });
    };
    channel.onfail = (why) => {
      this.#streams.delete(channel.requestId);
      this.#post({ op: "lost", requestId: channel.requestId, error: serializeError(why) });
    };
    this.#streams.set(frame.request_id, new Stream(channel));
    return started;
  }

  /** Why there is no next chunk the page learns from the stream's events. @param {string} requestId */
  async #next(requestId) {
    await this.#streams.get(requestId)?.next().catch(() => null);
    this.#post({ op: "turn", requestId });
  }

  /** @param {WorkerMessage} message */
  #post(message) {
    this.#port.postMessage(message);
  }
}
