/** Exponential backoff: how long it is waited, and until when. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { Backoff } from "../src/backoff.js";

const most = () => 1;

test("waits double from a tenth of a second to five", () => {
  const backoff = new Backoff(60_000, most);
  const waits = [...Array(8)].map(() => backoff.next(0));
  assert.deepEqual(waits, [100, 200, 400, 800, 1600, 3200, 5000, 5000]);
});

test("a wait is anywhere between nothing and its most", () => {
  const waits = [0, 0.25, 0.999].map((chance) => new Backoff(60_000, () => chance).next(0));
  assert.deepEqual(waits, [0, 25, 99.9]);
});

test("time counts from the first try, and no wait goes beyond its end", () => {
  const backoff = new Backoff(1000, most);
  assert.deepEqual([5000, 5950, 5999, 6000, 9000].map((now) => backoff.next(now)), [100, 50, 1, null, null]);
  assert.deepEqual([backoff.left(5500), backoff.left(6500)], [500, -500]);
});

test("a server that says when is asked no sooner, and not at all where that is too late", () => {
  const backoff = new Backoff(1000, most);
  assert.deepEqual([backoff.next(0, 300), backoff.next(0, 900), backoff.next(0, 1001)], [400, 1000, null]);
});

test("what is past, or no number, is no time", () => {
  for (const after of [-1000, -1, NaN, "soon", {}, null, undefined]) {
    const backoff = new Backoff(1000, most);
    assert.deepEqual([backoff.next(0, after), backoff.next(0, after)], [100, 200], String(after));
  }
});

for (const [lasted, wait] of [[200, 100], [5000, 100], [199, 400], [0, 400]]) {
  test(`after a success that lasted ${lasted} ms, for which 200 were waited, it begins anew, and waits ${wait}`, () => {
    const backoff = new Backoff(1000, most);
    backoff.next(0);
    backoff.next(0);
    backoff.reset(lasted);
    assert.deepEqual([backoff.next(90_000), backoff.left(90_000)], [wait, 1000]);
  });
}

test("where there is no time to try, there is no try", () => {
  assert.equal(new Backoff(0, most).next(0), null);
});
