/**
 * A recorder: what a client asks of its stream and what comes of it, as lines of a record. Pure.
 *
 * It sees the stream's events, and each frame with the event that answered it. What is done with the lines is its
 * user's business.
 * @module
 * @import { Answer, Params, RequestFrame, Start, StreamEvent } from "./protocol.js"
 * @import { Line } from "./record-format.js"
 */

import { GuardActs } from "./guard-acts.js";
import { RECORD_VERSION } from "./record-format.js";

const SNAPSHOT = "the connection was lost, and the server had forgotten what happened meanwhile";
const FORK = "the stream is a fork, which cannot be played without the one that it forks";
const BEGINNING = /** @type {const} */ (["grammar", "guards"]); // at a token; told to be as they are they go on
const ELSEWHERE = "another connection injected something here";

/** Records one stream: `client.start({ prompt, recorder: new Recorder() })`. */
export class Recorder {
  /** @type {Line[]} */ #lines = [];
  /**
   * Lines whose content only the frame has that they answer, by the frame's `ref`, and the calls that stood then.
   * @type {Map<string, {line: any, calls: string[]}>}
   */
  #answers = new Map();
  /** @type {string[]} those that stand */ #calls = [];
  /** @type {Map<string, number>} of those that were whole, where each ends */ #ends = new Map();
  /** @type {Map<string, import("./protocol.js").ToolResultFrame>} by call, that wait and have no effect yet */ #results = new Map();
  /** @type {string[]} the refs of results that were told again */ #again = [];
  /** @type {Start | null} */ #start = null;
  #guardActs = new GuardActs();
  /** What changes where a guard is about to act. @type {Line[]} */ #behindAct = [];
  #forked = false;
  /** What its stream changed behind where it is forked. @type {Params[]} */ #leftOut = [];
  #paused = "";
  #lost = false;
  #end = 0;
  #stream;

  /** @param {number} [stream] its number in the file */
  constructor(stream = 1) {
    this.#stream = stream;
  }

