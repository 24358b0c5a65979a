/**
 * Reconnecting: a client that loses its sockets and gets others, what it sends again, and what its user sees of it.
 * @module
 */

import assert from "node:assert/strict";
import { test } from "node:test";

import { ConnectionLost, connect } from "../src/midstream.js";
import { eventually } from "./eventually.js";
import { FakeSocket, READY } from "./fake-socket.js";
import { final, snapshot, started, token } from "./sample-events.js";
import { connected, cutAndReconnect, nextSocket, running } from "./scripted-server.js";
import { sendAttached, sendError, sentFrames } from "./scripted-server.js";

const UNKNOWN = { status: 404, code: "unknown_request", message: "there is no such stream" };

// -- the connection ---------------------------------------------------------------------------------------

for (const code of [1001, 1006, 1011, 1012, 1013]) {
  test(`a socket lost with ${code} is made anew`, async (t) => {
    const { client, socket } = await connected(t);
    /** @type {string[]} */ const states = [];
    client.onstate = (state) => states.push(`${state} ${client.state}`);
    socket.receive({ type: "going_away", deadline_ms: 5 });
    socket.end(code);
    const next = await nextSocket(socket);
    assert.deepEqual([next.url, next.protocols], [socket.url, socket.protocols]);
    next.receive({ ...READY, session_id: "s2" });
    assert.deepEqual(states, ["reconnecting reconnecting", "open open"]);
    assert.deepEqual([client.ready.session_id, client.draining], ["s2", false]);
    assert.deepEqual(next.sent, [{ type: "replace", session_id: "s1" }]);
  });
}

for (const code of [1000, 1007, 1008, 1009, 4401, 4409]) {
  test(`a socket lost with ${code} is the end`, async (t) => {
    const { client, socket } = await connected(t);
    socket.end(code);
    assert.deepEqual([client.state, (await client.closed).code], ["closed", code]);
    assert.equal(FakeSocket.last, socket);
  });
}

test("the first connect fails at once", async () => {
  const connecting = connect("http://host", { WebSocket: FakeSocket });
  const socket = FakeSocket.last;
  socket.end(1006);
  await assert.rejects(connecting, ConnectionLost);
  assert.equal(FakeSocket.last, socket);
  await assert.rejects(connect("http://host", { WebSocket: FakeSocket, reconnectMs: -1 }), RangeError);
});

test("of several servers each has its turn", async (t) => {
  const urls = ["ws://a/v1/realtime", "ws://b/v1/realtime", "ws://c/v1/realtime"];
  const connecting = connect(["http://a", "http://b", "http://c"], { WebSocket: FakeSocket });
  const refused = FakeSocket.last;
  refused.end(1006);
  const socket = await nextSocket(refused);
  socket.receive(READY);
  const client = await connecting;
  t.after(() => client.close());
  socket.end(1006);
  const next = await nextSocket(socket);
  next.receive({ ...READY, session_id: "s2" });
  const first = urls.indexOf(refused.url);
  assert.deepEqual([refused.url, socket.url, next.url], [0, 1, 2].map((at) => urls[(first + at) % 3]));
  await assert.rejects(connect([], { WebSocket: FakeSocket }), TypeError);
});

test("where one of several servers says that it has no room, the next is asked", async (t) => {
  const connecting = connect(["http://a", "http://b"], { WebSocket: FakeSocket });
  const full = FakeSocket.last;
  sendError(full, { code: "overloaded", retryable: true });
  const socket = await nextSocket(full);
  socket.receive(READY);
  const client = await connecting;
  t.after(() => client.close());
  assert.equal(client.state, "open");
});

test("it is tried again and again, and when time is up everything fails", async (t) => {
  let tries = 0;
  class Unlucky extends FakeSocket {
    /** @param {string} url @param {string[]} [protocols] */
    constructor(url, protocols) {
      super(url, protocols);
      if (tries++) queueMicrotask(() => this.end(1006));
    }
  }
  const { client, socket } = await connected(t, { WebSocket: Unlucky, reconnectMs: 250 });
  const starting = client.start({ prompt: "Hi" });
  const [refused, pinging] = [assert.rejects(starting, /no coming back: no connection to/), client.ping()];
  socket.end(1012);
  await assert.rejects(pinging, { code: "connection_lost", closeCode: 1012, retryable: true });
  await refused;
  assert.deepEqual([client.state, (await client.closed).code], ["closed", 1012]);
  assert.ok(tries > 2, `${tries} tries`);
});

test("what a server says against coming back ends it", async (t) => {
  const { client, socket } = await connected(t);
  socket.end(1006);
  const next = await nextSocket(socket);
  sendError(next, { status: 401, code: "unauthenticated", message: "no such key" });
  assert.deepEqual(await client.closed, { code: 1006, reason: "", retryable: false });
  await assert.rejects(client.ping(), /no such key/);
});

test("closing in between is the end, and no socket is opened any more", async (t) => {
  const { client, socket, stream } = await running(t);
  socket.end(1006);
  const next = await nextSocket(socket);
  assert.equal((await client.close()).code, 1000);
  next.receive(READY);
  assert.deepEqual([client.state, next.sent], ["closed", []]);
  await assert.rejects(stream.next(), ConnectionLost);
});

