/**
 * Runs of agents, recorded and replayed: their tools do not run again, and their forks are played by themselves.
 * @module
 */

import assert from "node:assert/strict";
import { test } from "node:test";

import { Agent, Recorder, parseRecords, replay } from "../src/midstream.js";
import { scripted } from "./server-process.js";
import { withAndWithoutWorker } from "./with-and-without-worker.js";

/** @param {string} city */
const spelt = (city) => `<tool_call>\n{"name": "weather", "arguments": {"city": "${city}"}}\n</tool_call>`;

/** @param {...string} turns */
const saying = (...turns) => `Say ⟦${turns.join("⏭")}⟧`;

let runs = 0;
const weather = {
  name: "weather",
  parameters: { type: "object", properties: { city: { type: "string" } } },
  run: (/** @type {{city: string}} */ { city }) => {
    runs++;
    if (city === "Bonn") throw new Error("no such place");
    return { city, degrees: 20 };
  },
};

withAndWithoutWorker("runs that are recorded", [scripted], (fixture) => {
  /** @param {string} text @param {string[]} kinds that it has among others */
  async function replayed(text, kinds) {
    const before = runs;
    const [record] = parseRecords(text);
    const has = new Set(record.lines.map(({ type }) => type));
    for (const kind of kinds) assert.ok(has.has(/** @type {any} */ (kind)), `no ${kind} among ${[...has]}`);
    const outcome = await replay(fixture.client, record);
    assert.deepEqual([outcome.equal, outcome.difference, runs], [true, null, before]);
    return record;
  }

  test("what tools returned is told again, where it was", async () => {
    const recorder = new Recorder();
    const asked = saying(`So.${spelt("Rome")}${spelt("Bonn")}`, spelt("Oslo"), "Mild.");
    const run = await fixture.client.run(new Agent({ tools: [weather], approvals: true, approve: () => true }), asked, { recorder });
    assert.equal(await run.answer(), "Mild.");
    const record = await replayed(recorder.text, ["waits", "tool_result"]);
    const results = record.lines.flatMap((line) => (line.type === "tool_result" ? [[line.call, line.error]] : []));
    assert.deepEqual(results, [[0, undefined], [1, "no such place"], [2, undefined]]);
  });

  test("where the model ends its turn and waits, and the record goes on, they differ there", async () => {
    const recorder = new Recorder();
    const run = await fixture.client.run(new Agent({ tools: [weather] }), saying(spelt("Rome"), "It is mild."), { recorder });
    assert.equal(await run.answer(), "It is mild.");
    const untold = recorder.text.split("\n").filter((line) => !/"type":"(waits|tool_result)"/.test(line));
    const [record] = parseRecords(untold.join("\n"));
    const { equal, difference } = await replay(fixture.client, record);
    assert.deepEqual([equal, difference?.index, difference?.replayed], [false, run.outcomes[0].index, null]);
  });

  test("where a guard pauses it before the model ends its turn, as the record does not, they differ there", async () => {
    const recorder = new Recorder();
    const run = await fixture.client.run(new Agent({ tools: [weather] }), saying(`So.${spelt("Rome")}`, "It is mild."), { recorder });
    assert.equal(await run.answer(), "It is mild.");
    const [record] = parseRecords(recorder.text);
    const guards = [{ name: "g", do: "pause", regex: "So" }];
    const guarded = /** @type {any} */ ({ ...record, start: { ...record.start, params: { ...record.start.params, guards } } });
    const { equal, difference } = await replay(fixture.client, guarded);
    assert.deepEqual([equal, difference?.replayed], [false, null]);
  });

  test("a fork is recorded as its stream up to there, and then as it went on", async () => {
    const recorder = new Recorder();
    const asked = saying(spelt("Rome"), spelt("Oslo"), "It is mild.");
    const run = await fixture.client.run(new Agent({ tools: [weather], temperature: 1, seed: 3 }), asked, { recorder });
    await run.answer();
    for (const at of [4, Number(run.outcomes[0].index), run.stream.index - 3]) {
      const forked = recorder.fork(at);
      const fork = await run.fork({ at, recorder: forked, temperature: 0.5 });
      await fork.answer();
      assert.equal(fork.stream.text, "It is mild.");
      const record = await replayed(forked.text, ["forked", "tool_result"]);
      const tokens = record.lines.flatMap((line) => (line.type === "tokens" ? line.tokens : []));
      assert.equal(tokens.length, fork.stream.index, "nothing that was forked away from is in it");
    }
  });

  test("a call that was changed is changed again", async () => {
    const recorder = new Recorder();
    const asked = saying(spelt("Rome"), "}\n</tool_call>", "Mild.");
    /** @type {Agent} */
    const agent = new Agent({
      tools: [weather], approvals: ["weather"], approve: ({ arguments: given }) => given.includes("Oslo") || { city: "Oslo" },
    });
    const run = await fixture.client.run(agent, asked, { recorder });
    assert.equal(await run.answer(), "Mild.");
    assert.deepEqual(run.outcomes.map(({ content }) => JSON.parse(content ?? "").city), ["Oslo"]);
    await replayed(recorder.text, ["rewind", "amend", "tool_result"]);
  });
});
