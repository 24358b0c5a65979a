/**
 * Half of a pair, as of an emoji that was cut in two, is no character, and the server reads no frame that has one: nor
 * could it say which frame that was. It is written as U+FFFD, as wherever else text leaves JavaScript.
 * @param {Frame} frame
 */
export function writeFrame(frame: Frame): string;
/** As UTF-8; counted only where it may be more than so many. @param {string} text @param {number} most */
export function bytesBeyond(text: string, most: number): number;
import type { Frame } from "./protocol.js";
