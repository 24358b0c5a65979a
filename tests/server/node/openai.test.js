/**
 * The `openai` package for Node, as it is: what it asks is answered, and what it is told it understands.
 * @module
 */

import assert from "node:assert/strict";
import { test } from "node:test";

import OpenAI from "openai";

import { FULL, KEY, POOR_KEY, SLOW, all, untilStreams } from "./served.js";

const client = new OpenAI({ baseURL: `${SLOW}/v1`, apiKey: "none", maxRetries: 0 });
const messages = [{ role: "user", content: "Hello" }];
const chat = { model: "toy", messages, max_completion_tokens: 8, ignore_eos: true, seed: 1 };
const endless = { model: "toy", prompt: "Once", stream: true, max_tokens: 4000, ignore_eos: true };

/** With keys, at the server that has room for one stream. @param {string} apiKey */
const keyed = (apiKey) => new OpenAI({ baseURL: `${FULL}/v1`, apiKey, maxRetries: 0 });

test("a chat is the same whole, in chunks, and as the package puts chunks together", async () => {
  const whole = await client.chat.completions.create(chat);
  const said = whole.choices[0].message.content;
  assert.deepEqual([whole.choices[0].finish_reason, whole.usage.completion_tokens], ["length", 8]);

  const asked = { ...chat, stream: true, stream_options: { include_usage: true } };
  const chunks = await all(await client.chat.completions.create(asked));
  const deltas = chunks.flatMap((chunk) => chunk.choices).map((choice) => choice.delta);
  assert.equal(deltas[0].role, "assistant");
  assert.equal(deltas.map((delta) => delta.content ?? "").join(""), said);
  assert.ok(deltas.filter((delta) => delta.content).length > 1, "in pieces");
  assert.deepEqual(chunks.at(-1).usage, { ...whole.usage, ...cached(chunks.at(-1)) });

  const stream = client.chat.completions.stream(chat);
  assert.equal(await stream.finalContent(), said);
});

/** How much of a prompt was found computed depends on who asked before. */
const cached = ({ usage }) => ({ prompt_tokens_details: usage.prompt_tokens_details });

test("completions of many prompts, and of token ids", async () => {
  const asked = { model: "toy", prompt: ["Once", "Twice"], n: 2, max_tokens: 3, logprobs: 1, ignore_eos: true };
  const { choices } = await client.completions.create(asked);
  assert.deepEqual(choices.map(({ index }) => index), [0, 1, 2, 3]);
  assert.equal(choices[3].logprobs.tokens.length, 3);
  const { usage } = await client.completions.create({ model: "toy", prompt: [5, 6, 7] });
  assert.equal(usage.prompt_tokens, 3);
});

test("models are listed, and found by name", async () => {
  const models = await all(client.models.list());
  assert.deepEqual(models.map(({ id }) => id), ["toy"]);
  assert.equal((await client.models.retrieve("toy")).owned_by, "midstream");
});

for (const [way, close] of [
  ["leaving the loop", () => true],
  ["aborting", (stream) => stream.controller.abort()],
])
  test(`${way} ends the work`, async () => {
    const stream = await client.completions.create(endless);
    for await (const chunk of stream) {
      assert.ok(chunk.choices);
      if (stream.controller.signal.aborted) continue; // some may have come before
      await untilStreams(1);
      if (close(stream)) break;
    }
    await untilStreams(0);
  });

test("an error in the midst of a stream is thrown", async () => {
  const named = { ...endless, request_id: "taken" };
  const streams = [await client.completions.create(named), await client.completions.create(named)];
  await assert.rejects(all(streams[0]), { code: "request_taken", constructor: OpenAI.APIError });
  const cancel = { body: { type: "cancel" } };
  assert.equal((await client.post("/streams/taken/control", cancel)).finish_reason, "cancelled");
  await all(streams[1]);
});

test("every refusal is an exception of the package's own", async () => {
  const ask = (fields, key = KEY) => keyed(key).chat.completions.create({ ...chat, ...fields });
  await assert.rejects(ask({ functions: [{}] }), OpenAI.BadRequestError);
  await assert.rejects(ask({ functions: [{}] }), { param: "functions", code: "unsupported_parameter" });
  await assert.rejects(ask({}, "wrong"), OpenAI.AuthenticationError);
  await assert.rejects(ask({ model: "gpt" }), OpenAI.NotFoundError);
  await ask({ request_id: "same" });
  await assert.rejects(ask({ request_id: "same", seed: 2 }), OpenAI.ConflictError);

  await ask({}, POOR_KEY);
  const limited = await ask({}, POOR_KEY).catch((error) => error);
  assert.ok(limited instanceof OpenAI.RateLimitError);
  assert.ok(Number(limited.headers.get("retry-after")) > 0);

  const running = await keyed(KEY).completions.create(endless);
  const full = await ask({}).catch((error) => error);
  assert.ok(full instanceof OpenAI.InternalServerError);
  assert.deepEqual([full.status, full.headers.get("retry-after")], [503, "1"]);
  running.controller.abort();
});
