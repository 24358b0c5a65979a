/**
 * Agents: a run is one stream, with its tools run beside it; against a model that says what it is told to.
 * @module
 * @import { Run, RunEvent } from "../src/midstream.js"
 * @import { Call } from "../src/protocol.js"
 */

import assert from "node:assert/strict";
import { test } from "node:test";

import { Agent, LimitReached } from "../src/midstream.js";
import { scripted } from "./server-process.js";
import { withAndWithoutWorker } from "./with-and-without-worker.js";

/** @param {string} city @param {string} [name] */
const spelt = (city, name = "weather") =>
  `<tool_call>\n{"name": "${name}", "arguments": {"city": "${city}"}}\n</tool_call>`;

/** What the model says, turn by turn. @param {...string} turns */
const saying = (...turns) => `Say ⟦${turns.join("⏭")}⟧`;

const parameters = { type: "object", properties: { city: { type: "string" } } };
const weather = {
  name: "weather",
  parameters,
  run: (/** @type {{city: string}} */ { city }) => ({ city, degrees: city.length }),
};
const byHand = { name: "weather", parameters };
const never = () => new Promise(() => {});

/** @param {Run} run @param {(event: RunEvent) => boolean} is */
async function until(run, is) {
  const events = [];
  const reader = run[Symbol.asyncIterator]();
  for (;;) {
    const { value, done } = await reader.next();
    assert.ok(!done, `it never came to that: ${events.map(({ type }) => type)}`);
    events.push(value);
    if (is(value)) return events;
  }
}

/** @param {RunEvent["type"]} type */
const isA = (type) => (/** @type {RunEvent} */ event) => event.type === type;

const waiting = (/** @type {RunEvent} */ event) => event.type === "paused" && event.reason === "tool_call";

/** One that is told when its tool begins, and when that is stopped. */
function stoppable() {
  /** @type {{began: Promise<Call>, stopped: Promise<string>, tool: any}} */ const told = /** @type {any} */ ({});
  told.stopped = new Promise((stopped) => {
    told.began = new Promise((began) => {
      /** @param {unknown} _ @param {import("../src/midstream.js").ToolContext} context */
      const run = (_, { call, signal }) => {
        signal.addEventListener("abort", () => stopped(signal.reason.name), { once: true });
        began(call);
        return never();
      };
      told.tool = { ...weather, run };
    });
  });
  return told;
}

