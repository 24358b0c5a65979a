/**
 * A connection over a WebSocket: the only module that touches one. It knows events of the socket, no streams.
 * @module
 */

import { Connection, greeting } from "./connection.js";
import { ConnectionLost, connectionClosed } from "./errors.js";

/**
 * @typedef {object} Socket What is used of a WebSocket: a browser's, Node's, or that of the package `ws`.
 * @property {(text: string) => void} send
 * @property {(code?: number) => void} close
 * @property {(type: any, listener: (event: any) => void) => void} addEventListener
 */
/** @typedef {new (url: string, protocols?: string[]) => Socket} SocketClass */

/**
 * Connect, and wait for the server's first words.
 * @param {string} url
 * @param {{protocols: string[], WebSocket?: SocketClass, signal?: AbortSignal}} options
 * @returns {Promise<Connection>}
 */
export async function openSocket(url, { protocols, WebSocket = globalThis.WebSocket, signal }) {
  if (!WebSocket) {
    throw new TypeError("there is no WebSocket here: pass that of the package ws as the option WebSocket");
  }
  signal?.throwIfAborted();
  const socket = new WebSocket(url, protocols);
  try {
    return await greeted(socket, url, signal);
  } catch (error) {
    socket.close(); // a peer that did not greet need not be waited for to part
    throw error;
  }
}

/**
 * @param {Socket} socket @param {string} url @param {AbortSignal | undefined} signal
 * @returns {Promise<Connection>}
 */
function greeted(socket, url, signal) {
  /** @type {Connection | null} */
  let connection = null;
  let why = "";
  return new Promise((resolve, reject) => {
    const abort = () => reject(signal?.reason);
    signal?.addEventListener("abort", abort, { once: true });
    socket.addEventListener("error", ({ message }) => {
      why = message ? `: ${message}` : "";
    });
    socket.addEventListener("close", ({ code, reason }) => {
      if (connection) connection.lose(connectionClosed(code, reason));
      else reject(new ConnectionLost(`no connection to ${url}${why}`, { closeCode: null, retryable: true }));
    });
    socket.addEventListener("message", ({ data }) => {
      if (connection) return connection.receive(data);
      signal?.removeEventListener("abort", abort);
      try {
        connection = new Connection(greeting(data), socket);
        resolve(connection);
      } catch (error) {
        reject(error);
      }
    });
  });
}
