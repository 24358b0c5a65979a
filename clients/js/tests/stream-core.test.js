/**
 * The core of a stream, fed with events: no socket.
 * @module
 * @import { Credit, StreamEvent } from "../src/protocol.js"
 */

import assert from "node:assert/strict";
import { test } from "node:test";

import { ProtocolError } from "../src/errors.js";
import { explicitCredit } from "../src/options.js";
import { StreamCore } from "../src/stream-core.js";
import { final, rewound, snapshot, started, token } from "./sample-events.js";

/** Give the core events, each with the seq that is due. @param {StreamCore} core */
function feeding(core) {
  let seq = 0;
  return (/** @type {StreamEvent} */ event) => core.receive({ ...event, seq: seq++ });
}

/** @param {StreamCore} core */
function rest(core) {
  const chunks = [];
  for (let chunk; (chunk = core.take()); ) chunks.push(chunk);
  return chunks;
}

/** @param {number} index @param {number} count @param {string} text @param {number[] | null} tokens */
const chunk = (index, count, text, tokens = null) =>
  ({ index, count, text, tokens, logprobs: null, end: index + count });

test("tokens become chunks, text and ids", () => {
  const core = new StreamCore();
  const feed = feeding(core);
  const logprobs = [{ token: 7, logprob: -0.5 }];
  feed({ ...token(0, "Hel", { tokens: [7] }), logprobs });
  feed(token(1, "lo", { count: 2, tokens: [8, 9] }));
  assert.equal(core.consumed, 0);
  assert.deepEqual(rest(core), [{ ...chunk(0, 1, "Hel", [7]), logprobs }, chunk(1, 2, "lo", [8, 9])]);
  assert.deepEqual([core.text, core.tokens, core.index, core.consumed], ["Hello", [7, 8, 9], 3, 3]);
});

test("started, adjusted, paused, resumed, final", () => {
  const core = new StreamCore();
  const feed = feeding(core);
  feed(started({ temperature: 1, top_k: 3 }));
  assert.deepEqual([core.model, core.promptTokens, core.state], ["m", 5, "running"]);
  feed({ type: "adjusted", request_id: "r", seq: 0, index: 0, params: { temperature: 0.25 } });
  assert.deepEqual(core.params, { temperature: 0.25, top_k: 3 });
  feed({ type: "paused", request_id: "r", seq: 0, index: 0, reason: "memory" });
  assert.deepEqual([core.state, core.pauseReason], ["paused", "memory"]);
  feed({ type: "resumed", request_id: "r", seq: 0, index: 0, recomputed_tokens: 4 });
  assert.deepEqual([core.state, core.pauseReason], ["running", null]);
  feed({ type: "paused", request_id: "r", seq: 0, index: 0, reason: "client" });
  feed(final("cancelled"));
  assert.deepEqual([core.state, core.pauseReason], ["finished", null]);
  assert.equal(core.final?.finish_reason, "cancelled");
});

test("rewound takes back text, ids and chunks that wait", () => {
  const core = new StreamCore();
  const feed = feeding(core);
  [..."abcd"].forEach((delta, index) => feed(token(index, delta, { tokens: [index] })));
  core.take();
  feed(rewound(2, 2));
  assert.deepEqual([core.text, core.tokens, core.index, core.consumed], ["ab", [0, 1], 2, 1]);
  feed(token(2, "X", { tokens: [9] }));
  assert.deepEqual(rest(core), [chunk(1, 1, "b", [1]), chunk(2, 1, "X", [9])]);
  assert.deepEqual([core.text, core.tokens], ["abX", [0, 1, 9]]);
});

test("rewound behind the reader moves him back", () => {
  const core = new StreamCore();
  const feed = feeding(core);
  [..."abc"].forEach((delta, index) => feed(token(index, delta)));
  rest(core);
  feed(rewound(1, 1));
  feed(token(1, "Z"));
  assert.equal(core.consumed, 1);
  assert.deepEqual(rest(core), [chunk(1, 1, "Z")]);
  assert.equal(core.text, "aZ");
});

