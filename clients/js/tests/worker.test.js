/**
 * The client in a worker: several clients in one, streams that move by pull, and how it ends.
 * @module
 */

import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { Worker } from "node:worker_threads";
import { WebSocket } from "ws";

import { Agent, connect, connectWorker, exposeInWorker } from "../src/midstream.js";
import { eventually } from "./eventually.js";
import { FakeSocket, READY } from "./fake-socket.js";
import { final, rewound, snapshot, started, token } from "./sample-events.js";
import { cutAndReconnect, nextSocket, sendAttached, sendError, sentFrames } from "./scripted-server.js";
import { decoded, idle, metrics, serve, streams, until } from "./server-process.js";
import { startWorker } from "./with-and-without-worker.js";

const LONG = { prompt: "Once", ignore_eos: true, max_tokens: 4000 };

/** @type {Awaited<ReturnType<typeof serve>>} */ let server;
before(async () => {
  server = await serve();
});
after(() => server.end());

/** A worker that ends with its test. @param {import("node:test").TestContext} t */
function thread(t) {
  const worker = startWorker();
  t.after(() => worker.terminate());
  return worker;
}

/**
 * A worker without a thread: what is posted to one end comes out of the other.
 * @param {import("node:test").TestContext} t @param {any} Socket
 */
function threadless(t, Socket) {
  const { port1: page, port2: scope } = new MessageChannel();
  t.after(() => page.close());
  exposeInWorker({ WebSocket: Socket, scope });
  return page;
}

/** A client whose worker's socket says what the test does. @param {any} t */
async function scripted(t) {
  const worker = threadless(t, FakeSocket);
  const { last } = FakeSocket;
  const connecting = connectWorker(worker, "http://host");
  const socket = await eventually(() => (FakeSocket.last === last ? null : FakeSocket.last));
  socket.receive(READY);
  return { client: await connecting, socket };
}

/** What the port brings: all up to the first of a kind, each once. @param {MessagePort} port */
function inbox(port) {
  /** @type {any[]} */ const seen = [];
  port.addEventListener("message", ({ data }) => seen.push(data.op === "event" ? data.event.type : data.op));
  port.start();
  return async (/** @type {string} */ last) => {
    await eventually(() => seen.includes(last));
    return seen.splice(0);
  };
}

test("several clients share a worker, and each has its own end", async (t) => {
  const worker = thread(t);
  const other = await serve();
  t.after(() => other.end());
  const [one, two] = [await connectWorker(worker, server.url), await connectWorker(worker, other.url)];
  assert.notEqual(one.ready.session_id, two.ready.session_id);
  const options = { ...LONG, request_id: "same name", window: 4 };
  const [first, second] = await Promise.all([one.start(options), two.start(options)]);
  await Promise.all([first.next(), second.next()]);
  await one.close();
  await until(server.url, idle);
  await until(other.url, streams("stalled", 1));
  await second.next();
  for await (const _ of second) break;
  await until(other.url, idle);
  await two.close();
});

test("the worker's stream moves on only when the page asks, and one chunk at a time", async (t) => {
  const { port1: page, port2: inWorker } = new MessageChannel();
  const scope = new MessageChannel();
  t.after(() => scope.port1.close());
  exposeInWorker({ WebSocket: FakeSocket, scope: scope.port2 });
  const heard = inbox(page);
  /** @param {string} type */
  const sent = (type) => eventually(() => FakeSocket.last.sent.some((frame) => frame.type === type));
  scope.port1.postMessage(
    { midstream: "connect", urls: ["ws://host"], reconnectMs: 0, silenceMs: 0, port: inWorker },
    [inWorker],
  );
  await heard("key");
  const { last } = FakeSocket;
  page.postMessage({ op: "key", apiKey: "k" });
  await nextSocket(last);
  assert.deepEqual(FakeSocket.last.protocols, ["midstream.v1.json", "bearer.aw"]);
  FakeSocket.last.receive(READY);
  await heard("ready");
  const frame = { type: "start", request_id: "r", prompt: "Hi", params: {}, credit: { limit: 0 } };
  page.postMessage({ op: "begin", ref: "0", frame, readOptions: { window: 1 } });
  await sent("start");
  FakeSocket.last.receive({ ...started(), ref: FakeSocket.last.sent[0].ref });
  assert.deepEqual(await heard("answer"), ["started", "answer"]);
  assert.equal(FakeSocket.last.sent.length, 1, "nothing is granted that was not asked for");
  page.postMessage({ op: "next", requestId: "r" });
  await sent("credit");
  FakeSocket.last.receive({ ...token(0, "a"), seq: 1 });
  assert.deepEqual(await heard("turn"), ["token", "turn"]);
  assert.deepEqual(FakeSocket.last.sent.slice(1), [{ type: "credit", request_id: "r", limit: 1 }]);
  page.postMessage({ op: "close" });
  assert.deepEqual(await heard("closed"), ["lost", "closed"]);
});