test("each session that may still seem to be there is replaced, until it is known that this was heard", async (t) => {
  const { socket } = await running(t);
  const second = await cutAndReconnect(socket, "s2");
  const third = await cutAndReconnect(second, "s3");
  const replaced = (/** @type {FakeSocket} */ on) =>
    on.sent.filter(({ type }) => type === "replace").map(({ session_id }) => session_id);
  assert.deepEqual([replaced(second), replaced(third)], [["s1"], ["s1", "s2"]]);
  assert.equal(third.sent.findIndex(({ type }) => type === "attach"), 2, "they come before");
  sendAttached(third);
  assert.deepEqual(replaced(await cutAndReconnect(third, "s4")), ["s3"]);
});

test("a socket that is given up is not heard any more", async (t) => {
  const { client, socket, stream } = await running(t);
  const next = await cutAndReconnect(socket);
  socket.receive({ ...token(0, "late"), seq: 1 });
  socket.end(1000);
  assert.deepEqual([stream.text, client.state, FakeSocket.last], ["", "open", next]);
});

// -- streams ----------------------------------------------------------------------------------------------

test("a loop notices nothing: what was missed comes, what comes twice is taken once", async (t) => {
  const { socket, stream } = await running(t, { window: 8 });
  socket.receive({ ...token(0, "a"), seq: 1 });
  /** @type {string[]} */ const texts = [];
  const reading = (async () => {
    for await (const { text } of stream) texts.push(text);
  })();
  const next = await cutAndReconnect(socket);
  assert.deepEqual(next.sent[1], { type: "attach", request_id: "r", after: 1, ref: next.sent[1].ref });
  next.receive({ ...token(0, "a"), seq: 1 });
  next.receive({ ...token(1, "b"), seq: 2 });
  sendAttached(next);
  next.receive({ ...token(2, "c"), seq: 3 });
  next.receive({ ...final("stop"), seq: 4, index: 3 });
  await reading;
  assert.deepEqual([texts, stream.text], [["a", "b", "c"], "abc"]);
});

test("the limit that was granted last is said again, and grants of the time between are not lost", async (t) => {
  const { socket, stream } = await running(t, { window: 4 });
  for (const index of [0, 1]) socket.receive({ ...token(index, "x"), seq: index + 1 });
  for (const _ of [0, 1]) await stream.next();
  socket.end(1006);
  assert.equal(stream.tryNext(), null, "it asks for more, of nobody");
  const next = await nextSocket(socket);
  next.receive(READY);
  sendAttached(next);
  assert.deepEqual(next.sent.at(-1), { type: "credit", request_id: "r", limit: 6 });
  const auto = await running(t, { credit: "auto" });
  const its = await cutAndReconnect(auto.socket);
  sendAttached(its);
  assert.equal(its.sent.some(({ type }) => type === "credit"), false);
});

test("a start that was not answered is said again as it was", async (t) => {
  const { client, socket } = await connected(t);
  const starting = client.start({ prompt: "Hi", request_id: "r", temperature: 0.5 });
  const next = await cutAndReconnect(socket);
  assert.deepEqual(next.sent, [{ type: "replace", session_id: "s1" }, socket.sent[0]]);
  next.receive({ ...started(), ref: socket.sent[0].ref });
  assert.equal((await starting).model, "m");
});

test("a start that had been heard after all is answered by what was missed", async (t) => {
  const { client, socket } = await connected(t);
  const starting = client.start({ prompt: "Hi", request_id: "r" });
  const next = await cutAndReconnect(socket);
  const { ref } = socket.sent[0];
  next.receive(snapshot(7, { index: 2, text: "ab" }));
  next.receive({ type: "attached", request_id: "r", ref });
  const stream = await starting;
  assert.deepEqual([stream.text, stream.model, stream.promptTokens], ["ab", "m", 5]);
  const pausing = stream.pause();
  next.receive({ type: "paused", request_id: "r", seq: 8, index: 2, reason: "client", ref: next.sent.at(-1).ref });
  assert.equal(await pausing, 2);
});

const DRAINING = { status: 503, code: "draining", message: "bye", retryable: true };

test("a start that a server refuses as it goes is said to the next", async (t) => {
  const { client, socket } = await connected(t);
  const starting = client.start({ prompt: "Hi", request_id: "r" });
  sendError(socket, { ...DRAINING, request_id: "r", ref: socket.sent[0].ref });
  const next = await nextSocket(socket);
  next.receive({ ...READY, session_id: "s2" });
  assert.deepEqual(next.sent, [{ type: "replace", session_id: "s1" }, socket.sent[0]]);
  next.receive({ ...started(), ref: socket.sent[0].ref });
  assert.equal((await starting).model, "m");
});

test("so is an attach", async (t) => {
  const { client, socket } = await connected(t);
  const taking = client.attach("r");
  sendError(socket, { ...DRAINING, request_id: "r", ref: socket.sent[0].ref });
  const next = await nextSocket(socket);
  next.receive({ ...READY, session_id: "s2" });
  next.receive(started());
  sendAttached(next);
  assert.equal((await taking).model, "m");
});

