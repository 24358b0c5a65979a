/**
 * A server process, `midstream serve --model toy`, and its metrics.
 * @module
 */

import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { connect } from "node:net";
import { createInterface } from "node:readline";
import { fileURLToPath } from "node:url";

import { eventually } from "./eventually.js";

export const ROOT = fileURLToPath(new URL("../../../", import.meta.url));
export const PYTHON = process.env.MIDSTREAM_PYTHON ?? `${ROOT}.venv/bin/python`;

// The test runner ends a file that takes too long so; no server may outlive it.
process.once("SIGTERM", () => process.exit(1));

/** @typedef {Record<string, number>} Metrics */

/** Among the options of `serve`: a model that says what its conversation has between `⟦` and `⟧`. */
export const scripted = "scripted";

/** The port of who starts servers: one for all files, as `make test` runs them, or one for this file. */
let starter = Number(process.env.MIDSTREAM_SERVER_STARTER);

/** Start a server, and give its address and the ways to end it. @param {...string} options */
export async function serve(...options) {
  starter ||= await startStarter();
  const words = ["--log-level", "error", ...options.filter((option) => option !== scripted)];
  const line = connect(starter, "127.0.0.1");
  const gone = new Promise((resolve) => line.once("close", resolve));
  line.write(`${JSON.stringify({ words, scripted: options.includes(scripted) })}\n`);
  const { url, pid } = JSON.parse((await firstLine(line)) ?? assert.fail("the server did not start"));
  line.resume(); // to hear that it is gone
  const end = () => (line.end(), gone);
  return { url, end, kill: () => (process.kill(pid, "SIGKILL"), end()) };
}

/** It ends when this process does. */
async function startStarter() {
  const command = ["-m", "tests.server.server_starter"];
  const starting = spawn(PYTHON, command, { cwd: ROOT, stdio: ["pipe", "pipe", "inherit"] });
  const port = Number(await firstLine(starting.stdout));
  assert.ok(port, `${PYTHON} starts no server: is the project set up (make setup)?`);
  for (const held of [starting, starting.stdin, starting.stdout]) /** @type {any} */ (held).unref();
  return port;
}

/** @param {import("node:stream").Readable} from */
async function firstLine(from) {
  for await (const line of createInterface(from)) return line;
}

/** @param {string} url @returns {Promise<Metrics>} */
export async function metrics(url) {
  // Not kept alive: the server's orderly end would wait for the connection.
  const text = await (await fetch(`${url}/metrics`, { headers: { connection: "close" } })).text();
  const lines = text.split("\n").filter((line) => line && !line.startsWith("#"));
  const samples = lines.map((line) => line.split(/ (?=[^ ]+$)/));
  return Object.fromEntries(samples.map(([name, value]) => [name, Number(value)]));
}

/**
 * The first metrics of which the condition holds.
 * @param {string} url
 * @param {(now: Metrics) => boolean} is
 */
export async function until(url, is) {
  const now = await eventually(async () => {
    const seen = await metrics(url);
    return is(seen) && seen;
  });
  return /** @type {Metrics} */ (now);
}

/** How many tokens the engine has decoded. @param {Metrics} now */
export const decoded = (now) => now.midstream_tokens_total;

/** @param {"stalled" | "paused" | "running" | "queued"} state @param {number} count */
export const streams = (state, count) => (/** @type {Metrics} */ now) =>
  now[`midstream_streams{state="${state}"}`] === count;

/** How many streams have not ended. @param {Metrics} now */
export const live = (now) =>
  ["queued", "running", "paused", "stalled"].reduce(
    (sum, state) => sum + now[`midstream_streams{state="${state}"}`],
    0,
  );

/** @param {Metrics} now */
export const idle = (now) => live(now) === 0;
