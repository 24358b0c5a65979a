/**
 * The past that a client keeps of its stream: where what stands cannot be said exactly, nothing is said.
 * @module
 */

import assert from "node:assert/strict";
import { test } from "node:test";

import { Past } from "../src/past.js";
import { Spans } from "../src/spans.js";
import { started } from "./sample-events.js";

test("a call that was put in and cut by an amendment that puts nothing in is not said again", () => {
  for (const [index, exactly] of /** @type {[number, boolean][]} */ ([[2, false], [3, true]])) {
    const past = new Past(/** @type {any} */ ({ type: "start", request_id: "a", on_disconnect: "continue", params: {} }));
    const core = (/** @type {number} */ length) => /** @type {any} */ ({ tokens: [7, 8, 9].slice(0, length), index: length, text: "", spans: new Spans() });
    past.receive(started({ seed: 1 }), []);
    past.sent("1", { type: "inject", request_id: "a", text: "<tool_call>" });
    past.receive(/** @type {any} */ ({ type: "injected", request_id: "a", seq: 1, index: 2, count: 6, ref: "1" }), []);
    assert.equal(past.start(core(3))?.past?.steering?.length, 1);
    past.sent("2", { type: "amend", request_id: "a", call_id: "c", arguments: "{", partial: true });
    past.receive(/** @type {any} */ ({ type: "rewound", request_id: "a", seq: 2, index, text_length: 0 }), []);
    past.receive(/** @type {any} */ ({ type: "injected", request_id: "a", seq: 3, index, count: 0, ref: "2" }), []);
    assert.equal(past.start(core(index)) !== null, exactly);
  }
});

test("what took effect behind tokens that were decoded ahead of credit is not said until they have come", () => {
  const past = new Past(/** @type {any} */ ({ type: "start", request_id: "a", on_disconnect: "continue", params: {} }));
  const core = (/** @type {number} */ index) => /** @type {any} */ ({ tokens: [7, 8, 9].slice(0, index), index, text: "", spans: new Spans() });
  past.receive(started({ seed: 1 }), []);
  past.receive(/** @type {any} */ ({ type: "adjusted", request_id: "a", seq: 1, index: 3, params: { seed: 2 } }), []);
  assert.equal(past.start(core(2)), null);
  assert.equal(past.start(core(3))?.past?.steering?.length, 1);
});

test("more than a server takes is not said", () => {
  const past = new Past(/** @type {any} */ ({ type: "start", request_id: "a", on_disconnect: "continue", params: {} }));
  const tokens = [...Array(4096).keys()];
  const core = /** @type {any} */ ({ tokens, index: tokens.length, text: "", spans: new Spans() });
  past.receive(started({ seed: 1 }), []);
  const adjust = (/** @type {number} */ index) => past.receive(/** @type {any} */ ({ type: "adjusted", request_id: "a", seq: index, index, params: { seed: index } }), []);
  tokens.forEach(adjust);
  assert.equal(past.start(core)?.past?.steering?.length, 4096);
  adjust(4096);
  assert.equal(past.start(core), null);
});

test("a result that waited for others is not of the call that is written anew", () => {
  const past = new Past(/** @type {any} */ ({ type: "start", request_id: "a", on_disconnect: "continue", params: {} }));
  const calls = (/** @type {number | undefined} */ end) => /** @type {any[]} */ ([{ call_id: "c", name: "find", arguments: "{}", index: 1, end }]);
  const rewound = (/** @type {number} */ index) => /** @type {any} */ ({ type: "rewound", request_id: "a", seq: 2, index, text_length: 0 });
  past.receive(started({ seed: 1 }), []);
  past.sent("1", { type: "tool_result", request_id: "a", call_id: "c", content: "old" });
  past.receive(/** @type {any} */ ({ type: "injected", request_id: "a", seq: 1, index: 3, count: 0, ref: "1" }), calls(3));
  past.receive(rewound(3), calls(3));
  assert.equal(past.waiting.length, 1);
  past.receive(rewound(2), calls(undefined));
  assert.equal(past.waiting.length, 0);
});

test("a result that waited for others is none once a message answers its call", () => {
  const past = new Past(/** @type {any} */ ({ type: "start", request_id: "a", on_disconnect: "continue", params: {} }));
  const calls = /** @type {any[]} */ ([..."cd"].map((call_id) => ({ call_id, name: "find", arguments: "{}", index: 1, end: 3 })));
  const result = (/** @type {string} */ call_id, /** @type {string} */ content) => /** @type {any} */ ({ type: "tool_result", request_id: "a", call_id, content });
  const injected = (/** @type {string} */ ref, /** @type {number} */ count) => /** @type {any} */ ({ type: "injected", request_id: "a", seq: 1, index: 3, count, ref });
  past.receive(started({ seed: 1 }), []);
  past.sent("1", result("c", "old"));
  past.receive(injected("1", 0), calls);
  past.sent("2", { type: "inject", request_id: "a", messages: [{ role: "tool", tool_call_id: "c", content: "instead" }] });
  past.receive(injected("2", 9), calls);
  assert.equal(past.waiting.length, 0);
  past.sent("3", result("d", "new"));
  past.receive(injected("3", 9), calls);
  const last = /** @type {any} */ (past.start(/** @type {any} */ ({ tokens: [7, 8, 9], index: 3, text: "", spans: new Spans() }))?.past?.steering?.at(-1));
  assert.deepEqual(last.messages.map((/** @type {any} */ { content }) => content), ["new"]);
});