test("it waits for streams that are still there", async (t) => {
  const { client, socket, stream } = await running(t);
  const starting = client.start({ prompt: "Hi", request_id: "next" });
  const { ref } = socket.sent.at(-1);
  sendError(socket, { ...DRAINING, request_id: "next", ref });
  assert.deepEqual([client.draining, FakeSocket.last], [true, socket]);
  socket.receive({ ...final("stop"), seq: 1 });
  const next = await nextSocket(socket);
  next.receive({ ...READY, session_id: "s2" });
  next.receive({ ...started(), request_id: "next", ref });
  assert.deepEqual([(await starting).requestId, stream.state], ["next", "finished"]);
});

test("a start that nobody wants any more is not said to the next", async (t) => {
  const { client, socket } = await running(t);
  const abort = new AbortController();
  const starting = client.start({ prompt: "Hi", request_id: "left", signal: abort.signal });
  const kept = client.start({ prompt: "Hi", request_id: "kept" });
  abort.abort();
  await assert.rejects(starting, { name: "AbortError" });
  const [, left, { ref }, cancel] = socket.sent;
  sendError(socket, { ...DRAINING, request_id: "left", ref: left.ref });
  sendError(socket, { ...DRAINING, request_id: "kept", ref });
  sendError(socket, { ...UNKNOWN, request_id: "left", ref: cancel.ref });
  socket.receive({ ...final("stop"), seq: 1 });
  const next = await nextSocket(socket);
  next.receive({ ...READY, session_id: "s2" });
  assert.deepEqual(next.sent.map(({ type, request_id }) => [type, request_id]), [["replace", undefined], ["start", "kept"]]);
  next.receive({ ...started(), request_id: "kept", ref });
  await kept;
});

for (const how of ["given up", "closed"]) {
  test(`what a server that goes away has refused touches no stream of its name: ${how}`, async (t) => {
    const { client, socket } = await running(t);
    const abort = new AbortController();
    const starting = assert.rejects(client.start({ prompt: "Hi", request_id: "next", signal: abort.signal }));
    sendError(socket, { ...DRAINING, request_id: "next", ref: socket.sent.at(-1).ref });
    if (how === "closed") await client.close();
    else abort.abort();
    await starting;
    const cancelled = socket.sent.filter(({ type }) => type === "cancel").map(({ request_id }) => request_id);
    assert.deepEqual(cancelled, how === "closed" ? ["r"] : []);
    if (how === "closed") return;
    const next = await cutAndReconnect(socket);
    assert.ok(next.sent.every(({ request_id }) => request_id !== "next"), "whoever gave it up may have begun it anew elsewhere");
  });
}

for (const code of ["draining", "overloaded"]) {
  test(`nor does what the next has refused, too: ${code}`, async (t) => {
    const { client, socket } = await running(t);
    const abort = new AbortController();
    const starting = assert.rejects(client.start({ prompt: "Hi", request_id: "next", signal: abort.signal }));
    const { ref } = socket.sent.at(-1);
    sendError(socket, { ...DRAINING, request_id: "next", ref });
    const next = await cutAndReconnect(socket);
    sendAttached(next);
    sendError(next, { ...DRAINING, code, request_id: "next", ref });
    abort.abort();
    await starting;
    const third = await cutAndReconnect(next, "s3");
    assert.ok(third.sent.every(({ request_id }) => request_id !== "next"));
  });
}

for (const reconnectMs of [0, 100]) {
  test(`where nobody takes it in ${reconnectMs} ms it is refused`, async (t) => {
    const { client, socket, stream } = await running(t, {}, { reconnectMs });
    const starting = client.start({ prompt: "Hi", request_id: "next" });
    sendError(socket, { ...DRAINING, request_id: "next", ref: socket.sent.at(-1).ref });
    await assert.rejects(starting, { code: "draining" });
    assert.equal(stream.state, "running");
  });
}

test("a start that is said again and is answered by overloaded is tried on", async (t) => {
  const { client, socket } = await connected(t);
  const starting = client.start({ prompt: "Hi", request_id: "r" });
  const next = await cutAndReconnect(socket);
  const { ref } = socket.sent[0];
  for (const tries of [2, 3]) {
    sendError(next, { code: "overloaded", request_id: "r", ref, retryable: true, retry_after_ms: 1 });
    await new Promise((resolve) => (next.send = (text) => resolve(next.sent.push(JSON.parse(text)))));
    assert.deepEqual(next.sent[tries], socket.sent[0]);
  }
  next.receive({ ...started(), ref });
  await starting;
  const first = client.start({ prompt: "Hi" });
  sendError(next, { code: "overloaded", ref: next.sent.at(-1).ref, retryable: true });
  await assert.rejects(first, { code: "overloaded" }, "one that was never sent before is the user's to try again");
});

