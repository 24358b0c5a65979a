/**
 * The `ai` package with its provider for servers that speak OpenAI's language, as they are.
 * @module
 */

import assert from "node:assert/strict";
import { test } from "node:test";

import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { APICallError, generateText, streamText } from "ai";

import { FULL, KEY, POOR_KEY, SLOW, all, untilStreams } from "./served.js";

const provider = createOpenAICompatible({ name: "midstream", baseURL: `${SLOW}/v1`, includeUsage: true });
const own = (fields) => ({ providerOptions: { midstream: { ignore_eos: true, ...fields } } });
const asked = { system: "Be kind", prompt: "Hello", seed: 1, temperature: 0.7, maxRetries: 0 };
const short = { ...asked, maxOutputTokens: 8, ...own() };
const endless = { ...asked, maxOutputTokens: 4000, ...own() };

for (const [kind, model] of [
  ["chat", provider("toy")],
  ["completion", provider.completionModel("toy")],
])
  test(`a ${kind} is the same whole and as it is written`, async () => {
    const whole = await generateText({ model, ...short });
    assert.deepEqual([whole.finishReason, whole.usage.outputTokens], ["length", 8]);
    const streamed = streamText({ model, ...short });
    const deltas = await all(streamed.textStream);
    assert.ok(deltas.length > 1, "one by one");
    assert.equal(deltas.join(""), whole.text);
    assert.equal(await streamed.finishReason, "length");
    assert.equal((await streamed.usage).outputTokens, 8);
  });

test("aborting ends the work", async () => {
  const abort = new AbortController();
  const { fullStream } = streamText({ model: provider("toy"), ...endless, abortSignal: abort.signal });
  const kinds = new Set();
  for await (const { type } of fullStream) {
    kinds.add(type);
    if (type !== "text-delta" || abort.signal.aborted) continue; // some may have come before
    await untilStreams(1);
    abort.abort();
  }
  assert.ok(kinds.has("abort"));
  await untilStreams(0);
});

test("an error in the midst of a stream is told", async () => {
  const named = { model: provider("toy"), ...endless, ...own({ request_id: "ai-taken" }), onError: () => {} };
  const first = streamText(named).fullStream[Symbol.asyncIterator]();
  const next = async (type) => {
    let part;
    while ((part = (await first.next()).value).type !== type);
    return part;
  };
  await next("text-delta");
  const second = await fetch(`${SLOW}/v1/streams/ai-taken?after=-1`, { method: "POST" });
  assert.match((await next("error")).error.message ?? "", /another connection's/);
  await fetch(`${SLOW}/v1/streams/ai-taken/control`, { method: "POST", body: '{"type": "cancel"}' });
  assert.match(await second.text(), /cancelled/);
});

test("every refusal says whether it may be tried again", async () => {
  const ask = (apiKey, fields, name = "toy") => {
    const model = createOpenAICompatible({ name: "midstream", baseURL: `${FULL}/v1`, apiKey })(name);
    return generateText({ model, ...short, ...own(fields) });
  };
  const refused = async (...asked) => {
    const error = await ask(...asked).catch((error) => error);
    assert.ok(APICallError.isInstance(error), String(error));
    return [error.statusCode, error.isRetryable];
  };
  assert.deepEqual(await refused(KEY, { best_of: 3 }), [400, false]);
  assert.deepEqual(await refused("wrong"), [401, false]);
  assert.deepEqual(await refused(KEY, {}, "gpt"), [404, false]);
  await ask(KEY, { request_id: "same" });
  assert.deepEqual(await refused(KEY, { request_id: "same", top_k: 5 }), [409, true]);
  await ask(POOR_KEY);
  assert.deepEqual(await refused(POOR_KEY), [429, true]);
});
