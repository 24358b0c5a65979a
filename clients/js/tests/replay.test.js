/**
 * Records and their replay, against the real server: what was steered is played at the same tokens and compared, and
 * the Python client's command reads the same file.
 * @module
 */

import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import { mkdtempSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "node:test";

import { Recorder, parseRecords, replay } from "../src/midstream.js";
import { rewound, snapshot, started, token } from "./sample-events.js";
import { PYTHON, ROOT } from "./server-process.js";
import { withAndWithoutWorker } from "./with-and-without-worker.js";

const WARM = { prompt: "Once upon a time", seed: 11, temperature: 1, max_tokens: 60, ignore_eos: true };
const GUARDS = /** @type {Omit<import("../src/protocol.js").Guard, "name">[]} */ ([
  { do: "rewind", regex: "e", times: 16, then: "pause" },
  { do: "rewind", regex: "a.{2,6}", times: 6 },
  { do: "pause", regex: "[aeiou] [a-z]+ " },
  { do: "finish", regex: "he" },
]);
const SHORT = { guards: [{ ...GUARDS[1], name: "g" }], stop: ["e "], temperature: 0, ignore_eos: false, max_tokens: 29 };

withAndWithoutWorker("replay", [], (fixture) => {
  /** A stream that is steered in every way. @param {object} [options] @returns {Promise<string>} */
  const steered = async (options) => {
    const recorder = new Recorder();
    const stream = await fixture.client.start({ ...WARM, window: 8, ...options, recorder });
    const readTo = async (/** @type {number} */ end) => {
      while (stream.consumed < end && (await stream.next()));
    };
    await readTo(10);
    await stream.adjust({ temperature: 1.5 });
    await readTo(20);
    await stream.pause({ kv: "release" });
    await stream.inject({ text: " But", at: 18 });
    await stream.resume();
    await readTo(30);
    await stream.rewind(12);
    await stream.inject({ messages: [{ role: "user", content: "Why?" }] });
    await readTo(25);
    await stream.adjust({ at: 22, seed: 5 });
    for await (const _ of stream);
    return recorder.text;
  };

  test("a stream may end before where a guard had found what it took back", async () => {
    const recorder = new Recorder();
    for await (const _ of await fixture.client.start({ ...WARM, ...SHORT, recorder }));
    const [record] = parseRecords(recorder.text);
    assert.deepEqual(record.lines.slice(-3).map(({ type }) => type), ["guard", "tokens", "final"]);
    assert.equal((await replay(fixture.client, record)).difference, null);
  });

  test("what was steered is replayed equally", async () => {
    for (const window of [1, 16]) {
      const [record] = parseRecords(await steered({ window }));
      const outcome = await replay(fixture.client, record);
      assert.deepEqual([outcome.equal, outcome.difference, outcome.sameFingerprint], [true, null, true]);
      const tokens = record.lines.flatMap((line) => (line.type === "tokens" ? line.tokens : []));
      assert.equal(outcome.tokens, tokens.length);
      const kinds = new Set(record.lines.map(({ type }) => type));
      assert.deepEqual([...kinds].sort(), ["adjust", "final", "inject", "pause", "resume", "rewind", "tokens"]);
    }
  });

  /**
   * @param {any} options `pausedAt`: where a client pauses it, too, when a guard has
   * @returns {Promise<import("../src/record-format.js").StreamRecord>}
   */
  const guarded = async ({ pausedAt, ...options }) => {
    const recorder = new Recorder();
    const stream = await fixture.client.start({ prompt: "Once upon a time", seed: 5, max_tokens: 40, ...options, recorder });
    while (!stream.final) {
      const news = stream.news();
      if (stream.tryNext()) continue;
      if (stream.pauseReason === "guard" && stream.index === pausedAt) {
        await stream.pause();
        await stream.rewind(pausedAt);
        pausedAt = undefined;
      }
      if (stream.state === "paused") await stream.resume();
      if (!stream.final) await news; // it may come behind the answer
    }
    return parseRecords(recorder.text)[0];
  };

  test("a pause of a guard that nobody heard of in time is one, and what comes right at the end may come too late", async () => {
    const guards = [{ name: "g", do: "pause", budget: { tokens: 6 } }];
    const { start, lines } = await guarded({ guards, max_tokens: 12, ignore_eos: true });
    const resume = (/** @type {number} */ index) => /** @type {const} */ ({ type: "resume", stream: 1, index });
    const at = lines.findIndex(({ type }) => type === "guard");
    lines.splice(at + 1, 0, resume(6), lines[at]);
    lines.splice(-1, 0, resume(12));
    const { difference, tokens } = await replay(fixture.client, { start, lines });
    assert.deepEqual([difference, tokens], [null, 12]);
  });

  test("whoever pauses behind a guard, and goes on, has let nothing through", async () => {
    const guards = [{ name: "g", do: "pause", budget: { tokens: 6 } }];
    const record = await guarded({ guards, max_tokens: 12, ignore_eos: true, pausedAt: 6 });
    assert.equal(record.lines.filter(({ type }) => type === "guard").length, 2);
    const { difference, tokens } = await replay(fixture.client, record);
    assert.deepEqual([difference, tokens], [null, 12]);
  });

  test("what a guard takes back that has looked ahead was never told", async () => {
    const { start, lines } = await guarded({ guards: [{ name: "g", do: "rewind", regex: "e[a-z ]{12}" }], window: 1 });
    const [, before, at] = lines.flatMap(({ type }, at) => (type === "guard" ? [at] : []));
    const guard = lines[at];
    const stood = lines.slice(before + 1, at).filter((line) => "index" in line && "index" in guard && line.index < guard.index);
    assert.ok(stood.length && before + 1 + stood.length < at, "the others it took back");
    lines.splice(before + 1, at - before, guard, ...stood);
    assert.equal((await replay(fixture.client, { start, lines })).difference, null);
  });

  for (const [guard, credit] of GUARDS.flatMap((guard) => [[guard], [guard, { limit: 4, prefetch: 8 }]])) {
    test(`what guards did they do again: ${JSON.stringify([guard, credit])}`, async () => {
      const record = await guarded({ guards: [{ name: "g", ...guard }], credit });
      assert.ok(record.lines.some(({ type }) => type === "guard"));
      assert.ok(!record.lines.some(({ type }) => type === "rewind" || type === "lost"));
      assert.equal((await replay(fixture.client, record)).difference, null);
    });
  }

  const AGAIN = [
    { grammar: { regex: "[a-m ]{20}[n-z ]*" } },
    { guards: [{ name: "g", do: "finish", regex: "[^~]{30}" }] },
    { grammar: { force: true, regex: "[a-m ]{20}[n-z ]*" } }, // as no server says it
    { guards: [{ do: "finish", regex: "[^~]{30}", times: 3, name: "g" }] },
  ];
  for (const again of AGAIN) {
    test(`what was put in again behind a fork begins with that: ${JSON.stringify(again)}`, async () => {
      const recorder = new Recorder();
      const stream = await fixture.client.start({ ...WARM, window: 1, max_tokens: 18, recorder });
      const [none] = Object.keys(again).map((name) => ({ [name]: null }));
      for (const [index, change] of /** @type {[number, any][]} */ ([[6, again], [10, none], [16, again]])) {
        while (stream.consumed < index) await stream.next();
        await stream.adjust(change);
      }
      const forked = recorder.fork(9);
      const fork = await fixture.client.fork(stream, { at: 9, max_tokens: 40, recorder: forked });
      for await (const _ of fork);
      assert.equal((await replay(fixture.client, parseRecords(forked.text)[0])).difference, null);
    });
  }

  const ENDS = /** @type {[string, object][]} */ ([
    ["length", { max_tokens: 10 }],
    ["e", { stop: ["e"] }],
    ["eos", { ignore_eos: false, logit_bias: { 463: 100 } }], // the toy's end token
    ["guard", { guards: [{ name: "g", do: "finish", regex: "e" }] }],
  ]);
  for (const [end, options] of ENDS) {
    test(`a fork may go on where its stream had ended: ${end}`, async () => {
      const recorder = new Recorder();
      const stream = await fixture.client.start({ ...WARM, window: 1, ...options, recorder });
      for await (const _ of stream);
      assert.ok([stream.final?.finish_reason, stream.final?.stop_reason].includes(end));
      const forked = recorder.fork(stream.index);
      const fork = await fixture.client.fork(stream, { max_tokens: stream.index + 9, recorder: forked });
      for await (const _ of fork);
      const twice = forked.fork(fork.index);
      const again = await fixture.client.fork(fork, { max_tokens: fork.index + 9, guards: [], seed: 11, recorder: twice });
      for await (const _ of again);
      for (const [record, { index }] of /** @type {const} */ ([[recorder, stream], [forked, fork], [twice, again]])) {
        const { difference, tokens } = await replay(fixture.client, parseRecords(record.text)[0]);
        assert.deepEqual([difference, tokens], [null, index]);
      }
    });
  }

  test("the first token that differs is told with both log probabilities", async () => {
    const [record] = parseRecords(await steered());
    const at = record.lines.findIndex((line) => line.type === "tokens" && line.index === 15);
    const line = record.lines[at];
    assert.ok(line.type === "tokens" && line.logprobs);
    const real = line.tokens[0];
    line.tokens[0] ^= 1;
    const { equal, difference } = await replay(fixture.client, record);
    assert.equal(equal, false);
    assert.deepEqual([difference?.index, difference?.replayed?.token], [15, real]);
    assert.equal(difference?.recorded?.logprob, line.logprobs[0]);
    assert.equal(difference?.replayed?.logprob?.toFixed(4), line.logprobs[0].toFixed(4));
  });

  test("a record by hand may leave parameters to the server, which are then as they were", async () => {
    const recorder = new Recorder();
    const params = { temperature: 1, seed: 11 };
    for await (const _ of await fixture.client.start({ ...params, prompt: "Once upon a time", max_tokens: 15, window: 1, recorder }));
    const [{ start, lines }] = parseRecords(recorder.text);
    const tokens = lines.filter(({ type }) => type === "tokens");
    const of = { stream: 1 };
    const steered = /** @type {import("../src/record-format.js").Line[]} */ ([
      ...tokens, { ...of, type: "rewind", index: 5 }, ...tokens.slice(5, 8),
      { ...of, type: "adjust", index: 8, params: { logit_bias: { 463: 100 } } }, // the toy's end token
      { ...of, type: "tokens", index: 8, text: "", tokens: [463] },
      { ...of, type: "final", index: 9, finish_reason: "stop", stop_reason: "eos" },
    ]);
    const { difference, tokens: compared } = await replay(fixture.client, { start: { ...start, params }, lines: steered });
    assert.deepEqual([difference, compared], [null, 15 + 4]);
  });

  test("an end that came sooner or later is a difference", async () => {
    const [record] = parseRecords(await steered());
    for (const max_tokens of [59, 61]) {
      const start = { ...record.start, params: { ...record.start.params, max_tokens } };
      const { difference } = await replay(fixture.client, { ...record, start });
      assert.equal(difference?.index, Math.min(max_tokens, 60));
      assert.equal(difference?.[max_tokens < 60 ? "replayed" : "recorded"], null);
    }
  });

  test("a fork that the Python client recorded is not played, and the others of its file are", async () => {
    const start = { ...START, prompt: undefined, fork: { request_id: "b", at: 3 } };
    const [fork, other] = parseRecords(`${JSON.stringify(start)}\n${await steered()}`);
    await assert.rejects(replay(fixture.client, fork), { message: /^it is a fork, which cannot be played/ });
    assert.equal((await replay(fixture.client, other)).equal, true);
  });

  test("the Python client replays the same file", async () => {
    const file = join(mkdtempSync(join(tmpdir(), "midstream-")), "record.jsonl");
    writeFileSync(file, await steered());
    const command = ["-m", "midstream", "replay", "--url", fixture.url, file];
    const { stdout, stderr, status } = spawnSync(PYTHON, command, { cwd: ROOT, encoding: "utf8" });
    assert.deepEqual([stderr, status], ["", 0]);
    assert.match(stdout, /^stream 1: Once upon a time\n  equal: \d+ tokens\n  the fingerprints are equal, fp_/);
  });
});

const START = {
  type: "start", stream: 1, record: 1, request_id: "a", model: "toy", fingerprint: null, prompt: "a",
  prompt_tokens: 1, params: {},
};
const TOKENS = { type: "tokens", stream: 1, index: 0, text: "a", tokens: [97] };

test("a wrong file is told where and what", () => {
  /** @type {[any[], RegExp][]} */
  const wrong = [
    [[], /^there is no record in it/],
    [["{"], /^line 1: this is not JSON/],
    [[[]], /^line 1: a line has a `type`, one of start, tokens/],
    [[{ ...START, type: "toString" }], /^line 1: a line has a `type`/],
    [[{ ...START, record: 2 }], /^line 1: it is a record of version 2; this client reads 1/],
    [[{ ...START, prompt: undefined }], /^line 1: a start has one of `messages`, `prompt` and `fork`/],
    [[{ ...START, fork: { request_id: "b" } }], /^line 1: a start has one of/],
    [[{ ...START, params: { seed: 2 ** 60 } }], /^line 1: the seed is beyond/],
    [[{ ...START, params: [] }], /^line 1: `params` must be of kind object/],
    [[TOKENS], /^line 1: stream 1 has no `start` before it/],
    [[START, { ...TOKENS, index: 3 }], /^line 2: token 3 stands where token 0 is due/],
    [[START, { type: "rewind", stream: 1, index: 1 }], /^line 2: it rewinds to token 1, but 0 stand/],
    [[START, { type: "forked", stream: 1, index: 1, params: {} }], /^line 2: it is forked at token 1, but 0 stand/],
    [[START, { type: "pause", stream: 1, index: 0, release: true }], /^line 2: there is no field `release`/],
    [[START, { type: "inject", stream: 1, index: 0 }], /^line 2: an inject has one of/],
  ];
  for (const [lines, why] of wrong) {
    const text = lines.map((line) => (typeof line === "string" ? line : JSON.stringify(line))).join("\n");
    assert.throws(() => parseRecords(text), { name: "RecordError", message: why });
  }
});

test("what is null in a record is left out of it", () => {
  const nothing = { messages: null, fork: null, tools: null };
  const lines = [
    { ...START, ...nothing }, { ...TOKENS, logprobs: null },
    { type: "inject", stream: 1, index: 1, text: "b", messages: null },
    { type: "final", stream: 1, index: 1, finish_reason: "length", stop_reason: null },
  ];
  const [{ start, lines: told }] = parseRecords(lines.map((line) => JSON.stringify(line)).join("\n"));
  assert.deepEqual([start, told[0], told[2]], [START, TOKENS, { type: "final", stream: 1, index: 1, finish_reason: "length" }]);
});

test("the parameters of a record are those of sampling, and say nothing else of what is started", () => {
  const seed = { seed: 1 };
  const more = { ...seed, on_disconnect: "continue", request_id: "b", model: "other", at: 0, unheard_of: 1 };
  const lines = [
    { ...START, params: more },
    { type: "adjust", stream: 1, index: 0, params: more },
    { type: "forked", stream: 1, index: 0, params: more },
  ];
  const [{ start, lines: told }] = parseRecords(lines.map((line) => JSON.stringify(line)).join("\n"));
  assert.deepEqual([start, ...told].map((line) => /** @type {any} */ (line).params), [seed, seed, seed]);
});

test("a rewind leaves no more calls than there were, whatever a server says", () => {
  const recorder = new Recorder();
  recorder.begin({ type: "start", request_id: "r", prompt: "a", params: {} });
  recorder.receive(started());
  for (const tool_calls of [2 ** 32, 1e300, -1]) recorder.receive({ ...rewound(0, 0), seq: 1, tool_calls });
  assert.deepEqual(parseRecords(recorder.text)[0].lines.map(({ type }) => type), ["rewind", "rewind", "rewind"]);
});

test("behind what another connection put in nothing is recorded", () => {
  const recorder = new Recorder();
  recorder.begin({ type: "start", request_id: "r", prompt: "a", params: {} });
  const of = { request_id: "r" };
  recorder.receive({ ...of, type: "started", seq: 0, model: "toy", prompt_tokens: 1, params: {} });
  recorder.receive({ ...of, type: "token", seq: 1, index: 0, count: 1, delta: "a", tokens: [97] });
  recorder.receive({ ...of, type: "injected", seq: 2, index: 1, count: 1 });
  recorder.receive({ ...of, type: "token", seq: 3, index: 1, count: 1, delta: "b", tokens: [98] });
  const [{ lines }] = parseRecords(recorder.text);
  assert.deepEqual(lines.map(({ type }) => type), ["tokens", "lost"]);
});

test("a client's own rewind is one also where a guard is about to go back", () => {
  const recorder = new Recorder();
  recorder.begin({ type: "start", request_id: "r", prompt: "a", params: {} });
  recorder.receive(started());
  recorder.receive({ ...token(0, "a", { tokens: [97] }), seq: 1 });
  recorder.receive({ ...of, type: "guard", index: 0, name: "g", do: "rewind" });
  recorder.receive({ ...of, type: "rewound", index: 0, text_length: 0, ref: "1" });
  recorder.receive({ ...of, type: "rewound", index: 0, text_length: 0 });
  const [{ lines }] = parseRecords(recorder.text);
  assert.deepEqual(lines.map(({ type }) => type), ["tokens", "rewind", "guard"]);
});

for (const [act, acts] of /** @type {[string, any][]} */ ([
  ["rewind", { type: "rewound", index: 1, text_length: 1 }],
  ["pause", { type: "paused", index: 1, reason: "guard" }],
])) {
  test(`what changes where a guard is about to act is recorded behind its ${act}: what it acts upon was sampled without`, () => {
    const recorder = new Recorder();
    recorder.begin({ type: "start", request_id: "r", prompt: "a", params: {} });
    recorder.receive(started());
    recorder.receive({ ...token(0, "a", { tokens: [97] }), seq: 1 });
    recorder.receive(/** @type {any} */ ({ ...of, type: "guard", index: 1, name: "g", do: act }));
    recorder.receive({ ...of, type: "adjusted", index: 1, params: { top_k: 3 } });
    recorder.receive({ ...of, ...acts });
    const [{ lines }] = parseRecords(recorder.text);
    assert.deepEqual(lines.map(({ type }) => type), ["tokens", "guard", "adjust"]);
  });
}

test("a stream that had gone on when it was here again is recorded as far as it was told", () => {
  const recorder = new Recorder();
  recorder.begin({ type: "start", request_id: "r", prompt: "a", params: {} });
  recorder.receive(started());
  recorder.receive({ ...token(0, "a", { tokens: [97] }), seq: 1 });
  const begun = snapshot(1, { index: 3, text: "abc", tokens: [97, 98, 99] });
  recorder.receive({ request_id: "r", type: "restarted", seq: 1, index: 1, exact: true, begun, again: [] });
  recorder.receive({ ...token(3, "d", { tokens: [100] }), seq: 2 });
  const [{ lines }] = parseRecords(recorder.text);
  assert.deepEqual(lines.map(({ type }) => type), ["tokens", "lost"]);
});

/** @typedef {import("../src/protocol.js").StreamEvent} StreamEvent */
const of = { request_id: "r", seq: 0 };
/** @param {string} call_id @param {number} index @returns {StreamEvent[]} */
const called = (call_id, index) => [
  { ...of, type: "tool_call", index, call_id, name: "weather" },
  { ...of, type: "tool_call_done", index, call_id, end: index + 2 },
];
/** @type {(index: number, count: number, ref?: string) => any} */
const injected = (index, count, ref) => ({ ...of, type: "injected", index, count, ...(ref && { ref }) });
/** @param {number} index @returns {StreamEvent} */
const waits = (index) => ({ ...of, type: "paused", index, reason: "tool_call" });
/** @param {Recorder} recorder @param {StreamEvent[]} events */
const receive = (recorder, ...events) => events.forEach((event) => recorder.receive(event));
/** @param {Recorder} recorder @param {string} call_id @param {any} answer */
function tell(recorder, call_id, answer) {
  receive(recorder, answer);
  recorder.answered({ type: "tool_result", request_id: "r", call_id, content: "mild" }, answer);
}
/** @param {Recorder} recorder */
const kinds = (recorder) => parseRecords(recorder.text)[0].lines.flatMap(({ type }) => (type === "tokens" ? [] : [type]));

/** Two tokens, in which it has called. @param {...string} ids */
const calling = (...ids) => recorded(token(0, "", { count: 2, tokens: [97, 98] }), ...ids.flatMap((id) => called(id, 0)));

test("results are recorded where they go in, whenever they were told, and so is the wait for them", () => {
  const recorder = calling("x", "y");
  tell(recorder, "y", injected(2, 0, "1"));
  receive(recorder, waits(2));
  tell(recorder, "x", injected(2, 9, "2"));
  assert.deepEqual(kinds(recorder), ["waits", "tool_result", "tool_result"]);
  const early = calling("x");
  tell(early, "x", injected(2, 0, "1"));
  receive(early, waits(2), { ...of, type: "paused", index: 2, reason: "client" }, injected(2, 9));
  assert.deepEqual(kinds(early), ["waits", "pause", "tool_result"], "also where the client has paused it");
});

test("a result that waited is none of a call that is written anew: the server has forgotten it", () => {
  const recorder = calling("x", "y");
  tell(recorder, "y", injected(2, 0, "1"));
  receive(recorder, { ...of, type: "rewound", index: 1, text_length: 0, tool_calls: 2 });
  tell(recorder, "x", injected(1, 9, "2"));
  assert.deepEqual(kinds(recorder), ["rewind", "tool_result"]);
});

test("a result that waited is none once a message answers its call", () => {
  const recorder = calling("x", "y");
  tell(recorder, "x", injected(2, 0, "1"));
  const instead = { ...injected(2, 9, "2"), seq: 1 };
  receive(recorder, instead);
  recorder.answered({ type: "inject", request_id: "r", messages: [{ role: "tool", tool_call_id: "x", content: "hot" }] }, instead);
  tell(recorder, "y", injected(2, 9, "3"));
  assert.deepEqual(kinds(recorder), ["inject", "tool_result"]);
});

test("a result that is told again elsewhere is one", () => {
  const recorder = calling("x", "y");
  tell(recorder, "x", injected(2, 0, "1"));
  receive(recorder, { ...of, type: "restarted", index: 2, exact: true, begun: snapshot(1, { index: 2, text: "" }), again: ["1"] });
  receive(recorder, injected(2, 0, "1"));
  tell(recorder, "y", injected(2, 9, "2"));
  assert.deepEqual(kinds(recorder), ["tool_result", "tool_result"]);
});

test("an answer that a snapshot tells of leaves all lines as they are: another server counts events anew", () => {
  const recorder = recorded({ ...of, seq: 1, type: "paused", index: 0, reason: "client" });
  recorder.answered({ type: "inject", request_id: "r", text: " But" }, { ...injected(0, 1, "1"), seq: 1 });
  receive(recorder, snapshot(2, { index: 0, text: "", answered: [] }));
  assert.deepEqual(kinds(recorder), ["pause", "lost"]);
});

test("an amendment in which nothing differs is none", () => {
  const recorder = calling("x");
  const answer = injected(2, 0, "1");
  receive(recorder, answer);
  recorder.answered({ type: "amend", request_id: "r", call_id: "x", arguments: {} }, answer);
  assert.deepEqual(kinds(recorder), []);
});

/** @param {any[]} events of a stream of which two tokens stand */
function recorded(...events) {
  const recorder = new Recorder();
  recorder.begin(/** @type {any} */ ({ prompt: "a", params: {} }));
  receive(recorder, started(), ...events);
  return recorder;
}

test("a fork has what was put in right before it, behind a rewind to there", () => {
  const inject = injected(2, 1, "1");
  const recorder = recorded(token(0, "", { count: 3, tokens: [97, 98, 99] }), { ...of, type: "rewound", index: 2, text_length: 0 }, inject);
  recorder.answered({ type: "inject", request_id: "r", text: " But" }, inject);
  receive(recorder, token(2, "", { tokens: [100] }));
  assert.deepEqual(kinds(recorder.fork(2)), ["rewind", "inject"]);
});

test("whoever has a stream go on that waits for results is recorded", () => {
  const recorder = calling("x");
  receive(recorder, waits(2), /** @type {any} */ ({ ...of, type: "resumed", index: 2, recomputed_tokens: 0, ref: "1" }));
  assert.deepEqual(kinds(recorder), ["waits", "resume"]);
});

test("the result of a call that is gone goes with it", () => {
  const recorder = recorded(...["x", "y"].flatMap((id) => called(id, 0).map((event) => ({ ...event, end: 0 }))));
  tell(recorder, "y", injected(0, 0, "1"));
  receive(recorder, { ...of, type: "rewound", index: 0, text_length: 0, tool_calls: 1 });
  tell(recorder, "x", injected(0, 9, "2"));
  assert.deepEqual(kinds(recorder), ["rewind", "tool_result"]);
});

test("the record of a fork of a stream that was lost before is none", () => {
  const recorder = recorded(token(0, "", { count: 2, tokens: [97, 98] }), snapshot(1, { index: 5, text: "" }));
  const fork = recorder.fork(5);
  fork.begin(/** @type {any} */ ({ fork: {}, params: {} }));
  receive(fork, started(), snapshot(1, { index: 5, text: "" }), token(5, "", { tokens: [99] }));
  assert.deepEqual(kinds(fork).at(-1), "lost");
});

test("a fork whose stream is not recorded ends where it begins, which is told, and the others of its file are read", () => {
  const alone = new Recorder(2);
  alone.begin({ type: "start", request_id: "f", fork: { request_id: "r", at: 1 }, params: {} });
  receive(alone, started(), snapshot(1, { index: 1, text: "" }), token(1, "", { tokens: [99] }));
  const none = new Recorder(3).fork(0);
  none.begin({ type: "start", request_id: "f", fork: { request_id: "r", at: 0 }, params: {} });
  receive(none, started(), snapshot(1, { index: 0, text: "" }));
  const [fork, other, empty] = parseRecords(alone.text + calling("x").text + none.text);
  for (const { start, lines } of [fork, empty]) {
    assert.equal(start.fork?.request_id, "r");
    assert.deepEqual(lines.map((line) => "why" in line && line.why.split(",")[0]), ["the stream is a fork"]);
  }
  assert.deepEqual(other.lines.map(({ type }) => type), ["tokens"]);
});

test("a fork that another engine computes than its stream says so", () => {
  const fork = recorded(token(0, "", { count: 2, tokens: [97, 98] })).fork(2);
  fork.begin({ type: "start", request_id: "f", fork: { request_id: "r", at: 2 }, params: {} });
  receive(fork, { ...started(), fingerprint: "fp_2" }, snapshot(1, { index: 2, text: "" }));
  assert.deepEqual(kinds(fork), ["forked", "moved"]);
});

test("a fork has nothing that took effect behind it, ahead of what had been sent", () => {
  const paused = { ...of, type: "paused", index: 5, reason: "client" };
  const recorder = recorded(token(0, "", { count: 2, tokens: [97, 98] }), paused, token(2, "", { count: 3, tokens: [99, 100, 101] }));
  assert.deepEqual(kinds(recorder.fork(2)), []);
});

test("a fork says itself what becomes of its calls, and is lost with the second snapshot", () => {
  const fork = recorded(token(0, "", { count: 2, tokens: [97, 98] })).fork(2);
  fork.begin(/** @type {any} */ ({ fork: {}, params: {}, on_tool_call: "pause" }));
  receive(fork, started(), snapshot(1, { index: 2, text: "" }));
  const [{ start, lines }] = parseRecords(fork.text);
  const own = lines.at(-1);
  assert.deepEqual([start.on_tool_call, own?.type, own && "on_tool_call" in own && own.on_tool_call], [undefined, "forked", "pause"]);
  receive(fork, snapshot(9, { index: 2, text: "" }));
  assert.deepEqual(kinds(fork), ["forked", "lost"]);
});