test("a server that may have the stream later than anybody waits has lost it now", async (t) => {
  const { socket, stream } = await running(t, {}, { reconnectMs: 5000 });
  const next = await cutAndReconnect(socket);
  const { ref } = next.sent.at(-1);
  sendError(next, { code: "overloaded", request_id: "r", ref, retryable: true, retry_after_ms: 6000 });
  await assert.rejects(stream.next(), ConnectionLost);
});

test("who comes back for ever waits for another server, too", async (t) => {
  const { client, socket } = await running(t, {}, { reconnectMs: Infinity });
  const starting = client.start({ prompt: "Hi", request_id: "next" });
  const { ref } = socket.sent.at(-1);
  sendError(socket, { ...DRAINING, request_id: "next", ref });
  await new Promise((resolve) => setTimeout(resolve, 20));
  socket.receive({ ...final("stop"), seq: 1 });
  const next = await nextSocket(socket);
  next.receive({ ...READY, session_id: "s2" });
  next.receive({ ...started(), request_id: "next", ref });
  await starting;
});

test("a start that nobody wants any more, and no server has heard of, is not asked for", async (t) => {
  const { client, socket } = await connected(t);
  socket.end(1006);
  const abort = new AbortController();
  const starting = client.start({ prompt: "Hi", request_id: "left", signal: abort.signal });
  const attaching = client.attach("another's", { signal: abort.signal });
  abort.abort();
  await assert.rejects(starting, { name: "AbortError" });
  await assert.rejects(attaching, { name: "AbortError" });
  const next = await nextSocket(socket);
  next.receive({ ...READY, session_id: "s2" });
  assert.deepEqual(next.sent.map(({ type }) => type), ["replace"]);
});

/** The names of the starts that were sent. @param {FakeSocket} socket */
const asked = (socket) => socket.sent.filter(({ type }) => type === "start").map(({ request_id }) => request_id);

test("a fork of one that waits for its stream waits for that", async (t) => {
  const { client, socket } = await running(t);
  const next = await cutAndReconnect(socket);
  const forking = [client.fork("r", { request_id: "f" }), client.fork("f", { request_id: "g" })];
  assert.deepEqual(asked(next), []);
  sendAttached(next);
  const first = next.sent.at(-1);
  sendError(next, { code: "overloaded", request_id: "f", ref: first.ref, retryable: true, retry_after_ms: 1 });
  await eventually(() => next.sent.at(-1) !== first || null);
  assert.deepEqual(asked(next), ["f", "f"]);
  next.receive({ ...started(), request_id: "f", ref: first.ref });
  next.receive({ ...started(), request_id: "g", ref: next.sent.at(-1).ref });
  assert.deepEqual(asked(next), ["f", "f", "g"]);
  assert.deepEqual((await Promise.all(forking)).map(({ requestId }) => requestId), ["f", "g"]);
});

test("closing cancels none whose start waits and was never said", async (t) => {
  const { client, socket } = await running(t);
  const next = await cutAndReconnect(socket);
  const forking = assert.rejects(client.fork("r", { request_id: "f" }), ConnectionLost);
  await client.close();
  const cancelled = next.sent.filter(({ type }) => type === "cancel").map(({ request_id }) => request_id);
  assert.deepEqual(cancelled, ["r"]);
  await forking;
});

for (const came of ["started", "attached"]) {
  test(`a fork is said again when the stream is here whose start was: ${came}`, async (t) => {
    const { client, socket } = await connected(t);
    const starting = [client.start({ prompt: "Hi", request_id: "r" }), client.fork("r", { request_id: "f" })];
    const [{ ref }] = socket.sent;
    const next = await cutAndReconnect(socket);
    assert.deepEqual(asked(next), ["r"]);
    next.receive({ ...(came === "started" ? started() : { type: "attached", request_id: "r" }), ref });
    const [, fork] = next.sent.filter(({ type }) => type === "start");
    assert.equal(fork.request_id, "f");
    next.receive({ ...started(), request_id: "f", ref: fork.ref });
    await Promise.all(starting);
  });
}

test("forks of what will never be are asked for, and refused", async (t) => {
  const { client, socket } = await running(t);
  socket.end(1006);
  const abort = new AbortController();
  const left = assert.rejects(client.fork("r", { request_id: "f", signal: abort.signal }), { name: "AbortError" });
  const lost = [client.fork("f", { request_id: "g" }), client.fork("h", { request_id: "h" })];
  const next = await nextSocket(socket);
  next.receive({ ...READY, session_id: "s2" });
  assert.deepEqual(asked(next), ["h"]);
  abort.abort();
  await left;
  assert.deepEqual(asked(next), ["h", "g"]);
  for (const { request_id, ref } of next.sent.slice(-2)) sendError(next, { ...UNKNOWN, request_id, ref });
  for (const one of lost) await assert.rejects(one, { code: "unknown_request" });
});

test("a fork of one that no server has taken is asked for", async (t) => {
  const { client, socket } = await running(t, {}, { reconnectMs: 50 });
  const starting = client.start({ prompt: "Hi", request_id: "f" });
  sendError(socket, { ...DRAINING, request_id: "f", ref: socket.sent.at(-1).ref });
  const forking = client.fork("f", { request_id: "g" });
  await assert.rejects(starting, { code: "draining" });
  assert.deepEqual(asked(socket), ["r", "f", "g"]);
  sendError(socket, { ...UNKNOWN, request_id: "g", ref: socket.sent.at(-1).ref });
  await assert.rejects(forking, { code: "unknown_request" });
});

