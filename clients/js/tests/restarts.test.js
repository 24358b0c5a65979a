/**
 * Streams that nobody knows any more: the server that had them is killed with its engine, and the client starts them
 * again at another, where they go on behind what was read.
 * @module
 * @import { Stream, StreamEvent } from "../src/midstream.js"
 */

import assert from "node:assert/strict";
import { test } from "node:test";
import { WebSocket } from "ws";

import { Agent, ConnectionLost, Recorder, connect, connectWorker, parseRecords } from "../src/midstream.js";
import { cuttingProxy } from "./cutting-proxy.js";
import { idle, live, metrics, scripted, serve, until } from "./server-process.js";
import { startWorker } from "./with-and-without-worker.js";

const OPTIONS = { prompt: "Once", seed: 11, max_tokens: 120, ignore_eos: true, return_tokens: true, window: 1 };
const WEATHER = {
  type: /** @type {const} */ ("function"),
  function: { name: "weather", parameters: { type: "object", properties: { city: { type: "string" } } } },
};

/** Two servers, of which one is to be killed. @param {import("node:test").TestContext} t @param {...string} options */
async function doomed(t, ...options) {
  const servers = await Promise.all([serve(...options), serve(...options)]);
  t.after(() => Promise.all(servers.map(({ end }) => end())));
  return {
    urls: servers.map(({ url }) => url),
    /** Whichever has a stream; gives the address of the other. */
    async kill() {
      const has = await Promise.all(servers.map(async ({ url }) => live(await metrics(url)) > 0));
      const [one, other] = has[0] ? servers : [...servers].reverse();
      await one.kill();
      return other.url;
    },
  };
}

/** @param {Stream} stream @param {number} end */
async function readTo(stream, end) {
  while (stream.consumed < end) await stream.next();
}

/** @param {Stream} stream */
async function rest(stream) {
  for await (const _ of stream);
  return { text: stream.text, tokens: stream.tokens, injected: stream.final?.usage.injected_tokens };
}

/** @param {Stream} stream */
async function steer(stream) {
  await readTo(stream, 10);
  await stream.adjust({ temperature: 0.4, seed: 5 });
  await stream.inject({ text: " and so" });
  await readTo(stream, 30);
  await stream.rewind(25);
  await stream.inject({ messages: [{ role: "user", content: "Go on." }], at: 22 });
  await stream.adjust({ temperature: 1.3, grammar: { regex: "[a-m ]*" }, at: 21 });
  await stream.pause();
}

const PLACES = /** @type {const} */ ([
  ["here", (/** @type {string[]} */ urls) => connect(urls, { WebSocket })],
  ["in a worker", (/** @type {string[]} */ urls, /** @type {any} */ t) => {
    const worker = startWorker();
    t.after(() => worker.terminate());
    return connectWorker(worker, urls);
  }],
]);

for (const [where, dial] of PLACES) {
  test(`what was read stands, and the rest is what it would have been, socket ${where}`, async (t) => {
    const { urls, kill } = await doomed(t);
    const client = await dial(urls, t);
    const quiet = await client.start(OPTIONS);
    await steer(quiet);
    await quiet.resume();
    const expected = await rest(quiet);
    /** @type {StreamEvent[]} */ const events = [];
    const stream = await client.start({ ...OPTIONS, onevent: (event) => events.push(event) });
    await steer(stream);
    const { index, text } = stream;
    const other = await kill();
    await stream.resume();
    assert.deepEqual(await rest(stream), expected);
    assert.ok(stream.text.startsWith(text));
    assert.deepEqual(stream.restarts, [{ index, exact: true }]);
    assert.deepEqual(events.filter(({ type }) => type === "restarted" || type === "started").map(({ type }) => type), ["started", "restarted"]);
    assert.equal(stream.final?.usage.inherited_tokens, index);
    await client.close();
    await until(other, idle);
  });
}

test("what was asked and not answered is asked again, once", async (t) => {
  const { urls, kill } = await doomed(t);
  const client = await connect(urls, { WebSocket });
  t.after(() => client.close());
  const stream = await client.start(OPTIONS);
  await readTo(stream, 20);
  await kill();
  assert.equal(await stream.inject({ text: " but", at: 12 }), 12);
  const { injected } = await rest(stream);
  const again = await client.start(OPTIONS);
  await readTo(again, 20);
  await again.inject({ text: " but", at: 12 });
  assert.equal((await rest(again)).injected, injected);
});

test("a fork that is asked for meanwhile waits for its stream", async (t) => {
  const { urls, kill } = await doomed(t);
  const client = await connect(urls, { WebSocket });
  t.after(() => client.close());
  const stream = await client.start(OPTIONS);
  await readTo(stream, 20);
  await kill();
  const fork = await client.fork(stream, { at: 15, seed: OPTIONS.seed, return_tokens: true });
  assert.deepEqual(await rest(fork), await rest(stream));
  assert.equal(stream.restarts.length, 1);
});

test("calls and their results stand, and so does what waits for others", async (t) => {
  const { urls, kill } = await doomed(t, scripted);
  const client = await connect(urls, { WebSocket });
  t.after(() => client.close());
  const call = '<tool_call>\n{"name": "weather", "arguments": {"city": "Rome"}}\n</tool_call>';
  const asked = { messages: [{ role: "user", content: `Say ⟦${call}⏭${call}${call}⏭Mild there.⟧` }], tools: [WEATHER] };
  const stream = await client.start({ ...asked, on_tool_call: "pause", return_tokens: true });
  const calls = stream.toolCalls();
  await stream.toolResult((await calls.next()).value, "nowhere");
  const [one, two] = [(await calls.next()).value, (await calls.next()).value];
  await stream.toolResult(two, "hot");
  await kill();
  await stream.toolResult(one, "mild");
  assert.deepEqual(await calls.next(), { value: undefined, done: true });
  assert.equal(stream.text, "Mild there.");
  assert.equal(stream.restarts.length, 1);
});

