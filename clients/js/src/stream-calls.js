/**
 * The calls of one stream, and what becomes of each: whether it may run, its tool, its result, and where that stands.
 *
 * Events in, frames out. What stands is the stream's to know; from that and what was said and returned follows what
 * is to be done, after every event anew, so that a call that is taken back, changed or made again needs no rule.
 * @module
 * @import { Agent } from "./agent.js"
 * @import { Call, StreamEvent } from "./protocol.js"
 * @import { Stream } from "./stream.js"
 * @import { Progress, Result } from "./tool-runs.js"
 */

import { Backoff } from "./backoff.js";
import { ConnectionLost, MidstreamError } from "./errors.js";
import { ToolRuns } from "./tool-runs.js";
import { resultText } from "./tools.js";

/**
 * @typedef {{call: Call, content?: string, error?: string, index: number | null}} Outcome What came of a call, and the token
 *   before which the model is told it; null where it is not yet.
 */
/** @typedef {{type: "tool_progress", call: Call} & Progress} ToolProgress */
/** @typedef {{type: "tool_outcome", call: Call, content?: string, error?: string}} ToolOutcome */
/** @typedef {Outcome & {told: boolean, length: number}} Told with the length of the text before it */
/** @typedef {"writing" | "asking" | "running" | "waiting" | "answered" | "failed"} CallState `asking`: for a yes; `waiting`: for a result by hand */

const NO = "the user said no";
const NEEDLESS = ["invalid_params", "request_finished"]; // somebody else has said it, or nobody asks any more

export class StreamCalls {
  /** @type {Map<string, Told>} by call */ #outcomes = new Map();
  /** Calls that the agent was asked about, @type {WeakSet<Call>} */ #asked = new WeakSet();
  /** and those that it has changed. @type {Set<string>} */ #changed = new Set();
  #agent;
  #stream;
  #tell;
  #fail;
  #tools;