test("a cancel that crosses the final between page and worker has its answer in it", async (t) => {
  const { client, socket } = await scripted(t);
  const starting = client.start({ prompt: "Hi", request_id: "r" });
  await eventually(() => socket.sent.length);
  socket.receive({ ...started(), ref: socket.sent[0].ref });
  const stream = await starting;
  socket.receive({ ...final("stop"), seq: 1, index: 0 });
  const pausing = assert.rejects(stream.pause(), { code: "request_finished", requestId: "r" });
  assert.deepEqual([stream.final, await stream.cancel()], [null, 0]);
  await pausing;
  await client.close();
  assert.equal(socket.sent.length, 1, "the server has said its last word of it");
});

test("what cannot be copied to the worker is refused, and leaves its name free", async (t) => {
  const { client, socket } = await scripted(t);
  const grammar = /** @type {any} */ ({ a: () => {} });
  await assert.rejects(client.start({ prompt: "Hi", request_id: "r", grammar }), { name: "DataCloneError" });
  const starting = client.start({ prompt: "Hi", request_id: "r" });
  await eventually(() => socket.sent.length);
  socket.receive({ ...started(), ref: socket.sent[0].ref });
  await starting;
  await client.close();
});

test("what took effect before the end is answered, though the end is told first", async (t) => {
  const { client, socket } = await scripted(t);
  const starting = client.start({ prompt: "Hi", request_id: "r" });
  await eventually(() => socket.sent.length);
  socket.receive({ ...started(), ref: socket.sent[0].ref });
  const stream = await starting;
  const resuming = stream.resume();
  const isResume = (/** @type {any} */ { type }) => type === "resume";
  await eventually(() => socket.sent.some(isResume));
  const { ref } = socket.sent.find(isResume);
  socket.receive({ type: "resumed", request_id: "r", ref, seq: 1, index: 0, recomputed_tokens: 0 });
  socket.receive({ ...final("stop"), seq: 2, index: 0 });
  assert.equal(await resuming, 0);
  await client.close();
});

test("a socket lost and made anew in the worker is the same to the page, and so is a stream that is lost", async (t) => {
  const { client, socket } = await scripted(t);
  t.after(() => client.close());
  /** @type {string[]} */ const states = [];
  client.onstate = (state) => states.push(`${state} ${client.state}`);
  const starting = client.start({ prompt: "Hi", request_id: "r" });
  await eventually(() => socket.sent.length);
  socket.receive({ ...started(), ref: socket.sent[0].ref });
  const stream = await starting;
  const next = await cutAndReconnect(socket);
  await eventually(() => next.sent.length === 2);
  sendAttached(next);
  next.receive({ ...token(0, "a"), seq: 1 });
  assert.equal((await stream.next())?.text, "a");
  assert.deepEqual([states, client.ready.session_id], [["reconnecting reconnecting", "open open"], "s2"]);
  const gone = await cutAndReconnect(next, "s3");
  const pausing = stream.pause();
  const why = { code: "unknown_request", message: "forgotten", request_id: "r", ref: gone.sent.at(-1).ref };
  sendError(gone, why);
  await assert.rejects(pausing, { name: "ConnectionLost", requestId: "r", message: /forgotten/ });
  await assert.rejects(stream.next(), { name: "ConnectionLost", requestId: "r" });
  assert.equal(client.state, "open");
  const pinging = client.ping(); // whatever the page and the worker still had to say of it has been said then
  await eventually(() => gone.sent.at(-1).type === "ping");
  gone.receive({ type: "pong", ref: gone.sent.at(-1).ref });
  await pinging;
  const attached = gone.sent.length;
  const taking = client.attach("r", { after: 0, had: { text: "x", index: 1 } });
  await eventually(() => gone.sent[attached]?.request_id === "r");
  gone.receive({ ...token(1, "y"), seq: 1 });
  gone.receive({ type: "attached", request_id: "r", ref: gone.sent[attached].ref });
  assert.deepEqual([(await (await taking).next({ timeout: 5000 }))?.text, (await taking).text], ["y", "xy"]);
});

