/** A run on a fake WebSocket: a user's mistakes beside it, and that its tools are answered all the same. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { Agent, LimitReached, StreamFailed } from "../src/midstream.js";
import { Told } from "../src/told.js";
import { eventually } from "./eventually.js";
import { final, rewound, snapshot, started, token } from "./sample-events.js";
import { connected, cutAndReconnect, sendAttached } from "./scripted-server.js";

/**
 * A run whose model has called its one tool, and writes on.
 * @param {import("node:test").TestContext} t @param {import("../src/midstream.js").AgentOptions} options
 * @param {{approval?: boolean}} [done] what is said of the call
 */
async function writing(t, options, done) {
  const { client, socket } = await connected(t);
  const agent = new Agent({ tools: [{ name: "weather", run: () => "mild" }], ...options });
  const running = client.run(agent, "Hi", { request_id: "r" });
  socket.receive({ ...started(), ref: socket.sent[0].ref });
  const run = await running;
  const call = { request_id: "r", index: 0, call_id: "a" };
  socket.receive({ ...token(0, "", { count: 5 }), seq: 1 });
  socket.receive({ ...call, type: "tool_call", seq: 2, name: "weather" });
  socket.receive({ ...call, type: "tool_arguments", seq: 3, count: 5, delta: "{}" });
  socket.receive({ ...call, type: "tool_call_done", seq: 4, end: 5, ...done });
  return { run, sent: (/** @type {string} */ kind) => eventually(() => socket.sent.find(({ type }) => type === kind)), socket };
}

/** One whose model waits. @param {Parameters<typeof writing>} given */
async function calling(...given) {
  const called = await writing(...given);
  called.socket.receive(waits(5, 5));
  return called;
}

/** @param {number} seq @param {number} index */
const waits = (seq, index) => ({ type: "paused", request_id: "r", seq, index, reason: "tool_call" });
/** @param {number} seq @param {number} index @param {number} count @param {string} [ref] */
const injected = (seq, index, count, ref) => ({ type: "injected", request_id: "r", seq, index, count, ref });

/** The same, and what is told of its call. @param {Parameters<typeof calling>} given */
async function called(...given) {
  const { sent } = await calling(...given);
  return { result: await sent("tool_result") };
}

test("a listener's mistake is reported as any uncaught one, and the model has its result", async (t) => {
  const uncaught = new Promise((resolve) => process.setUncaughtExceptionCaptureCallback(resolve));
  t.after(() => process.setUncaughtExceptionCaptureCallback(null));
  const onevent = (/** @type {import("../src/midstream.js").RunEvent} */ event) => {
    if (event.type === "tool_outcome" && event.content) throw new Error("a mistake");
  };
  const { result } = await called(t, { onevent });
  assert.match(String(await uncaught), /a mistake/);
  assert.deepEqual([result.call_id, result.content], ["a", "mild"]);
});

test("an error that is too long to be told is told to be so", async (t) => {
  const run = () => assert.fail("x".repeat(2000));
  const { result } = await called(t, { tools: [{ name: "weather", run }] });
  assert.match(result.error, /a message of [0-9]+ bytes, and the server takes 1000 at most/);
});

test("a result of which nobody knows whether it was heard is told again as it was", async (t) => {
  const { sent, socket } = await calling(t, {});
  await sent("tool_result");
  const next = await cutAndReconnect(socket);
  const call = { index: 0, call_id: "a", name: "weather", arguments: "{}", end: 5 };
  next.receive(snapshot(9, { index: 5, text: "", paused: "tool_call", tool_calls: [call] }));
  sendAttached(next);
  const again = await eventually(() => next.sent.find(({ type }) => type === "tool_result"));
  assert.deepEqual([again.content, again.error], ["mild", undefined]);
});