test("a call that was made again has its id elsewhere, and no other has one of before", async (t) => {
  const { urls, kill } = await doomed(t, scripted);
  const client = await connect(urls, { WebSocket });
  t.after(() => client.close());
  const [paris, rome] = ["Paris", "Rome"].map((city) => `<tool_call>\n{"name": "weather", "arguments": {"city": "${city}"}}\n</tool_call>`);
  const asked = { messages: [{ role: "user", content: `Say ⟦${paris}⏭${rome}⏭Mild.⟧` }], tools: [WEATHER] };
  const stream = await client.start({ ...asked, on_tool_call: "pause", return_tokens: true });
  const calls = stream.toolCalls();
  const made = [(await calls.next()).value];
  for (let times = 0; times < 2; times++) {
    await stream.rewind(0);
    made.push((await calls.next()).value);
  }
  await kill();
  await stream.toolResult(made[2], "mild");
  made.push((await calls.next()).value);
  assert.equal(new Set(made.map(({ call_id }) => call_id)).size, 4);
  await stream.toolResult(made[3], "hot");
  await rest(stream);
  assert.deepEqual([stream.text, stream.restarts.length], ["Mild.", 1]);
});

test("what waits for results waits elsewhere, whatever was put in meanwhile", async (t) => {
  const { urls, kill } = await doomed(t, scripted);
  const client = await connect(urls, { WebSocket });
  t.after(() => client.close());
  const call = '<tool_call>\n{"name": "weather", "arguments": {"city": "Rome"}}\n</tool_call>';
  const asked = { messages: [{ role: "user", content: `Say ⟦${call}⏭Mild.⟧` }], tools: [WEATHER] };
  /** @type {StreamEvent[]} */ const events = [];
  /** @type {(event: StreamEvent) => void} */ let hear = () => {};
  const waits = new Promise((resolve) => (hear = (event) => events.push(event) && event.type === "paused" && resolve(event)));
  const stream = await client.start({ ...asked, on_tool_call: "pause", return_tokens: true, window: 200, onevent: (event) => hear(event) });
  await waits;
  await stream.inject({ text: "So" });
  await kill();
  await stream.toolResult(stream.calls[0], "mild");
  await rest(stream);
  assert.equal(stream.text, "Mild.");
  assert.deepEqual(events.flatMap((event) => (event.type === "restarted" ? [event.begun.paused] : [])), ["tool_call"]);
});

test("a call whose tokens had come, and what they say had not, is told elsewhere: its tool runs once", async (t) => {
  const servers = await Promise.all([serve(scripted), serve(scripted)]);
  t.after(() => Promise.all(servers.map(({ end }) => end())));
  const calls = ["Rome", "Paris"].map((city) => `<tool_call>\n{"name": "weather", "arguments": {"city": "${city}"}}\n</tool_call>`);
  for (const [where, dial] of PLACES) {
    for (const within of ["tool_call", "tool_arguments", "tool_call_done"]) {
      const proxy = await cuttingProxy(servers[0].url, [{ within, way: /** @type {const} */ ("down") }].values());
      t.after(proxy.end);
      const client = await dial([proxy.url], t);
      proxy.redirect(servers[1].url);
      /** @type {string[]} */ const ran = [];
      const run = (/** @type {{city: string}} */ { city }) => (ran.push(city), `mild in ${city}`);
      const agent = new Agent({ tools: [{ ...WEATHER.function, description: "The weather of a city.", run }] });
      const recorder = new Recorder();
      let said = "";
      const onevent = (/** @type {any} */ { type, delta }) => void (type === "tool_arguments" && (said += delta));
      const asked = await client.run(agent, `Say ⟦${calls[0]}⏭${calls[1]}⏭Mild.⟧`, { return_tokens: true, recorder, onevent });
      assert.equal(await asked.answer(), "Mild.");
      assert.deepEqual([ran, said], [["Rome", "Paris"], '{"city": "Rome"}{"city": "Paris"}'], `${within}, ${where}`);
      assert.equal(asked.stream.restarts.length, 1);
      const [{ lines }] = parseRecords(recorder.text);
      const results = lines.flatMap((line) => (line.type === "tool_result" ? [[line.call, line.content]] : []));
      assert.deepEqual(results, [[0, "mild in Rome"], [1, "mild in Paris"]]);
      assert.ok(!lines.some(({ type }) => type === "lost"));
      client.close();
    }
  }
});

for (const [what, options] of /** @type {const} */ ([
  ["whose tokens are not known", { return_tokens: false }],
  ["that was to end", { on_disconnect: "cancel" }],
  ["that guards have read", { guards: [{ name: "a", do: "tell", regex: "b" }] }],
])) {
  test(`a stream is lost ${what}`, async (t) => {
    const { urls, kill } = await doomed(t);
    const client = await connect(urls, { WebSocket });
    t.after(() => client.close());
    const stream = await client.start(/** @type {any} */ ({ ...OPTIONS, ...options }));
    await readTo(stream, 5);
    await kill();
    await assert.rejects(rest(stream), ConnectionLost);
    assert.deepEqual(stream.restarts, []);
  });
}
