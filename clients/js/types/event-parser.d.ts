/** The server's first event, `ready`. Throws what is wrong with it. @param {string} text @returns {Ready} */
export function parseReady(text: string): Ready;
/** @param {string} text @returns {ServerEvent} */
export function parseEvent(text: string): ServerEvent;
import type { Ready } from "./protocol.js";
import type { ServerEvent } from "./protocol.js";
