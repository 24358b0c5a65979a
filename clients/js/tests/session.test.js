/**
 * The session on a fake WebSocket: what no well-behaved server would do, and how it ends.
 * @module
 */

import assert from "node:assert/strict";
import { test } from "node:test";
import { setFlagsFromString } from "node:v8";
import { runInNewContext } from "node:vm";

import { ConnectionLost, MidstreamError, ProtocolError, Recorder, StreamFailed, connect, parseRecords } from "../src/midstream.js";
import { FakeSocket, READY } from "./fake-socket.js";
import { final, snapshot, started, token } from "./sample-events.js";
import { cutAndReconnect, nextSocket, sendAttached, sentFrames } from "./scripted-server.js";

async function connected() {
  const connecting = connect("http://host", { WebSocket: FakeSocket, reconnectMs: 0 });
  const socket = FakeSocket.last;
  socket.receive(READY);
  return { client: await connecting, socket };
}

/** A stream named "r" that has started. @param {object} [options] */
async function running(options) {
  const { client, socket } = await connected();
  const starting = client.start({ prompt: "Hi", request_id: "r", ...options });
  socket.receive({ ...started(), ref: socket.sent[0].ref });
  return { client, socket, stream: await starting };
}

/** @param {string} code */
const is = (code) => (/** @type {unknown} */ error) => error instanceof MidstreamError && error.code === code;

// -- connecting -------------------------------------------------------------------------------------------

test("it connects with the encoding, and the key if there is one", async () => {
  connect("https://host", { WebSocket: FakeSocket, apiKey: "k" }).catch(() => {});
  assert.equal(FakeSocket.last.url, "wss://host/v1/realtime");
  assert.deepEqual(FakeSocket.last.protocols, ["midstream.v1.json", "bearer.aw"]);
});

test("the server's first words are there to be read", async () => {
  const { client } = await connected();
  assert.deepEqual([client.ready.models, client.state, client.draining], [["m"], "open", false]);
});

test("first words that are not right are refused, and the socket closed", async () => {
  for (const words of [{ ...READY, protocol: 2 }, token(0, "x"), "no json", "null", "{}"]) {
    const connecting = connect("http://host", { WebSocket: FakeSocket });
    FakeSocket.last.receive(words);
    await assert.rejects(connecting, ProtocolError);
    assert.notEqual(FakeSocket.last.closedWith, null);
  }
});

test("a session is named in a few characters, as it is said again where its connection is lost", async () => {
  for (const session_id of ["", "s".repeat(65)]) {
    const connecting = connect("http://host", { WebSocket: FakeSocket });
    FakeSocket.last.receive({ ...READY, session_id });
    await assert.rejects(connecting, { name: "ProtocolError", message: /expected a .session_id. of/ });
    assert.notEqual(FakeSocket.last.closedWith, null);
  }
});

test("limits that are none are refused, and the socket closed", async () => {
  const wrong = [
    ...["many", null, -1, 30, 1000.5, [1000]].map((bytes) => ({ max_message_bytes: bytes })),
    ...["long", -1].map((ms) => ({ max_grace_ms: ms })),
  ];
  for (const limits of wrong) {
    const connecting = connect("http://host", { WebSocket: FakeSocket });
    FakeSocket.last.receive({ ...READY, limits });
    await assert.rejects(connecting, { name: "ProtocolError", message: new RegExp(`expected .${Object.keys(limits)[0]}. of`) });
    assert.notEqual(FakeSocket.last.closedWith, null);
  }
});

test("a refusal in place of the greeting is that error", async () => {
  const connecting = connect("http://host", { WebSocket: FakeSocket });
  const error = { status: 503, code: "draining", message: "bye", retryable: true, retry_after_ms: 9 };
  FakeSocket.last.receive({ type: "error", ...error });
  const expected = { name: "MidstreamError", code: "draining", status: 503, retryAfterMs: 9 };
  await assert.rejects(connecting, expected);
  const { last } = FakeSocket;
  last.receive(READY);
  last.end(1006);
  await new Promise((resolve) => setTimeout(resolve, 150));
  assert.equal(FakeSocket.last, last, "nobody has a client that would come back");
});

test("no connection to be had is ConnectionLost, and worth a retry", async () => {
  const connecting = connect("http://host", { WebSocket: FakeSocket });
  FakeSocket.last.dispatchEvent(Object.assign(new Event("error"), { message: "refused" }));
  FakeSocket.last.end(1006);
  const expected = { name: "ConnectionLost", message: /refused/, closeCode: null, retryable: true };
  await assert.rejects(connecting, expected);
});

