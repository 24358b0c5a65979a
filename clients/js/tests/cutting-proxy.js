/**
 * A TCP proxy that cuts connections in their middle, and random numbers that are the same each time.
 * @module
 */

import { connect, createServer } from "node:net";

/** @typedef {{after?: number, within?: string, way: "up" | "down"}} Cut What befalls one connection: by the bytes that pass, or in the first message that says so. */

/**
 * @param {string} url the server's
 * @param {Iterator<Cut, null | undefined>} cuts one for each connection; one that has none is left alone
 */
export async function cuttingProxy(url, cuts) {
  let address = new URL(url);
  let count = 0;
  const server = createServer((here) => {
    const there = connect(Number(address.port), address.hostname);
    const cut = cuts.next().value;
    const ends = [here, there];
    for (const [end, other, way] of /** @type {const} */ ([[here, there, "up"], [there, here, "down"]])) {
      let left = cut?.way === way ? cut.after ?? Infinity : Infinity;
      let said = "";
      end.on("error", () => other.destroy()).on("close", () => other.destroy());
      end.on("data", (data) => {
        if (other.destroyed) return;
        if (cut?.within && cut.way === way) {
          const at = (said + data.toString("latin1")).indexOf(cut.within);
          if (at >= 0) left = Math.max(0, at - said.length);
          said = (said + data.toString("latin1")).slice(-cut.within.length);
        }
        other.write(data.subarray(0, left));
        left -= data.length;
        if (left > 0) return;
        count += 1;
        for (const socket of ends) socket.resetAndDestroy();
      });
    }
  });
  await new Promise((resolve) => server.listen(0, "127.0.0.1", () => resolve(undefined)));
  const { port } = /** @type {import("node:net").AddressInfo} */ (server.address());
  return {
    url: `http://127.0.0.1:${port}`,
    /** Connect to another server from now on. @param {string} other */
    redirect: (other) => (address = new URL(other)),
    end: () => server.close(),
    count: () => count,
  };
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
