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
import { later } from "./retry-loop.js";
import { ToolRuns } from "./tool-runs.js";
import { callArguments, resultText } from "./tools.js";

/**
 * @typedef {{call: Call, content?: string, error?: string, index: number | null}} Outcome What came of a call, and the token
 *   before which the model is told it; null where it is not yet.
 */
/** @typedef {{type: "tool_progress", call: Call} & Progress} ToolProgress */
/** @typedef {{type: "tool_outcome", call: Call, content?: string, error?: string}} ToolOutcome */
/** @typedef {{call: Call, content?: string, error?: string, said: boolean}} Known `said`: the server was told, or is being told. */
/** @typedef {"writing" | "asking" | "running" | "waiting" | "answered" | "failed"} CallState `asking`: for a yes; `waiting`: for a result by hand */

const NO = "the user said no";
const NEEDLESS = ["invalid_params", "request_finished"]; // somebody else has said it, or nobody asks any more

export class StreamCalls {
  /** @type {Map<string, Known>} by call */ #outcomes = new Map();
  /** Calls that the agent was asked about, @type {WeakSet<Call>} */ #asked = new WeakSet();
  /** and with what arguments one may be made that it has changed. @type {Map<string, object>} */ #agreed = new Map();
  /** Those of which the model is being told what came. @type {Set<string>} */ #telling = new Set();
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
    const { told } = other.#stream;
    for (const [id, outcome] of other.#outcomes) {
      const before = (told.results.get(id)?.index ?? at) < at;
      if (/** @type {number} */ (outcome.call.end) <= at) this.#outcomes.set(id, { ...outcome, said: before });
    }
    this.#stream.told.inherit(told, at);
  }

  /** What came of the calls that stand. @returns {Outcome[]} */
  get outcomes() {
    const { results } = this.#stream.told;
    return this.#standing().map(({ call, content, error }) => ({ call, content, error, index: results.get(call.call_id)?.index ?? null }));
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
    this.#telling.add(call.call_id);
    try {
      return await this.#settle(call, result);
    } catch (error) {
      this.#outcomes.delete(call.call_id);
      if (before) this.#outcomes.set(call.call_id, before);
      throw error;
    } finally {
      this.#telling.delete(call.call_id);
    }
  }

  /** @param {Call} call @param {Result} result */
  #settle(call, result) {
    this.#note(call, result);
    return this.#send(call.call_id);
  }

  /** It has come to that, and is not told yet. @param {Call} call @param {Result} result */
  #note(call, result) {
    this.#outcomes.set(call.call_id, { call, ...result, said: false });
    this.#tools.follow(this.#due());
    this.#tell({ type: "tool_outcome", call, ...result });
  }

  // -- what happens ---------------------------------------------------------------------------------------

  /** @param {StreamEvent} event */
  receive(event) {
    const stream = this.#stream;
    if (event.type === "rewound" || event.type === "snapshot") this.#takeBack();
    if (event.type === "final") return this.end();
    for (const call of stream.calls) if (this.#waits(call)) this.#ask(call).catch((why) => this.#waits(call) && this.#fail(why));
    this.#tools.follow(this.#due());
    for (const { call, said } of this.#standing()) if (!said) this.#inform(call);
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

  /** A result that was taken back, or may have been, is told again, if its call stands as it stood: where it was not, it is refused. */
  #takeBack() {
    const { calls, told } = this.#stream;
    for (const [id, outcome] of this.#outcomes) {
      if (!calls.some((call) => sameCall(call, outcome.call))) this.#outcomes.delete(id);
      else if ((!told.has(id) || told.doubtful.has(id)) && !this.#telling.has(id)) outcome.said = false;
    }
  }

  /** @param {Call} call */
  async #ask(call) {
    if (!this.#agent.approve || this.#asked.has(call)) return;
    this.#asked.add(call);
    const verdict = says(call, this.#agreed.get(call.call_id)) || (await this.#agent.approve(call));
    if (!this.#stream.calls.includes(call)) return; // it was taken back, or changed, meanwhile
    const wanted = () => this.#waits(call);
    if (verdict === true || says(call, verdict)) await this.#inTime(() => this.#stream.approve(call), wanted).catch(toldByEvents);
    else if (verdict === false || typeof verdict === "string") await this.#receiveResult(call, { error: verdict || NO });
    else if (typeof verdict !== "object" || !verdict) throw new TypeError(`\`approve\` returned ${verdict}: a verdict is a boolean, a text or other arguments`);
    else {
      this.#agreed.set(call.call_id, verdict); // and is approved when it is whole again, and says so
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
    this.#telling.add(call.call_id);
    let refusal = await this.#refusal(call);
    if (refusal) {
      this.#note(call, { error: refusal.message });
      refusal = await this.#refusal(call);
    }
    this.#telling.delete(call.call_id);
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
        await new Promise((rested) => later(wait, rested));
        if (!wanted()) throw refused;
      }
    }
  }

  /** What was heard and taken back by now is said again. @param {string} id */
  async #send(id) {
    for (;;) {
      const outcome = /** @type {Known} */ (this.#outcomes.get(id));
      outcome.said = true;
      this.#stream.told.doubtful.delete(id);
      const { error, content } = outcome;
      const index = await (error === undefined ? this.#stream.toolResult(id, content) : this.#stream.toolError(id, error));
      if (this.#stream.told.has(id) || this.#outcomes.get(id) !== outcome) return index;
    }
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

/** Whether these are its arguments already, which may be no JSON. @param {Call} call @param {unknown} given */
function says(call, given) {
  try {
    return typeof given === "object" && sameJson(JSON.parse(JSON.stringify(given)), callArguments(call));
  } catch {
    return false;
  }
}

/** In whatever order. @param {any} one @param {any} other @returns {boolean} */
function sameJson(one, other) {
  if (typeof one !== "object" || typeof other !== "object" || !one || !other) return one === other;
  const names = Object.keys(one);
  const alike = Array.isArray(one) === Array.isArray(other) && names.length === Object.keys(other).length;
  return alike && names.every((name) => Object.hasOwn(other, name) && sameJson(one[name], other[name]));
}
