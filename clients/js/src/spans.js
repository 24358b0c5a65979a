/**
 * What a stream has beside its text: reasoning, and calls of tools. Events in, what stands out; it knows no text.
 * @module
 * @import { Approved, Beside, Call, Rewound, Snapshot } from "./protocol.js"
 */

import { utf16Length } from "./utf16-length.js";

export class Spans {
  /** What the model has said to itself, of what stands. */
  reasoning = "";
  /** @type {Call[]} whole ones, and perhaps one that is being written */
  calls = [];
  /** Calls that have begun, also those that were taken back. */
  told = 0;
  /** The last end of a call that stands by the last snapshot as it stood. */
  stoodUntil = 0;

  /** @param {Beside | Approved} event */
  receive(event) {
    switch (event.type) {
      case "reasoning": this.reasoning += event.delta; break;
      case "tool_call": {
        const { call_id, name, index } = event;
        this.calls = [...this.calls, { call_id, name, arguments: "", index }];
        this.told++;
        break;
      }
      case "tool_arguments": this.#change(event.call_id, (last) => ({ arguments: last.arguments + event.delta })); break;
      case "tool_call_done": {
        const { end, approval } = event;
        this.#change(event.call_id, () => (approval ? { end, approval } : { end }));
        break;
      }
      // The same object: whoever has been given the call need not be given it again.
      case "approved": for (const call of this.calls) if (call.call_id === event.call_id) delete call.approval;
    }
  }

  /** @param {Rewound} event */
  rewind({ index, reasoning_length = 0, tool_calls = 0, arguments_length = 0 }) {
    this.reasoning = this.reasoning.slice(0, utf16Length(this.reasoning, reasoning_length) ?? undefined);
    this.calls = this.calls.slice(0, tool_calls);
    const last = this.calls.at(-1);
    if (!last) return;
    const { end, approval, ...open } = last;
    const kept = last.arguments.slice(0, utf16Length(last.arguments, arguments_length) ?? undefined);
    const whole = end !== undefined && end <= index && kept === last.arguments;
    this.calls = [...this.calls.slice(0, -1), whole ? last : { ...open, arguments: kept }];
  }

  /** @param {Snapshot} event */
  receiveSnapshot({ reasoning = "", tool_calls = [] }) {
    this.reasoning = reasoning;
    const known = new Set(this.calls.map(({ call_id }) => call_id));
    this.told += tool_calls.filter(({ call_id }) => !known.has(call_id)).length;
    this.stoodUntil = 0;
    // What stands as it stood is the same object: whoever has it knows that it has not changed.
    this.calls = tool_calls.map((call) => {
      const stood = this.calls.find((had) => same(had, call));
      if (stood && !call.approval) delete stood.approval;
      this.stoodUntil = Math.max(this.stoodUntil, stood?.end ?? 0);
      return stood ?? call;
    });
  }

  /**
   * What stands in the tokens from `since` on and has not come: the events that tell it. Null where what has come does not
   * stand there.
   * @param {Snapshot} begun @param {number} since @returns {Beside[] | null}
   */
  missing({ request_id, seq, index: end, reasoning = "", tool_calls = [] }, since) {
    if (!reasoning.startsWith(this.reasoning) || this.calls.length > tool_calls.length) return null;
    const of = { request_id, seq };
    const more = { ...of, index: since, count: end - since };
    /** @type {Beside[]} */ const missing = [];
    const said = reasoning.slice(this.reasoning.length);
    if (said) missing.push({ type: "reasoning", ...more, delta: said });
    for (const [place, { call_id, name, index, arguments: given, end }] of tool_calls.entries()) {
      const had = this.calls[place];
      if (!had) missing.push({ type: "tool_call", ...of, index, call_id, name });
      else if (had.call_id !== call_id || !goesOn(had, tool_calls[place])) return null;
      const delta = given.slice(had?.arguments.length ?? 0);
      if (delta) missing.push({ type: "tool_arguments", ...more, call_id, delta });
      if (end !== undefined && had?.end === undefined) missing.push({ type: "tool_call_done", ...of, index, end, call_id });
    }
    return missing;
  }

  /** @param {string} callId @param {(last: Call) => Partial<Call>} change */
  #change(callId, change) {
    const last = this.calls.at(-1);
    if (last?.call_id !== callId) return; // it had begun before what is known of the stream
    this.calls = [...this.calls.slice(0, -1), { ...last, ...change(last) }];
  }
}

/** But for a yes that has come. @param {Call} one @param {Call} other */
function same(one, other) {
  const { call_id, index, end } = one;
  return (
    call_id === other.call_id &&
    index === other.index &&
    end === other.end &&
    one.arguments === other.arguments
  );
}

/** Whether it is the same call, or more of it where it was not whole. @param {Call} had @param {Call} call */
function goesOn(had, call) {
  if (had.end !== undefined) return had.end === call.end && had.arguments === call.arguments;
  return call.arguments.startsWith(had.arguments);
}
