/**
 * Dialling: from an address to an open WebSocket and the server's `ready`, or why there is none. The only module
 * that touches a socket: it knows its events, and no streams.
 * @module
 * @import { Ready } from "./protocol.js"
 * @import { Dial, Timeouts, Transport, TransportEvents } from "./reconnecting.js"
 */

import { abortable } from "./abortable.js";
import { ConnectionLost, MidstreamError, connectionClosed } from "./errors.js";
import { parseReady } from "./event-parser.js";
import { RETRYABLE_CLOSE_CODES } from "./protocol.js";
import { ATTEMPT_TIMEOUT_MS, withTimeout } from "./retry-loop.js";
import { Session } from "./session.js";
import { subprotocols } from "./url.js";

/**
 * @typedef {object} Socket What is used of a WebSocket: a browser's, Node's, or that of the package `ws`.
 * @property {(text: string) => void} send
 * @property {(code?: number) => void} close
 * @property {number} [bufferedAmount] bytes that wait to be sent
 * @property {(type: any, listener: (event: any) => void) => void} addEventListener
 */
/** @typedef {new (url: string, protocols?: string[]) => Socket} SocketClass */
/** @typedef {string | (() => string | undefined | Promise<string | undefined>)} ApiKey A key, or who knows it. */
/** @typedef {Timeouts & {apiKey?: ApiKey, WebSocket?: SocketClass}} DialOptions */

/**
 * A session on a first connection, to any of these servers: where that fails at each of them, it has failed. Each has
 * its turn, whenever another connection is needed; clients begin anywhere, and so divide.
 * @param {string[]} urls
 * @param {DialOptions} options
 * @param {AbortSignal} [signal]
 */
export async function openSession(urls, options, signal) {
  let turn = Math.floor(Math.random() * urls.length);
  /** @type {Dial} */
  const dialNext = (onready, signal) => dial(urls[turn++ % urls.length], options, onready, signal);
  const session = new Session(dialNext, options);
  for (let tries = 1; ; tries++) {
    try {
      await session.open(signal);
      return session;
    } catch (error) {
      if (tries === urls.length || !(error instanceof MidstreamError && error.retryable)) throw error;
    }
  }
}

/**
 * @param {string} url @param {DialOptions} options
 * @param {(ready: Ready, transport: Transport) => TransportEvents} onready takes `ready`, and says who takes the rest
 * @param {AbortSignal} [signal]
 */
async function dial(url, { apiKey, WebSocket = globalThis.WebSocket }, onready, signal) {
  if (!WebSocket) {
    throw new TypeError("there is no WebSocket here: pass that of the package ws as the option WebSocket");
  }
  signal?.throwIfAborted();
  const key = typeof apiKey === "function" ? await resolveKey(apiKey, signal) : apiKey;
  const socket = new WebSocket(url, subprotocols(key));
  try {
    await withTimeout((given) => handshake(socket, url, onready, given), ATTEMPT_TIMEOUT_MS, signal);
  } catch (error) {
    socket.close(); // a peer that was never ready need not be waited for
    throw error;
  }
}

/** @param {() => string | undefined | Promise<string | undefined>} ask @param {AbortSignal | undefined} signal */
async function resolveKey(ask, signal) {
  const key = await abortable(Promise.resolve(ask()), signal);
  signal?.throwIfAborted();
  return key;
}

/**
 * @param {Socket} socket @param {string} url
 * @param {(ready: Ready, transport: Transport) => TransportEvents} onready
 * @param {AbortSignal | undefined} signal
 * @returns {Promise<void>}
 */
function handshake(socket, url, onready, signal) {
  /** @type {TransportEvents | null} */
  let events = null;
  let why = "";
  let refused = false; // a socket that is being closed may bring more all the same
  return new Promise((resolve, reject) => {
    const abort = () => reject(signal?.reason);
    signal?.addEventListener("abort", abort, { once: true });
    socket.addEventListener("error", ({ message }) => {
      why = message ?? "";
    });
    socket.addEventListener("close", ({ code, reason }) => {
      if (events) events.lost(connectionClosed(code, reason));
      else reject(unreachable(url, code, reason || why));
    });
    socket.addEventListener("message", ({ data }) => {
      if (events) return events.receive(data);
      if (refused || signal?.aborted) return;
      signal?.removeEventListener("abort", abort);
      try {
        events = onready(parseReady(data), socket);
        resolve();
      } catch (error) {
        refused = true;
        reject(error);
      }
    });
  });
}

/** @param {string} url @param {number} code @param {string} why */
function unreachable(url, code, why) {
  const none = code === 1006; // there never was one: nobody closed it
  const message = `no connection to ${url}${why && `: ${why}`}`;
  return new ConnectionLost(message, {
    closeCode: none ? null : code,
    retryable: none || RETRYABLE_CLOSE_CODES.includes(code),
  });
}
