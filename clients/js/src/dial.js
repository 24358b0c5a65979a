/**
 * Dialling by WebSocket: the only module that touches one. It knows events of the socket, no streams.
 * @module
 * @import { Ear, Patience, Wire } from "./reconnecting.js"
 * @import { Ready } from "./protocol.js"
 */

import { Connection } from "./session.js";
import { ConnectionLost, connectionClosed } from "./errors.js";
import { greeting } from "./event-parser.js";
import { subprotocols } from "./url.js";
import { unlessAborted } from "./abortable.js";
import { RETRYABLE_CLOSE_CODES } from "./protocol.js";

/**
 * @typedef {object} Socket What is used of a WebSocket: a browser's, Node's, or that of the package `ws`.
 * @property {(text: string) => void} send
 * @property {(code?: number) => void} close
 * @property {(type: any, listener: (event: any) => void) => void} addEventListener
 */
/** @typedef {new (url: string, protocols?: string[]) => Socket} SocketClass */
/** @typedef {string | (() => string | undefined | Promise<string | undefined>)} ApiKey A key, or who knows it. */
/** @typedef {Patience & {apiKey?: ApiKey, WebSocket?: SocketClass}} Dialling */

/**
 * Connect, and wait for the server's first words. The first time that this fails, it has failed.
 * @param {string} url
 * @param {Dialling} options
 * @param {AbortSignal} [signal]
 */
export async function openConnection(url, options, signal) {
  const connection = new Connection((greet, gone) => dial(url, options, greet, gone), options);
  await connection.open(signal);
  return connection;
}

/**
 * @param {string} url @param {Dialling} options
 * @param {(ready: Ready, wire: Wire) => Ear} greet is told of the greeting, and says who is to hear the rest
 * @param {AbortSignal} [signal]
 */
async function dial(url, { apiKey, WebSocket = globalThis.WebSocket }, greet, signal) {
  if (!WebSocket) {
    throw new TypeError("there is no WebSocket here: pass that of the package ws as the option WebSocket");
  }
  signal?.throwIfAborted();
  const key = typeof apiKey === "function" ? await asked(apiKey, signal) : apiKey;
  const socket = new WebSocket(url, subprotocols(key));
  try {
    await greeted(socket, url, greet, signal);
  } catch (error) {
    socket.close(); // a peer that did not greet need not be waited for to part
    throw error;
  }
}

/** @param {() => string | undefined | Promise<string | undefined>} ask @param {AbortSignal | undefined} signal */
async function asked(ask, signal) {
  const key = await unlessAborted(Promise.resolve(ask()), signal);
  signal?.throwIfAborted();
  return key;
}

/**
 * @param {Socket} socket @param {string} url @param {(ready: Ready, wire: Wire) => Ear} greet
 * @param {AbortSignal | undefined} signal
 * @returns {Promise<void>}
 */
function greeted(socket, url, greet, signal) {
  /** @type {Ear | null} */
  let ear = null;
  let why = "";
  return new Promise((resolve, reject) => {
    const abort = () => reject(signal?.reason);
    signal?.addEventListener("abort", abort, { once: true });
    socket.addEventListener("error", ({ message }) => {
      why = message ?? "";
    });
    socket.addEventListener("close", ({ code, reason }) => {
      if (ear) ear.lose(connectionClosed(code, reason));
      else reject(unreachable(url, code, reason || why));
    });
    socket.addEventListener("message", ({ data }) => {
      if (ear) return ear.receive(data);
      if (signal?.aborted) return;
      signal?.removeEventListener("abort", abort);
      try {
        ear = greet(greeting(data), socket);
        resolve();
      } catch (error) {
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