for (const code of ["draining", "overloaded"]) {
  test(`a start that nobody wants any more is cancelled where it may have begun, whatever the next server says: ${code}`, async (t) => {
    const { client, socket } = await connected(t);
    const abort = new AbortController();
    const starting = assert.rejects(client.start({ prompt: "Hi", request_id: "left", signal: abort.signal }));
    const next = await cutAndReconnect(socket);
    abort.abort();
    await starting;
    const [, start, cancel] = next.sent;
    sendError(next, { ...DRAINING, code, request_id: "left", ref: start.ref });
    sendError(next, { ...UNKNOWN, request_id: "left", ref: cancel.ref });
    const last = code === "draining" ? await nextSocket(next) : next;
    if (last !== next) last.receive({ ...READY, session_id: "s3" });
    await eventually(() => last.sent.some(({ type }) => type === "attach"));
    sendAttached(last, [], "left");
    const { type, request_id } = last.sent.at(-1);
    assert.deepEqual([type, request_id, asked(last).length], ["cancel", "left", last === next ? 1 : 0]);
  });
}

test("a stream that the server has lost fails alone, and says so", async (t) => {
  const { client, socket, stream } = await running(t);
  socket.receive({ ...token(0, "a"), seq: 1 }); // whose id is not known: it cannot be started again from there
  await stream.next();
  const starting = client.start({ prompt: "Hi", request_id: "other" });
  socket.receive({ ...started(), request_id: "other", ref: socket.sent.find(({ request_id }) => request_id === "other").ref });
  const other = await starting;
  const pausing = stream.pause();
  const next = await cutAndReconnect(socket);
  const asked = next.sent.find(({ type, request_id }) => type === "attach" && request_id === "r");
  sendError(next, { ...UNKNOWN, request_id: "r", ref: asked.ref });
  const expected = { name: "ConnectionLost", requestId: "r", message: /start it anew \(there is no such stream\)/ };
  for (const failing of [pausing, stream.next(), stream.resume()]) await assert.rejects(failing, expected);
  sendAttached(next, [], "other");
  next.receive({ ...token(0, "x"), request_id: "other", seq: 1 });
  assert.deepEqual([(await other.next())?.text, client.state], ["x", "open"]);
  client.start({ prompt: "Hi", request_id: "r" }).catch(() => {});
  assert.equal(next.sent.at(-1).type, "start", "its name is free");
});

for (const how of ["refused for now", "not heard"]) {
  test(`a result that waited is told until it is heard where its stream was started again: ${how}`, async (t) => {
    const tools = [{ name: "weather", run: () => "" }];
    const { socket, stream } = await running(t, { tools, on_tool_call: "pause", return_tokens: true });
    const calls = ["a", "b"].map((call_id, index) => ({ index, call_id, name: "weather", arguments: "{}", end: index + 1 }));
    let seq = 1;
    for (const { arguments: delta, ...call } of calls) {
      socket.receive({ ...token(call.index, ""), tokens: [7], seq: seq++ });
      socket.receive({ ...call, request_id: "r", type: "tool_call", seq: seq++ });
      socket.receive({ ...call, request_id: "r", type: "tool_arguments", seq: seq++, count: 1, delta });
      socket.receive({ ...call, request_id: "r", type: "tool_call_done", seq: seq++ });
    }
    const giving = stream.toolResult("a", "mild");
    const given = await eventually(() => socket.sent.find(({ type }) => type === "tool_result"));
    const waits = (/** @type {number} */ at) => ({ type: "injected", request_id: "r", seq: at, index: 2, count: 0, ref: given.ref });
    socket.receive(waits(seq));
    await giving;
    let next = await cutAndReconnect(socket);
    sendError(next, { code: "unknown_request", request_id: "r", ref: next.sent.at(-1).ref });
    const { ref } = await eventually(() => next.sent.find(({ type }) => type === "start"));
    next.receive({ ...started(), ref });
    next.receive({ ...snapshot(1, { index: 2, text: "", tokens: [7, 7], tool_calls: calls, paused: "tool_call" }) });
    const told = () => next.sent.filter(({ type }) => type === "tool_result");
    assert.deepEqual(told(), [given]);
    if (how === "refused for now") sendError(next, { code: "rate_limited", retryable: true, request_id: "r", ref: given.ref });
    else {
      next = await cutAndReconnect(next, "s3");
      sendAttached(next);
    }
    await eventually(() => told().length === (how === "not heard" ? 1 : 2));
    assert.deepEqual(told().at(-1), given);
  });
}