test("a result that was taken back while nobody listened is told again, though the model has written on since", async (t) => {
  const { run, sent, socket } = await writing(t, {});
  const { ref } = await sent("tool_result");
  socket.receive({ ...token(5, "", { count: 2 }), seq: 5 });
  socket.receive(injected(6, 7, 9, ref));
  const rewinding = run.stream.rewind(6);
  const back = /** @type {any} */ ({ ...rewound(6, 0), ref: (await sent("rewind")).ref, tool_calls: 1, arguments_length: 2 });
  const next = await cutAndReconnect(socket);
  const call = { index: 0, call_id: "a", name: "weather", arguments: "{}", end: 5 };
  next.receive(snapshot(8, { index: 8, text: "", tool_calls: [call], answered: [back] }));
  sendAttached(next);
  await rewinding;
  const again = await eventually(() => next.sent.find(({ type }) => type === "tool_result"));
  assert.deepEqual([again.call_id, again.content], ["a", "mild"]);
});

test("a result that another client may have taken back while nobody listened is told again, and stands where it is refused", async (t) => {
  const { run, sent, socket } = await writing(t, {});
  const { ref } = await sent("tool_result");
  socket.receive({ ...token(5, "", { count: 2 }), seq: 5 });
  socket.receive(injected(6, 7, 9, ref));
  const next = await cutAndReconnect(socket);
  const call = { index: 0, call_id: "a", name: "weather", arguments: "{}", end: 5 };
  next.receive(snapshot(9, { index: 8, text: "", tool_calls: [call], answered: [] }));
  sendAttached(next);
  const again = await eventually(() => next.sent.find(({ type }) => type === "tool_result"));
  assert.deepEqual([again.call_id, again.content], ["a", "mild"]);
  next.receive({ ...NO_ROOM, code: "invalid_params", ref: again.ref });
  next.receive({ ...final("stop"), seq: 10 });
  await run.answer();
  assert.deepEqual(run.outcomes.map(({ index }) => index), [7]);
});

test("a result whose call was read to its end is not told again", async (t) => {
  const { run, sent, socket } = await calling(t, {});
  const { ref } = await sent("tool_result");
  socket.receive(injected(6, 5, 9, ref));
  const next = await cutAndReconnect(socket);
  const call = { index: 0, call_id: "a", name: "weather", arguments: "{}", end: 5 };
  next.receive(snapshot(9, { index: 8, text: "", tool_calls: [call], answered: [] }));
  sendAttached(next);
  const resuming = run.stream.resume();
  const { ref: asked } = await eventually(() => next.sent.find(({ type }) => type === "resume"));
  next.receive({ type: "resumed", request_id: "r", seq: 10, index: 8, recomputed_tokens: 0, ref: asked });
  await resuming;
  assert.equal(next.sent.filter(({ type }) => type === "tool_result").length, 0);
});

test("a result that is on its way is told once, whatever a snapshot stands for", async (t) => {
  const { run, sent, socket } = await writing(t, {});
  await sent("tool_result");
  const next = await cutAndReconnect(socket);
  const call = { index: 0, call_id: "a", name: "weather", arguments: "{}", end: 5 };
  next.receive(snapshot(8, { index: 5, text: "", paused: "tool_call", tool_calls: [call], answered: [] }));
  sendAttached(next);
  const resuming = run.stream.resume(); // said behind all that was to be said again
  const { ref } = await eventually(() => next.sent.find(({ type }) => type === "resume"));
  next.receive({ type: "resumed", request_id: "r", seq: 9, index: 5, recomputed_tokens: 0, ref });
  await resuming;
  assert.equal(next.sent.filter(({ type }) => type === "tool_result").length, 1);
});

const FOR_NOW = { type: "error", status: 429, code: "rate_limited", message: "slower", retryable: true, retry_after_ms: 1, request_id: "r" };
const NO_ROOM = { ...FOR_NOW, status: 400, code: "context_too_long", message: "there is no room", retryable: false };

