/**
 * What guards have done to a stream, each act with the event in which it takes effect. Events in; pure.
 * @module
 * @import { GuardEvent, StreamEvent } from "./protocol.js"
 */

export class GuardActs {
  /** It was told, and is to take effect. @type {GuardEvent | null} */ pending = null;

  /** The act that takes effect with this event. What a guard only tells is none. @param {StreamEvent} event */
  receive(event) {
    if (event.type === "guard" && event.do !== "tell") this.pending = event;
    const goneBack = event.type === "rewound" && !event.ref && this.pending?.do !== "pause";
    if (!goneBack && !(event.type === "paused" && event.reason === "guard")) return null;
    const act = this.pending;
    this.pending = null;
    return act;
  }
}