test("what a snapshot stands for is unknown though it is counted right behind what had come", async (t) => {
  const { socket, stream } = await running(t); // as by a server that has it from another: somebody else has put something in
  const next = await cutAndReconnect(socket);
  next.receive(snapshot(1, { index: 0, text: "", injected_tokens: 3, answered: [], epoch: 1 }));
  sendAttached(next);
  const last = await cutAndReconnect(next, "s3");
  sendError(last, { ...UNKNOWN, request_id: "r", ref: last.sent.at(-1).ref });
  await assert.rejects(stream.next(), { name: "ConnectionLost" });
});

test("a stream that another client took over fails alone, by its own error", async (t) => {
  const { client, socket, stream } = await running(t, { window: 2 });
  for (const [seq, delta] of ["a", "b"].entries()) socket.receive({ ...token(seq, delta), seq: seq + 1 });
  sendError(socket, { status: 409, code: "request_taken", request_id: "r", message: "attach to have it back" });
  const taking = client.attach("r");
  sendAttached(socket);
  await taking;
  const sent = socket.sent.length;
  for (const text of ["a", "b"]) assert.equal((await stream.next())?.text, text);
  await assert.rejects(stream.next(), { code: "request_taken", requestId: "r" });
  assert.deepEqual([client.state, socket.sent.length], ["open", sent], "whoever has its name is granted nothing by it");
});

// -- frames -----------------------------------------------------------------------------------------------

test("what was not heard is said again, in order and by its old name; what is pending or answered is not", async (t) => {
  const { socket, stream } = await running(t);
  const [first, second, third, fourth] = [
    stream.adjust({ top_k: 1 }), stream.inject({ text: "x" }), stream.rewind(0), stream.pause(),
  ];
  const lost = sentFrames(socket).slice(1);
  const next = await cutAndReconnect(socket);
  next.receive({ type: "adjusted", request_id: "r", seq: 1, ref: lost[0].ref, index: 0, params: { top_k: 1 } });
  assert.equal(await first, 0);
  sendAttached(next, [lost[1].ref]);
  assert.deepEqual(sentFrames(next).slice(2), [lost[2], lost[3]]);
  next.receive({ type: "injected", request_id: "r", seq: 2, ref: lost[1].ref, index: 0, count: 1 });
  next.receive({ type: "rewound", request_id: "r", seq: 3, ref: lost[2].ref, index: 0, text_length: 0 });
  next.receive({ type: "paused", request_id: "r", seq: 4, ref: lost[3].ref, index: 0, reason: "client" });
  assert.deepEqual(await Promise.all([second, third, fourth]), [0, 0, 0]);
  const last = await cutAndReconnect(next, "s3");
  sendAttached(last);
  assert.equal(sentFrames(last).length, 2, "there is nothing left to say");
});

for (const becomes of ["goes on", "is not to be had", "cannot be reached"]) {
  test(`whatever is said to a stream that was handed over is answered in the end: it ${becomes}`, async (t) => {
    const { socket, stream } = await running(t, {}, becomes === "cannot be reached" ? { reconnectMs: 0 } : {});
    const saying = Promise.allSettled([
      stream.pause(), stream.resume(), stream.adjust({ top_k: 1 }), stream.inject({ text: "x" }), stream.rewind(0),
      stream.toolResult("c", "so"), stream.approve("c"), stream.amend("c", {}), stream.cancel(),
    ]);
    await eventually(() => sentFrames(socket).length === 10 || null);
    const said = sentFrames(socket).slice(1);
    socket.end(1001);
    if (becomes !== "cannot be reached") {
      const next = await nextSocket(socket);
      next.receive({ ...READY, session_id: "s2" });
      if (becomes === "goes on") {
        sendAttached(next);
        assert.deepEqual(sentFrames(next).slice(2), said);
        next.receive({ ...final("cancelled"), seq: 1, ref: said.at(-1).ref });
      } else sendError(next, { ...UNKNOWN, code: "request_expired", request_id: "r", ref: next.sent[1].ref });
    }
    const answered = (await saying).filter(({ status }) => status === "fulfilled");
    assert.equal(answered.length, becomes === "goes on" ? 1 : 0);
  });
}

test("behind a snapshot only what may be done twice is said again", async (t) => {
  const { socket, stream } = await running(t);
  const twice = [stream.pause(), stream.resume(), stream.adjust({ top_k: 1 })];
  const once = [stream.inject({ text: "x" }), stream.rewind(0), stream.adjust({ top_k: 2, at: 0 })];
  const lost = sentFrames(socket).slice(1);
  socket.end(1006);
  const unheard = stream.inject({ text: "y" });
  const next = await nextSocket(socket);
  next.receive({ ...READY, session_id: "s2" });
  next.receive(snapshot(5, { index: 2, text: "ab" }));
  sendAttached(next, [lost[4].ref]);
  const expected = { name: "ConnectionLost", message: /"(inject|adjust)".*not known/, requestId: "r" };
  for (const asked of [once[0], once[2]]) await assert.rejects(asked, expected);
  assert.deepEqual(sentFrames(next).slice(2, 5), lost.slice(0, 3));
  assert.equal(sentFrames(next)[5].text, "y", "what was never sent was never done");
  next.receive({ ...final("stop"), seq: 6, index: 2 });
  await Promise.allSettled([...twice, once[1], unheard]);
});