/** The frames of this kind, once there are so many. @param {import("./fake-socket.js").FakeSocket} socket @param {string} kind @param {number} count */
const frames = (socket, kind, count) =>
  eventually(() => [socket.sent.filter(({ type }) => type === kind)].find(({ length }) => length === count));

for (const [kind, options, done] of /** @type {[string, any, any][]} */ ([
  ["tool_result", {}, {}],
  ["tool_result", { approve: () => false }, { approval: true }],
  ["approve", { approve: () => true }, { approval: true }],
  ["amend", { approve: () => ({ city: "Oslo" }) }, { approval: true }],
])) {
  test(`what is refused for now is asked again: ${kind}, ${Object.keys(options)}`, async (t) => {
    const { socket } = await calling(t, options, done);
    const [refused] = await frames(socket, kind, 1);
    socket.receive({ ...FOR_NOW, ref: refused.ref });
    const [, again] = await frames(socket, kind, 2);
    assert.deepEqual({ ...again, ref: "" }, { ...refused, ref: "" });
  });
}

test("what is to be asked again in a day keeps no program running", async (t) => {
  const { socket } = await calling(t, {});
  const [{ ref }] = await frames(socket, "tool_result", 1);
  const timers = () => process.getActiveResourcesInfo().filter((kind) => kind === "Timeout").length;
  const before = timers();
  socket.receive({ ...FOR_NOW, retry_after_ms: 86_400_000, ref });
  await new Promise(setImmediate); // whoever waits has heard of it
  assert.equal(timers(), before);
});

test("where there is room for no result, nor for an error, the run ends, and whoever reads it is told", async (t) => {
  const { run, sent, socket } = await calling(t, {});
  const reading = assert.rejects(run.answer(), /there is no room/);
  for (const count of [1, 2]) {
    const told = await frames(socket, "tool_result", count);
    socket.receive({ ...NO_ROOM, ref: told[count - 1].ref });
  }
  const { ref } = await sent("cancel");
  socket.receive({ ...final("cancelled"), seq: 6, ref });
  await reading;
});

test("a result that waited and is told again elsewhere stands where it goes in", () => {
  const told = new Told();
  const answer = /** @type {any} */ (injected(1, 5, 0, "1"));
  told.answered({ type: "tool_result", request_id: "r", call_id: "a", content: "mild" }, answer, 4);
  told.again = ["1"];
  told.receive(answer, 4);
  assert.equal(told.results.size, 0, "it waits there, too");
  told.receive(/** @type {any} */ (injected(2, 5, 9, "1")), 4);
  assert.deepEqual([...told.results], [["a", { index: 5, length: 4 }]]);
});

test("a result that waited is nowhere once a message answers its call", () => {
  const told = new Told();
  const result = (/** @type {string} */ call_id) => /** @type {const} */ ({ type: "tool_result", request_id: "r", call_id, content: "mild" });
  told.answered(result("a"), /** @type {any} */ (injected(1, 5, 0, "1")), 4);
  told.answered({ type: "inject", request_id: "r", messages: [{ role: "tool", tool_call_id: "a", content: "hot" }] }, /** @type {any} */ (injected(2, 5, 9, "2")), 4);
  told.answered(result("b"), /** @type {any} */ (injected(3, 5, 9, "3")), 4);
  assert.deepEqual([...told.results.keys()], ["b"]);
});

test("a result that somebody else has told is no trouble", async (t) => {
  const { run, socket } = await calling(t, {});
  const [{ ref }] = await frames(socket, "tool_result", 1);
  socket.receive({ ...NO_ROOM, code: "invalid_params", ref });
  socket.receive({ ...final("stop"), seq: 6 });
  assert.equal(await run.answer(), "");
  assert.deepEqual([run.outcomes[0].content, socket.sent.filter(({ type }) => type === "tool_result").length], ["mild", 1]);
});

