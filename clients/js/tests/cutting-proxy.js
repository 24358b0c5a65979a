/**
 * A TCP proxy that cuts connections in their middle, and random numbers that are the same each time.
 * @module
 */

import { connect, createServer } from "node:net";

/** @typedef {{after: number, way: "up" | "down"}} Cut What befalls one connection, by the bytes that pass. */

/**
 * @param {string} url the server's
 * @param {Iterator<Cut, null>} cuts one for each connection; one that has none is left alone
 */
export async function cuttingProxy(url, cuts) {
  const { hostname, port } = new URL(url);
  let count = 0;
  const server = createServer((here) => {
    const there = connect(Number(port), hostname);
    const cut = cuts.next().value;
    const ends = [here, there];
    for (const [end, other, way] of /** @type {const} */ ([[here, there, "up"], [there, here, "down"]])) {
      let left = cut?.way === way ? cut.after : Infinity;
      end.on("error", () => other.destroy()).on("close", () => other.destroy());
      end.on("data", (data) => {
        if (other.destroyed) return;
        other.write(data.subarray(0, left));
        left -= data.length;
        if (left > 0) return;
        count += 1;
        for (const socket of ends) socket.resetAndDestroy();
      });
    }
  });
  await new Promise((resolve) => server.listen(0, "127.0.0.1", () => resolve(undefined)));
  const address = /** @type {import("node:net").AddressInfo} */ (server.address());
  return { url: `http://127.0.0.1:${address.port}`, end: () => server.close(), count: () => count };
}

/** Numbers below the one given. @param {number} seed */
export function chance(seed) {
  let state = seed;
  return (/** @type {number} */ below) => {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    return Math.floor((state / 2 ** 32) * below);
  };
}

/** So many cuts, some in the handshake, most behind it. @param {number} seed @param {number} count */
export function* cuts(seed, count) {
  const number = chance(seed);
  for (let done = 0; done < count; done++) {
    const way = /** @type {"up" | "down"} */ (["up", "down"][number(2)]);
    yield { after: 1 + number(way === "up" ? 1500 : 4000), way };
  }
  return null;
}