test("rewound cuts a chunk in two", () => {
  const core = new StreamCore();
  const feed = feeding(core);
  const logprobs = [0, 1, 2].map((id) => ({ token: id, logprob: -1 }));
  feed({ ...token(0, "one two three", { count: 3, tokens: [0, 1, 2] }), logprobs });
  feed(rewound(2, 7));
  assert.deepEqual(rest(core), [{ ...chunk(0, 2, "one two", [0, 1]), logprobs: logprobs.slice(0, 2) }]);
});

test("text that an earlier token held back outlives the token that released it", () => {
  const core = new StreamCore();
  const feed = feeding(core);
  feed(token(0, "a"));
  feed(token(1, "")); // " fo", which may yet become a stop string
  feed(token(2, " fox"));
  core.take();
  feed(rewound(2, 4));
  assert.deepEqual(rest(core), [chunk(1, 1, ""), chunk(2, 0, " fo")]);
  assert.deepEqual([core.text, core.index, core.consumed], ["a fo", 2, 2]);
});

test("the wire's text length counts code points, though JavaScript counts UTF-16 units", () => {
  const core = new StreamCore();
  const feed = feeding(core);
  feed(token(0, "👋🏽"));
  feed(token(1, "é"));
  feed(rewound(1, 2));
  assert.equal(core.text, "👋🏽");
  feed(token(1, "🙂x", { count: 2 }));
  feed(rewound(2, 3));
  assert.deepEqual(rest(core), [chunk(0, 1, "👋🏽"), chunk(1, 1, "🙂")]);
});

test("text is that of the tokens that stand, whatever was rewound and taken", () => {
  const random = sequence(20260101);
  const letters = ["", "a", "é", "🙂", "👋🏽", "word "];
  for (let round = 0; round < 200; round++) {
    const core = new StreamCore();
    const feed = feeding(core);
    /** @type {string[]} */ const truth = [];
    /** @type {string[]} What a reader has, who heeds each chunk's index. */ const read = [];
    const take = () => {
      const next = core.take();
      if (next) read.splice(next.index, Infinity, next.text);
    };
    for (let move = 0; move < 40; move++) {
      const kind = random(5);
      if (kind < 2) {
        const delta = letters[random(letters.length)];
        feed(token(truth.length, delta));
        truth.push(delta);
      } else if (kind === 2) {
        truth.splice(random(truth.length + 1));
        feed(rewound(truth.length, [...truth.join("")].length));
      } else {
        take();
      }
      assert.equal(core.text, truth.join(""));
      assert.equal(core.index, truth.length);
    }
    while (core.consumed < core.index) take();
    assert.equal(read.slice(0, truth.length).join(""), core.text);
  }
});

test("a replayed event is passed over", () => {
  const core = new StreamCore();
  const news = [0, 1, 0, 1, 2].map((at) => core.receive({ ...token(at, "x"), seq: at }));
  assert.deepEqual(news, [true, true, false, false, true]);
  assert.equal(core.text, "xxx");
});

test("what was told behind the output that a snapshot has stands no more: a rewind went before it, which nobody has heard", () => {
  const core = new StreamCore();
  core.receive(started());
  core.receive({ ...token(0, "ab", { count: 2 }), seq: 1 });
  const put = /** @type {any} */ ({ type: "injected", request_id: "r", seq: 2, index: 2, count: 4 });
  core.told.answered({ type: "inject", request_id: "r", messages: [{ role: "user", content: "And?" }] }, put, 2);
  core.receive(snapshot(4, { index: 1, text: "a" }));
  assert.deepEqual(core.told.turns, []);
});

test("an end that is told once more is passed over", () => {
  const core = new StreamCore();
  const end = /** @type {any} */ ({ type: "final", request_id: "r", seq: 0, index: 0, finish_reason: "stop" });
  assert.deepEqual([core.receive(end), core.receive(end)], [true, false]);
});

