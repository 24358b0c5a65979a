/**
 * The past of a stream: what its start says again, where nobody but its client knows the stream any more.
 *
 * It has the steering that took effect, each at its token, and follows rewinds; output is the core's. What the server
 * alone knows (the tokens with which a call was amended, what another connection put in) cannot be said again as long as
 * it stands. Frames and events in; pure.
 * @module
 * @import { Answered, Call, Injected, Params, PastStep, RequestFrame, Snapshot, Start, StreamEvent, ToolResultFrame } from "./protocol.js"
 * @import { StreamCore } from "./stream-core.js"
 */

import { MAX_PAST, goesBackTo } from "./protocol.js";

/** @typedef {{step: PastStep | null, index: number, count: number}} Step `step` is null where it cannot be said. */

export class Past {
  #start;
  /** @type {Step[]} */ #steps = [];
  /** @type {Map<string, RequestFrame>} those that have no answer yet, by ref */ #sent = new Map();
  /** @type {Map<string, {ref: string, frame: ToolResultFrame}>} results that wait for others, by call */ #results = new Map();
  /** @type {Params | null} */ #begun = null;
  #missing = 0; // tokens that were put in while nothing was heard of it
  #guarded = false;
  #waits = false; // for results of calls, by itself
  /** Whether a client has paused it. */
  paused = false;

  /** @param {Start} start */
  constructor(start) {
    this.#start = start;
    this.#guarded = Boolean(start.params.guards?.length);
  }