  /** The record so far, as a file has it. */
  get text() {
    const lines = this.#lines.slice();
    const unknown = lines.findIndex((line) => line.type === "inject" && !hasContent(line));
    if (unknown >= 0) lines.splice(unknown, Infinity, this.#lostLine(endOf(lines.slice(0, unknown)), ELSEWHERE));
    return lines.map((line) => `${JSON.stringify(line)}\n`).join("");
  }

  /** Of the stream that is about to be started: its tokens come with ids and log probabilities. @param {Start} frame */
  begin(frame) {
    frame.return_tokens = true;
    if (typeof frame.params.logprobs !== "number") frame.params.logprobs = 0;
    this.#start = frame;
  }

  /**
   * For a fork of this stream: as it was up to there, and then as the fork goes on.
   * @param {number} at @param {number} [stream] its number in the file
   */
  fork(at, stream = this.#stream) {
    const other = new Recorder(stream);
    other.#lines = linesUntil(this.#lines, at).map((line) => ({ ...line, stream }));
    const behind = this.#lines.slice(goneBack(this.#lines, at));
    other.#leftOut = behind.flatMap((line) => ("params" in line && line.type !== "start" && line.index > at ? [line.params] : []));
    other.#forked = true;
    other.#end = at;
    return other;
  }

  /** What was asked took effect. @param {RequestFrame} frame @param {Answer} answer */
  answered(frame, answer) {
    const { ref = "" } = answer;
    const { line, calls = [] } = this.#answers.get(ref) ?? {}; // none where a snapshot alone has told of it
    if (!line) return;
    this.#answers.delete(ref);
    if (frame.type === "adjust") line.params = inTheServersWords(frame.params, answer);
    if (frame.type === "pause" && frame.kv) line.kv = frame.kv;
    if (frame.type === "inject") {
      const { text, messages, tokens, grammar } = frame;
      for (const { tool_call_id = "" } of messages ?? []) this.#results.delete(tool_call_id); // those calls have a result now
      Object.assign(line, { text, messages, tokens, grammar });
    }
    const puts = "count" in answer && answer.count > 0;
    if (frame.type === "tool_result") {
      this.#lines.splice(this.#lines.indexOf(line), 1); // it stands where it goes in, whenever it was told
      this.#results.set(frame.call_id, frame);
      if (puts) this.#putIn(line.index);
    }
    if (frame.type === "amend") {
      const { arguments: given, partial, call_id } = frame;
      if (puts) Object.assign(line, { type: "amend", call: calls.indexOf(call_id), arguments: given, partial });
      else this.#lines.splice(this.#lines.indexOf(line), 1); // nothing differed
    }
  }

  /** @param {StreamEvent} event */
  receive(event) {
    if (this.#lost || !this.#start) return;
    const stream = this.#stream;
    const act = this.#guardActs.receive(event);
    if (act) this.#lines.push({ type: "guard", stream, index: act.index, name: act.name, do: act.do }, ...this.#behindAct.splice(0));
    switch (event.type) {
      case "started": return this.#receiveStart(event);
      case "token": {
        const { index, delta: text, tokens = [], logprobs } = event;
        this.#end = index + event.count;
        const told = logprobs && { logprobs: logprobs.map(({ logprob }) => logprob) };
        return void this.#lines.push({ type: "tokens", stream, index, text, tokens, ...told });
      }
      case "adjusted": {
        const about = this.#guardActs.pending; // what that acts upon was sampled without
        const lines = about && about.index <= event.index ? this.#behindAct : this.#lines;
        return this.#add({ type: "adjust", stream, index: event.index, params: event.params }, event.ref, lines);
      }
      case "injected":
        if (event.reason) return;
        if (event.ref ? this.#again.includes(event.ref) : this.#results.size) return void (event.count && this.#putIn(event.index));
        return this.#add({ type: "inject", stream, index: event.index }, event.ref);
      case "tool_call": return void this.#calls.push(event.call_id);
      case "tool_call_done": return void this.#ends.set(event.call_id, event.end);
      case "rewound":
        this.#end = event.index;
        this.#calls = this.#calls.slice(0, event.tool_calls ?? 0);
        for (const call of this.#results.keys()) {
          if (!this.#calls.includes(call) || Number(this.#ends.get(call)) > event.index) this.#results.delete(call);
        }
        if (act || (this.#guardActs.pending && !event.ref)) return;
        return this.#add({ type: "rewind", stream, index: event.index }, event.ref);
      case "paused":
        this.#paused = event.reason;
        if (event.reason === "client") this.#add({ type: "pause", stream, index: event.index }, event.ref);
        if (event.reason === "tool_call") this.#lines.push({ type: "waits", stream, index: event.index });
        return;
      case "restarted": return this.#receiveRestarted(event);
      case "resumed": return this.#receiveResumed(event);
      case "snapshot":
        if (!this.#forked || event.index !== this.#end) return this.#lose(this.#forked ? FORK : SNAPSHOT);
        return this.#beginAt(event.tool_calls ?? []);
      case "final": {
        const { index, finish_reason, stop_reason } = event;
        this.#lines.push({ type: "final", stream, index, finish_reason, ...(stop_reason && { stop_reason }) });
      }
    }
  }

  /** @param {import("./protocol.js").Started} event */
  #receiveStart({ request_id, model, fingerprint, prompt_tokens, params }) {
    if (this.#forked && this.#lines.length && endOf(this.#lines) === this.#end) return this.#receiveFork(params, fingerprint);
    const { prompt, messages, fork, tools, tool_choice, parallel_tool_calls, on_tool_call } = /** @type {Start} */ (this.#start);
    const head = /** @type {const} */ ({ type: "start", stream: this.#stream, record: RECORD_VERSION });
    const told = { request_id, model, fingerprint: fingerprint ?? null };
    const offered = { tools, tool_choice, parallel_tool_calls, on_tool_call };
    this.#lines = [{ ...head, ...told, prompt, messages, fork, ...offered, prompt_tokens, params }];
    this.#end = 0;
    if (fork) this.#lose(FORK);
  }

  /** @param {Params} params @param {string | undefined} fingerprint */
  #receiveFork(params, fingerprint) {
    const { on_tool_call } = /** @type {Start} */ (this.#start);
    const standing = /** @type {any} */ ({});
    for (const line of this.#lines) if ("params" in line) Object.assign(standing, line.params);
    // Though it is as before that token, it begins with the fork where it was another behind it.
    const anew = BEGINNING.filter((name) => {
      const before = standing[name];
      return before && same(params[name], before) && this.#leftOut.some((other) => name in other && !same(other[name], before));
    });
    if (anew.length) {
      const ended = Object.fromEntries(anew.map((name) => [name, null]));
      this.#lines.push({ type: "adjust", stream: this.#stream, index: this.#end, params: ended });
      Object.assign(standing, ended);
    }
    const changed = Object.entries(params).filter(([name, value]) => !same(value, standing[name]));
    const own = { params: Object.fromEntries(changed), ...(on_tool_call && { on_tool_call }) };
    this.#lines.push({ type: "forked", stream: this.#stream, index: this.#end, ...own });
    this.#moveTo(this.#end, fingerprint);
  }

  /** A fork does, with these calls. @param {import("./protocol.js").Call[]} calls */
  #beginAt(calls) {
    this.#forked = false; // another would stand for what never came
    this.#calls = calls.map(({ call_id }) => call_id);
    for (const { call_id, end } of calls) if (end !== undefined) this.#ends.set(call_id, end);
  }

  /** It goes on elsewhere. @param {import("./protocol.js").Restarted} event */
  #receiveRestarted({ index, begun: { index: stands, fingerprint }, again }) {
    this.#again = again;
    this.#moveTo(index, fingerprint);
    if (stands > index) this.#lose(SNAPSHOT); // how it came so far nobody has told
  }

  /** @param {number} index @param {string | null} [fingerprint] of the engine that goes on with it */
  #moveTo(index, fingerprint) {
    const known = this.#lines.flatMap((line) => ("fingerprint" in line ? [line.fingerprint] : [])).at(-1);
    if (fingerprint && fingerprint !== known) this.#lines.push({ type: "moved", stream: this.#stream, index, fingerprint });
  }

  /** @param {import("./protocol.js").Resumed} event */
  #receiveResumed({ index, fingerprint, ref }) {
    const stream = this.#stream;
    this.#moveTo(index, fingerprint);
    if (ref || ["client", "guard"].includes(this.#paused)) this.#lines.push({ type: "resume", stream, index });
    this.#paused = "";
  }

  /** Results go in together. @param {number} index */
  #putIn(index) {
    for (const [call_id, { content, error }] of this.#results) {
      this.#lines.push({ type: "tool_result", stream: this.#stream, index, call: this.#calls.indexOf(call_id), content, error });
    }
    this.#results.clear();
  }

  /** @param {Line} line @param {string | undefined} ref @param {Line[]} [lines] */
  #add(line, ref, lines = this.#lines) {
    lines.push(line);
    if (ref) this.#answers.set(ref, { line, calls: [...this.#calls] });
  }

  /** @param {string} why */
  #lose(why) {
    this.#lost = true;
    this.#lines.push(this.#lostLine(this.#end, why));
  }

  /** @param {number} index @param {string} why @returns {Line} */
  #lostLine(index, why) {
    return { type: "lost", stream: this.#stream, index, why };
  }
}

/** @param {unknown} one @param {unknown} other */
const same = (one, other) => JSON.stringify(one) === JSON.stringify(other);

/**
 * What was asked for, as the server tells it from then on: by that it is compared.
 * @param {Params} asked @param {any} answer
 */
function inTheServersWords(asked, { params: told }) {
  return Object.fromEntries(Object.entries(asked).map(([name, value]) => [name, (value && told[name]) ?? value]));
}

/** @param {any} line */
const hasContent = ({ text, messages, tokens }) => [text, messages, tokens].some((content) => content !== undefined);

/** How much output stands behind these lines. @param {Line[]} lines */
function endOf(lines) {
  let end = 0;
  for (const line of lines) {
    if (line.type === "tokens") end = line.index + line.tokens.length;
    if (line.type === "rewind" || line.type === "guard") end = Math.min(line.index, end);
  }
  return end;
}

/** How many lines there are until it went back to there, or to before it, for the last time. @param {Line[]} lines @param {number} at */
function goneBack(lines, at) {
  let behind = 0;
  for (const [number, line] of lines.entries()) {
    if ((line.type === "guard" || line.type === "rewind") && line.index <= at) behind = number + 1;
  }
  return behind;
}

/**
 * What it takes to stand before output token `at`: what came behind that, and was not taken back to there or to before it, is
 * left out.
 * @param {Line[]} lines @param {number} at
 */
function linesUntil(lines, at) {
  const behind = goneBack(lines, at);
  const kept = lines.slice(0, behind);
  for (const line of lines.slice(behind)) {
    if (line.type === "tokens" && line.index + line.tokens.length > at) {
      const count = at - line.index;
      if (count <= 0) break;
      kept.push({ ...line, text: "", tokens: line.tokens.slice(0, count), logprobs: line.logprobs?.slice(0, count) });
      break;
    }
    if (line.type === "final" || line.type === "lost") break;
    if (line.type === "start" || line.index <= at) kept.push(line); // else it took effect ahead of what had been sent
  }
  return kept;
}
