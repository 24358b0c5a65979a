/**
 * A server that is silent: when that is a sign, and what comes of it.
 * @module
 */

import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { WebSocket } from "ws";

import { connect, connectWorker } from "../src/midstream.js";
import { Pulse } from "../src/liveness.js";
import { attached, nextSocket, said } from "./scripted-server.js";
import { started, token } from "./sample-events.js";
import { serve } from "./server-process.js";
import { silentProxy } from "./silent-proxy.js";
import { FakeSocket, READY } from "./fake-socket.js";
import { startWorker } from "./with-and-without-worker.js";

const THIRD_MS = 10_000;
const PING = { type: "ping" };
const PONG = { type: "pong" };

/** What a pulse says of each third, and of whether something came before it. @param {string} story */
function verdicts(story) {
  const pulse = new Pulse();
  return [...story].map((what) => {
    if (what === "!") pulse.heard();
    return pulse.third(what !== " ");
  });
}

for (const [what, story, expected] of /** @type {[string, string, string][]} */ ([
  ["the first third is the greeting's", ".", "well"],
  ["silence is asked about once, and is then the end", "...", "well ask gone"],
  ["an answer is a sign of life", "..!..", "well ask well ask gone"],
  ["whoever goes on talking is never asked", "!!!!", "well well well well"],
  ["where nothing is to come, silence is no sign", "    ", "well well well well"],
  ["what begins after a silence gets its question first", "   ..", "well well well ask gone"],
  ["what ends while it was asked for is let be", ".. ..", "well ask well ask gone"],
])) {
  test(`a pulse: ${what}`, () => assert.equal(verdicts(story).join(" "), expected));
}

/**
 * A client whose time the test makes pass, in thirds of the silence that it bears.
 * @param {import("node:test").TestContext} t @param {object} [options]
 */
async function clocked(t, options) {
  t.mock.timers.enable({ apis: ["setInterval"] });
  const connecting = connect("http://host", { WebSocket: FakeSocket, ...options });
  const socket = FakeSocket.last;
  socket.hear({ ...READY, session_id: "s1" });
  const client = await connecting;
  t.after(() => client.close());
  return { client, socket, third: () => t.mock.timers.tick(THIRD_MS) };
}

/** @param {Awaited<ReturnType<typeof clocked>>} house */
async function running({ client, socket }) {
  const starting = client.start({ prompt: "Hi", request_id: "r" });
  socket.hear({ ...started(), ref: socket.sent[0].ref });
  return starting;
}

test("a stream that is silent makes the client ask, and a server that answers is kept", async (t) => {
  const house = await clocked(t);
  const { client, socket, third } = house;
  const stream = await running(house);
  third();
  socket.hear({ ...token(0, "a"), seq: 1 });
  third();
  assert.equal(said(socket).length, 1, "what talks is not asked");
  for (let asked = 1; asked <= 3; asked++) {
    third();
    assert.deepEqual(said(socket).slice(1), Array(asked).fill(PING));
    socket.hear(PONG);
    third();
  }
  assert.equal(client.state, "open");
  assert.equal((await stream.next())?.text, "a");
});

test("a server that gives no sign is left, and its streams go on elsewhere", async (t) => {
  const house = await clocked(t);
  const { client, socket, third } = house;
  const stream = await running(house);
  for (let passed = 0; passed < 3; passed++) third();
  assert.equal(client.state, "reconnecting");
  assert.notEqual(socket.closedWith, null);
  socket.hear({ ...token(0, "a voice from the past"), seq: 1 });
  const next = await nextSocket(socket);
  next.hear({ ...READY, session_id: "s2" });
  attached(next);
  next.hear({ ...token(0, "a"), seq: 1 });
  assert.equal((await stream.next())?.text, "a");
  socket.end(1006);
  assert.equal(client.state, "open", "the old socket's end is no news");
});

test("whoever waits for an answer watches too, and whoever waits for nothing does not", async (t) => {
  const { client, socket, third } = await clocked(t, { reconnectMs: 0 });
  for (let passed = 0; passed < 9; passed++) third();
  assert.deepEqual([socket.sent, client.state], [[], "open"]);
  const pinging = assert.rejects(client.ping(), { name: "ConnectionLost", closeCode: 1006, message: /silent for 30000 ms/ });
  third();
  third();
  await pinging;
  assert.deepEqual([client.state, (await client.closed).retryable], ["closed", true]);
});

test("without `silenceMs` silence is borne", async (t) => {
  const house = await clocked(t, { silenceMs: 0 });
  await running(house);
  for (let passed = 0; passed < 9; passed++) house.third();
  assert.deepEqual([said(house.socket).length, house.client.state], [1, "open"]);
  await assert.rejects(connect("http://host", { WebSocket: FakeSocket, silenceMs: -1 }), RangeError);
});

test("a client that is closed watches no more", async (t) => {
  const house = await clocked(t);
  await running(house);
  house.client.close();
  const sent = house.socket.sent.length;
  for (let passed = 0; passed < 9; passed++) house.third();
  assert.equal(house.socket.sent.length, sent);
});

/** @type {Awaited<ReturnType<typeof serve>>} */ let server;
before(async () => {
  server = await serve();
});
after(() => server.end());

for (const way of ["here", "in a worker"]) {
  test(`a wire that falls silent is left for another, and nothing is missing: socket ${way}`, async (t) => {
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