test("a tool is stopped when its stream is lost", async (t) => {
  /** @type {AbortSignal | undefined} */ let signal;
  const run = (/** @type {unknown} */ _, /** @type {import("../src/midstream.js").ToolContext} */ context) => {
    ({ signal } = context);
    return new Promise(() => {});
  };
  const { socket } = await calling(t, { tools: [{ name: "weather", run }] });
  await eventually(() => signal);
  socket.end(4401);
  await eventually(() => signal?.aborted);
});

for (const [what, approve, why] of /** @type {[string, () => any, RegExp][]} */ ([
  ["what the agent's function throws", () => assert.fail("nobody is there to be asked"), /nobody is there/],
  ["what is no verdict", () => undefined, /returned undefined/],
  ["arguments of its own that the server does not take", () => ({ city: "x".repeat(2000) }), /1000 at most/],
])) {
  test(`${what} ends the run, and whoever reads it is told`, async (t) => {
    const { run, sent, socket } = await calling(t, { approve }, { approval: true });
    const reading = assert.rejects(run.answer(), why);
    const { ref } = await sent("cancel");
    socket.receive({ ...final("cancelled"), seq: 6, ref });
    await reading;
  });
}

for (const [how, read] of /** @type {[string, (run: import("../src/midstream.js").Run) => Promise<unknown>][]} */ ([
  ["answer", (run) => run.answer()],
  ["iterating", async (run) => {
    for await (const _ of run);
  }],
])) {
  test(`a run that fails while the connection is gone says so at once: ${how}`, async (t) => {
    let refuse = () => {};
    const approve = () => new Promise((_, reject) => (refuse = () => reject(new Error("nobody is there"))));
    const { run, socket } = await calling(t, { approve }, { approval: true });
    const reading = assert.rejects(read(run), /nobody is there/);
    await cutAndReconnect(socket); // and nothing is said of the stream
    refuse();
    await reading;
  });
}

test("a call beyond `maxCalls` does not run, and one that was taken back is one of them", async (t) => {
  let runs = 0;
  const tools = [{ name: "weather", run: () => ++runs }];
  const { run, sent, socket } = await calling(t, { tools, maxCalls: 1 });
  const reading = assert.rejects(run.answer(), LimitReached);
  const call = { request_id: "r", index: 0, call_id: "b" };
  socket.receive({ ...rewound(0, 0), seq: 6 });
  socket.receive({ ...token(0, "", { count: 5 }), seq: 7 });
  socket.receive({ ...call, type: "tool_call", seq: 8, name: "weather" });
  assert.equal(socket.sent.find(({ type }) => type === "cancel"), undefined, "it is not made yet");
  socket.receive({ ...call, type: "tool_call_done", seq: 9, end: 5 });
  const { ref } = await sent("cancel");
  socket.receive({ ...final("cancelled"), seq: 10, ref });
  await reading;
  assert.equal(runs, 1);
});

test("a tool may take as long as it likes", async (t) => {
  for (const toolTimeoutMs of [Infinity, 1e12, 1000.5]) {
    assert.equal((await called(t, { toolTimeoutMs })).result.content, "mild");
  }
  assert.throws(() => new Agent({ toolTimeoutMs: -1 }), RangeError);
});

test("of what a tool says without end so much waits for a reader, and no more", async (t) => {
  /** @type {import("../src/midstream.js").FunctionTool["run"]} */
  const run = (_, { progress }) => {
    for (let done = 0; done < 1000; done++) progress(done);
    return "mild";
  };
  const called = await calling(t, { tools: [{ name: "weather", run }] });
  const { ref } = await called.sent("tool_result");
  called.socket.receive(injected(6, 5, 3, ref));
  called.socket.receive({ ...final("stop"), seq: 7, index: 5 });
  const said = [];
  for await (const event of called.run) if (event.type === "tool_progress") said.push(event.done);
  assert.deepEqual(said, [...Array(99).keys(), 999]);
});