test("a server that says nothing is given up, and the next is asked", async (t) => {
  t.mock.timers.enable({ apis: ["setTimeout"] });
  const connecting = connect(["http://a", "http://b"], { WebSocket: FakeSocket });
  const silent = FakeSocket.last;
  t.mock.timers.tick(10_000);
  await nextSocket(silent);
  assert.notEqual(silent.closedWith, null);
  t.mock.timers.tick(10_000);
  const expected = { name: "ConnectionLost", message: /did not answer within 10000 ms/, closeCode: null, retryable: true };
  await assert.rejects(connecting, expected);
});

test("a signal gives up connecting", async () => {
  const abort = new AbortController();
  const connecting = connect("http://host", { WebSocket: FakeSocket, signal: abort.signal });
  abort.abort(new Error("enough"));
  await assert.rejects(connecting, /enough/);
  assert.notEqual(FakeSocket.last.closedWith, null);
  await assert.rejects(connect("http://host", { WebSocket: FakeSocket, signal: abort.signal }), /enough/);
});

// -- the end of a connection ------------------------------------------------------------------------------

test("a connection that ends is told to everybody, after the chunks that came before", async () => {
  const { client, socket, stream } = await running();
  /** @type {(object | string)[]} */ const seen = [];
  client.onclose = (close) => seen.push(close);
  client.onstate = (state) => seen.push(state);
  const pausing = stream.pause();
  socket.receive({ ...token(0, "last"), seq: 1 });
  socket.end(1012, "restart");
  const close = { code: 1012, reason: "restart", retryable: true };
  assert.deepEqual(await client.closed, close);
  await assert.rejects(pausing, ConnectionLost);
  assert.equal((await stream.next())?.text, "last");
  await assert.rejects(stream.next(), { code: "connection_lost", closeCode: 1012, retryable: true });
  await assert.rejects(client.start({ prompt: "Hi" }), ConnectionLost);
  assert.equal(client.state, "closed");
  assert.deepEqual(seen, ["closed", close]);
});

const RETRYABLE = [1001, 1006, 1011, 1012, 1013];
for (const code of [1000, 1007, 1008, 1009, 4401, 4403, 4408, 4409, 4429, ...RETRYABLE]) {
  const retryable = RETRYABLE.includes(code);
  test(`close code ${code} is ${retryable ? "" : "not "}worth a retry`, async () => {
    const { client, socket } = await connected();
    socket.end(code);
    assert.equal((await client.closed).retryable, retryable);
  });
}

test("closing is the end of its streams, and no longer waits for the server", async () => {
  const { client, socket, stream } = await running();
  const waiting = stream.next();
  assert.deepEqual(await client.close(), { code: 1000, reason: "", retryable: false });
  await assert.rejects(waiting, ConnectionLost);
  assert.equal(socket.closedWith, 1000);
  await client.close();
});

for (const [what, event] of /** @type {[string, object | string][]} */ ([
  ["no JSON", "{"],
  ["an event without a type", {}],
  ["a token out of turn", { ...token(7, "x"), seq: 1 }],
  ["a hole in the sequence", { ...token(0, "x"), seq: 3 }],
  ["a snapshot without a text", { type: "snapshot", request_id: "r", seq: 1, index: 0 }],
  ["answers that are no list", { ...snapshot(1, { index: 0, text: "" }), answered: 5 }],
  ["a token that says nothing", { ...token(0, "x"), delta: undefined, seq: 1 }],
  ["a call without a name", { type: "tool_call", request_id: "r", seq: 1, index: 0, call_id: "a" }],
  ["an end behind a hole in the sequence", { ...final("stop"), seq: 3 }],
  ["an end before what has come", { ...final("stop"), seq: 0 }],
  ["an end of which nothing is told", { ...final("stop"), usage: undefined, seq: 1 }],
  ["an error without a word", { type: "error", code: "overloaded" }],
  ["parameters that are none", { type: "adjusted", request_id: "r", seq: 1, index: 0, params: null }],
])) {
  test(`a server that breaks the protocol is left: ${what}`, async () => {
    const { client, socket, stream } = await running();
    socket.receive(event);
    assert.deepEqual([(await client.closed).code, (await client.closed).retryable], [1002, false]);
    assert.notEqual(socket.closedWith, null);
    await assert.rejects(stream.next(), ConnectionLost);
  });
}