test("a run tells a result again that was taken back while nobody listened in the worker", async (t) => {
  const { client, socket } = await scripted(t);
  t.after(() => client.close());
  const sent = (/** @type {FakeSocket} */ where, /** @type {string} */ kind) => eventually(() => where.sent.find(({ type }) => type === kind));
  const running = client.run(new Agent({ tools: [{ name: "weather", run: () => "mild" }] }), "Hi", { request_id: "r" });
  socket.receive({ ...started(), ref: (await sent(socket, "start")).ref });
  const run = await running;
  const call = { index: 0, call_id: "a", name: "weather" };
  socket.receive({ ...token(0, "", { count: 5 }), seq: 1 });
  socket.receive({ ...call, request_id: "r", type: "tool_call", seq: 2 });
  socket.receive({ ...call, request_id: "r", type: "tool_arguments", seq: 3, count: 5, delta: "{}" });
  socket.receive({ ...call, request_id: "r", type: "tool_call_done", seq: 4, end: 5 });
  socket.receive({ type: "injected", request_id: "r", seq: 5, index: 7, count: 9, ref: (await sent(socket, "tool_result")).ref });
  const rewinding = run.stream.rewind(6);
  const back = /** @type {any} */ ({ ...rewound(6, 0), ref: (await sent(socket, "rewind")).ref, tool_calls: 1, arguments_length: 2 });
  const next = await cutAndReconnect(socket);
  await sent(next, "attach");
  next.receive(snapshot(8, { index: 8, text: "", tool_calls: [{ ...call, arguments: "{}", end: 5 }], answered: [back] }));
  sendAttached(next);
  await rewinding;
  assert.equal((await sent(next, "tool_result")).content, "mild");
});

for (const where of ["here", "in a worker"]) {
  test(`a stream that was not to be had in time is left as it was, and had by whoever asks again: socket ${where}`, async (t) => {
    const { last } = FakeSocket;
    const connecting = where === "here" ? connect("http://host", { WebSocket: FakeSocket }) : connectWorker(threadless(t, FakeSocket), "http://host");
    const socket = await eventually(() => (FakeSocket.last === last ? null : FakeSocket.last));
    socket.receive(READY);
    const client = await connecting;
    t.after(() => client.close());
    const abort = new AbortController();
    const taking = assert.rejects(client.attach("r", { signal: abort.signal }), { name: "AbortError" });
    const { ref } = await eventually(() => socket.sent[0]);
    abort.abort();
    await taking;
    const pinging = client.ping(); // said behind whatever there was to say of it
    const ping = await eventually(() => socket.sent.find(({ type }) => type === "ping"));
    socket.receive({ type: "pong", ref: ping.ref });
    await pinging;
    socket.receive(started());
    socket.receive({ ...token(0, "a"), seq: 1 });
    socket.receive({ type: "attached", request_id: "r", ref });
    const again = client.attach("r");
    const asked = await eventually(() => socket.sent.filter(({ type }) => type === "attach")[1]);
    socket.receive({ ...token(1, "b"), seq: 2 });
    socket.receive({ type: "attached", request_id: "r", ref: asked.ref });
    const stream = await again;
    assert.equal((await stream.next())?.text, "a");
    assert.equal((await stream.next())?.text, "b");
    assert.deepEqual(sentFrames(socket).map(({ type }) => type), ["attach", "ping", "attach"]);
  });
}

