/** The server's first words. Throws what is wrong with them. @param {string} text @returns {Ready} */
export function greeting(text: string): Ready;
/** @param {string} text @returns {ServerEvent} */
export function parsed(text: string): ServerEvent;
import type { Ready } from "./protocol.js";
import type { ServerEvent } from "./protocol.js";
