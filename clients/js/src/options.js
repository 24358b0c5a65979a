/**
 * Options of `connect`, `start`, `attach` and `adjust`: their defaults and checks, and the frames made of them. Pure.
 * @module
 * @import { Attach, Credit, NamedTool, Params, Start, StartFields, StreamEvent } from "./protocol.js"
 * @import { Timeouts } from "./reconnecting.js"
 * @import { Recorder } from "./recorder.js"
 * @import { Had } from "./stream-core.js"
 * @import { AnyTool } from "./tools.js"
 */

import { PARAMS, START_FIELDS } from "./protocol.js";
import { wireTool, wireToolChoice } from "./tools.js";

export const DEFAULT_WINDOW = 64;
const DEFAULT_RECONNECT_MS = 60_000;
const DEFAULT_SILENCE_MS = 30_000;
const LONGEST_MS = 2 ** 31 - 1; // a timer's: one of more is due at once

/**
 * @typedef {object} ClientOptions What concerns the client alone, and is not sent.
 * @property {number} [window] how many tokens may be decoded ahead of the chunks taken; 1 is pure pull
 * @property {"auto" | Credit} [credit] explicit credit to begin with; "auto" leaves it to the server, which
 *   then decodes as fast as this connection is read, whether or not chunks are taken
 * @property {AbortSignal} [signal] cancels the stream
 * @property {(event: StreamEvent) => void} [onevent] called with every event of the stream, from `started` on
 * @property {Recorder} [recorder] records the stream: its chunks then have token ids and log probabilities
 */
/**
 * @typedef {object} ToolOptions What the model may call.
 * @property {AnyTool[]} [tools] functions with their `run`, or as OpenAI's API has them
 * @property {string | NamedTool} [tool_choice] "auto", "none", "required", or the name of the one to be called
 */
/** @typedef {Omit<StartFields, "tools" | "tool_choice"> & ToolOptions} AskedFields */
/** @typedef {AskedFields & Params & ClientOptions} StartOptions */

/**
 * @typedef {object} AttachOptions
 * @property {number} [after] the `seq` of the last event that is here already; -1, the default, for none
 * @property {Had} [had] with `after`: what stood then, as a stream has it in `text`, `index` and `tokens`
 * @property {number} [window] as for `start`
 * @property {"auto"} [credit] where the stream was started so
 * @property {AbortSignal} [signal] cancels the stream; before it is here, gives up attaching, and leaves it as it was
 * @property {(event: StreamEvent) => void} [onevent]
 */

/**
 * The `attach` frame for a stream of which this is here already.
 * @param {string} requestId @param {number} after @param {Had | undefined} had
 * @returns {Attach}
 */
export function attachFrame(requestId, after, had) {
  if (after >= 0 && !had) {
    throw new TypeError("attach() with `after` needs `had`: the text and the index that stood then");
  }
  return { type: "attach", request_id: requestId, after };
}

/**
 * How long to try to reconnect, and how long to bear silence.
 * @param {Partial<Timeouts>} options
 * @returns {Timeouts}
 */
export function checkTimeouts({ reconnectMs = DEFAULT_RECONNECT_MS, silenceMs = DEFAULT_SILENCE_MS }) {
  return { reconnectMs: checkTime("reconnectMs", reconnectMs), silenceMs: checkTime("silenceMs", silenceMs) };
}

/** A time as timers take it; Infinity is the longest that they know. @param {string} name @param {number} ms */
export function checkTime(name, ms) {
  if (!(ms >= 0)) throw new RangeError(`${name} must be 0 or more, not ${ms}`);
  return Math.min(Math.ceil(ms), LONGEST_MS);
}

/** @param {number} window */
export function checkWindow(window) {
  if (Number.isInteger(window) && window >= 1) return window;
  throw new RangeError(`window must be an integer of at least 1, not ${window}`);
}

/**
 * The `start` frame for these options, sorted into its own fields and the sampling parameters.
 * @param {AskedFields & Params} options
 * @param {number} window
 * @param {"auto" | Credit | undefined} credit
 * @returns {Start}
 */
export function startFrame(options, window, credit) {
  checkWindow(window);
  const params = pick(options, PARAMS);
  const fields = pick(options, START_FIELDS);
  checkNames("start", options, [...PARAMS, ...START_FIELDS]);
  if (fields.tools) fields.tools = fields.tools.map(wireTool);
  if (fields.tool_choice) fields.tool_choice = wireToolChoice(fields.tool_choice);
  const interval = options.stream_interval ?? 1;
  return {
    type: "start",
    request_id: randomId(),
    ...fields,
    params,
    ...(credit === "auto" ? {} : { credit: explicitCredit(credit, window, interval) }),
  };
}

/**
 * What a stream starts with: its window, but for pure pull, which decodes nothing unasked.
 * @param {Credit | undefined} credit
 * @param {number} window
 * @param {number} interval
 */
export function explicitCredit(credit, window, interval) {
  return { ...credit, limit: credit?.limit ?? (window > interval ? window : 0) };
}

/** @param {Params} options @returns {Params} */
export function adjustment(options) {
  checkNames("adjust", options, PARAMS);
  return pick(options, PARAMS);
}

/**
 * A name misspelt must not pass in silence: the wire ignores fields that it does not know.
 * @param {string} method @param {object} given @param {string[]} known
 */
function checkNames(method, given, known) {
  for (const name of Object.keys(given)) {
    if (!known.includes(name)) throw new TypeError(`${method}() knows no option "${name}"`);
  }
}

/** @param {object} options @param {string[]} names @returns {Record<string, any>} */
function pick(options, names) {
  const given = Object.entries(options).filter(([, value]) => value !== undefined);
  return Object.fromEntries(given.filter(([name]) => names.includes(name)));
}

/** Not `crypto.randomUUID`, which a page that came by plain http does not have. @param {number} [length] in bytes */
export function randomId(length = 16) {
  const bytes = crypto.getRandomValues(new Uint8Array(length));
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}
