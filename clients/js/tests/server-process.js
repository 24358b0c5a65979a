/**
 * A server process, `midstream serve --model toy`, and its metrics.
 * @module
 */

import assert from "node:assert/strict";
import { spawn } from "node:child_process";
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

/** Start a server, and give its address and the way to end it. @param {...string} options */
export async function serve(...options) {
  const own = options.filter((option) => option !== scripted);
  const quiet = ["--port", "0", "--log-level", "error", "--engine-spare", "off"];
  const command = ["-m", "realtime", "--model", "toy", ...quiet, ...own];
  /** @type {NodeJS.ProcessEnv} */
  const env = { ...process.env, OMP_NUM_THREADS: "1" };
  if (own.length < options.length) {
    env.PYTHONPATH = [`${ROOT}tests/fakes/scripted_engine`, env.PYTHONPATH].filter(Boolean).join(":");
  }
  const server = spawn(PYTHON, command, { cwd: ROOT, env, stdio: ["ignore", "pipe", "inherit"] });
  process.once("exit", () => server.kill("SIGTERM"));
  const ended = new Promise((resolve) => server.once("exit", resolve));
  for await (const line of createInterface(server.stdout)) {
    const url = line.match(/http:\/\/\S+/)?.[0];
    if (url) return { url, process: server, end: () => (server.kill("SIGTERM"), ended) };
  }
  assert.fail(`${PYTHON} ended before the server was there: is the project set up (make setup)?`);
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