  /** Results that the server has, and has not put in: it waits for others. */
  get waiting() {
    return [...this.#results.values()];
  }

  /**
   * Its start, with all that has come since; null where that cannot be said exactly.
   * @param {StreamCore} core @returns {Start | null}
   */
  start({ tokens, index, text, spans: { reasoning, calls, told } }) {
    const { on_disconnect, fork, approvals } = this.#start;
    const kept = on_disconnect === "pause" || on_disconnect === "continue";
    // A step may stand behind tokens that were decoded ahead of credit, and never came.
    const known = tokens.length === index && !this.#missing && this.#steps.every(({ step, index: at }) => step && at <= index);
    const few = Math.max(this.#steps.length, calls.length) <= MAX_PAST;
    if (!this.#begun || !kept || fork || approvals || this.#guarded || !known || !few) return null;
    const steering = this.#steps.map(({ step }) => /** @type {PastStep} */ (step));
    const { credit } = this.#start;
    const limited = credit && { credit: { ...credit, limit: Math.min(credit.limit ?? 0, index) } };
    const past = {
      tokens: [...tokens],
      text_length: [...text].length,
      ...(reasoning && { reasoning_length: [...reasoning].length }),
      ...(told && { arguments_length: [...(calls.at(-1)?.arguments ?? "")].length, call_ids: calls.map(({ call_id }) => call_id), told_calls: told }),
      ...(this.#waits && { waits: true }),
      steering,
    };
    return { ...this.#start, ...limited, params: this.#begun, past };
  }

  /** @param {string} ref @param {RequestFrame} frame */
  sent(ref, frame) {
    if (["inject", "amend", "tool_result"].includes(frame.type)) this.#sent.set(ref, frame);
  }

  /** @param {string} ref */
  refused(ref) {
    this.#sent.delete(ref);
  }

  /** The stream's next event; `calls` are those that stand with it. @param {StreamEvent} event @param {Call[]} calls */
  receive(event, calls) {
    switch (event.type) {
      case "started": this.#begun ??= { ...event.params }; break;
      case "adjusted": this.#adjust(event.index, event.params); break;
      case "injected": this.#inject(event, calls); break;
      case "rewound": this.#rewind(event.index, calls); break;
      case "paused":
        this.paused ||= event.reason === "client";
        this.#waits ||= event.reason === "tool_call";
        break;
      case "resumed": this.paused = this.#waits = false; break;
      case "restarted": this.#waits = event.begun.paused === "tool_call"; break; // else its server knows nothing of that
      case "guard": this.#guarded = true;
    }
  }

  /**
   * An answer that a snapshot stands for, which is about to come.
   * @param {RequestFrame} frame @param {Exclude<Answered, {type: "error"}>} answer @param {StreamCore} core
   */
  receiveMissed(frame, answer, core) {
    const at = goesBackTo(frame);
    if (at !== undefined) this.#rewind(at, core.spans.calls);
    if (frame.type === "adjust" && answer.type === "adjusted") {
      core.params = { ...core.params, ...frame.params };
      this.receive({ ...answer, params: core.params }, core.spans.calls);
    } else this.receive(answer, core.spans.calls);
  }

  /** It stands for events that never came. @param {Snapshot} snapshot */
  miss({ index, params, paused, injected_tokens = 0 }) {
    this.#missing = injected_tokens - this.#steps.reduce((sum, { count }) => sum + count, 0);
    this.paused = paused === "client";
    this.#waits = paused === "tool_call";
    const known = this.#params;
    if (!known || JSON.stringify(known) === JSON.stringify(params)) return;
    if (!sameGrammar(known, params)) this.#steps.push({ step: null, index, count: 0 }); // it began at some token
    this.#adjust(index, params);
  }

  /** In force. */
  get #params() {
    const adjusts = this.#steps.flatMap(({ step }) => (step?.type === "adjust" ? [step.params] : []));
    return adjusts.at(-1) ?? this.#begun;
  }

  /** In place of others at that token; but one with another grammar tells that this one begins there. @param {number} index @param {Params} params */
  #adjust(index, params) {
    this.#guarded ||= Boolean(params.guards?.length);
    /** @type {Step[]} */ const there = [];
    for (let last; (last = this.#steps.at(-1))?.step?.type === "adjust" && last?.index === index; ) there.push(...this.#steps.splice(-1));
    const other = there.find(({ step }) => step?.type === "adjust" && !sameGrammar(step.params, params));
    this.#steps.push(...(other ? [other] : []), { step: { type: "adjust", index, params: { ...params } }, index, count: 0 });
  }

  /** @param {Injected} event @param {Call[]} calls */
  #inject(event, calls) {
    const { ref = "", index, count } = event;
    const frame = this.#sent.get(ref);
    this.#sent.delete(ref);
    if (frame?.type === "tool_result") this.#results.set(frame.call_id, { ref, frame });
    // An amendment that puts nothing in may leave a part of what was put in there.
    const cuts = frame?.type === "amend" && this.#steps.some(({ step, index: at }) => at === index && step?.type !== "adjust");
    if (count || cuts) this.#steps.push({ step: this.#putIn(event, frame, calls), index, count });
  }

  /** @param {Injected} event @param {RequestFrame | undefined} frame @param {Call[]} calls @returns {PastStep | null} */
  #putIn({ ref, index, reason }, frame, calls) {
    if (frame?.type === "inject") {
      const { text, messages, tokens, grammar } = frame;
      // Their calls have a result, and none that waits is put in any more.
      for (const { tool_call_id = "" } of messages ?? []) this.#results.delete(tool_call_id);
      return { type: "inject", index, text, messages, tokens, grammar };
    }
    const byItself = !ref && !reason;
    if (!this.#results.size || !(byItself || frame?.type === "tool_result")) return null;
    const results = this.#results;
    this.#results = new Map();
    const told = calls.filter(({ call_id }) => results.has(call_id));
    const messages = told.map((call) => message(call, /** @type {any} */ (results.get(call.call_id)).frame));
    return { type: "inject", index, messages };
  }

  /** @param {number} index @param {Call[]} calls those that are left, of which one may be open again */
  #rewind(index, calls) {
    const left = new Set(calls.filter(({ end }) => end !== undefined).map(({ call_id }) => call_id));
    for (const call of this.#results.keys()) if (!left.has(call)) this.#results.delete(call);
    const stood = this.#steps;
    this.#steps = [];
    for (const one of stood) {
      if (one.step?.type === "adjust") this.#adjust(Math.min(one.index, index), one.step.params);
      else if (one.index <= index) this.#steps.push(one);
    }
  }
}

/** As the server tells it to the model, to the letter. @param {Call} call @param {ToolResultFrame} result */
function message({ name, call_id: tool_call_id }, { content, error }) {
  return { role: "tool", content: content ?? `{"error": ${asciiJson(error)}}`, name, tool_call_id };
}

/** As Python's `json.dumps` has it. @param {string | undefined} text */
function asciiJson(text) {
  return JSON.stringify(text).replace(/[^ -~]/g, (unit) => `\\u${unit.charCodeAt(0).toString(16).padStart(4, "0")}`);
}

/** @param {Params} one @param {Params} other */
function sameGrammar({ grammar: one }, { grammar: other }) {
  return JSON.stringify(one) === JSON.stringify(other);
}
