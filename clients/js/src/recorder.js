/**
 * A recorder: what a client asks of its stream and what comes of it, as lines of a record. Pure.
 *
 * It sees the stream's events, and each frame with the event that answered it. What is done with the lines is its
 * user's business.
 * @module
 * @import { Answer, RequestFrame, Start, StreamEvent } from "./protocol.js"
 * @import { Line } from "./record-format.js"
 */

import { RECORD_VERSION } from "./record-format.js";

const SNAPSHOT = "the connection was lost, and the server had forgotten what happened meanwhile";
const GUARD = "a guard acted here, which a stream that is played cannot be held to at the same token";
const ELSEWHERE = "another connection injected something here";

/** Records one stream: `client.start({ prompt, recorder: new Recorder() })`. */
export class Recorder {
  /** @type {Line[]} */ #lines = [];
  /** Lines whose content only the frame has that they answer, by the event's `seq`. @type {Map<number, any>} */
  #answers = new Map();
  /** @type {Start | null} */ #start = null;
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

  /** What was asked took effect. @param {RequestFrame} frame @param {Answer} answer */
  answered(frame, answer) {
    const line = "seq" in answer ? this.#answers.get(answer.seq) : null;
    if (!line) return;
    if (frame.type === "adjust") line.params = frame.params;
    if (frame.type === "pause" && frame.kv) line.kv = frame.kv;
    if (frame.type === "inject") {
      const { text, messages, tokens, grammar } = frame;
      Object.assign(line, { text, messages, tokens, grammar });
    }
  }

  /** @param {StreamEvent} event */
  receive(event) {
    if (this.#lost || !this.#start) return;
    const stream = this.#stream;
    switch (event.type) {
      case "started": return this.#receiveStart(event);
      case "token": {
        const { index, delta: text, tokens = [], logprobs } = event;
        this.#end = index + event.count;
        const told = logprobs && { logprobs: logprobs.map(({ logprob }) => logprob) };
        return void this.#lines.push({ type: "tokens", stream, index, text, tokens, ...told });
      }
      case "adjusted":
        return this.#add({ type: "adjust", stream, index: event.index, params: event.params }, event.seq);
      case "injected":
        if (event.reason) return undefined;
        return this.#add({ type: "inject", stream, index: event.index }, event.seq);
      case "rewound":
        this.#end = event.index;
        return this.#add({ type: "rewind", stream, index: event.index }, event.seq);
      case "paused":
        this.#paused = event.reason;
        if (event.reason === "client") this.#add({ type: "pause", stream, index: event.index }, event.seq);
        return;
      case "resumed": return this.#receiveResumed(event.index, event.fingerprint);
      case "guard": return event.do === "tell" ? undefined : this.#lose(GUARD);
      case "snapshot": return this.#lose(SNAPSHOT);
      case "final": {
        const { index, finish_reason, stop_reason } = event;
        this.#lines.push({ type: "final", stream, index, finish_reason, ...(stop_reason && { stop_reason }) });
      }
    }
  }

  /** @param {import("./protocol.js").Started} event */
  #receiveStart({ request_id, model, fingerprint, prompt_tokens, params }) {
    const { prompt, messages } = /** @type {Start} */ (this.#start);
    const head = /** @type {const} */ ({ type: "start", stream: this.#stream, record: RECORD_VERSION });
    const told = { request_id, model, fingerprint: fingerprint ?? null };
    this.#lines.push({ ...head, ...told, prompt, messages, prompt_tokens, params });
  }

  /** @param {number} index @param {string | undefined} fingerprint */
  #receiveResumed(index, fingerprint) {
    const stream = this.#stream;
    if (fingerprint) this.#lines.push({ type: "moved", stream, index, fingerprint });
    if (this.#paused === "client") this.#lines.push({ type: "resume", stream, index });
    this.#paused = "";
  }

  /** @param {Line} line @param {number} seq */
  #add(line, seq) {
    this.#lines.push(line);
    this.#answers.set(seq, line);
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

/** @param {any} line */
const hasContent = ({ text, messages, tokens }) => [text, messages, tokens].some((content) => content !== undefined);

/** How much output stands behind these lines. @param {Line[]} lines */
function endOf(lines) {
  let end = 0;
  for (const line of lines) {
    if (line.type === "tokens") end = line.index + line.tokens.length;
    if (line.type === "rewind") end = line.index;
  }
  return end;
}
