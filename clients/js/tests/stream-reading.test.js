/**
 * Reading a stream of the real server: what is not asked for is not decoded, and what is not wanted is cancelled.
 * @module
 */

import assert from "node:assert/strict";
import { test } from "node:test";
import { setFlagsFromString } from "node:v8";
import { runInNewContext } from "node:vm";

import { eventually } from "./eventually.js";
import { decoded, idle, live, metrics, streams, until } from "./server-process.js";
import { withAndWithoutWorker } from "./with-and-without-worker.js";

const LONG = { prompt: "Once", ignore_eos: true, max_tokens: 4000 };

withAndWithoutWorker("reading", [], (fixture) => {
  /** How many tokens were decoded when this is so. @param {(now: Record<string, number>) => boolean} is */
  const decodedUntil = async (is) => decoded(await until(fixture.url, is));

  test("chunks join to the text, tokens are there if asked for, and the end says how it was", async () => {
    const messages = [{ role: "user", content: "Hi" }];
    const options = { messages, max_tokens: 200, ignore_eos: true, return_tokens: true };
    const stream = await fixture.client.start(options);
    assert.deepEqual([stream.model, stream.state, stream.params.max_tokens], ["toy", "running", 200]);
    assert.ok(stream.promptTokens);
    let [text, end] = ["", 0];
    const tokens = [];
    for await (const chunk of stream) {
      assert.equal(chunk.index, end);
      assert.equal(chunk.end, chunk.index + chunk.count);
      assert.equal(stream.consumed, chunk.end);
      [text, end] = [text + chunk.text, chunk.end];
      tokens.push(...(chunk.tokens ?? []));
    }
    assert.deepEqual([stream.text, stream.tokens, stream.index], [text, tokens, 200]);
    assert.deepEqual([stream.state, stream.final?.finish_reason], ["finished", "length"]);
    assert.equal(stream.final?.usage.completion_tokens, 200);
  });

  test("no more is decoded than the window ahead, however long nothing is asked for", async () => {
    const before = decoded(await metrics(fixture.url));
    const stream = await fixture.client.start({ ...LONG, window: 8 });
    assert.equal((await decodedUntil(streams("stalled", 1))) - before, 8);
    for (let taken = 0; taken < 5; taken++) await stream.next();
    // The fifth was asked for when half the window was left: that granted as many as had been taken.
    const twelve = await decodedUntil((now) => streams("stalled", 1)(now) && decoded(now) > before + 8);
    assert.equal(twelve - before, 12);
    await stream.cancel();
    assert.equal(decoded(await metrics(fixture.url)) - before, 12);
  });

  test("window 1 is pure pull: a token is decoded for each one asked for, and none before", async () => {
    const before = decoded(await metrics(fixture.url));
    const stream = await fixture.client.start({ ...LONG, window: 1 });
    assert.equal((await decodedUntil(streams("stalled", 1))) - before, 0);
    for (let taken = 1; taken <= 5; taken++) {
      assert.equal((await stream.next())?.index, taken - 1);
      assert.equal((await decodedUntil(streams("stalled", 1))) - before, taken);
    }
    await stream.cancel();
  });

  test("stream_interval gives chunks of that many tokens, also by pure pull", async () => {
    const options = { ...LONG, max_tokens: 10, stream_interval: 4, window: 1 };
    const counts = [];
    for await (const chunk of await fixture.client.start(options)) counts.push(chunk.count);
    assert.deepEqual(counts, [4, 4, 2]);
  });

  /** @type {[string, (stream: AsyncIterable<object>) => Promise<unknown>][]} */
  const leaving = [
    ["break", async (stream) => { for await (const _ of stream) break; }],
    ["return", async (stream) => { for await (const _ of stream) return; }],
    ["throw", async (stream) => { for await (const _ of stream) throw new Error("over"); }],
  ];
  for (const [how, leave] of leaving) {
    test(`leaving the loop by ${how} cancels in the engine`, async () => {
      const stream = await fixture.client.start(LONG);
      await leave(stream).catch((error) => assert.equal(error.message, "over"));
      await until(fixture.url, idle);
      assert.equal(await stream.cancel(), stream.final?.index);
      assert.equal(stream.final?.finish_reason, "cancelled");
    });
  }

  test("a signal cancels, and ends the loop by its reason", async () => {
    const abort = new AbortController();
    const stream = await fixture.client.start({ ...LONG, window: 4, signal: abort.signal });
    const reading = (async () => {
      for await (const chunk of stream) if (chunk.end === 10) abort.abort();
    })();
    await assert.rejects(reading, { name: "AbortError" });
    await until(fixture.url, idle);
    assert.throws(() => stream.tryNext(), { name: "AbortError" });
  });

  test("a signal ends a wait for a chunk that would not come", async () => {
    const abort = new AbortController();
    const stream = await fixture.client.start({ ...LONG, window: 4, signal: abort.signal });
    const index = await stream.pause();
    while (stream.consumed < index) await stream.next();
    const waiting = stream.next();
    abort.abort(new Error("enough"));
    await assert.rejects(waiting, /enough/);
    await until(fixture.url, idle);
  });

  test("a ReadableStream asks for a chunk when one is read, and its cancel is the stream's", async () => {
    const before = decoded(await metrics(fixture.url));
    const stream = await fixture.client.start({ ...LONG, window: 1 });
    const reader = stream.toReadableStream().getReader();
    assert.equal((await decodedUntil(streams("stalled", 1))) - before, 0);
    assert.equal((await reader.read()).value?.index, 0);
    assert.equal((await decodedUntil(streams("stalled", 1))) - before, 1);
    await reader.cancel();
    await until(fixture.url, idle);
    assert.equal(decoded(await metrics(fixture.url)) - before, 1);
  });

  test("a ReadableStream comes to its end", async () => {
    const stream = await fixture.client.start({ ...LONG, max_tokens: 20 });
    let text = "";
    for await (const chunk of stream.toReadableStream()) text += chunk.text;
    assert.deepEqual([text, stream.index], [stream.text, 20]);
  });

  test("next gives up after its timeout, and loses no chunk by it", async () => {
    const stream = await fixture.client.start({ ...LONG, window: 1 });
    const index = await stream.pause();
    await assert.rejects(stream.next({ timeout: 1 }), { name: "TimeoutError" });
    await stream.resume();
    assert.equal((await stream.next({ timeout: 30_000 }))?.index, index);
    await stream.cancel();
  });

  test("tryNext never waits: it asks, and takes what has come", async () => {
    const stream = await fixture.client.start({ ...LONG, max_tokens: 3, window: 1 });
    assert.equal(stream.tryNext(), null);
    for (const index of [0, 1, 2]) {
      const chunk = await eventually(() => stream.tryNext());
      assert.equal(chunk.index, index);
    }
    await eventually(() => stream.final);
    assert.equal(stream.tryNext(), null);
  });

  test("two who read one stream get each chunk once", async () => {
    const stream = await fixture.client.start({ ...LONG, max_tokens: 50, window: 4 });
    /** @type {number[]} */ const indices = [];
    const read = async () => {
      for await (const chunk of stream) indices.push(chunk.index);
    };
    await Promise.all([read(), read()]);
    assert.deepEqual(indices, [...Array(50).keys()]);
  });

  test("many streams run side by side on one connection", async () => {
    const one = async (/** @type {number} */ seed) => {
      const stream = await fixture.client.start({ ...LONG, max_tokens: 40, window: 4, seed });
      let text = "";
      for await (const chunk of stream) text += chunk.text;
      return text;
    };
    const texts = await Promise.all([...Array(20).keys()].map(one));
    assert.equal(new Set(texts).size, 20);
    assert.equal(texts[7], await one(7), "the same seed speaks the same words, alone or among others");
  });

  test("a stream that is not read holds up none that is", async () => {
    const silent = await fixture.client.start(LONG);
    assert.equal((await fixture.client.complete({ ...LONG, max_tokens: 300 })).final.index, 300);
    await silent.cancel();
  });

  test("complete is for those who want no stream", async () => {
    const options = { ...LONG, max_tokens: 5, logprobs: 2, return_tokens: true };
    const { text, tokens, logprobs, model, final } = await fixture.client.complete(options);
    assert.ok(text);
    assert.deepEqual(logprobs.map(({ token }) => token), tokens);
    assert.deepEqual(logprobs.map(({ top }) => top?.length), [2, 2, 2, 2, 2]);
    assert.deepEqual([tokens.length, model, final.finish_reason], [5, "toy", "length"]);
  });

  test("automatic credit decodes what is not taken", async () => {
    const stream = await fixture.client.start({ ...LONG, max_tokens: 300, credit: "auto" });
    await until(fixture.url, idle);
    const ended = await stream.cancel();
    assert.deepEqual([ended, stream.consumed, stream.index], [300, 0, 300]);
    let chunks = 0;
    for await (const _ of stream) chunks += 1;
    assert.ok(chunks > 0);
    assert.equal(stream.consumed, 300);
  });

  test("a stream that is dropped is cancelled, unless somebody listens", async () => {
    setFlagsFromString("--expose-gc");
    const collect = runInNewContext("gc");
    /** @param {object} options */
    const drop = async (options) => void (await fixture.client.start({ ...LONG, window: 2, ...options }));
    await drop({});
    await drop({ request_id: "heard", onevent: () => {} });
    await until(fixture.url, (now) => (collect(), live(now) === 1));
    await fixture.client.ping();
    const again = fixture.client.start({ ...LONG, request_id: "heard" });
    await assert.rejects(again, { code: "request_conflict" });
  });
});