test("an event of a kind that is not known yet is passed over, and is none that is missing", () => {
  const core = new StreamCore();
  const feed = feeding(core);
  feed(/** @type {any} */ ({ type: "applauded", request_id: "r", index: 0 }));
  feed(token(0, "a"));
  assert.equal(core.text, "a");
});

for (const [what, event] of /** @type {[string, StreamEvent][]} */ ([
  ["a seq missing", { ...token(1, "b"), seq: 2 }],
  ["a token missing", { ...token(2, "b"), seq: 1 }],
  ["no seq", { ...token(1, "b"), seq: undefined }],
  ["an index not reached", { ...rewound(2, 0), seq: 1 }],
  ["text not reached", { ...rewound(0, 2), seq: 1 }],
  ["less than no token", { ...token(1, "b", { count: -1 }), seq: 1 }],
  ["more than there can be", { ...token(1, "b", { count: 2 ** 31 - 1 }), seq: 1 }],
  ["a token untold", { ...token(1, "b", { count: 2, tokens: [1] }), seq: 1 }],
  ["a probability untold", { ...token(1, "b"), logprobs: [], seq: 1 }],
  ["before the first", { ...rewound(-1, 0), seq: 1 }],
  ["before the text", { ...rewound(1, -1), seq: 1 }],
  ["all of it before the first", snapshot(2, { index: -1, text: "b" })],
  ["all of it behind the last", snapshot(2, { index: 2 ** 31, text: "b" })],
  ["a token of all untold", snapshot(2, { index: 2, text: "b", tokens: [1] })],
  ["an end before what has come", { ...final("stop"), seq: 0 }],
])) {
  test(`an event that cannot come here changes nothing: ${what}`, () => {
    const core = new StreamCore();
    core.receive({ ...token(0, "a"), seq: 0 });
    assert.throws(() => core.receive(event), ProtocolError);
    core.receive({ ...token(1, "b"), seq: 1 });
    assert.deepEqual([core.text, core.index], ["ab", 2]);
  });
}

test("a snapshot gives only what was not taken", () => {
  const core = new StreamCore();
  core.receive({ ...token(0, "a", { tokens: [0] }), seq: 0 });
  core.take();
  core.receive({ ...token(1, "b", { tokens: [1] }), seq: 1 });
  core.receive(snapshot(40, { index: 4, text: "abcd", tokens: [0, 1, 2, 3] }));
  assert.deepEqual(rest(core), [chunk(1, 3, "bcd", [1, 2, 3])]);
  core.receive({ ...token(4, "e", { tokens: [4] }), seq: 41 });
  assert.deepEqual([core.text, core.tokens], ["abcde", [0, 1, 2, 3, 4]]);
});

test("a snapshot tells the model, the prompt, the parameters in force and the pause", () => {
  const core = new StreamCore();
  core.receive(snapshot(9, { index: 0, text: "", params: { temperature: 0.5 }, paused: "detached" }));
  assert.deepEqual([core.model, core.promptTokens, core.params], ["m", 5, { temperature: 0.5 }]);
  assert.deepEqual([core.state, core.pauseReason, core.seq], ["paused", "detached", 9]);
  core.receive(snapshot(10, { index: 0, text: "" }));
  assert.equal(core.state, "running");
});

test("a stream is gone on with from its middle, where what stood is known", () => {
  const core = new StreamCore();
  core.startAt(6, { text: "a🙂c", index: 3, tokens: [0, 1, 2] });
  core.receive({ ...token(3, "d", { tokens: [3] }), seq: 7 });
  assert.deepEqual(rest(core), [chunk(3, 1, "d", [3])]);
  core.receive({ ...rewound(2, 2), seq: 8 });
  assert.deepEqual([core.text, core.tokens, core.consumed], ["a🙂", [0, 1], 2]);
});

test("a snapshot gives anew what was taken, and rewound", () => {
  const core = new StreamCore();
  const feed = feeding(core);
  feed(token(0, "a"));
  feed(token(1, "b"));
  rest(core);
  feed(rewound(1, 1));
  core.receive(snapshot(9, { index: 3, text: "aXY" }));
  assert.deepEqual(rest(core), [chunk(1, 2, "XY")]);
});