test("an event of a kind that is not known yet is passed over", async () => {
  const { client, socket } = await connected();
  socket.receive({ type: "applause" });
  socket.receive({ ...token(0, "x"), request_id: "unknown" });
  assert.equal(client.state, "open");
});

test("words of a newer server are told as they are", async () => {
  const { socket, stream } = await running();
  socket.receive({ type: "injected", request_id: "r", seq: 1, index: 0, count: 3, reason: "a_reminder" });
  socket.receive({ type: "paused", request_id: "r", seq: 2, index: 0, reason: "maintenance" });
  assert.deepEqual([stream.state, stream.pauseReason], ["paused", "maintenance"]);
  socket.receive({ ...final("moved_on"), seq: 3 });
  assert.equal(await stream.next(), null);
  assert.equal(stream.final?.finish_reason, "moved_on");
});

test("a server that goes away says so", async () => {
  const { client, socket } = await connected();
  /** @type {number[]} */ const seen = [];
  client.ongoingaway = (event) => seen.push(event.deadline_ms);
  socket.receive({ type: "going_away", deadline_ms: 5 });
  assert.deepEqual([seen, client.draining, client.state], [[5], true, "open"]);
});

// -- answers ----------------------------------------------------------------------------------------------

test("a frame with `at` is answered by its own event, not by the rewound before it", async () => {
  const { socket, stream } = await running();
  let answered = false;
  const adjusting = stream.adjust({ at: 0, temperature: 0.5 }).finally(() => (answered = true));
  await new Promise((resolve) => setImmediate(resolve));
  const { ref, ...frame } = /** @type {any} */ (socket.sent.at(-1));
  assert.deepEqual(frame, { type: "adjust", request_id: "r", params: { temperature: 0.5 }, at: 0 });
  socket.receive({ type: "rewound", request_id: "r", seq: 1, ref, index: 0, text_length: 0 });
  await new Promise((resolve) => setImmediate(resolve));
  assert.equal(answered, false);
  socket.receive({ type: "adjusted", request_id: "r", seq: 2, ref, index: 0, params: { temperature: 0.5 } });
  assert.equal(await adjusting, 0);
  assert.deepEqual(stream.params, { temperature: 0.5 });
});

test("what a stream's end overtakes is refused, and a cancel has its answer in it", async () => {
  const { socket, stream } = await running();
  const [pausing, cancelling] = [stream.pause(), stream.cancel()];
  socket.receive({ ...final("stop"), seq: 1 });
  await assert.rejects(pausing, is("request_finished"));
  assert.equal(await cancelling, 0);
  await assert.rejects(stream.resume(), is("request_finished"));
  assert.equal(await stream.cancel(), 0);
});

test("an error is that of the frame that it answers, with all that the server said", async () => {
  const { socket, stream } = await running();
  const rewinding = stream.rewind(9);
  const error = { status: 429, code: "rate_limited", message: "slower", retryable: true, retry_after_ms: 70 };
  socket.receive({ type: "error", request_id: "r", ref: socket.sent.at(-1).ref, ...error });
  const expected = { code: "rate_limited", status: 429, retryable: true, retryAfterMs: 70, requestId: "r" };
  await assert.rejects(rewinding, { message: "slower", ...expected });
  assert.equal(stream.state, "running");
});

test("half an emoji is said as what it is: no character", async () => {
  const { socket, stream } = await running();
  const [whole, half] = ["🙂", "🙂".slice(0, 1)];
  stream.toolResult("a", `${whole}${half}`).catch(() => {});
  stream.inject({ messages: [{ role: "user", content: "🙂".slice(1) }] }).catch(() => {});
  const literal = String.raw`\ud83d \\ud83d`;
  stream.inject({ text: `${literal}${half}\n` }).catch(() => {});
  const [, result, message, text] = socket.sent;
  assert.deepEqual([result.content, message.messages[0].content], [`${whole}\ufffd`, "\ufffd"]);
  assert.equal(text.text, `${literal}\ufffd\n`);
});

