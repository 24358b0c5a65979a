/**
 * The core of a stream, as its reader knows it: events in, chunks out, and how much credit to grant for them.
 *
 * Pure: no socket, no clock, no waiting. It keeps the text right through `rewound` and `snapshot`, leaves out
 * events that it has seen before, and refuses a sequence of events that the protocol does not allow. It does
 * not know who waits for a chunk, nor how a grant is sent.
 * @module
 * @import { Answer, Beside, Credit, Final, Params, PauseReason, RequestFrame, Restarted } from "./protocol.js"
 * @import { Rewound, Snapshot, Started, StreamEvent, Token, TokenLogprob } from "./protocol.js"
 */

import { ProtocolError } from "./errors.js";
import { MAX_INDEX, goesBackTo } from "./protocol.js";
import { Spans } from "./spans.js";
import { Told } from "./told.js";
import { utf16Length } from "./utf16-length.js";

/**
 * @typedef {object} Chunk A piece of output, and the text that became whole with it. `text` may be empty: a
 *   token may end within a character. Chunks join without a gap; where one begins before the last one's
 *   `end`, the output from its `index` on was rewound, and this chunk stands in its place.
 * @property {number} index the first of its tokens
 * @property {number} count how many tokens it is of
 * @property {string} text
 * @property {number[] | null} tokens their ids, if the stream was started with `return_tokens: true`
 * @property {TokenLogprob[] | null} logprobs
 * @property {number} end the index after its last token: what `rewind` and `at` take to go on right behind it
 */

/** @typedef {{text: string, index: number, tokens?: number[]}} Had What somebody has of a stream already. */
/** @typedef {{window: number | null, had?: Had}} ReadOptions How a stream is read. */

/** The output of one stream so far, and what of it has been taken. */
export class StreamCore {
  /** @type {string | null} */ model = null;
  /** @type {number | null} */ promptTokens = null;
  /** @type {string | null} */ fingerprint = null;
  /** @type {Params} */ params = {};
  /** @type {Final | null} */ final = null;
  /** @type {PauseReason | null} */ pauseReason = null;
  /** All text that has come and still stands, taken or not. */
  text = "";
  /** @type {number[]} The ids of the tokens that have come and still stand. */
  tokens = [];
  /** What has come beside the text, and still stands. */
  spans = new Spans();
  /** What the client has told it, among what it says. */
  told = new Told();
  /** The output tokens that have come and still stand; */
  index = 0;
  /** those of them that were taken. */
  consumed = 0;

  #newest = 0; // where those begin that came last
  #consumedLength = 0;
  /** @type {{start: number, chunk: Chunk}[]} each with the length of the text before it */
  #buffered = [];
  /** Where it went on, each time that it was started again. @type {Restarted[]} */
  restarts = [];

  #seq = -1;
  epoch = 0; // in which it is counted
  /** What was said of the stream as which it goes on: nothing yet. @type {Started | boolean} */ #restarting = false;
  /** @type {number | null} */ #window;
  #interval;
  #granted;

  /**
   * @param {number | null} window tokens that may be decoded beyond those taken; null leaves credit to the
   *   server. A window no larger than one chunk is pure pull: what is asked for is granted, nothing ahead.
   * @param {number} interval tokens in a chunk
   * @param {Credit} [credit] what was granted at the start
   */
  constructor(window = null, interval = 1, credit = {}) {
    this.#window = window;
    this.#interval = interval;
    this.#granted = credit.limit ?? 0;
  }

  /**
   * Begin in the middle, behind event `seq`: what stood then has been taken.
   * @param {number} seq @param {Had} had
   */
  startAt(seq, { text, index, tokens = [] }) {
    this.#seq = seq;
    this.text = text;
    this.index = this.consumed = index;
    this.tokens = [...tokens];
    this.#consumedLength = text.length;
  }

  /** The last event that has come; -1 for none. */
  get seq() {
    return this.#seq;
  }

  /** The limit that was granted last; 0 where credit is the server's. */
  get granted() {
    return this.#granted;
  }

  /** @returns {"running" | "paused" | "finished"} */
  get state() {
    if (this.final) return "finished";
    return this.pauseReason ? "paused" : "running";
  }

  // -- out ------------------------------------------------------------------------------------------------

