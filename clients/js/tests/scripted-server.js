/**
 * A scripted server: what a test sends to a client over fake WebSockets, which are lost and replaced.
 * @module
 */

import { connect } from "../src/midstream.js";
import { eventually } from "./eventually.js";
import { FakeSocket, READY } from "./fake-socket.js";
import { started } from "./sample-events.js";

/** @param {import("node:test").TestContext} t @param {object} [options] */
export async function connected(t, options, ready = READY) {
  const connecting = connect("http://host", { WebSocket: FakeSocket, ...options });
  const socket = FakeSocket.last;
  socket.receive({ ...ready, session_id: "s1" });
  const client = await connecting;
  t.after(() => client.close());
  return { client, socket };
}

/**
 * A stream named "r" that has started.
 * @param {import("node:test").TestContext} t @param {object} [options] @param {object} [connectOptions]
 */
export async function running(t, options, connectOptions) {
  const { client, socket } = await connected(t, connectOptions);
  const starting = client.start({ prompt: "Hi", request_id: "r", ...options });
  socket.receive({ ...started(), ref: socket.sent[0].ref });
  return { client, socket, stream: await starting };
}

/** The socket that is opened behind this one. @param {FakeSocket} before */
export function nextSocket(before) {
  return eventually(() => (FakeSocket.last === before ? null : FakeSocket.last));
}

/** Lose the socket, and be ready on the next. @param {FakeSocket} socket @param {string} [session] */
export async function cutAndReconnect(socket, session = "s2") {
  socket.end(1006);
  const next = await nextSocket(socket);
  next.receive({ ...READY, session_id: session });
  return next;
}

/** Answer `attach`. @param {FakeSocket} socket @param {string[]} [pending] @param {string} [name] */
export function sendAttached(socket, pending = [], name = "r") {
  const asked = socket.sent.find(({ type, request_id }) => type === "attach" && request_id === name);
  socket.receive({ type: "attached", request_id: name, pending, ref: asked?.ref });
}

/** @param {FakeSocket} socket @param {object} error with its `ref` */
export function sendError(socket, error) {
  socket.receive({ type: "error", status: 503, message: "no", retryable: false, ...error });
}

/** What was sent, without credit. @param {FakeSocket} socket */
export const sentFrames = (socket) => socket.sent.filter(({ type }) => type !== "credit");
