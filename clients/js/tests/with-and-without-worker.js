/**
 * The same tests with and without a worker: what is true of a client must be true in either.
 * @module
 * @import { Client } from "../src/midstream.js"
 */

import { after, afterEach, before, beforeEach, describe } from "node:test";
import { Worker } from "node:worker_threads";
import { WebSocket } from "ws";

import { connect, connectWorker } from "../src/midstream.js";
import { idle, serve, until } from "./server-process.js";

export const startWorker = () => new Worker(new URL("./worker-thread.js", import.meta.url));

/**
 * The same tests with the socket here and with the socket in a worker, against a real server.
 * @param {string} what
 * @param {string[]} options the server's
 * @param {(fixture: {url: string, client: Client}) => void} tests each finds a client of its own in `fixture`
 */
export function withAndWithoutWorker(what, options, tests) {
  const fixture = /** @type {{url: string, client: Client}} */ ({});
  /** @type {Awaited<ReturnType<typeof serve>>} */ let server;
  before(async () => {
    server = await serve(...options);
    fixture.url = server.url;
  });
  after(() => server.end());

  describe(`${what}, socket here`, () => {
    beforeEach(async () => {
      fixture.client = await connect(fixture.url, { WebSocket });
    });
    afterEach(() => closeAndAwaitIdle(fixture));
    tests(fixture);
  });

  describe(`${what}, socket in a worker`, () => {
    /** @type {Worker} */ let worker;
    before(() => {
      worker = startWorker();
    });
    beforeEach(async () => {
      fixture.client = await connectWorker(worker, fixture.url);
    });
    afterEach(() => closeAndAwaitIdle(fixture));
    after(() => worker.terminate());
    tests(fixture);
  });
}

/** Whatever a test left running ends with the connection. @param {{url: string, client: Client}} fixture */
async function closeAndAwaitIdle({ url, client }) {
  await client.close();
  await until(url, idle);
}
