/**
 * A silent TCP proxy: it stops forwarding, as if a cable had been pulled: nothing comes, and nothing says so.
 * @module
 */

import { connect, createServer } from "node:net";

/** @param {string} url the server's */
export async function silentProxy(url) {
  const { hostname, port } = new URL(url);
  /** @type {import("node:net").Socket[]} */ const open = [];
  /** @type {import("node:net").Socket[]} */ const silent = [];
  let count = 0;
  const server = createServer((here) => {
    const there = connect(Number(port), hostname);
    const ends = [here, there];
    count += 1;
    open.push(...ends);
    for (const [end, other] of [ends, [there, here]]) {
      end.on("error", () => {});
      end.on("data", (data) => silent.includes(end) || other.write(data));
      end.on("close", () => silent.includes(end) || other.destroy());
    }
  });
  await new Promise((resolve) => server.listen(0, "127.0.0.1", () => resolve(undefined)));
  const address = /** @type {import("node:net").AddressInfo} */ (server.address());
  return {
    url: `http://127.0.0.1:${address.port}`,
    /** From now on nothing passes on what is connected now. */
    silence: () => void silent.push(...open),
    count: () => count,
    end: () => {
      for (const socket of open) socket.destroy();
      server.close();
    },
  };
}