test("what the page has given up before it began is not asked for elsewhere", async (t) => {
  const { client, socket } = await scripted(t);
  t.after(() => client.close());
  const abort = new AbortController();
  const starting = assert.rejects(client.start({ prompt: "Hi", request_id: "r", signal: abort.signal }));
  await eventually(() => socket.sent.length);
  abort.abort();
  await starting;
  await eventually(() => socket.sent.length === 2);
  const refused = { request_id: "r", retryable: true };
  for (const [code, { ref }] of /** @type {const} */ ([["draining", socket.sent[0]], ["unknown_request", socket.sent[1]]])) sendError(socket, { ...refused, code, ref });
  const next = await cutAndReconnect(socket);
  assert.deepEqual(next.sent.map(({ type }) => type), ["replace"]);
});

test("a page that stops asking stops the engine, though the worker reads on", async (t) => {
  const worker = thread(t);
  const client = await connectWorker(worker, server.url);
  const before = decoded(await metrics(server.url));
  const stream = await client.start({ ...LONG, window: 4 });
  for (let taken = 0; taken < 10; taken++) await stream.next();
  const stalled = decoded(await until(server.url, streams("stalled", 1))) - before;
  assert.ok(10 <= stalled && stalled <= 14, `${stalled} decoded for 10 taken`);
  await client.close();
});

test("a worker that ends is told to everybody who waits", async (t) => {
  const worker = thread(t);
  const client = await connectWorker(worker, server.url);
  const stream = await client.start({ ...LONG, window: 1, on_disconnect: "cancel" });
  const index = await stream.pause();
  while (stream.consumed < index) await stream.next();
  const expected = { name: "ConnectionLost", message: "the worker ended", retryable: false };
  const waiting = assert.rejects(stream.next(), expected);
  await worker.terminate();
  await waiting;
  assert.equal((await client.closed).retryable, false);
  assert.equal(client.state, "closed");
  await until(server.url, idle);
});

test("a worker that does not come up is an error, not a silence", async () => {
  const worker = new Worker("throw new Error('no such script')", { eval: true });
  worker.on("error", () => {});
  const expected = { name: "ConnectionLost", message: /the worker ended/ };
  await assert.rejects(connectWorker(worker, server.url), expected);
});

test("errors cross with their class and all that they say", async (t) => {
  const worker = threadless(t, WebSocket);
  const unreachable = connectWorker(worker, "http://127.0.0.1:1");
  await assert.rejects(unreachable, { name: "ConnectionLost", closeCode: null, retryable: true });
  const client = await connectWorker(worker, server.url);
  const starting = client.start({ prompt: "Hi", top_p: 5, request_id: "mine" });
  const expected = { name: "MidstreamError", code: "invalid_params", status: 400, requestId: "mine" };
  await assert.rejects(starting, expected);
  await client.close();
});

test("a worker without a WebSocket says what to do", { skip: "WebSocket" in globalThis }, async (t) => {
  const worker = threadless(t, undefined);
  await assert.rejects(connectWorker(worker, server.url), { name: "TypeError", message: /package ws/ });
});

test("a signal gives up connecting, in the worker too", async (t) => {
  const worker = threadless(t, FakeSocket);
  const abort = new AbortController();
  const { last } = FakeSocket;
  const connecting = connectWorker(worker, "http://host", { signal: abort.signal });
  await eventually(() => FakeSocket.last !== last);
  abort.abort(new Error("enough"));
  await assert.rejects(connecting, /enough/);
  await eventually(() => FakeSocket.last.closedWith !== null);
});

test("what else a page and its worker say to each other is left alone", async (t) => {
  const worker = threadless(t, WebSocket);
  worker.postMessage("hello");
  worker.postMessage(null);
  const client = await connectWorker(worker, server.url);
  /** @type {object[]} */ const closes = [];
  client.onclose = (close) => closes.push(close);
  assert.deepEqual(await client.close(), { code: 1000, reason: "", retryable: false });
  assert.equal(closes.length, 1);
});
