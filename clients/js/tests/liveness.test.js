/**
 * Liveness detection: when a server's silence is a sign that it is dead, and what comes of it.
 * @module
 */

import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { WebSocket } from "ws";

import { connect, connectWorker } from "../src/midstream.js";
import { LivenessCheck } from "../src/liveness.js";
import { FakeSocket, READY } from "./fake-socket.js";
import { started, token } from "./sample-events.js";
import { nextSocket, sendAttached, sentFrames } from "./scripted-server.js";
import { serve } from "./server-process.js";
import { silentProxy } from "./silent-proxy.js";
import { startWorker } from "./with-and-without-worker.js";

const THIRD_MS = 10_000;
const PING = { type: "ping" };
const PONG = { type: "pong" };

/** The verdict on each third, by whether something came before it. @param {string} story */
function verdicts(story) {
  const check = new LivenessCheck();
  return [...story].map((what) => {
    if (what === "!") check.receive();
    return check.tick(what !== " ");
  });
}

for (const [what, story, expected] of /** @type {[string, string, string][]} */ ([
  ["the first third is the handshake's", ".", "alive"],
  ["silence is asked about once, and is then the end", "...", "alive ping dead"],
  ["an answer is a sign of life", "..!..", "alive ping alive ping dead"],
  ["whoever goes on talking is never asked", "!!!!", "alive alive alive alive"],
  ["where nothing is to come, silence is no sign", "    ", "alive alive alive alive"],
  ["what begins after a silence gets its question first", "   ..", "alive alive alive ping dead"],
  ["what ends while it was asked for is let be", ".. ..", "alive ping alive ping dead"],
])) {
  test(`liveness: ${what}`, () => assert.equal(verdicts(story).join(" "), expected));
}

/**
 * A client whose time the test makes pass, in thirds of the silence that it bears.
 * @param {import("node:test").TestContext} t @param {object} [options]
 */
async function clocked(t, options) {
  t.mock.timers.enable({ apis: ["setInterval"] });
  const connecting = connect("http://host", { WebSocket: FakeSocket, ...options });
  const socket = FakeSocket.last;
  socket.receive({ ...READY, session_id: "s1" });
  const client = await connecting;
  t.after(() => client.close());
  return { client, socket, tick: () => t.mock.timers.tick(THIRD_MS) };
}

/** @param {Awaited<ReturnType<typeof clocked>>} fixture */
async function running({ client, socket }) {
  const starting = client.start({ prompt: "Hi", request_id: "r" });
  socket.receive({ ...started(), ref: socket.sent[0].ref });
  return starting;
}

test("a stream that is silent makes the client ask, and a server that answers is kept", async (t) => {
  const fixture = await clocked(t);
  const { client, socket, tick } = fixture;
  const stream = await running(fixture);
  tick();
  socket.receive({ ...token(0, "a"), seq: 1 });
  tick();
  assert.equal(sentFrames(socket).length, 1, "what talks is not asked");
  for (let asked = 1; asked <= 3; asked++) {
    tick();
    assert.deepEqual(sentFrames(socket).slice(1), Array(asked).fill(PING));
    socket.receive(PONG);
    tick();
  }
  assert.equal(client.state, "open");
  assert.equal((await stream.next())?.text, "a");
});

test("a server that gives no sign is left, and its streams go on elsewhere", async (t) => {
  const fixture = await clocked(t);
  const { client, socket, tick } = fixture;
  const stream = await running(fixture);
  for (let passed = 0; passed < 3; passed++) tick();
  assert.equal(client.state, "reconnecting");
  assert.notEqual(socket.closedWith, null);
  socket.receive({ ...token(0, "a voice from the past"), seq: 1 });
  const next = await nextSocket(socket);
  next.receive({ ...READY, session_id: "s2" });
  sendAttached(next);
  next.receive({ ...token(0, "a"), seq: 1 });
  assert.equal((await stream.next())?.text, "a");
  socket.end(1006);
  assert.equal(client.state, "open", "the old socket's end is no news");
});

test("a server that takes what it is sent, however slowly, is kept", async (t) => {
  const fixture = await clocked(t);
  const { client, socket, tick } = fixture;
  await running(fixture);
  for (socket.bufferedAmount = 9; socket.bufferedAmount > 0; socket.bufferedAmount--) {
    tick();
    assert.equal(client.state, "open");
  }
  socket.bufferedAmount = 9;
  for (let passed = 0; passed < 4; passed++) tick();
  assert.equal(client.state, "reconnecting", "and one that takes nothing is not");
});

test("whoever waits for an answer watches too, and whoever waits for nothing does not", async (t) => {
  const { client, socket, tick } = await clocked(t, { reconnectMs: 0 });
  for (let passed = 0; passed < 9; passed++) tick();
  assert.deepEqual([socket.sent, client.state], [[], "open"]);
  const pinging = assert.rejects(client.ping(), { name: "ConnectionLost", closeCode: 1006, message: /silent for 30000 ms/ });
  tick();
  tick();
  await pinging;
  assert.deepEqual([client.state, (await client.closed).retryable], ["closed", true]);
});

test("without `silenceMs` silence is borne", async (t) => {
  const fixture = await clocked(t, { silenceMs: 0 });
  await running(fixture);
  for (let passed = 0; passed < 9; passed++) fixture.tick();
  assert.deepEqual([sentFrames(fixture.socket).length, fixture.client.state], [1, "open"]);
  await assert.rejects(connect("http://host", { WebSocket: FakeSocket, silenceMs: -1 }), RangeError);
});

test("a client that is closed watches no more", async (t) => {
  const fixture = await clocked(t);
  await running(fixture);
  fixture.client.close();
  const sent = fixture.socket.sent.length;
  for (let passed = 0; passed < 9; passed++) fixture.tick();
  assert.equal(fixture.socket.sent.length, sent);
});

/** @type {Awaited<ReturnType<typeof serve>>} */ let server;
before(async () => {
  server = await serve();
});
after(() => server.end());

for (const way of ["here", "in a worker"]) {
  test(`a connection that falls silent is left for another, and nothing is missing: socket ${way}`, async (t) => {
    const proxy = await silentProxy(server.url);
    t.after(proxy.end);
    const worker = startWorker();
    t.after(() => worker.terminate());
    const options = { prompt: "Once", ignore_eos: true, max_tokens: 60, seed: 1, window: 4 };
    const plain = await connect(server.url, { WebSocket });
    const { text } = await plain.complete(options);
    await plain.close();

    const client = way === "here"
      ? await connect(proxy.url, { WebSocket, silenceMs: 3000 })
      : await connectWorker(worker, proxy.url, { silenceMs: 3000 });
    t.after(() => client.close());
    const stream = await client.start(options);
    while (stream.consumed < 20) await stream.next();
    proxy.silence();
    for await (const _ of stream);
    assert.equal(stream.text, text);
    assert.ok(proxy.count() >= 2, "there was another connection than the silent one");
  });
}