test("an error is said again to the letter as the server tells it to the model, or it would be another stream", () => {
  const past = new Past(/** @type {any} */ ({ type: "start", request_id: "a", on_disconnect: "continue", params: {} }));
  const call = /** @type {any} */ ({ call_id: "c", name: "find", arguments: "{}", index: 1, end: 3 });
  past.receive(started({ seed: 1 }), []);
  past.sent("1", { type: "tool_result", request_id: "a", call_id: "c", error: "n\u00e9 \u{1f600}\u007f\n\"/" });
  past.receive(/** @type {any} */ ({ type: "injected", request_id: "a", seq: 1, index: 3, count: 9, ref: "1" }), [call]);
  const put = /** @type {any} */ (past.start(/** @type {any} */ ({ tokens: [7, 8, 9], index: 3, text: "", spans: new Spans() }))?.past?.steering?.at(-1));
  assert.equal(put.messages[0].content, '{"error": "n\\u00e9 \\ud83d\\ude00\\u007f\\n\\"/"}');
});

test("its calls have the ids that they had where others were taken back, also those of which a snapshot tells alone", () => {
  const past = new Past(/** @type {any} */ ({ type: "start", request_id: "a", on_disconnect: "continue", params: {} }));
  const spans = new Spans();
  const of = { request_id: "a", seq: 0, name: "find" };
  past.receive(started({ seed: 1 }), []);
  for (const [index, call_id] of [...Array.from("cd").entries()]) spans.receive({ type: "tool_call", ...of, index, call_id });
  spans.rewind({ type: "rewound", ...of, index: 1, text_length: 0, tool_calls: 1 });
  const tool_calls = [...Array.from("ce").entries()].map(([index, call_id]) => ({ index, call_id, name: "find", arguments: "" }));
  spans.receiveSnapshot(/** @type {any} */ ({ tool_calls }));
  const { call_ids, told_calls } = past.start(/** @type {any} */ ({ tokens: [7], index: 1, text: "", spans }))?.past ?? {};
  assert.deepEqual([call_ids, told_calls], [["c", "e"], 3]);
});

test("so many code points of its reasoning and of the last arguments stand", () => {
  const past = new Past(/** @type {any} */ ({ type: "start", request_id: "a", on_disconnect: "continue", params: {} }));
  const spans = new Spans();
  past.receive(started({ seed: 1 }), []);
  const tool_calls = ["{}", '{"é'].map((told, index) => ({ index, call_id: `${index}`, name: "find", arguments: told }));
  spans.receiveSnapshot(/** @type {any} */ ({ reasoning: "H🤔<", tool_calls }));
  const { reasoning_length, arguments_length } = past.start(/** @type {any} */ ({ tokens: [7], index: 1, text: "", spans }))?.past ?? {};
  assert.deepEqual([reasoning_length, arguments_length], [3, 3]);
});

test("one that waits for results says so until it goes on, and where it was started again, if it does there", () => {
  const past = new Past(/** @type {any} */ ({ type: "start", request_id: "a", on_disconnect: "continue", params: {} }));
  const waits = () => past.start(/** @type {any} */ ({ tokens: [7], index: 1, text: "", spans: new Spans() }))?.past?.waits;
  const told = (/** @type {object} */ event) => past.receive(/** @type {any} */ ({ request_id: "a", seq: 1, index: 1, ...event }), []);
  told(started({ seed: 1 }));
  assert.equal(waits(), undefined);
  for (const [event, expected] of /** @type {[object, true | undefined][]} */ ([
    [{ type: "paused", reason: "tool_call" }, true],
    [{ type: "paused", reason: "client" }, true],
    [{ type: "injected", ref: "1", count: 1 }, true],
    [{ type: "resumed", recomputed_tokens: 0 }, undefined],
    [{ type: "restarted", begun: { paused: "tool_call" } }, true],
    [{ type: "restarted", begun: {} }, undefined],
  ])) {
    past.sent("1", { type: "inject", request_id: "a", text: "a" });
    told(event);
    assert.equal(waits(), expected);
  }
});

test("where a grammar has begun at a token is told, whatever other came before it there", () => {
  const [none, one, other] = [null, { regex: "a" }, { regex: "b" }].map((grammar) => /** @type {any} */ ({ grammar }));
  const past = new Past(/** @type {any} */ ({ type: "start", request_id: "a", on_disconnect: "continue", params: {} }));
  past.receive(started(none), []);
  for (const [index, params, grammars] of /** @type {[number, any, any[]][]} */ ([
    [3, one, [one]],
    [3, { ...one, top_k: 1 }, [{ ...one, top_k: 1 }]],
    [3, none, [{ ...one, top_k: 1 }, none]],
    [3, other, [none, other]],
    [3, none, [other, none]],
    [3, none, [other, none]],
  ])) {
    past.receive(/** @type {any} */ ({ type: "adjusted", request_id: "a", seq: 1, index, params }), []);
    const start = past.start(/** @type {any} */ ({ tokens: [7, 8, 9], index: 3, text: "", spans: new Spans() }));
    assert.deepEqual(start?.past?.steering.map((step) => step.type === "adjust" && step.params), grammars);
  }
});
