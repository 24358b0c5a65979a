/**
 * Calls as they are whole, what comes of them, and answers of a schema: against a model that says what it is told to.
 * @module
 * @import { Call } from "../src/protocol.js"
 */

import assert from "node:assert/strict";
import { test } from "node:test";

import { BadCall, ParseError, callArguments, runCall, toolMessage } from "../src/midstream.js";
import { answerMessage } from "../src/tools.js";
import { scripted } from "./server-process.js";
import { withAndWithoutWorker } from "./with-and-without-worker.js";

/** @param {object} given */
const spelt = (given) => `<tool_call>\n${JSON.stringify({ name: "weather", arguments: given })}\n</tool_call>`;

/** @param {string} script */
const asking = (script) => [{ role: "user", content: `Say ⟦${script}⟧` }];

const weather = {
  name: "weather",
  description: "The weather of a city.",
  parameters: { type: "object", properties: { city: { type: "string" } } },
  run: (/** @type {{city: string}} */ { city }) => `warm in ${city} ⟦It is warm.⟧`,
};

/** @param {string} given @param {Partial<Call>} [more] @returns {Call} */
const call = (given, more) => ({ call_id: "c", name: "weather", arguments: given, index: 0, end: 3, ...more });

withAndWithoutWorker("tools", [scripted], (fixture) => {
  test("each call is given when it is whole, run, and answered in the next start", async () => {
    const script = `So.${spelt({ city: "Rome" })}${spelt({ city: "Bonn" })}`;
    const messages = asking(script);
    const stream = await fixture.client.start({ messages, tools: [weather], window: 1 });
    const results = [];
    for await (const call of stream.toolCalls()) {
      assert.ok(stream.index <= /** @type {number} */ (call.end) + 2, "no later than it is whole");
      results.push(toolMessage(call, await runCall(call, [weather])));
    }
    assert.deepEqual(results.map(({ content }) => content), [
      "warm in Rome ⟦It is warm.⟧",
      "warm in Bonn ⟦It is warm.⟧",
    ]);
    assert.deepEqual([stream.text, stream.calls.length], ["So.", 2]);
    const next = [...messages, stream.message, ...results];
    const answer = await fixture.client.complete({ messages: next, tools: [weather] });
    assert.deepEqual([answer.text, answer.toolCalls, answer.final.finish_reason], ["It is warm.", [], "stop"]);
  });

  test("leaving the calls cancels the stream", async () => {
    const messages = asking(spelt({ city: "Rome" }) + "x".repeat(500));
    const stream = await fixture.client.start({ messages, tools: [weather], window: 1 });
    for await (const call of stream.toolCalls()) {
      assert.equal(callArguments(call).city, "Rome");
      break;
    }
    assert.ok((await stream.cancel()) < 200);
  });

  test("an answer of a schema", async () => {
    const schema = { type: "object", properties: { kind: { enum: ["cat"] } }, required: ["kind"] };
    const asked = { prompt: "x", temperature: 0, max_tokens: 40 };
    const closed = { ...schema, additionalProperties: false };
    assert.deepEqual(await fixture.client.parse(closed, asked), { kind: "cat" });
    const cut = await fixture.client.parse(closed, { ...asked, max_tokens: 3 }).catch((error) => error);
    assert.ok(cut instanceof ParseError);
    assert.deepEqual([cut.text, cut.final.finish_reason, cut.code], ['{"k', "length", "parse_error"]);
  });
});

test("what the model gets wrong is a BadCall, and what the function throws its own", async () => {
  await assert.rejects(runCall(call("{}", { name: "wether" }), [weather]), BadCall);
  await assert.rejects(runCall(call('{"a":'), [weather]), BadCall);
  const fails = { ...weather, run: () => assert.fail("mine") };
  await assert.rejects(runCall(call("{}"), [fails]), /mine/);
});

test("calls and results are turns of the conversation", () => {
  const cut = call('{"ci', { end: undefined });
  assert.deepEqual(answerMessage("", [call("{}"), cut]), {
    role: "assistant",
    content: null,
    tool_calls: [{ id: "c", type: "function", function: { name: "weather", arguments: "{}" } }],
  });
  assert.deepEqual(answerMessage("So", [cut]), { role: "assistant", content: "So" });
  assert.deepEqual(toolMessage(call("{}"), { a: 1 }).content, '{"a":1}');
  assert.deepEqual(toolMessage(call("{}"), undefined).content, "null");
});
