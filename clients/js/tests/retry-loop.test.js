/** The retry loop: when it tries again, how often, and what ends it. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { Backoff } from "../src/backoff.js";
import { retry } from "../src/retry-loop.js";

const WHY = new Error("the first loss");
const never = new AbortController().signal;
const soon = (/** @type {number} */ ms) => new Backoff(ms, () => 0);
/** The longest waits that there are. */
const late = () => new Backoff(1e9, () => 1e6);

test("it is tried until it works", async () => {
  let tries = 0;
  await retry(async () => assert.ok(++tries === 3), soon(60_000), never, WHY);
  assert.equal(tries, 3);
});

test("where trying is of no use, it is not gone on with", async () => {
  let tries = 0;
  const refused = Object.assign(new Error("no such key"), { retryable: false });
  const attempt = async () => {
    tries += 1;
    throw refused;
  };
  await assert.rejects(retry(attempt, soon(60_000), never, WHY), refused);
  assert.equal(tries, 1);
});

test("a try that is not answered ends with the time that there is", async () => {
  const silent = (/** @type {AbortSignal} */ signal) =>
    new Promise((_, reject) => signal.addEventListener("abort", () => reject(signal.reason)));
  await assert.rejects(retry(silent, soon(30), never, WHY), /the server did not answer/);
});

test("where there was no time for a try, the first loss is the reason", async () => {
  await assert.rejects(retry(async () => {}, soon(0), never, WHY), WHY);
});

test("a server that says when is asked no sooner", async () => {
  const refused = Object.assign(new Error("it goes away"), { retryable: true, retryAfterMs: 2000 });
  let tries = 0;
  const attempt = async () => {
    tries += 1;
    throw refused;
  };
  await assert.rejects(retry(attempt, soon(1000), never, WHY), refused); // who may try for less does not
  assert.equal(tries, 1);
});

test("whoever goes away ends it, while it waits and while it tries", async () => {
  for (const backoff of [soon(60_000), late()]) {
    const gone = new AbortController();
    const hanging = () => new Promise((_, reject) => gone.signal.addEventListener("abort", reject));
    const ended = retry(hanging, backoff, gone.signal, WHY);
    gone.abort();
    await ended;
  }
});

test("a browser's word that there is a network ends a wait", async (t) => {
  const browser = new EventTarget();
  Object.assign(globalThis, {
    addEventListener: browser.addEventListener.bind(browser),
    removeEventListener: browser.removeEventListener.bind(browser),
  });
  t.after(() => {
    for (const name of ["addEventListener", "removeEventListener"]) Reflect.deleteProperty(globalThis, name);
  });
  let tried = false;
  const done = retry(async () => void (tried = true), late(), never, WHY);
  assert.equal(tried, false);
  browser.dispatchEvent(new Event("online"));
  await done;
  assert.equal(tried, true);
});