for (const [index, text] of /** @type {[number, string][]} */ ([[3, "aXY"], [1, "a"]])) {
  test(`a snapshot of another course begins anew: ${text}`, () => {
    const core = new StreamCore();
    const feed = feeding(core);
    feed(token(0, "a"));
    feed(token(1, "b"));
    rest(core);
    core.receive(snapshot(9, { index, text }));
    assert.deepEqual(rest(core), [chunk(0, index, text)]);
  });
}

// -- credit -----------------------------------------------------------------------------------------------

/** @param {number} window @param {number} interval @param {Credit} [credit] */
const credited = (window, interval = 1, credit) =>
  new StreamCore(window, interval, explicitCredit(credit, window, interval));

test("pure pull grants one token for each one asked for", () => {
  const core = credited(1);
  const feed = feeding(core);
  for (let index = 0; index < 3; index++) {
    assert.equal(core.extendCredit(), index + 1);
    assert.equal(core.extendCredit(), null, "asking again for the same chunk");
    feed(token(index, "x"));
    core.take();
  }
});

test("a wide window is refilled by halves", () => {
  const core = credited(8);
  const feed = feeding(core);
  const grants = [];
  for (let index = 0; index < 12; index++) {
    grants.push(core.extendCredit());
    feed(token(index, "x"));
    core.take();
  }
  assert.deepEqual(grants, [null, null, null, null, 12, null, null, null, 16, null, null, null]);
});

test("whoever waits is granted a whole chunk, and never more than the window", () => {
  for (const window of [1, 2, 3, 7, 8, 40]) {
    for (const interval of [1, 2, 5, 8, 40]) {
      const core = credited(window, interval);
      const feed = feeding(core);
      let granted = explicitCredit(undefined, window, interval).limit;
      for (let index = 0; index < 10 * interval; index += interval) {
        granted = core.extendCredit() ?? granted;
        const ahead = granted - core.consumed;
        assert.ok(interval <= ahead && ahead <= Math.max(window, interval), `${ahead} of ${window}`);
        feed(token(index, "x", { count: interval }));
        core.take();
      }
    }
  }
});

test("old grants stand after a rewind", () => {
  const core = credited(2);
  const feed = feeding(core);
  feed(token(0, "x"));
  feed(token(1, "x"));
  rest(core);
  assert.equal(core.extendCredit(), 4);
  feed(rewound(0, 0));
  assert.equal(core.extendCredit(), null);
  for (let index = 0; index < 3; index++) feed(token(index, "y"));
  rest(core);
  assert.equal(core.extendCredit(), 5);
});

test("nothing is granted after the end, nor where credit is the server's, nor past the last index", () => {
  const ended = credited(1);
  feeding(ended)(final("stop"));
  assert.equal(ended.extendCredit(), null);
  assert.equal(new StreamCore(null).extendCredit(), null);
  assert.equal(new StreamCore(2 ** 31, 1, { limit: 0 }).extendCredit(), 2 ** 31 - 1);
});

/** Numbers that look random, and are the same each time. @param {number} seed */
function sequence(seed) {
  let state = seed;
  return (/** @type {number} */ below) => {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    return Math.floor((state / 2 ** 32) * below);
  };
}

test("a call that stands is the same object, whatever tells of it", () => {
  const core = new StreamCore();
  const call = { call_id: "x", name: "f", arguments: "{}", index: 0, end: 2 };
  core.receive(snapshot(3, { index: 2, text: "", tool_calls: [{ ...call, approval: true }] }));
  const [before] = core.spans.calls;
  const more = { ...call, call_id: "y", index: 2, end: 4 };
  core.receive(snapshot(5, { index: 4, text: "", tool_calls: [{ ...call }, more] }));
  assert.equal(core.spans.calls[0], before, "somebody has said yes to it");
  assert.deepEqual(before, call);
  assert.deepEqual(core.spans.calls[1], more);
});