  /**
   * One more chunk is asked for: the limit to grant for it, or null where enough was granted before.
   * @returns {number | null}
   */
  extendCredit() {
    if (this.#window === null || this.final) return null;
    // Half a window at a time, so that a grant is not sent for every token; but never less than one chunk.
    const enough = Math.max(Math.floor(this.#window / 2), this.#interval - 1);
    if (this.#granted - this.consumed > enough) return null;
    this.#granted = Math.min(this.consumed + Math.max(this.#window, this.#interval), MAX_INDEX);
    return this.#granted;
  }

  /** The next chunk, if one has come. @returns {Chunk | null} */
  take() {
    const next = this.#buffered.shift();
    if (!next) return null;
    this.consumed = next.chunk.end;
    this.#consumedLength = next.start + next.chunk.text.length;
    return next.chunk;
  }

  // -- started again --------------------------------------------------------------------------------------

  /** Whether it is to go on as another stream, that begins as it stands. */
  get restarting() {
    return this.#restarting !== false;
  }

  /** Events are counted anew. */
  restart() {
    this.#seq = -1;
    this.epoch = 0;
    this.#restarting = true;
  }

  /**
   * Whether what is told of the other stream is what has come of this one.
   * @param {StreamEvent} event
   */
  goesOnWith(event) {
    if (event.type === "started") {
      this.#restarting = event;
      this.#seq = event.seq;
      return true;
    }
    if (event.type !== "snapshot") return false;
    const stands = event.index >= this.index && event.text.startsWith(this.text);
    return stands && this.spans.missing(event, this.#newest) !== null;
  }

  /** @param {Snapshot} begun */
  #hasGoneOn({ index, text }) {
    return index > this.index || text.length > this.text.length;
  }

  /**
   * What is to come behind that: what was lost on its way, of what lies beside the last tokens, as the last of the events
   * for which it stands.
   * @param {Snapshot} begun @returns {Beside[]}
   */
  missing(begun) {
    if (this.#hasGoneOn(begun)) return [];
    const missing = this.spans.missing(begun, this.#newest) ?? [];
    const first = begun.seq + 1 - missing.length;
    return missing.map((event, place) => ({ ...event, seq: first + place }));
  }

  /** That it goes on so, as its reader hears of it. @param {Snapshot} begun @param {string[]} again @returns {Restarted} */
  restarted(begun, again) {
    const { request_id, fingerprint, prompt_tokens } = begun;
    const seq = begun.seq - this.missing(begun).length;
    const exact = typeof this.#restarting === "object" && Boolean(this.#restarting.exact); // else the server has forgotten
    const same = (fingerprint ?? null) === this.fingerprint && prompt_tokens === this.promptTokens;
    return { type: "restarted", request_id, seq, index: this.index, exact: exact && same, begun, again };
  }

  /** @param {Restarted} event */
  #receiveRestarted(event) {
    const { begun, seq, again } = event;
    this.#restarting = false;
    this.told.again = again;
    this.#seq = seq;
    this.restarts = [...this.restarts, event];
    if (this.#hasGoneOn(begun)) return this.#receiveSnapshot(begun);
    this.pauseReason = begun.paused ?? null;
    this.epoch = begun.epoch ?? 0;
    this.params = begun.params;
    this.fingerprint = begun.fingerprint ?? null;
  }

  // -- in -------------------------------------------------------------------------------------------------

  /**
   * Take the stream's next event. Throws ProtocolError for one that cannot come here.
   * @param {StreamEvent} event
   * @returns {boolean} whether it was new
   */
  receive(event) {
    if (event.type === "restarted") {
      this.#receiveRestarted(event);
      return true;
    }
    if (!this.#isNew(event)) return false;
    switch (event.type) {
      case "token": this.#receiveToken(event); break;
      case "reasoning":
      case "tool_call":
      case "tool_arguments":
      case "tool_call_done":
      case "approved": this.spans.receive(event); break;
      case "rewound": this.#receiveRewound(event); break;
      case "injected": this.told.receive(event, this.text.length); break;
      case "snapshot": this.#receiveSnapshot(event); break;
      case "started": this.#receiveStarted(event); break;
      case "adjusted": this.params = { ...this.params, ...event.params }; break;
      case "paused": this.pauseReason = event.reason; break;
      case "resumed":
        this.pauseReason = null;
        this.fingerprint = event.fingerprint ?? this.fingerprint;
        break;
      case "final":
        this.final = event;
        this.pauseReason = null;
    }
    this.#seq = event.seq;
    return true;
  }

  /**
   * Events count from 0 without a gap; a replay repeats some, and a snapshot stands for many.
   * @param {StreamEvent} event
   */
  #isNew({ seq, type }) {
    if (!Number.isInteger(seq)) throw new ProtocolError(`a ${type} event without a seq`);
    const ends = type === "final" && !this.final;
    // Nothing would follow it, and nobody hear of an end.
    if (seq <= this.#seq && ends) throw new ProtocolError(`the end, event ${seq}, followed event ${this.#seq}`);
    if (seq <= this.#seq) return false;
    if (seq !== this.#seq + 1 && type !== "snapshot") {
      throw new ProtocolError(`event ${this.#seq + 1} is missing: event ${seq} followed ${this.#seq}`);
    }
    return true;
  }

  /** @param {Started | Snapshot} event */
  #receiveStarted(event) {
    this.model = event.model;
    this.promptTokens = event.prompt_tokens;
    this.params = event.params;
    this.fingerprint = event.fingerprint ?? null;
  }

  /** @param {Token} event */
  #receiveToken(event) {
    const { index, count, delta: text } = event;
    if (index !== this.index) {
      throw new ProtocolError(`token ${index} came where token ${this.index} was due`);
    }
    const { tokens = null, logprobs = null } = event;
    const untold = [tokens, logprobs].some((told) => told && told.length !== count);
    if (!(count >= 0 && index + count <= MAX_INDEX) || untold) {
      throw new ProtocolError(`${count} tokens came at token ${index}, and others are told`);
    }
    this.#buffered.push({
      start: this.text.length,
      chunk: { index, count, text, tokens, logprobs, end: index + count },
    });
    this.#newest = index;
    this.index += count;
    this.text += text;
    if (tokens) this.tokens.push(...tokens);
  }

  /** @param {Rewound} event */
  #receiveRewound(event) {
    const length = utf16Length(this.text, event.text_length);
    if (!(event.index >= 0 && event.index <= this.index && event.text_length >= 0) || length === null) {
      throw new ProtocolError(`rewound to token ${event.index} of ${this.index}, where it never stood`);
    }
    this.spans.rewind(event);
    this.#rewindTold(event.index);
    this.text = this.text.slice(0, length);
    this.index = event.index;
    this.#newest = Math.min(this.#newest, event.index);
    this.tokens = this.tokens.slice(0, event.index);
    this.consumed = Math.min(this.consumed, event.index);
    this.#consumedLength = Math.min(this.#consumedLength, length);
    this.#buffered = this.#buffered
      .map(({ start, chunk }) => ({ start, chunk: truncate(chunk, event.index, length - start) }))
      .filter(({ chunk }) => chunk.count || chunk.text);
  }

  /** What was asked took effect, as a snapshot alone may tell. @param {RequestFrame} frame @param {Answer} answer */
  answered(frame, answer) {
    const index = goesBackTo(frame);
    if (index !== undefined) this.#rewindTold(index);
    this.told.answered(frame, answer, this.text.length);
  }

  /** Of what the client has said nothing stands behind there. @param {number} index */
  #rewindTold(index) {
    const whole = this.spans.calls.filter(({ end = Infinity }) => end <= index);
    this.told.rewind(index, whole.map(({ call_id }) => call_id));
  }

  /**
   * The whole output anew. What was taken of it before is not given out again, if it still stands.
   * @param {Snapshot} event
   */
  #receiveSnapshot(event) {
    const { index, text, tokens } = event;
    if (!(index >= 0 && index <= MAX_INDEX) || (tokens && tokens.length !== index)) {
      throw new ProtocolError(`it is said to stand at token ${index}, with ${tokens?.length ?? "no"} tokens`);
    }
    this.#receiveStarted(event);
    this.spans.receiveSnapshot(event);
    this.#rewindTold(index);
    this.pauseReason = event.paused ?? null;
    this.epoch = event.epoch ?? 0;
    const taken = this.text.slice(0, this.#consumedLength);
    if (index < this.consumed || !text.startsWith(taken)) this.consumed = this.#consumedLength = 0;
    this.text = text;
    this.index = index;
    this.tokens = [...(tokens ?? [])];
    const start = this.#consumedLength;
    const rest = {
      index: this.consumed,
      count: index - this.consumed,
      text: text.slice(start),
      tokens: tokens?.slice(this.consumed) ?? null,
      logprobs: null,
      end: index,
    };
    this.#buffered = rest.count || rest.text ? [{ start, chunk: rest }] : [];
  }
}

/**
 * What stands of a chunk before token `end`. Its text may outlive it: it was held back before.
 * @param {Chunk} chunk @param {number} end @param {number} length
 * @returns {Chunk}
 */
function truncate(chunk, end, length) {
  const count = Math.min(Math.max(end - chunk.index, 0), chunk.count);
  const index = count ? chunk.index : end;
  return {
    index,
    count,
    text: chunk.text.slice(0, Math.max(length, 0)),
    tokens: chunk.tokens && chunk.tokens.slice(0, count),
    logprobs: chunk.logprobs && chunk.logprobs.slice(0, count),
    end: index + count,
  };
}
