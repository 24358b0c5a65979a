/**
 * Event parser: from a message's JSON text to an event. It knows what every event has, not what any of them means.
 * @module
 * @import { Ready, ServerEvent } from "./protocol.js"
 */

import { ProtocolError, fromEvent } from "./errors.js";
import { VERSION } from "./protocol.js";

/** The limits that are heeded here. What a client says by itself, as to grant credit, is a shorter message. */
const LEAST = { max_message_bytes: 1000, max_grace_ms: 0 };

/** The server's first event, `ready`. Throws what is wrong with it. @param {string} text @returns {Ready} */
export function parseReady(text) {
  const event = parseEvent(text);
  if (event.type === "error") throw fromEvent(event);
  if (event.type !== "ready" || event.protocol !== VERSION) {
    throw new ProtocolError(`expected "ready" of protocol ${VERSION}, got ${text.slice(0, 100)}`);
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
  if (typeof event?.type === "string") return event;
  throw new ProtocolError(`an event without a type: ${text.slice(0, 100)}`);
}