withAndWithoutWorker("agents", [scripted], (fixture) => {
  test("a run is one stream from the question to the answer, and its messages are the next one's", async () => {
    const agent = new Agent({ tools: [weather], system: "Be brief.", temperature: 0 });
    const run = await fixture.client.run(agent, saying(`So.${spelt("Rome")}`, `And.${spelt("Bonn")}${spelt("Oslo")}`, "Mild."));
    assert.equal(await run.answer(), "Mild.");
    assert.deepEqual(run.outcomes.map(({ content }) => JSON.parse(content ?? "").city), ["Rome", "Bonn", "Oslo"]);
    assert.ok(run.outcomes.every(({ call, index }) => index !== null && index >= Number(call.end)));
    assert.deepEqual(run.messages.map(({ role, content, tool_calls }) => [role, role === "tool" || content, tool_calls?.length]), [
      ["system", "Be brief.", undefined],
      ["user", run.messages[1].content, undefined],
      ["assistant", "So.", 1],
      ["tool", true, undefined],
      ["assistant", "And.", 2],
      ["tool", true, undefined],
      ["tool", true, undefined],
      ["assistant", "Mild.", undefined],
    ]);
    const next = await fixture.client.run(agent, [...run.messages, { role: "user", content: saying("Well.") }]);
    assert.equal(await next.answer(), "Well.");
  });

  test("a tool begins while the next call is still being written, and all events are told", async () => {
    const run = await fixture.client.run(new Agent({ tools: [weather] }), saying(spelt("Rome") + spelt("Bonn"), "Mild."));
    const kinds = [];
    for await (const event of run) if (event.type !== "token" && event.type !== "tool_arguments") kinds.push(event.type);
    const first = kinds.indexOf("tool_outcome");
    assert.ok(first > 0 && first < kinds.lastIndexOf("tool_call_done"), String(kinds));
    assert.deepEqual(kinds.slice(0, 3), ["started", "tool_call", "tool_call_done"]);
    assert.equal(kinds.at(-1), "final");
    assert.equal(run.stream.text, "Mild.");
  });

  test("what a tool throws, what there is not, and what takes too long is told to the model", async () => {
    const tools = [
      { ...weather, run: () => { throw new Error("no such place"); } },
      { ...weather, name: "slow", run: never },
    ];
    const agent = new Agent({ tools, toolTimeoutMs: 20 });
    const run = await fixture.client.run(agent, saying(spelt("Rome") + spelt("Rome", "slow"), "Sorry."));
    assert.equal(await run.answer(), "Sorry.");
    const [failed, slow] = run.outcomes;
    assert.deepEqual([failed.error, failed.content], ["no such place", undefined]);
    assert.match(String(slow.error), /timeout/);
    assert.equal(run.state(failed.call), "failed");
  });

  test("a tool says how far it is", async () => {
    /** @type {import("../src/midstream.js").FunctionTool} */
    const counting = { ...weather, run: (_, { progress }) => (progress(1, 2, "half"), "done") };
    const run = await fixture.client.run(new Agent({ tools: [counting] }), saying(spelt("Rome"), "Mild."));
    const [said] = (await until(run, isA("tool_progress"))).slice(-1);
    assert.ok(said.type === "tool_progress");
    assert.deepEqual([said.done, said.total, said.message, said.call.name], [1, 2, "half", "weather"]);
    await run.stream.cancel();
  });

  test("a tool without a function is answered by hand, and so is one that runs", async () => {
    for (const { tool, stopped } of [{ tool: byHand, stopped: Promise.resolve("AbortError") }, stoppable()]) {
      const run = await fixture.client.run(new Agent({ tools: [tool] }), saying(spelt("Rome"), "Mild."));
      await until(run, waiting);
      const [call] = run.stream.calls;
      assert.equal(run.state(call), tool === byHand ? "waiting" : "running");
      await run.give(call, { degrees: 20 });
      assert.equal(await stopped, "AbortError");
      assert.equal(run.state(call), "answered");
      for await (const _ of run);
      assert.deepEqual(run.outcomes.map(({ content }) => content), ['{"degrees":20}']);
      await assert.rejects(run.give(call, "late"));
      assert.deepEqual(run.outcomes.map(({ content }) => content), ['{"degrees":20}'], "what was said stands");
    }
  });

  test("who is refused is told why, and nothing runs", async () => {
    const { tool, stopped } = stoppable();
    const run = await fixture.client.run(new Agent({ tools: [tool] }), saying(spelt("Rome"), "Well then."));
    await until(run, waiting);
    await run.refuse(run.stream.calls[0], "not today");
    assert.equal(await stopped, "AbortError");
    for await (const _ of run);
    assert.deepEqual([run.stream.text, run.outcomes[0].error], ["Well then.", "not today"]);
  });

  test("a call that waits for a yes is approved, or changed while it does; and the agent may be asked itself", async () => {
    const asked = saying(spelt("Rome"), "}\n</tool_call>", "Mild.");
    const run = await fixture.client.run(new Agent({ tools: [weather], approvals: ["weather"] }), asked);
    const isDone = (/** @type {RunEvent} */ event) => event.type === "tool_call_done" && event.approval === true;
    await until(run, isDone);
    assert.equal(run.state(run.stream.calls[0]), "asking");
    await run.amend(run.stream.calls[0], { city: "Oslo" });
    await until(run, isDone);
    assert.deepEqual([run.state(run.stream.calls[0]), run.outcomes], ["asking", []], "an amended call is approved anew");
    await run.approve(run.stream.calls[0]);
    for await (const _ of run);
    assert.equal(run.outcomes[0].content, '{"city":"Oslo","degrees":4}');

    for (const [verdict, came] of /** @type {const} */ ([[true, undefined], [false, "the user said no"], ["no", "no"]])) {
      const agent = new Agent({ tools: [weather], approve: async () => verdict });
      const other = await fixture.client.run(agent, saying(spelt("Rome"), "Mild."));
      assert.equal(await other.answer(), "Mild.");
      assert.equal(other.outcomes[0].error, came);
    }
  });

  test("a call is changed in the midst of its arguments, and the model writes on from a beginning", async () => {
    const asked = saying(spelt("R".repeat(200)), 'lo"}}\n</tool_call>', "Mild.");
    const run = await fixture.client.run(new Agent({ tools: [weather] }), asked, { window: 4 });
    await until(run, (event) => event.type === "tool_arguments" && run.stream.calls[0].arguments.length > 30);
    await run.amend(run.stream.calls[0], '{"city": "Os', { partial: true });
    for await (const _ of run);
    assert.equal(run.outcomes[0].content, '{"city":"Oslo","degrees":4}');
  });

  test("the end of the stream, leaving the loop and a rewind into a call stop its tool", async () => {
    for (const stop of [
      (/** @type {Run} */ run) => run.stream.cancel(),
      (/** @type {Run} */ run) => run[Symbol.asyncIterator]().return?.(),
      (/** @type {Run} */ run) => run.stream.rewind(3),
    ]) {
      const { tool, began, stopped } = stoppable();
      const run = await fixture.client.run(new Agent({ tools: [tool] }), saying(spelt("Rome"), "Mild."));
      await until(run, waiting);
      assert.equal((await began).name, "weather");
      await stop(run);
      assert.equal(await stopped, "AbortError");
      await run.stream.cancel();
    }
  });

  test("a result that was taken back while its call stands is told again, and no tool runs twice", async () => {
    let runs = 0;
    const counted = { ...weather, run: () => ++runs };
    const agent = new Agent({ tools: [counted] });
    const question = saying(`${spelt("Rome")}So`, "It is mild.", "It is mild.");
    const run = await fixture.client.run(agent, question, { window: 1 }); // it has not ended when it is rewound
    await until(run, (event) => event.type === "token" && event.delta === "I");
    const [{ call, index }] = run.outcomes;
    await run.stream.rewind(Number(call.end) + 1);
    assert.ok(Number(index) > Number(call.end) + 1);
    for await (const _ of run);
    assert.deepEqual([runs, run.outcomes.length, run.stream.text], [1, 1, "SoIt is mild."]);
  });

  test("more calls than it may make end it", async () => {
    const agent = new Agent({ tools: [weather], maxCalls: 1 });
    const run = await fixture.client.run(agent, saying(spelt("Rome"), spelt("Bonn"), "Mild."));
    await assert.rejects(run.answer(), LimitReached);
    await run.stream.cancel();
    assert.equal(run.stream.final?.finish_reason, "cancelled");
  });

  test("where the model goes on meanwhile, results come in where they come", async () => {
    const agent = new Agent({ tools: [byHand], onToolCall: "continue" });
    const run = await fixture.client.run(agent, saying(`${spelt("Rome")}Meanwhile.`, "Mild, I hear."));
    await until(run, waiting);
    await run.give(run.stream.calls[0], "mild");
    for await (const _ of run);
    assert.equal(run.stream.text, "Meanwhile.Mild, I hear.");
  });

  test("an answer of a schema, behind its calls", async () => {
    const agent = new Agent({ tools: [weather], output: { type: "object" } });
    const run = await fixture.client.run(agent, saying(spelt("Rome"), '{"mild":true}'));
    assert.deepEqual(await run.answer(), { mild: true });
  });

  test("a fork is a run of its own: results that stand there stand in it", async () => {
    let runs = 0;
    const counted = { ...weather, run: () => ++runs };
    const agent = new Agent({ tools: [counted] });
    const run = await fixture.client.run(agent, saying(spelt("Rome"), spelt("Bonn"), "Mild."));
    await run.answer();
    const behindTheFirst = await run.fork({ at: Number(run.outcomes[0].index) + 4 });
    assert.equal(await behindTheFirst.answer(), "Mild.");
    assert.deepEqual([runs, behindTheFirst.outcomes.length], [3, 2], "the first result was known");
    const { index } = run.outcomes[0];
    const rightThere = await run.fork({ at: Number(index) });
    assert.equal(await rightThere.answer(), "Mild.");
    assert.deepEqual([runs, rightThere.outcomes[0].index], [4, index], "it stands once, whoever was asked first");
    assert.notEqual(behindTheFirst.stream.requestId, run.stream.requestId);
  });

  test("a fork in front of a result is told it, and who said yes to its call is not asked again", async () => {
    let asked = 0;
    const agent = new Agent({ tools: [weather], approvals: true, approve: () => Boolean(++asked) });
    const run = await fixture.client.run(agent, saying(spelt("Rome"), "Mild."));
    assert.equal(await run.answer(), "Mild.");
    const fork = await run.fork({ at: run.stream.calls[0].end });
    assert.equal(await fork.answer(), "Mild.");
    assert.deepEqual([asked, fork.outcomes.length], [1, 1]);
  });

  test("events may be told to a function, and the stream read by itself", async () => {
    /** @type {string[]} */ const kinds = [];
    const onevent = (/** @type {RunEvent} */ { type }) => void kinds.push(type);
    const run = await fixture.client.run(new Agent({ tools: [weather] }), saying(spelt("Rome"), "Mild."), { onevent });
    let text = "";
    for await (const chunk of run.stream) text += chunk.text;
    assert.deepEqual([text, kinds[0], kinds.at(-1)], ["Mild.", "started", "final"]);
    assert.ok(kinds.includes("tool_outcome"));
    await assert.rejects(async () => { for await (const _ of run); }, /onevent/);
  });
});
