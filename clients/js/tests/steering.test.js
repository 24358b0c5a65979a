/**
 * Steering against the real server: each acknowledgement is the exact index from which on it holds.
 * @module
 * @import { Stream, StreamEvent } from "../src/midstream.js"
 */

import assert from "node:assert/strict";
import { test } from "node:test";

import { decoded, idle, metrics, streams, until } from "./server-process.js";
import { withAndWithoutWorker } from "./with-and-without-worker.js";

const LONG = { prompt: "Once", ignore_eos: true, max_tokens: 4000, temperature: 0 };

/** Read on to token `end`. @param {Stream} stream @param {number} end */
async function readTo(stream, end) {
  while (stream.consumed < end) await stream.next();
}

withAndWithoutWorker("steering", [], (fixture) => {
  /** The greedy text of so many tokens. @param {object} [options] */
  const greedy = async (options) => {
    const { text } = await fixture.client.complete({ ...LONG, max_tokens: 40, ...options });
    return text;
  };

  test("pause stops decoding at the index that it says, and resume goes on from there", async () => {
    const whole = await greedy();
    const stream = await fixture.client.start({ ...LONG, max_tokens: 40, window: 2 });
    await readTo(stream, 5);
    const paused = await stream.pause();
    assert.deepEqual([stream.state, stream.pauseReason, stream.index], ["paused", "client", paused]);
    await readTo(stream, paused);
    await until(fixture.url, streams("paused", 1));
    const before = decoded(await metrics(fixture.url));
    assert.equal(stream.tryNext(), null);
    await fixture.client.ping();
    assert.equal(decoded(await metrics(fixture.url)), before);
    assert.equal(await stream.resume(), paused);
    assert.deepEqual([stream.state, stream.pauseReason], ["running", null]);
    for await (const chunk of stream) assert.ok(chunk.index >= paused);
    assert.equal(stream.text, whole);
  });

  test("a paused stream's memory can be given up at once, and it speaks on as it would have", async () => {
    const whole = await greedy();
    const stream = await fixture.client.start({ ...LONG, max_tokens: 40, window: 8 });
    /** @type {StreamEvent[]} */ const events = [];
    stream.onevent = (event) => events.push(event);
    await readTo(stream, 5);
    await stream.pause({ kv: "release" });
    await stream.resume();
    const resumed = events.find(({ type }) => type === "resumed");
    assert.ok(resumed?.type === "resumed" && resumed.recomputed_tokens > 0);
    for await (const _ of stream);
    assert.equal(stream.text, whole);
  });

  test("adjust takes effect at the index that it says", async () => {
    const stream = await fixture.client.start({ ...LONG, max_tokens: 30, window: 4, return_tokens: true });
    await readTo(stream, 3);
    const index = await stream.adjust({ logit_bias: { 300: 100 } });
    assert.deepEqual(stream.params.logit_bias, { 300: 100 });
    assert.equal(stream.params.temperature, 0);
    for await (const _ of stream);
    assert.deepEqual(stream.tokens.slice(index), Array(30 - index).fill(300));
    assert.notEqual(stream.tokens[index - 1], 300);
  });

  test("adjust with `at` goes back to what was read", async () => {
    const stream = await fixture.client.start({ ...LONG, max_tokens: 30, window: 20, return_tokens: true });
    const first = await stream.next();
    assert.equal(await stream.adjust({ at: first?.end, logit_bias: { 300: 100 } }), 1);
    for await (const _ of stream);
    assert.deepEqual(stream.tokens.slice(1), Array(29).fill(300));
  });

  test("rewind forgets text, tokens and chunks from there on", async () => {
    const whole = await greedy({ max_tokens: 60 });
    const stream = await fixture.client.start({ ...LONG, max_tokens: 60, window: 20, return_tokens: true });
    await readTo(stream, 30);
    const tokens = stream.tokens.slice(0, 10);
    assert.equal(await stream.rewind(10), 10);
    assert.deepEqual(stream.tokens.slice(0, 10), tokens);
    const next = await stream.next();
    assert.equal(next?.index, 10);
    for await (const _ of stream);
    assert.equal(stream.text, whole, "greedy, it says the same again");
    assert.equal(stream.final?.index, 60);
  });

  test("what a rewind voids is never read, though it had been asked for", async () => {
    const stream = await fixture.client.start({ ...LONG, max_tokens: 60, window: 20 });
    await readTo(stream, 10);
    await stream.adjust({ logit_bias: { 300: 100 }, at: 8 });
    let [text, end] = ["", 8];
    for await (const chunk of stream) {
      assert.equal(chunk.index, end);
      [text, end] = [text + chunk.text, chunk.end];
    }
    assert.equal(end, 60);
    assert.ok(stream.text.endsWith(text));
    assert.equal(text, text.slice(0, text.length / 52).repeat(52));
  });

  test("inject puts context before the index that it says", async () => {
    const stream = await fixture.client.start({ ...LONG, max_tokens: 30, window: 6 });
    await readTo(stream, 4);
    /** @type {StreamEvent[]} */ const events = [];
    stream.onevent = (event) => events.push(event);
    const index = await stream.inject({ text: " but then" });
    const injected = events.find(({ type }) => type === "injected");
    assert.ok(injected?.type === "injected" && injected.count > 0);
    assert.equal(injected.index, index);
    assert.equal(await stream.inject({ messages: [{ role: "user", content: "Go on." }], at: 2 }), 2);
    assert.ok(await stream.inject({ tokens: [300, 301] }) >= 2);
    for await (const _ of stream);
    assert.notEqual(stream.text, await greedy({ max_tokens: 30 }));
    assert.ok((stream.final?.usage.injected_tokens ?? 0) > 2);
  });

  test("cancel resolves to the length of the output, again and again", async () => {
    const stream = await fixture.client.start({ ...LONG, window: 4 });
    await readTo(stream, 6);
    const [index, again] = await Promise.all([stream.cancel(), stream.cancel()]);
    assert.deepEqual([again, await stream.cancel(), stream.final?.index], [index, index, index]);
    assert.deepEqual([stream.final?.finish_reason, stream.state], ["cancelled", "finished"]);
    await until(fixture.url, idle);
  });

  test("events are told as on the wire, in order and without a gap, after they were applied", async () => {
    /** @type {StreamEvent[]} */ const events = [];
    let text = "";
    const onevent = (/** @type {StreamEvent} */ event) => events.push(event);
    const stream = await fixture.client.start({ ...LONG, max_tokens: 20, onevent });
    stream.onevent = (event) => {
      onevent(event);
      if (event.type === "token") text = stream.text;
    };
    for await (const _ of stream);
    assert.deepEqual(events.map(({ seq }) => seq), [...events.keys()]);
    assert.deepEqual([events[0].type, events.at(-1)?.type], ["started", "final"]);
    assert.equal(text, stream.text);
  });

  // -- what is refused -----------------------------------------------------------------------------------

  test("a start that is refused throws what the server says", async () => {
    const wrong = fixture.client.start({ prompt: "Hi", temperature: 9 });
    const expected = { name: "MidstreamError", code: "invalid_params", status: 400, retryable: false };
    await assert.rejects(wrong, expected);
    const unknown = fixture.client.start({ prompt: "Hi", model: "another", request_id: "mine" });
    await assert.rejects(unknown, { code: "unknown_model", status: 404, requestId: "mine" });
    await assert.rejects(fixture.client.start({}), { code: "invalid_frame" });
    const misspelt = /** @type {any} */ ({ prompt: "Hi", temprature: 1 });
    await assert.rejects(fixture.client.start(misspelt), TypeError);
  });

  test("a refused frame changes nothing, and its stream goes on", async () => {
    const stream = await fixture.client.start({ ...LONG, window: 4 });
    await assert.rejects(stream.rewind(500), { code: "invalid_params", requestId: stream.requestId });
    await assert.rejects(stream.adjust({ top_p: 7 }), { code: "invalid_params" });
    await assert.rejects(stream.adjust(/** @type {any} */ ({ colour: 1 })), TypeError);
    await readTo(stream, 10);
    await stream.cancel();
    await assert.rejects(stream.pause(), { code: "request_finished", status: 409 });
  });

  test("a name is one stream's at a time", async () => {
    const stream = await fixture.client.start({ ...LONG, window: 1, request_id: "taken" });
    const again = fixture.client.start({ ...LONG, request_id: "taken" });
    await assert.rejects(again, { code: "request_conflict", status: 409, requestId: "taken" });
    await stream.next();
    await stream.cancel();
  });
});
