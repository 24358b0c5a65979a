/**
 * API keys: a server that wants one, and the ways to show it.
 * @module
 */

import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { mkdtempSync, rmSync } from "node:fs";
import { createServer } from "node:http";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, test } from "node:test";

import { WebSocket } from "ws";

import { clientSecret, connect, connectWorker } from "../src/midstream.js";
import { FakeSocket, READY } from "./fake-socket.js";
import { nextSocket } from "./scripted-server.js";
import { PYTHON, ROOT, serve } from "./server-process.js";
import { startWorker } from "./with-and-without-worker.js";

const folder = mkdtempSync(join(tmpdir(), "midstream-"));
/** @type {Awaited<ReturnType<typeof serve>>} */ let server;
/** @type {string} */ let apiKey;
before(async () => {
  const file = join(folder, "keys.toml");
  const command = ["-m", "realtime.keys_command", "add", "alice", "--file", file];
  apiKey = execFileSync(PYTHON, command, { cwd: ROOT, stdio: ["ignore", "pipe", "ignore"] }).toString().trim();
  server = await serve("--keys-file", file);
});
after(async () => {
  await server.end();
  rmSync(folder, { recursive: true });
});

/** @param {import("../src/midstream.js").Client} client */
async function works(client) {
  const { text } = await client.complete({ prompt: "Once", max_tokens: 5, ignore_eos: true });
  assert.notEqual(text, "");
  await client.close();
}

test("whoever has a key comes in, and nobody else", async () => {
  await works(await connect(server.url, { apiKey, WebSocket }));
  for (const wrong of [undefined, "ms_wrong", () => undefined]) {
    await assert.rejects(connect(server.url, { apiKey: wrong, WebSocket }), { name: "ConnectionLost" });
  }
});

test("where a WebSocket can set headers, a key may be one", async () => {
  class WithHeader extends WebSocket {
    /** @param {string} url @param {string[]} [protocols] */
    constructor(url, protocols) {
      super(url, protocols, { headers: { Authorization: `Bearer ${apiKey}` } });
    }
  }
  await works(await connect(server.url, { WebSocket: WithHeader }));
});

test("a key or a function for it crosses to a worker", async (t) => {
  const worker = startWorker();
  t.after(() => worker.terminate());
  for (const known of [apiKey, () => apiKey, async () => apiKey]) {
    await works(await connectWorker(worker, server.url, { apiKey: known }));
  }
});

test("a page of the server's comes in with a secret, once", async () => {
  const origin = server.url;
  class Page extends WebSocket {
    /** @param {string} url @param {string[]} [protocols] */
    constructor(url, protocols) {
      super(url, protocols, { origin });
    }
  }
  const secret = await clientSecret(server.url, { apiKey, origin });
  await works(await connect(server.url, { apiKey: () => secret, WebSocket: Page }));
  await assert.rejects(connect(server.url, { apiKey: secret, WebSocket: Page }), { name: "ConnectionLost" });
});

test("a secret that is refused says why, which a WebSocket in a browser does not", async () => {
  for (const wrong of [undefined, "ms_wrong", "two words", "sch\u00f6n"]) {
    const refused = { name: "MidstreamError", code: "unauthenticated", status: 401, retryable: false };
    await assert.rejects(clientSecret(server.url, { apiKey: wrong }), refused);
  }
  const elsewhere = clientSecret(server.url, { apiKey, origin: "https://elsewhere.example" });
  await assert.rejects(elsewhere, { code: "forbidden", status: 403 });
});

test("where no secret is to be had it is told whether to try again", async (t) => {
  const answers = createServer((_, response) => {
    response.statusCode = statuses.shift() ?? 200;
    response.end(bodies.shift() ?? "<html>a proxy's words</html>");
  });
  const bodies = ["null", '{"error": "Not Found"}'];
  const statuses = [502, 404, 200];
  await new Promise((resolve) => answers.listen(0, "127.0.0.1", () => resolve(undefined)));
  t.after(() => answers.close());
  const { port } = /** @type {import("node:net").AddressInfo} */ (answers.address());
  const url = `http://127.0.0.1:${port}`;
  await assert.rejects(clientSecret(url), { name: "ConnectionLost", message: /HTTP 502/, retryable: true });
  await assert.rejects(clientSecret(url), { name: "ConnectionLost", message: /HTTP 404/, retryable: false });
  await assert.rejects(clientSecret(url), { name: "ConnectionLost", message: /HTTP 200/, retryable: false });
  await assert.rejects(clientSecret("http://127.0.0.1:1"), { name: "ConnectionLost", retryable: true });
  await assert.rejects(clientSecret(url, { signal: AbortSignal.abort(new Error("enough")) }), /enough/);
});

