/** A run on a fake WebSocket: a user's mistakes beside it, and that its tools are answered all the same. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { Agent } from "../src/midstream.js";
import { eventually } from "./eventually.js";
import { started, token } from "./sample-events.js";
import { connected } from "./scripted-server.js";

/**
 * A run whose model has called its one tool, and waits.
 * @param {import("node:test").TestContext} t @param {import("../src/midstream.js").AgentOptions} options
 */
async function called(t, options) {
  const { client, socket } = await connected(t);
  const agent = new Agent({ tools: [{ name: "weather", run: () => "mild" }], ...options });
  const running = client.run(agent, "Hi", { request_id: "r" });
  socket.receive({ ...started(), ref: socket.sent[0].ref });
  const run = await running;
  const call = { request_id: "r", index: 0, call_id: "a" };
  socket.receive({ ...token(0, "", { count: 5 }), seq: 1 });
  socket.receive({ ...call, type: "tool_call", seq: 2, name: "weather" });
  socket.receive({ ...call, type: "tool_arguments", seq: 3, count: 5, delta: "{}" });
  socket.receive({ ...call, type: "tool_call_done", seq: 4, end: 5 });
  socket.receive({ type: "paused", request_id: "r", seq: 5, index: 5, reason: "tool_call" });
  const result = () => socket.sent.find(({ type }) => type === "tool_result");
  return { run, result: await eventually(result) };
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

test("a tool may take as long as it likes", async (t) => {
  for (const toolTimeoutMs of [Infinity, 1e12, 1000.5]) {
    assert.equal((await called(t, { toolTimeoutMs })).result.content, "mild");
  }
  assert.throws(() => new Agent({ toolTimeoutMs: -1 }), RangeError);
});