test("a snapshot that tells of answers leaves nothing unknown: what it does not tell of was not heard", async (t) => {
  const { socket, stream } = await running(t);
  const asked = [stream.inject({ text: "x" }), stream.rewind(0), stream.adjust({ top_k: 2, at: 0 }), stream.inject({ text: "y" })];
  const [injected, rewound, refused, unheard] = sentFrames(socket).slice(1);
  const failing = assert.rejects(asked[2], { code: "invalid_params" });
  const next = await cutAndReconnect(socket);
  /** @type {any[]} */ const answered = [
    { type: "injected", request_id: "r", ref: injected.ref, index: 7, count: 1 },
    { type: "rewound", request_id: "r", ref: rewound.ref, index: 0, text_length: 0 },
    { type: "error", ref: refused.ref, status: 400, code: "invalid_params", message: "no", retryable: false },
  ];
  next.receive(snapshot(5, { index: 2, text: "ab", answered }));
  sendAttached(next);
  assert.deepEqual(await Promise.all(asked.slice(0, 2)), [7, 0]);
  await failing;
  assert.deepEqual(sentFrames(next).slice(2), [unheard]);
  next.receive({ type: "injected", request_id: "r", seq: 6, ref: unheard.ref, index: 2, count: 1 });
  assert.equal(await asked[3], 2);
});

test("behind a snapshot the end says of nothing that it had no effect", async (t) => {
  const { socket, stream } = await running(t);
  const asked = [stream.inject({ text: "x" }), stream.pause()];
  socket.end(1006);
  const unheard = stream.inject({ text: "y" });
  const next = await nextSocket(socket);
  next.receive({ ...READY, session_id: "s2" });
  next.receive(snapshot(5, { index: 2, text: "ab" }));
  next.receive({ ...final("stop"), seq: 6, index: 2 });
  await assert.rejects(asked[0], { name: "ConnectionLost", message: /"inject".*not known/ });
  for (const none of [asked[1], unheard]) await assert.rejects(none, { code: "request_finished" });
});

test("what is asked for while there is no socket waits, and goes out in order", async (t) => {
  const { client, socket, stream } = await running(t);
  socket.end(1006);
  const answers = [stream.pause(), stream.resume(), client.ping(), client.start({ prompt: "Hi", request_id: "q" })];
  const next = await nextSocket(socket);
  next.receive({ ...READY, session_id: "s2" });
  assert.deepEqual(sentFrames(next).map(({ type }) => type), ["replace", "attach", "start", "ping"]);
  sendAttached(next);
  assert.deepEqual(sentFrames(next).slice(4).map(({ type }) => type), ["pause", "resume"]);
  const refs = [...socket.sent, ...sentFrames(next)].map(({ ref }) => ref).filter((ref) => ref !== undefined);
  assert.equal(new Set(refs).size, refs.length);
  next.receive({ type: "pong", ref: sentFrames(next)[3].ref });
  next.receive({ ...started(), request_id: "q", ref: sentFrames(next)[2].ref });
  next.receive({ ...final("stop"), seq: 1 });
  await Promise.allSettled(answers);
});

test("a ping that was lost is said again", async (t) => {
  const { client, socket } = await connected(t);
  const pinging = client.ping();
  const next = await cutAndReconnect(socket);
  assert.deepEqual(next.sent[1], socket.sent[0]);
  next.receive({ type: "pong", ref: socket.sent[0].ref });
  await pinging;
});

test("a loop that is left while there is no socket is cancelled when there is one", async (t) => {
  const { socket, stream } = await running(t);
  socket.end(1006);
  await stream[Symbol.asyncIterator]().return?.();
  const next = await nextSocket(socket);
  next.receive({ ...READY, session_id: "s2" });
  sendAttached(next);
  const { ref, ...asked } = sentFrames(next).at(-1);
  assert.deepEqual(asked, { type: "cancel", request_id: "r" });
});

test("an end that was missed answers a cancel, and refuses the rest", async (t) => {
  const { socket, stream } = await running(t);
  const [pausing, cancelling] = [stream.pause(), stream.cancel()];
  const next = await cutAndReconnect(socket);
  next.receive({ ...final("length"), seq: 1, index: 3 });
  sendAttached(next);
  await assert.rejects(pausing, { code: "request_finished" });
  assert.equal(await cancelling, 3);
  assert.equal(sentFrames(next).length, 2);
});

// -- what becomes of streams ------------------------------------------------------------------------------

test("a stream that was cancelled because nobody came back does not seem whole", async (t) => {
  const { client, socket, stream } = await running(t);
  const completing = client.complete({ prompt: "Hi", request_id: "s" });
  socket.receive({ ...started(), request_id: "s", ref: socket.sent[1].ref });
  const next = await cutAndReconnect(socket);
  next.receive({ ...token(0, "a"), seq: 1 });
  next.receive({ ...final("cancelled", "detached"), seq: 2 });
  next.receive({ ...final("cancelled", "detached"), request_id: "s", seq: 1 });
  assert.equal((await stream.next())?.text, "a");
  await assert.rejects(stream.next(), { name: "ConnectionLost", retryable: false, message: /nobody came back/ });
  await assert.rejects(completing, { name: "ConnectionLost" });
});