test("a message that the server would not take ends neither the connection nor another stream", async (t) => {
  const connecting = connect("http://host", { WebSocket: FakeSocket });
  const socket = FakeSocket.last;
  socket.receive(READY);
  const client = await connecting;
  t.after(() => client.close());
  const starting = client.start({ prompt: "Hi", request_id: "r" });
  socket.receive({ ...started(), ref: socket.sent[0].ref });
  const stream = await starting;
  const most = READY.limits.max_message_bytes;
  const refused = { name: "MidstreamError", code: "too_large", message: /"(start|inject)" .* [0-9]+ bytes, .* 1000 at most/ };
  await assert.rejects(client.start({ prompt: "x".repeat(most), request_id: "s" }), { ...refused, requestId: "s" });
  await assert.rejects(stream.inject({ text: "\u00e9".repeat(most / 2) }), { ...refused, requestId: "r" });
  assert.equal(socket.sent.length, 1);
  const rest = JSON.stringify({ type: "inject", request_id: "r", text: "", ref: "" }).length;
  stream.inject({ text: "x".repeat(most - rest - socket.sent[0].ref.length) }).catch(() => {});
  assert.deepEqual([JSON.stringify(socket.sent[1]).length, client.state], [most, "open"], "as much as it takes is sent");
});

test("what cannot be said is refused, and no connection that comes then fails by it", async (t) => {
  const connecting = connect("http://host", { WebSocket: FakeSocket });
  const socket = FakeSocket.last;
  socket.receive(READY);
  const client = await connecting;
  const starting = client.start({ prompt: "Hi", request_id: "r" });
  socket.receive({ ...started(), ref: socket.sent[0].ref });
  const stream = await starting;
  const seed = /** @type {any} */ (5n);
  await assert.rejects(client.start({ prompt: "Hi", request_id: "big", seed }), TypeError);
  await assert.rejects(stream.adjust({ seed }), TypeError);
  const next = await cutAndReconnect(socket);
  const later = assert.rejects(stream.adjust({ seed }), TypeError); // it waits until the stream is here again
  sendAttached(next);
  await later;
  assert.deepEqual([client.state, sentFrames(next).map(({ type }) => type)], ["open", ["replace", "attach"]]);
  client.start({ prompt: "Hi", request_id: "big" }).catch(() => {});
  assert.equal(next.sent.at(-1).request_id, "big");
  const closed = /** @type {unknown[]} */ ([]);
  const unheard = (/** @type {unknown} */ why) => closed.push(why);
  process.on("unhandledRejection", unheard);
  t.after(() => process.off("unhandledRejection", unheard));
  await client.close();
  await new Promise((resolve) => setImmediate(resolve));
  assert.deepEqual(closed, []);
});

test("a start that is refused leaves its name free", async () => {
  const { client, socket } = await connected();
  const starting = client.start({ prompt: "Hi", request_id: "r" });
  const error = { status: 503, code: "overloaded", message: "full", retryable: true };
  socket.receive({ type: "error", request_id: "r", ref: socket.sent[0].ref, ...error });
  await assert.rejects(starting, is("overloaded"));
  client.start({ prompt: "Hi", request_id: "r" }).catch(() => {});
  assert.equal(socket.sent.length, 2);
});

test("a stream that has ended leaves its name free", async () => {
  const { client, socket } = await running();
  socket.receive({ ...final("stop"), seq: 1 });
  client.start({ prompt: "Hi", request_id: "r" }).catch(() => {});
  assert.equal(socket.sent.at(-1).type, "start");
  assert.equal(socket.sent.length, 2);
});

test("a name that runs already is refused before anything is sent", async () => {
  const { client, socket } = await running();
  const abort = new AbortController();
  await assert.rejects(client.start({ prompt: "Hi", request_id: "r", signal: abort.signal }), is("request_conflict"));
  abort.abort(); // the stream that has the name is another's
  assert.equal(socket.sent.length, 1);
});

test("a stream that ends in an error throws after its last chunk, and again", async () => {
  const { socket, stream } = await running();
  socket.receive({ ...token(0, "last"), seq: 1 });
  socket.receive({ ...final("error", "the engine failed"), seq: 2 });
  assert.equal((await stream.next())?.text, "last");
  for (const _ of [1, 2]) {
    await assert.rejects(stream.next(), (error) => {
      assert.ok(error instanceof StreamFailed);
      assert.equal(error.final.stop_reason, "the engine failed");
      return error.message === "the engine failed";
    });
  }
});

// -- those who listen, and those who stop ------------------------------------------------------------------

test("events are told after they were applied, from `started` on, and once", async () => {
  /** @type {string[]} */ const seen = [];
  const { socket, stream } = await running({ onevent: (/** @type {any} */ event) => seen.push(event.type) });
  stream.onevent = (event) => seen.push(`${event.type} ${stream.text}`);
  socket.receive({ ...token(0, "a"), seq: 1 });
  socket.receive({ ...token(0, "a"), seq: 1 });
  assert.deepEqual(seen, ["started", "token a"]);
});

