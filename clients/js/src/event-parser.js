/**
 * Event parser: from a message's JSON text to an event. It knows what every event has, not what any of them means.
 * @module
 * @import { Ready, ServerEvent } from "./protocol.js"
 */

import { ProtocolError, fromEvent } from "./errors.js";
import { kindOf } from "./json-kinds.js";
import { VERSION } from "./protocol.js";

/** What an event of each kind must have, and of which kind. @type {Record<string, Record<string, string>>} */
const FIELDS = {
  ready: { session_id: "string", models: "array", limits: "object" },
  started: { model: "string", prompt_tokens: "number", params: "object" },
  token: { index: "number", count: "number", delta: "string" },
  reasoning: { index: "number", count: "number", delta: "string" },
  tool_call: { index: "number", call_id: "string", name: "string" },
  tool_arguments: { index: "number", count: "number", call_id: "string", delta: "string" },
  tool_call_done: { index: "number", end: "number", call_id: "string" },
  approved: { index: "number", call_id: "string" },
  paused: { index: "number", reason: "string" },
  resumed: { index: "number" },
  adjusted: { index: "number", params: "object" },
  injected: { index: "number", count: "number" },
  rewound: { index: "number", text_length: "number" },
  guard: { index: "number", name: "string", do: "string" },
  snapshot: { index: "number", text: "string", model: "string", prompt_tokens: "number", params: "object" },
  final: { index: "number", finish_reason: "string", usage: "object", timing: "object" },
  error: { code: "string", message: "string" },
};

/** The limits that are heeded here. What a client says by itself, as to grant credit, is a shorter message. */
const LEAST = { max_message_bytes: 1000, max_grace_ms: 0 };
const MAX_SESSION_ID = 64; // characters: a client says it again, as it was said

/** The server's first event, `ready`. Throws what is wrong with it. @param {string} text @returns {Ready} */
export function parseReady(text) {
  const event = parseEvent(text);
  if (event.type === "error") throw fromEvent(event);
  if (event.type !== "ready" || event.protocol !== VERSION) {
    throw new ProtocolError(`expected "ready" of protocol ${VERSION}, got ${text.slice(0, 100)}`);
  }
  if (!event.session_id || event.session_id.length > MAX_SESSION_ID) {
    throw new ProtocolError(`expected a \`session_id\` of 1 to ${MAX_SESSION_ID} characters, got "${event.session_id.slice(0, 100)}"`);
  }
  for (const [name, least] of Object.entries(LEAST)) {
    const { [name]: limit = least } = event.limits;
    if (Number.isInteger(limit) && Number(limit) >= least) continue;
    throw new ProtocolError(`expected \`${name}\` of ${least} or more, got ${JSON.stringify(limit).slice(0, 100)}`);
  }
  return event;
}

/** @param {string} text @returns {ServerEvent} */
export function parseEvent(text) {
  let event;
  try {
    event = JSON.parse(text);
  } catch {
    throw new ProtocolError(`an event that cannot be read: ${String(text).slice(0, 100)}`);
  }
  if (typeof event?.type !== "string") throw new ProtocolError(`an event without a type: ${text.slice(0, 100)}`);
  const fields = Object.hasOwn(FIELDS, event.type) ? FIELDS[event.type] : {};
  for (const name in fields) {
    if (kindOf(event[name]) !== fields[name]) throw new ProtocolError(`an event without its \`${name}\`: ${text.slice(0, 100)}`);
  }
  return event;
}