test("how far a tool is stands behind its call, where the reader has yet to read of that", async (t) => {
  /** @type {Map<string, (done: number) => void>} */ const says = new Map();
  /** @type {import("../src/midstream.js").FunctionTool["run"]} */
  const run = (_, { call, progress }) => {
    says.set(call.call_id, progress);
    return new Promise(() => {});
  };
  const writes = await writing(t, { tools: [{ name: "weather", run }], onToolCall: "continue" });
  for (let done = 0; done < 100; done++) says.get("a")?.(done);
  const call = { request_id: "r", index: 5, call_id: "b" };
  writes.socket.receive({ ...call, type: "tool_call", seq: 5, name: "weather" });
  writes.socket.receive({ ...call, type: "tool_arguments", seq: 6, count: 5, delta: "{}" });
  writes.socket.receive({ ...token(5, "", { count: 5 }), seq: 7 });
  writes.socket.receive({ ...call, type: "tool_call_done", seq: 8, end: 10 });
  says.get("b")?.(7);
  writes.socket.receive({ ...final("stop"), seq: 9, index: 10 });
  const said = [];
  for await (const event of writes.run) {
    if (event.type === "tool_call" || event.type === "tool_progress") said.push(event.type === "tool_call" ? event.call_id : event.done);
  }
  assert.deepEqual(said, ["a", ...Array(99).keys(), "b", 7]);
});

test("a token has nobody look at all calls of its stream", async (t) => {
  const { run, socket } = await writing(t, { tools: [{ name: "weather", run: () => new Promise(() => {}) }], onToolCall: "continue" });
  let looks = 0;
  const { calls } = run.stream;
  Object.defineProperty(run.stream, "calls", { get: () => (looks++, calls) });
  for (let index = 5; index < 9; index++) socket.receive({ ...token(index, "a"), seq: index });
  assert.equal(looks, 0);
});

/** One result has waited for the end of the turn, in the midst of which something else was put in. @param {import("node:test").TestContext} t */
async function putInBetween(t) {
  const { run, socket } = await writing(t, {});
  const [{ ref }] = await frames(socket, "tool_result", 1);
  socket.receive(injected(5, 5, 0, ref));
  socket.receive({ ...token(5, "Well", { count: 2 }), seq: 6 });
  const injecting = run.stream.inject({ messages: [{ role: "user", content: "Hurry!" }] });
  const [inject] = await frames(socket, "inject", 1);
  socket.receive(injected(7, 7, 3, inject.ref));
  await injecting;
  socket.receive({ ...token(7, "Mild", { count: 2 }), seq: 8 });
  socket.receive(waits(9, 9));
  socket.receive(injected(10, 9, 9));
  socket.receive({ type: "resumed", request_id: "r", seq: 11, index: 9, recomputed_tokens: 0 });
  socket.receive({ ...token(9, "So"), seq: 12 });
  return { run, socket };
}

test("a result stands where it goes in, and what is put in between is a turn of the conversation", async (t) => {
  const { run, socket } = await putInBetween(t);
  assert.equal(run.outcomes[0].index, 9);
  assert.deepEqual(run.messages.slice(1).map(({ role, content, tool_calls }) => [role, content, tool_calls?.length]), [
    ["assistant", "Well", undefined],
    ["user", "Hurry!", undefined],
    ["assistant", "Mild", 1],
    ["tool", "mild", undefined],
    ["assistant", "So", undefined],
  ]);
  socket.receive({ ...final("stop"), seq: 13 });
  assert.equal(await run.answer(), "So");
});

test("a result that waited is told again where it was taken back, whatever else was put in before", async (t) => {
  const { socket } = await putInBetween(t);
  socket.receive({ ...rewound(8, 5), tool_calls: 1, arguments_length: 2, seq: 13 });
  await frames(socket, "tool_result", 2);
});

