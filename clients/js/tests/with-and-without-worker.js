/**
 * The ways to a server: what is true of a client must be true on each.
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
 * @param {(house: {url: string, client: Client}) => void} tests each finds a client of its own in `house`
 */
export function onEachWay(what, options, tests) {
  const house = /** @type {{url: string, client: Client}} */ ({});
  /** @type {Awaited<ReturnType<typeof serve>>} */ let server;
  before(async () => {
    server = await serve(...options);
    house.url = server.url;
  });
  after(() => server.end());

  describe(`${what}, socket here`, () => {
    beforeEach(async () => {
      house.client = await connect(house.url, { WebSocket });
    });
    afterEach(() => parted(house));
    tests(house);
  });

  describe(`${what}, socket in a worker`, () => {
    /** @type {Worker} */ let worker;
    before(() => {
      worker = startWorker();
    });
    beforeEach(async () => {
      house.client = await connectWorker(worker, house.url);
    });
    afterEach(() => parted(house));
    after(() => worker.terminate());
    tests(house);
  });
}

/** Whatever a test left running ends with the connection. @param {{url: string, client: Client}} house */
async function parted({ url, client }) {
  await client.close();
  await until(url, idle);
}
