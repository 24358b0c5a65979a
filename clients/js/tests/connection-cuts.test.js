/**
 * Connection cuts: against the real server, on a connection that is cut again and again, all is as if it were not.
 * @module
 * @import { Client, Stream, StreamEvent } from "../src/midstream.js"
 */

import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { WebSocket } from "ws";

import { connect, connectWorker } from "../src/midstream.js";
import { cuts, cuttingProxy } from "./cutting-proxy.js";
import { idle, serve, until } from "./server-process.js";
import { startWorker } from "./with-and-without-worker.js";

const CUTS = 30;
const SEEDS = [1, 2, 3];

/** @type {Awaited<ReturnType<typeof serve>>} */ let server;
/** @type {Awaited<ReturnType<typeof stories>>} */ let uncut;
before(async () => {
  server = await serve();
  const client = await connect(server.url, { WebSocket });
  uncut = await stories(client);
  await client.close();
});
after(() => server.end());

/** Several streams at once, each steered by what was read of it. @param {Client} client */
const stories = (client) => Promise.all(SEEDS.map((seed) => story(client, seed)));

/** @param {Client} client @param {number} seed */
async function story(client, seed) {
  /** @type {StreamEvent[]} */ const events = [];
  const onevent = (/** @type {StreamEvent} */ event) => events.push(event);
  const options = { prompt: "Once", ignore_eos: true, max_tokens: 160, return_tokens: true, window: 8 };
  const stream = await client.start({ ...options, seed, onevent });
  const answers = [];
  await readTo(stream, 20);
  answers.push(await stream.adjust({ temperature: 0.5, at: 20 }));
  await readTo(stream, 40);
  answers.push(await stream.inject({ text: " but", at: 40 }), await stream.inject({ text: " then", at: 40 }));
  await readTo(stream, 70);
  await Promise.all([stream.pause(), stream.resume(), stream.pause({ kv: "release" }), stream.resume()]);
  await readTo(stream, 90);
  answers.push(await stream.rewind(60));
  for await (const _ of stream);
  assert.deepEqual(events.map(({ seq }) => seq), [...events.keys()], "each event once, and none is missing");
  const { text, tokens, final } = stream;
  return { text, tokens, answers, reason: final?.finish_reason, injected: final?.usage.injected_tokens };
}

/** @param {Stream} stream @param {number} end */
async function readTo(stream, end) {
  while (stream.consumed < end) await stream.next();
}

for (const seed of [1, 2]) {
  test(`text, steering and end are those of an uncut connection, socket here, cuts ${seed}`, async (t) => {
    const proxy = await cuttingProxy(server.url, cuts(seed, CUTS));
    t.after(proxy.end);
    await same(proxy, await patiently(() => connect(proxy.url, { WebSocket })));
  });

  test(`text, steering and end are those of an uncut connection, socket in a worker, cuts ${seed}`, async (t) => {
    const worker = startWorker();
    t.after(() => worker.terminate());
    const proxy = await cuttingProxy(server.url, cuts(seed + 100, CUTS));
    t.after(proxy.end);
    await same(proxy, await patiently(() => connectWorker(worker, proxy.url)));
  });
}

/** The first connect is not tried again by itself. @param {() => Promise<Client>} dial @returns {Promise<Client>} */
async function patiently(dial) {
  return dial().catch(() => patiently(dial));
}

/** @param {Awaited<ReturnType<typeof cuttingProxy>>} proxy @param {Client} client */
async function same(proxy, client) {
  assert.deepEqual(await stories(client), uncut);
  assert.ok(proxy.count() > CUTS / 2, `${proxy.count()} cuts came about`);
  await client.close();
  await until(server.url, idle);
}