test("a call that a fork writes itself has a run of its own", async (t) => {
  /** @type {any[]} */ const cities = [];
  const tools = [{ name: "weather", run: (/** @type {any} */ { city }) => String(cities.push(city)) }];
  const { run, socket } = await calling(t, { tools });
  await frames(socket, "tool_result", 1);
  const forking = run.fork({ at: 3, request_id: "f" });
  const [, { ref }] = await frames(socket, "start", 2);
  const of = { request_id: "f", index: 0, call_id: "a" };
  socket.receive({ ...started(), request_id: "f", ref });
  socket.receive({ ...snapshot(1, { index: 3, text: "", tool_calls: [{ ...of, name: "weather", arguments: "{" }] }), request_id: "f" });
  await forking;
  socket.receive({ ...token(3, "", { count: 2 }), request_id: "f", seq: 2 });
  socket.receive({ ...of, type: "tool_arguments", seq: 3, count: 2, delta: '"city": "Oslo"}' });
  socket.receive({ ...of, type: "tool_call_done", seq: 4, end: 5 });
  const [, told] = await frames(socket, "tool_result", 2);
  assert.deepEqual([told.request_id, told.content, cities], ["f", "2", [undefined, "Oslo"]]);
});

test("a call whose arguments are no JSON may be given others", async (t) => {
  const { run, sent, socket } = await calling(t, { approve: () => ({ city: "Oslo" }) }, { approval: true });
  const { ref } = await sent("amend");
  const call = { request_id: "r", index: 0, call_id: "a" };
  socket.receive({ ...rewound(1, 0), tool_calls: 1, arguments_length: 1, seq: 6 });
  socket.receive(injected(7, 1, 2, ref));
  socket.receive({ ...token(1, "", { count: 4 }), seq: 8 });
  socket.receive({ ...call, type: "tool_arguments", seq: 9, count: 4, delta: "city: Rome" });
  socket.receive({ ...call, type: "tool_call_done", seq: 10, end: 5, approval: true });
  assert.deepEqual((await frames(socket, "amend", 2)).map((frame) => frame.arguments), [{ city: "Oslo" }, { city: "Oslo" }]);
  socket.receive({ ...final("cancelled"), seq: 11 });
  await run.answer();
});

test("whoever iterates over a run hears that it has failed", async (t) => {
  const { run, socket } = await calling(t, {});
  socket.receive({ ...final("error", "broken"), seq: 6 });
  await assert.rejects(async () => {
    for await (const _ of run);
  }, StreamFailed);
});

test("whoever changes nothing of a call has said yes", async (t) => {
  const { sent } = await calling(t, { approve: () => ({}) }, { approval: true });
  assert.equal((await sent("approve")).call_id, "a");
});

test("a yes to other arguments is none to those that the model writes instead", async (t) => {
  /** @type {string[]} */ const asked = [];
  const approve = (/** @type {{arguments: string}} */ { arguments: given }) => asked.push(given) > 1 || { city: "Oslo" };
  const { run, sent, socket } = await calling(t, { approve }, { approval: true });
  const { ref } = await sent("amend");
  const call = { request_id: "r", index: 0, call_id: "a" };
  const back = { ...rewound(3, 0), tool_calls: 1, arguments_length: 1 };
  socket.receive({ ...back, seq: 6 });
  socket.receive(injected(7, 3, 2, ref));
  socket.receive({ ...back, seq: 8 }); // somebody does not want that
  socket.receive({ ...token(3, "", { count: 2 }), seq: 9 });
  socket.receive({ ...call, type: "tool_arguments", seq: 10, count: 2, delta: '"city": "Rome"}' });
  socket.receive({ ...call, type: "tool_call_done", seq: 11, end: 5, approval: true });
  await sent("approve");
  assert.deepEqual(asked, ["{}", '{"city": "Rome"}']);
  socket.receive({ ...final("cancelled"), seq: 12 });
  await run.answer();
});
