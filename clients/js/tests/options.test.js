/** Options, URLs and keys: what is made of them before anything is sent. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { adjustment, explicitCredit, startFrame } from "../src/options.js";
import { subprotocols, websocketUrl } from "../src/url.js";

for (const [given, page, meant] of /** @type {[string | undefined, string | undefined, string][]} */ ([
  ["http://host:8000", undefined, "ws://host:8000/v1/realtime"],
  ["https://host/a/prefix/", undefined, "wss://host/a/prefix/v1/realtime"],
  ["ws://host", undefined, "ws://host/v1/realtime"],
  ["wss://host/v1/realtime", undefined, "wss://host/v1/realtime"],
  ["http://[::1]:8000?x=1", undefined, "ws://[::1]:8000/v1/realtime?x=1"],
  [undefined, "https://host:444/some/page.html?q#h", "wss://host:444/v1/realtime"],
  ["/models/b", "http://host/page", "ws://host/models/b/v1/realtime"],
  [undefined, "http://me:secret@host/page", "ws://host/v1/realtime"],
  ["/models/b", "http://me:secret@host/page", "ws://host/models/b/v1/realtime"],
])) {
  test(`${given} from ${page} is ${meant}`, () => assert.equal(websocketUrl(given, page), meant));
}

for (const given of [undefined, "", "host:8000", "ftp://host", "/path"]) {
  test(`${given} is no address where there is no page`, () => {
    assert.throws(() => websocketUrl(given, undefined), /is no address of a server: expected one such as/);
  });
}

for (const given of ["http://me:secret@host", "ws://me@host:1", "https://:secret@host/"]) {
  test(`a user in ${given} is refused, and not left out without a word`, () => {
    assert.throws(() => websocketUrl(given, "http://page/"), /no user and no password in it/);
  });
}

test("a key travels as a subprotocol, in the alphabet that is allowed there", () => {
  assert.deepEqual(subprotocols(undefined), ["midstream.v1.json"]);
  const [encoding, bearer] = subprotocols("sk-é?>🙂");
  assert.equal(encoding, "midstream.v1.json");
  assert.match(bearer, /^bearer\.[\w-]+$/);
  assert.equal(Buffer.from(bearer.slice(7), "base64url").toString(), "sk-é?>🙂");
});

test("start's options are sorted into its own fields and the sampling parameters", () => {
  const options = { prompt: "Hi", request_id: "mine", temperature: 0, top_p: undefined };
  const frame = startFrame(options, 64, undefined);
  const expected = { prompt: "Hi", request_id: "mine", params: { temperature: 0 }, credit: { limit: 64 } };
  assert.deepEqual(frame, { type: "start", ...expected });
  assert.equal("credit" in startFrame({ prompt: "Hi" }, 64, "auto"), false);
});

test("tools are told without what runs them, and one that must be called by its name", () => {
  const parameters = { type: "object", properties: { city: { type: "string" } } };
  const theirs = /** @type {const} */ ({ type: "function", function: { name: "theirs" } });
  const ours = { name: "weather", description: "The weather.", parameters, run: () => "warm" };
  const options = { prompt: "Hi", tools: [ours, theirs], tool_choice: "weather" };
  const { tools, tool_choice } = startFrame(options, 64, undefined);
  const { run, ...told } = ours;
  assert.deepEqual(JSON.parse(JSON.stringify(tools)), [{ type: "function", function: told }, theirs]);
  assert.deepEqual(tool_choice, { type: "function", function: { name: "weather" } });
  for (const mode of ["auto", "none", "required"]) {
    assert.equal(startFrame({ prompt: "Hi", tool_choice: mode }, 1, undefined).tool_choice, mode);
  }
});

test("a request has a name of its own", () => {
  const names = [1, 2].map(() => startFrame({ prompt: "Hi" }, 1, undefined).request_id);
  assert.match(names[0], /^[0-9a-f]{32}$/);
  assert.notEqual(names[0], names[1]);
});

test("a name misspelt does not pass in silence", () => {
  const misspelt = /** @type {any} */ ({ prompt: "Hi", temprature: 1 });
  assert.throws(() => startFrame(misspelt, 64, undefined), /start\(\) knows no option "temprature"/);
  assert.throws(() => adjustment(misspelt), /adjust\(\) knows no option "prompt"/);
});

test("a window is a whole number of at least one", () => {
  for (const window of [0, -1, 1.5, NaN]) {
    assert.throws(() => startFrame({ prompt: "Hi" }, window, undefined), RangeError);
  }
});

test("credit to begin with is the window, or none for pure pull, or what is given", () => {
  assert.deepEqual(explicitCredit(undefined, 64, 1), { limit: 64 });
  assert.deepEqual(explicitCredit(undefined, 1, 1), { limit: 0 });
  assert.deepEqual(explicitCredit(undefined, 8, 8), { limit: 0 });
  assert.deepEqual(explicitCredit({ prefetch: 4 }, 64, 1), { limit: 64, prefetch: 4 });
  assert.deepEqual(explicitCredit({ limit: 0 }, 64, 1), { limit: 0 });
});
