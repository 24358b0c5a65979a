/**
 * A server that wants a key, and the key of its file.
 * @module
 */

import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "node:test";

import { WebSocket } from "ws";

import { connect } from "../src/midstream.js";
import { PYTHON, ROOT, serve } from "./served.js";

test("whoever has a key comes in, and nobody else", async (t) => {
  const folder = mkdtempSync(join(tmpdir(), "midstream-"));
  const file = join(folder, "keys.toml");
  const command = ["-m", "realtime.keys_command", "add", "alice", "--file", file];
  const apiKey = execFileSync(PYTHON, command, { cwd: ROOT, stdio: ["ignore", "pipe", "ignore"] }).toString().trim();
  const server = await serve("--keys-file", file);
  t.after(async () => {
    await server.end();
    rmSync(folder, { recursive: true });
  });

  const client = await connect(server.url, { apiKey, WebSocket });
  const { text } = await client.complete({ prompt: "Once", max_tokens: 5, ignore_eos: true });
  assert.notEqual(text, "");
  client.close();
  for (const wrong of [undefined, "ms_wrong"]) {
    await assert.rejects(connect(server.url, { apiKey: wrong, WebSocket }), { name: "ConnectionLost" });
  }
});