  /**
   * @param {Agent} agent @param {Stream} stream @param {(event: ToolProgress | ToolOutcome) => void} tell
   * @param {(why: Error) => void} fail where nobody can say whether a call may run, or what came of it cannot be told
   */
  constructor(agent, stream, tell, fail) {
    this.#agent = agent;
    this.#stream = stream;
    this.#tell = tell;
    this.#fail = fail;
    this.#tools = new ToolRuns(agent.tools, {
      timeoutMs: agent.toolTimeoutMs,
      onprogress: (call, progress) => tell({ type: "tool_progress", call, ...progress }),
      onresult: (call, result) => this.#receiveResult(call, result),
    });
  }

  /**
   * As another's were before output token `at`, for a fork of its stream. What was put in right there may have come behind
   * the fork, and is told again: where it did not, it is refused. @param {StreamCalls} other @param {number} at
   */
  inherit(other, at) {
    for (const [id, outcome] of other.#outcomes) {
      const index = outcome.index !== null && outcome.index <= at ? outcome.index : null;
      this.#outcomes.set(id, { ...outcome, told: index !== null && index < at, index });
    }
  }

  /** What came of the calls that stand. @returns {Outcome[]} */
  get outcomes() {
    return this.#standing().map(({ call, content, error, index }) => ({ call, content, error, index }));
  }

  /** The same in the order of the conversation, with how much text stands before each. */
  get told() {
    return this.#standing().filter(({ index }) => index !== null);
  }

  #standing() {
    return this.#stream.calls.flatMap((call) => {
      const outcome = call.end === undefined ? undefined : this.#outcomes.get(call.call_id);
      return outcome ? [{ ...outcome, call }] : [];
    });
  }

  /** @param {Call} call @returns {CallState} */
  state(call) {
    if (call.end === undefined) return "writing";
    const outcome = this.#outcomes.get(call.call_id);
    if (outcome) return outcome.error === undefined ? "answered" : "failed";
    if (isAsking(call)) return "asking";
    return this.#tools.has(call) ? "running" : "waiting";
  }

  // -- what is said of them -------------------------------------------------------------------------------

  /** It does not run, and the model is told so. @param {Call} call @param {string} [why] */
  refuse(call, why = NO) {
    return this.#give(call, { error: why });
  }

  /** What it returned, by hand: if its tool runs, nobody waits for that any more. @param {Call} call @param {unknown} content */
  give(call, content) {
    return this.#give(call, { content: resultText(content) });
  }

  /** Where the server refuses it, it was not said, and what was said before stands. @param {Call} call @param {Result} result */
  async #give(call, result) {
    const before = this.#outcomes.get(call.call_id);
    try {
      return await this.#settle(call, result);
    } catch (error) {
      const { index = null, length = 0 } = this.#outcomes.get(call.call_id) ?? {};
      this.#outcomes.delete(call.call_id);
      if (before) this.#outcomes.set(call.call_id, index === null ? before : { ...before, index, length });
      throw error;
    }
  }

  /** @param {Call} call @param {Result} result */
  #settle(call, result) {
    this.#note(call, result);
    return this.#send(call.call_id);
  }

  /** It has come to that, and is not told yet. @param {Call} call @param {Result} result */
  #note(call, result) {
    this.#outcomes.set(call.call_id, { call, ...result, told: false, index: null, length: 0 });
    this.#tools.follow(this.#due());
    this.#tell({ type: "tool_outcome", call, ...result });
  }

  // -- what happens ---------------------------------------------------------------------------------------

  /** @param {StreamEvent} event */
  receive(event) {
    const stream = this.#stream;
    if (event.type === "injected" && event.count && !event.reason) this.#stand(event.index, stream.text.length);
    if (event.type === "rewound") this.#takeBack(event.index);
    if (event.type === "final") return this.end();
    for (const call of stream.calls) if (this.#waits(call)) this.#ask(call).catch((why) => this.#waits(call) && this.#fail(why));
    this.#tools.follow(this.#due());
    for (const { call, told } of this.#standing()) if (!told) this.#inform(call);
  }

  /** Its stream has ended, or is lost: nobody waits for what still runs. */
  end() {
    this.#tools.follow([]);
  }

  /** Whole calls that may run, and have no result. */
  #due() {
    const stream = this.#stream;
    if (stream.ended) return [];
    return stream.calls.filter((call) => call.end !== undefined && !isAsking(call) && !this.#outcomes.has(call.call_id));
  }

  /** For a yes, or for other words. @param {Call} call */
  #waits(call) {
    const { calls, ended } = this.#stream;
    return isAsking(call) && calls.includes(call) && !this.#outcomes.has(call.call_id) && !ended;
  }

  /** Results that were sent stand before this token. @param {number} index @param {number} length */
  #stand(index, length) {
    for (const outcome of this.#outcomes.values()) {
      if (outcome.told && outcome.index === null) Object.assign(outcome, { index, length });
    }
  }

  /** A result that was taken back is told again, if its call stands as it stood. @param {number} index */
  #takeBack(index) {
    const standing = this.#stream.calls;
    for (const [id, outcome] of this.#outcomes) {
      if (!standing.some((call) => sameCall(call, outcome.call))) this.#outcomes.delete(id);
      else if (outcome.index !== null && outcome.index > index) Object.assign(outcome, { index: null, told: false });
    }
  }

  /** @param {Call} call */
  async #ask(call) {
    if (!this.#agent.approve || this.#asked.has(call)) return;
    this.#asked.add(call);
    const verdict = this.#changed.delete(call.call_id) || (await this.#agent.approve(call));
    if (!this.#stream.calls.includes(call)) return; // it was taken back, or changed, meanwhile
    const wanted = () => this.#waits(call);
    if (verdict === true) await this.#inTime(() => this.#stream.approve(call), wanted).catch(toldByEvents);
    else if (verdict === false || typeof verdict === "string") await this.#receiveResult(call, { error: verdict || NO });
    else if (typeof verdict !== "object" || !verdict) throw new TypeError(`\`approve\` returned ${verdict}: a verdict is a boolean, a text or other arguments`);
    else {
      this.#changed.add(call.call_id); // and is approved when it is whole again
      await this.#inTime(() => this.#stream.amend(call, verdict), wanted);
    }
  }

  /** A tool has ended. @param {Call} call @param {Result} result */
  #receiveResult(call, result) {
    this.#note(call, result);
    return this.#inform(call);
  }

  /** The model is told, or where that cannot be, as with a text too long, that it cannot. @param {Call} call */
  async #inform(call) {
    let refusal = await this.#refusal(call);
    if (refusal) {
      this.#note(call, { error: refusal.message });
      refusal = await this.#refusal(call);
    }
    if (refusal) this.#fail(refusal); // for that there is no room either
  }

  /** Why it cannot be told. What the stream does not take it has, or needs no more. @param {Call} call @returns {Promise<MidstreamError | null>} */
  async #refusal(call) {
    const wanted = () => !this.#stream.ended && this.#standing().some((outcome) => outcome.call === call);
    try {
      await this.#inTime(() => this.#send(call.call_id), wanted);
      return null;
    } catch (refused) {
      const told = !(refused instanceof MidstreamError) || NEEDLESS.includes(refused.code);
      return told || !wanted() ? null : refused;
    }
  }

  /**
   * What is refused for now alone, as where a minute's tokens are taken, is asked again as long as it is wanted; and so is that
   * of which nobody knows whether it was heard: a stream that has it refuses it.
   * @param {() => Promise<unknown>} ask @param {() => boolean} wanted
   */
  async #inTime(ask, wanted) {
    const backoff = new Backoff(Infinity);
    for (;;) {
      try {
        return void (await ask());
      } catch (refused) {
        if (!(refused instanceof MidstreamError)) throw refused;
        if (!wanted() || !(refused.retryable || refused instanceof ConnectionLost)) throw refused;
        const wait = Number(backoff.next(performance.now(), refused.retryAfterMs ?? 0));
        await new Promise((rested) => setTimeout(rested, wait));
        if (!wanted()) throw refused;
      }
    }
  }

  /** @param {string} id */
  async #send(id) {
    const outcome = /** @type {Told} */ (this.#outcomes.get(id));
    outcome.told = true;
    const { error, content } = outcome;
    return error === undefined ? this.#stream.toolResult(id, content) : this.#stream.toolError(id, error);
  }
}

/** What the server refuses, as where the stream has ended meanwhile, its events tell. @param {unknown} error */
function toldByEvents(error) {
  if (!(error instanceof MidstreamError)) throw error;
}

/** Whether it says what it said, which a call that is changed does not. @param {Call} one @param {Call} other */
function sameCall(one, other) {
  return one.call_id === other.call_id && one.end === other.end && one.arguments === other.arguments;
}

/** Whether it waits for a yes. @param {Call} call */
const isAsking = (call) => call.approval === true;
