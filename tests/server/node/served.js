/**
 * The servers that are asked, which whoever runs these tests has started, and what can be seen of one.
 * @module
 */

/** At a real model's pace, without keys. */
export const SLOW = process.env.MIDSTREAM_SLOW;

/** With keys, and with room for one stream. */
export const FULL = process.env.MIDSTREAM_FULL;
export const KEY = process.env.MIDSTREAM_KEY;
export const POOR_KEY = process.env.MIDSTREAM_POOR_KEY; // of a tenant who may take one token a minute

const PATIENCE_MS = 20_000; // for what must happen; nothing is expected to take a tenth of it

/** The slow server's streams, by its own count. */
async function streams() {
  const text = await (await fetch(`${SLOW}/metrics`)).text();
  const counts = text.matchAll(/^midstream_streams\{.*\} (\d+)/gm);
  return [...counts].reduce((sum, [, count]) => sum + Number(count), 0);
}

/** Wait until so many streams are there. @param {number} count */
export async function untilStreams(count) {
  const last = Date.now() + PATIENCE_MS;
  while ((await streams()) !== count) if (Date.now() > last) throw new Error(`there never were ${count} streams`);
}

/** Everything that an iterable gives; Node 20 has no `Array.fromAsync`. @param {AsyncIterable<any>} iterable */
export async function all(iterable) {
  const items = [];
  for await (const item of iterable) items.push(item);
  return items;
}