test("a secret that breaks off on its way, or does not come, may be asked for again", async (t) => {
  /** @type {((response: import("node:http").ServerResponse) => void)[]} */ const answers = [
    (response) => response.writeHead(200, { "Content-Length": 100 }).write('{"secret"', () => response.destroy()),
    () => t.mock.timers.tick(10_000),
  ];
  const server = createServer((_, response) => answers.shift()?.(response));
  await new Promise((resolve) => server.listen(0, "127.0.0.1", () => resolve(undefined)));
  t.after(() => (server.closeAllConnections(), server.close()));
  const { port } = /** @type {import("node:net").AddressInfo} */ (server.address());
  const url = `http://127.0.0.1:${port}`;
  await assert.rejects(clientSecret(url), { name: "ConnectionLost", retryable: true });
  t.mock.timers.enable({ apis: ["setTimeout"] });
  await assert.rejects(clientSecret(url), { name: "ConnectionLost", message: /did not answer within 10000 ms/, retryable: true });
});

// -- on fake sockets --------------------------------------------------------------------------------------

/** @param {import("node:test").TestContext} t @param {() => Promise<string>} apiKey */
async function askedClient(t, apiKey) {
  const before = FakeSocket.last;
  const connecting = connect("http://host", { apiKey, WebSocket: FakeSocket });
  const socket = await nextSocket(before);
  socket.receive(READY);
  const client = await connecting;
  t.after(() => client.close());
  return { client, socket };
}

test("a function is asked anew before every attempt to connect", async (t) => {
  let asked = 0;
  const { socket } = await askedClient(t, async () => `key ${++asked}`);
  socket.end(1006);
  const next = await nextSocket(socket);
  const shown = [socket, next].map(({ protocols }) => Buffer.from(protocols?.[1].slice(7) ?? "", "base64url").toString());
  assert.deepEqual(shown, ["key 1", "key 2"]);
});

test("what a function throws is why there is no connection, and is asked again where that may help", async (t) => {
  const network = new TypeError("fetch failed");
  const apiKey = async () => {
    throw network;
  };
  await assert.rejects(connect("http://host", { apiKey, WebSocket: FakeSocket }), network);
  const errors = [network, Object.assign(new Error("there is no such key"), { retryable: false })];
  let calls = 0;
  const { client, socket } = await askedClient(t, async () => {
    if (calls++) throw errors[calls - 2];
    return "k";
  });
  const pinging = assert.rejects(client.ping(), /no coming back: there is no such key/);
  socket.end(1006);
  assert.deepEqual([(await client.closed).retryable, calls], [false, 3]);
  await pinging;
});

test("what a function throws in the page is told through the worker, and whether it may be tried again", async (t) => {
  const worker = startWorker();
  t.after(() => worker.terminate());
  const apiKey = () => clientSecret(server.url, { apiKey: "ms_wrong" });
  const refused = { name: "MidstreamError", code: "unauthenticated", status: 401, retryable: false };
  await assert.rejects(connectWorker(worker, server.url, { apiKey }), refused);
  const foreign = () => Promise.reject(new DOMException("too long", "TimeoutError"));
  await assert.rejects(connectWorker(worker, server.url, { apiKey: foreign }), { name: "TypeError", message: "too long" });
});

test("whoever gives up connecting does not wait for the key", async () => {
  const abort = new AbortController();
  const before = FakeSocket.last;
  const apiKey = () => new Promise(() => {});
  const connecting = connect("http://host", { apiKey, WebSocket: FakeSocket, signal: abort.signal });
  abort.abort(new Error("enough"));
  await assert.rejects(connecting, /enough/);
  assert.equal(FakeSocket.last, before);
});
