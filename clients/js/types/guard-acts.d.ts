/**
 * What guards have done to a stream, each act with the event in which it takes effect. Events in; pure.
 * @module
 * @import { GuardEvent, StreamEvent } from "./protocol.js"
 */
export class GuardActs {
    /** It was told, and is to take effect. @type {GuardEvent | null} */ pending: GuardEvent | null;
    /** The act that takes effect with this event. What a guard only tells is none. @param {StreamEvent} event */
    receive(event: StreamEvent): GuardEvent | null;
}
import type { GuardEvent } from "./protocol.js";
import type { StreamEvent } from "./protocol.js";