test("a word that ends it may be any", async (t) => {
  const { socket, stream } = await running(t);
  socket.receive({ ...final("stop", "detached"), seq: 1 });
  assert.equal(await stream.next(), null);
});

test("a stream waits for its client as long as that tries to come back, unless its user said otherwise", async (t) => {
  const { client, socket } = await connected(t, { reconnectMs: 7000.5 });
  const off = await connected(t, { reconnectMs: 0 });
  const fates = (/** @type {FakeSocket} */ on) =>
    on.sent.map(({ on_disconnect, grace_ms }) => [on_disconnect, grace_ms]);
  for (const options of [{}, { grace_ms: 5 }, { on_disconnect: "continue" }, { on_disconnect: "cancel", grace_ms: 6 }]) {
    const start = /** @type {import("../src/midstream.js").StartOptions} */ ({ prompt: "Hi", ...options });
    client.start(start).catch(() => {});
    off.client.start(start).catch(() => {});
  }
  assert.deepEqual(fates(socket), [["pause", 7001], ["pause", 5], ["continue", undefined], ["cancel", 6]]);
  assert.deepEqual(fates(off.socket)[0], [undefined, undefined]);
});

test("it waits no longer than the server lets any stream wait", async (t) => {
  const ready = { ...READY, limits: { ...READY.limits, max_grace_ms: 2000 } };
  const { client, socket } = await connected(t, { reconnectMs: 7000 }, ready);
  client.start({ prompt: "Hi" }).catch(() => {});
  client.start({ prompt: "Hi", grace_ms: 3000 }).catch(() => {});
  assert.deepEqual(socket.sent.map(({ grace_ms }) => grace_ms), [2000, 3000]);
});

test("closing cancels the streams of which nobody said what is to become of them", async (t) => {
  const { client, socket } = await connected(t);
  for (const on_disconnect of /** @type {const} */ ([undefined, "pause", "continue"])) {
    client.start({ prompt: "Hi", request_id: String(on_disconnect), on_disconnect }).catch(() => {});
  }
  client.attach("taken").catch(() => {});
  await client.close();
  const cancelled = socket.sent.filter(({ type }) => type === "cancel").map(({ request_id }) => request_id);
  assert.deepEqual([cancelled, socket.closedWith], [["undefined"], 1000]);
});

// -- taking over ------------------------------------------------------------------------------------------

test("a stream is taken over from its beginning", async (t) => {
  const { client, socket } = await connected(t);
  const taking = client.attach("r", { window: 2 });
  assert.deepEqual(socket.sent, [{ type: "attach", request_id: "r", after: -1, ref: socket.sent[0].ref }]);
  socket.receive(started());
  socket.receive({ ...token(0, "a"), seq: 1 });
  sendAttached(socket);
  const stream = await taking;
  assert.deepEqual([stream.model, (await stream.next())?.text, stream.seq], ["m", "a", 1]);
  assert.equal(stream.tryNext(), null);
  assert.deepEqual(socket.sent.at(-1), { type: "credit", request_id: "r", limit: 3 });
  await assert.rejects(client.attach("r"), { code: "request_conflict" });
});

test("a stream is taken over behind what is known of it", async (t) => {
  const { client, socket } = await connected(t);
  const taking = client.attach("r", { after: 4, had: { text: "abc", index: 3 }, credit: "auto" });
  assert.equal(socket.sent[0].after, 4);
  socket.receive({ ...token(3, "d"), seq: 5 });
  sendAttached(socket);
  const stream = await taking;
  assert.deepEqual([(await stream.next())?.text, stream.text, stream.consumed], ["d", "abcd", 4]);
  await assert.rejects(client.attach("q", { after: 4 }), TypeError);
  await assert.rejects(client.attach("q", { window: 0 }), RangeError);
});

test("a stream that has ended can be taken over, and one that is not known cannot", async (t) => {
  const { client, socket } = await connected(t);
  const taking = client.attach("r");
  socket.receive(snapshot(3, { index: 1, text: "a" }));
  socket.receive({ ...final("stop"), seq: 4, index: 1 });
  sendAttached(socket);
  const stream = await taking;
  assert.deepEqual([(await stream.next())?.text, await stream.next(), stream.state], ["a", null, "finished"]);
  const failing = client.attach("q");
  sendError(socket, { ...UNKNOWN, request_id: "q", ref: socket.sent.at(-1).ref });
  await assert.rejects(failing, { name: "MidstreamError", code: "unknown_request" });
});

test("a taking over that was lost is asked for again, from where it had come to", async (t) => {
  const { client, socket } = await connected(t);
  const taking = client.attach("r");
  socket.receive(started());
  socket.receive({ ...token(0, "a"), seq: 1 });
  const next = await cutAndReconnect(socket);
  assert.deepEqual(next.sent[1], { type: "attach", request_id: "r", after: 1, ref: socket.sent[0].ref });
  sendAttached(next);
  assert.equal((await taking).text, "a");
});
