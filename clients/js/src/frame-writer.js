/**
 * Frame writer: from a frame to its message's JSON text. It knows how text may be written, not what any frame means.
 * @module
 * @import { Frame } from "./protocol.js"
 */

const SURROGATE = "\\ud"; // JSON.stringify escapes no other character so

/**
 * Half of a pair, as of an emoji that was cut in two, is no character, and the server reads no frame that has one: nor
 * could it say which frame that was. It is written as U+FFFD, as wherever else text leaves JavaScript.
 * @param {Frame} frame
 */
export function writeFrame(frame) {
  const text = JSON.stringify(frame);
  if (!text.includes(SURROGATE)) return text;
  // Escape by escape, since a backslash that is escaped may stand before letters that look like one.
  return text.replace(/\\(?:ud[0-9a-f]{3}|.)/g, (escape) => (escape.startsWith(SURROGATE) ? "\ufffd" : escape));
}

/** As UTF-8; counted only where it may be more than so many. @param {string} text @param {number} most */
export function bytesBeyond(text, most) {
  if (3 * text.length <= most) return 0;
  const bytes = new TextEncoder().encode(text).length;
  return bytes > most ? bytes : 0;
}