test("reasoning and calls stand beside the text, and are rewound with it", () => {
  const core = new StreamCore();
  const of = { request_id: "r" };
  const call = { ...of, call_id: "x" };
  [
    started(),
    token(0, "", { count: 5 }),
    { ...of, type: "reasoning", index: 0, count: 2, delta: "Hm 🙂" },
    { ...call, type: "tool_call", index: 2, name: "f" },
    { ...call, type: "tool_arguments", index: 3, count: 1, delta: '{"a": ' },
    { ...call, type: "tool_arguments", index: 4, count: 1, delta: "1}" },
    { ...call, type: "tool_call_done", index: 2, end: 5 },
  ].forEach((event, seq) => core.receive(/** @type {any} */ ({ ...event, seq })));
  assert.equal(core.spans.reasoning, "Hm 🙂");
  assert.deepEqual(core.spans.calls, [{ call_id: "x", name: "f", arguments: '{"a": 1}', index: 2, end: 5 }]);
  core.receive({ ...rewound(4, 0), seq: 7, reasoning_length: 4, tool_calls: 1, arguments_length: 6 });
  assert.equal(core.spans.reasoning, "Hm 🙂");
  assert.deepEqual(core.spans.calls, [{ call_id: "x", name: "f", arguments: '{"a": ', index: 2 }]);
  core.receive({ ...rewound(1, 0), seq: 8, reasoning_length: 2 });
  assert.deepEqual([core.spans.reasoning, core.spans.calls], ["Hm", []]);
  core.receive(snapshot(12, { index: 1, text: "", reasoning: "So", tool_calls: [] }));
  assert.equal(core.spans.reasoning, "So");
});

const of = { request_id: "r", seq: 0 };
/** @type {any[]} */ const SAID = [
  token(0, "", { count: 2 }),
  { ...of, type: "reasoning", index: 0, count: 2, delta: "Hm" },
  token(2, "", { count: 4 }),
  { ...of, type: "reasoning", index: 2, count: 4, delta: " 🙂" },
  { ...of, type: "tool_call", index: 3, call_id: "x", name: "f" },
  { ...of, type: "tool_arguments", index: 2, count: 4, call_id: "x", delta: '{"a": 1}' },
  { ...of, type: "tool_call_done", index: 3, end: 6, call_id: "x" },
];
const CALL = { call_id: "x", name: "f", arguments: '{"a": 1}', index: 3, end: 6 };
/** @param {any[]} events of a stream that has started @returns {StreamCore} whose server knows it no more */
function lost(events) {
  const core = new StreamCore();
  const feed = feeding(core);
  for (const event of [started(), ...events]) feed(event);
  core.restart();
  assert.ok(core.goesOnWith(started()));
  return core;
}

test("what was lost beside the last tokens comes as it would have, wherever between the events of a step", () => {
  const begun = snapshot(1, { index: 6, text: "", reasoning: "Hm 🙂", tool_calls: [CALL] });
  for (let came = 3; came <= SAID.length; came++) {
    const core = lost(SAID.slice(0, came));
    assert.ok(core.goesOnWith(begun));
    const missing = core.missing(begun);
    assert.deepEqual(missing.map((event) => ({ ...event, seq: 0 })), SAID.slice(came));
    for (const event of [core.restarted(begun, []), ...missing]) assert.ok(core.receive(event));
    assert.deepEqual([core.seq, core.spans.reasoning, core.spans.calls], [1, "Hm 🙂", [CALL]]);
    assert.ok(core.receive({ ...token(6, "So"), seq: 2 }));
  }
});

test("a stream that says something else is another", () => {
  for (const [reasoning, ...tool_calls] of /** @type {any[]} */ ([
    ["Hm"],
    ["Oh 🙂 no", CALL],
    ["Hm 🙂"],
    ["Hm 🙂", { ...CALL, call_id: "y" }],
    ["Hm 🙂", { ...CALL, arguments: '{"a": 12}' }],
    ["Hm 🙂", { ...CALL, end: undefined }],
  ])) {
    assert.ok(!lost(SAID).goesOnWith(snapshot(1, { index: 6, text: "", reasoning, tool_calls })));
  }
});