test("a listener's mistake is reported as any uncaught one, and stops nothing", async () => {
  const { socket, stream } = await running();
  const uncaught = new Promise((resolve) => process.setUncaughtExceptionCaptureCallback(resolve));
  stream.onevent = () => {
    throw new Error("a mistake");
  };
  socket.receive({ ...token(0, "a"), seq: 1 });
  assert.match(String(await uncaught), /a mistake/);
  process.setUncaughtExceptionCaptureCallback(null);
  assert.equal((await stream.next())?.text, "a");
});

test("waiting in short turns keeps nothing of the turns that are over", async () => {
  const { socket, stream } = await running();
  setFlagsFromString("--expose-gc");
  const collect = runInNewContext("gc");
  const used = async () => {
    for (let turn = 0; turn < 200; turn++) await assert.rejects(stream.next({ timeout: 1 }), { name: "TimeoutError" });
    await new Promise((resolve) => setTimeout(resolve, 20));
    collect();
    return process.memoryUsage().heapUsed;
  };
  const alive = setInterval(() => {}, 1000); // a socket would keep the program running
  await used();
  const [before, after] = [await used(), await used()];
  clearInterval(alive);
  assert.ok(after - before < 200 * 1000, `${(after - before) / 200} bytes of each`);
  socket.receive({ ...token(0, "a"), seq: 1 });
  assert.equal((await stream.next())?.text, "a");
});

test("what is refused is not kept", async () => {
  const { socket, stream } = await running();
  setFlagsFromString("--expose-gc");
  const collect = runInNewContext("gc");
  const inject = async () => {
    const messages = [{ role: "user", content: "And?" }];
    const injecting = stream.inject({ messages });
    const { ref } = socket.sent.at(-1);
    socket.receive({ type: "error", status: 429, code: "rate_limited", message: "later", retryable: true, ref });
    await assert.rejects(injecting, { code: "rate_limited" });
    return new WeakRef(messages);
  };
  const refused = [await inject(), await inject()];
  await new Promise((resolve) => setTimeout(resolve));
  collect();
  assert.deepEqual(refused.map((messages) => messages.deref()), [undefined, undefined]);
});

test("a loop that is left while a chunk is under way does not wait for it", async () => {
  const { socket, stream } = await running();
  const chunks = stream[Symbol.asyncIterator]();
  const waiting = chunks.next();
  await chunks.return?.();
  await chunks.return?.();
  assert.deepEqual(socket.sent.slice(1), [{ type: "cancel", request_id: "r", ref: socket.sent[1].ref }]);
  socket.receive({ ...final("cancelled"), seq: 1 });
  assert.equal((await waiting).done, true);
});

test("an aborted start is cancelled, whatever becomes of it", async () => {
  const { client, socket } = await connected();
  const abort = new AbortController();
  const starting = client.start({ prompt: "Hi", request_id: "r", signal: abort.signal });
  abort.abort();
  await assert.rejects(starting, { name: "AbortError" });
  assert.deepEqual(socket.sent.map(({ type }) => type), ["start", "cancel"]);
  await assert.rejects(client.start({ prompt: "Hi", signal: abort.signal }), { name: "AbortError" });
  assert.equal(socket.sent.length, 2);
});

test("what is told in one go is recorded in its order: a result's answer, and what it has put in", async () => {
  const recorder = new Recorder();
  const { socket, stream } = await running({ recorder });
  const of = { request_id: "r" };
  for (const [at, call_id] of ["a", "b"].entries()) {
    socket.receive({ ...of, type: "tool_call", seq: at + 1, index: 0, call: at, call_id, name: "weather" });
  }
  const told = [stream.toolResult("a", "mild"), stream.toolResult("b", "cold")];
  const refs = socket.sent.filter(({ type }) => type === "tool_result").map(({ ref }) => ref);
  for (const [at, ref] of refs.entries()) {
    socket.receive({ ...of, type: "injected", seq: at + 3, ref, index: 0, count: 0 });
  }
  socket.receive({ ...of, type: "injected", seq: 5, index: 0, count: 9 });
  socket.receive({ ...token(0, "x", { tokens: [1] }), seq: 6 });
  await Promise.all(told);
  const [{ lines }] = parseRecords(recorder.text);
  assert.deepEqual(lines.map(({ type }) => type), ["tool_result", "tool_result", "tokens"]);
});
