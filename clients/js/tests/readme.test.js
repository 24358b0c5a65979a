/**
 * The README's first example runs as it stands there, as a program of its own.
 * @module
 */

import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { readFile } from "node:fs/promises";
import { test } from "node:test";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";

import { idle, serve, until } from "./server-process.js";

const PACKAGE = fileURLToPath(new URL("..", import.meta.url));
const readme = await readFile(`${PACKAGE}README.md`, "utf-8");
const examples = [...readme.matchAll(/```js\n(.*?)```/gs)].map(([, code]) => code);

test("the README's first example streams, steers and cancels", async (t) => {
  const server = await serve();
  t.after(() => server.end());
  // Node 22 has a WebSocket by itself, as the README says. The toy ends when it likes, unless told not to.
  const before = 'globalThis.WebSocket ??= (await import("ws")).WebSocket;\n';
  const example = examples[0].replace("max_tokens", "ignore_eos: true, max_tokens");
  const program = before + example.replace("http://127.0.0.1:8000", server.url);
  const run = promisify(execFile)(process.execPath, ["--input-type=module", "-e", program], { cwd: PACKAGE });
  const indices = (await run).stdout.trim().split("\n").map((line) => parseInt(line));
  assert.deepEqual([...new Set(indices)], [...Array(50).keys()]);
  await until(server.url, idle);
});

test("what the README imports is there, by the name that it says", async () => {
  // Resolved by the package's own `exports`, as for whoever installs it.
  const midstream = await import("midstream");
  const named = examples.flatMap((code) => [...code.matchAll(/import \{ (\w+) \} from "midstream"/g)]);
  assert.deepEqual(named.map(([, name]) => name), ["connect", "Agent", "clientSecret", "exposeInWorker", "connectWorker"]);
  for (const [, name] of named) assert.equal(name in midstream, true, name);
});
