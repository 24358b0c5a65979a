/**
 * Replay: plays a record on a server, each control at the very index at which it took effect, and compares.
 *
 * Pure pull makes the position exact: the stream stands behind the token that was asked for last, with nothing decoded
 * beyond it, when the control is sent. What was granted cannot be taken back, so behind a rewind it would run on to
 * where it was granted before. So it is paused when it is rewound, and where it has to stand at an index before that
 * it runs past it and is taken back; meanwhile it must not come to an end that the record steered it away from, and
 * `ONWARD` keeps it from ending.
 * @module
 * @import { Client } from "./client.js"
 * @import { GuardEvent, Params, StreamEvent } from "./protocol.js"
 * @import { ControlLine, FinalLine, GuardLine, Line, StreamRecord, TokensLine } from "./record-format.js"
 * @import { Stream } from "./stream.js"
 * @import { Chunk } from "./stream-core.js"
 */

import { MidstreamError } from "./errors.js";
import { GuardActs } from "./guard-acts.js";
import { MAX_INDEX } from "./protocol.js";

const TOP = 5; // likely tokens that a replay asks for: so the recorded one is mostly among them
/** @type {Params} */ const ONWARD = { ignore_eos: true, stop: [], max_tokens: MAX_INDEX };
const ASKED = { logprobs: TOP, return_tokens: true, window: 1 }; // of every stream that plays

/** @typedef {{token: number, text: string | null, logprob: number | null}} OutputToken */
/**
 * @typedef {object} Difference The first token that is another. null stands for an end before it.
 * @property {number} index
 * @property {OutputToken | null} recorded
 * @property {OutputToken | null} replayed
 * @property {number | null} recordedLogprobHere where it is among the most likely
 */
/**
 * @typedef {object} Replay What came of a replay: it is equal if there is no difference.
 * @property {boolean} equal
 * @property {number} tokens that were compared
 * @property {Difference | null} difference
 * @property {string[]} recordedFingerprints
 * @property {string[]} replayedFingerprints
 * @property {boolean} sameFingerprint
 * @property {number} recordedPromptTokens
 * @property {number} replayedPromptTokens
 */
/**
 * @typedef {object} Step A control, or the end, and the output before it: that from `begin` on, which no rewind cut.
 * @property {ControlLine | GuardLine | FinalLine | null} control
 * @property {number} begin
 * @property {OutputToken[]} output
 * @property {number} place where the stream stood, as its reader knows
 * @property {boolean} ends whether it ended by itself
 */

/** The stream has come to its end, or to a difference: there is nothing more to play. */
class Ended extends Error {}

/**
 * Throws where it cannot be played: it is a fork, or the server does something else; and a MidstreamError where the server
 * refuses it, or is not there.
 * @param {Client} client @param {StreamRecord} record
 * @param {{signal?: AbortSignal, onchunk?: (chunk: Chunk) => void}} [options]
 * @returns {Promise<Replay>}
 */
export async function replay(client, record, { signal, onchunk } = {}) {
  const { prompt, messages, fork, tools, tool_choice, parallel_tool_calls, on_tool_call, params } = record.start;
  if (fork) throw new Error("it is a fork, which cannot be played without the stream that it forks");
  const content = prompt === undefined ? { messages, tools, tool_choice, parallel_tool_calls, on_tool_call } : { prompt };
  const asked = { ...ASKED, signal };
  const heard = new Heard();
  const stream = await client.start({ ...content, ...params, ...asked, credit: { limit: 0 }, onevent: heard.receive });
  const player = new Player(client, record, stream, heard, { asked, onchunk });
  try {
    return await player.play();
  } finally {
    player.leave();
  }
}

/** All of them at once: where a control took effect ahead of what was sent, its output came later. @param {Line[]} lines */
function stepsOf(lines) {
  /** @type {Step[]} */ const steps = [];
  /** @type {FinalLine | null} */ let final = null;
  let begin = 0;
  /** @type {OutputToken[]} */ let output = [];
  for (const line of lines) {
    if (line.type === "tokens") output.push(...tokensOf(line));
    else if (line.type === "final") final = line;
    else if (line.type === "rewind" || line.type === "guard") {
      const stood = begin + output.length;
      steps.push({ control: line, begin, output, place: Math.max(line.index, stood), ends: false });
      if (line.index > stood) continue; // a guard has looked ahead, and nothing that was sent is void
      begin = line.index;
      output = [];
    } else if (line.type !== "start" && line.type !== "moved" && line.type !== "lost") {
      steps.push({ control: line, begin, output, place: line.index, ends: false });
    }
  }
  const reason = final?.finish_reason;
  const ends = reason === "stop" || (reason === "length" && final?.stop_reason === undefined);
  return [...steps, { control: final, begin, output, place: begin + output.length, ends }];
}

/** @param {GuardEvent} act @param {GuardLine} line */
function is(act, line) {
  return act.name === line.name && act.do === line.do && act.index === line.index;
}

/** @param {TokensLine} line @returns {OutputToken[]} */
function tokensOf({ tokens, text, logprobs }) {
  const alone = tokens.length === 1 ? text : null;
  return tokens.map((token, at) => ({ token, text: alone, logprob: logprobs?.[at] ?? null }));
}

/** What a stream says beside its chunks: the acts of its guards, and who computes it. */
class Heard {
  #guardActs = new GuardActs();
  /** @type {GuardEvent[]} that the record has not had yet */ acts = [];
  /** What the record had last of them. @type {GuardEvent | undefined} */ had;
  fingerprints;

  /** @param {string[]} [fingerprints] what others said */
  constructor(fingerprints = []) {
    this.fingerprints = fingerprints;
  }

  /** @param {StreamEvent} event */
  receive = (event) => {
    const act = this.#guardActs.receive(event);
    if (act) this.acts.push(act);
    const told = (event.type === "started" || event.type === "resumed" || event.type === "snapshot") && event.fingerprint;
    if (told && !this.fingerprints.includes(told)) this.fingerprints.push(told);
  };
}

/** Between what it does the stream stands: it is paused, or has no credit left. */
class Player {
  #client;
  #record;
  #stream;
  #heard;
  #asked;
  #onchunk;
  /** As the record has them in force. @type {Record<string, any>} */ #params;
  #granted = 0;
  #floor = 0; // a control took effect here: what stands before it is not taken back
  #paused = false; // by the record
  #held = false; // by us
  #onward = false;
  #compared = 0;
  /** @type {Step | undefined} */ #last;
  /** @type {Step | undefined} behind the one that is played */ #following;
  /** @type {Difference | null} */ #difference = null;

  /**
   * @param {Client} client @param {StreamRecord} record @param {Stream} stream @param {Heard} heard
   * @param {{asked: object, onchunk?: (chunk: Chunk) => void}} options `asked`: what a fork is asked for, too
   */
  constructor(client, record, stream, heard, { asked, onchunk }) {
    this.#client = client;
    this.#record = record;
    this.#stream = stream;
    this.#heard = heard;
    this.#asked = asked;
    this.#onchunk = onchunk;
    this.#params = { ...stream.params, ...record.start.params };
  }

  /** There is nothing more to play. */
  leave() {
    this.#stream.cancel().catch(() => {}); // where the connection is gone there is nothing to cancel
  }

  /** Whether it stands until results are told; where all were, it goes on by itself. */
  get #waits() {
    return this.#waitsAt(this.#stream.index);
  }

  /** The same where output from `index` on is void. @param {number} index */
  #waitsAt(index) {
    const { calls, told } = this.#stream;
    const missing = calls.some(({ call_id, end }) => end !== undefined && end <= index && !told.has(call_id));
    return this.#stream.pauseReason === "tool_call" && missing;
  }

  async play() {
    try {
      const steps = stepsOf(this.#record.lines);
      this.#last = steps.at(-1);
      for (const [number, step] of steps.entries()) {
        this.#following = steps[number + 1];
        await this.#play(step).catch((error) => {
          if (error instanceof MidstreamError && error.code === "request_finished") this.#endEarly(step);
          throw error;
        });
      }
    } catch (error) {
      if (!(error instanceof Ended)) throw error;
    }
    return this.#outcome();
  }

  /** @param {Step} step */
  async #play(step) {
    if (step.control?.type === "guard") await this.#haveGuarded(step.control, step);
    else if (step.control && step.control.type !== "final") {
      await this.#standAt(Math.max(step.place, this.#floor), step);
      if (step.control.type === "waits") await this.#endTurn(step);
      else await this.#apply(step.control);
    } else await this.#finish(step);
  }

  /** @param {number} place @param {Step} step */
  async #standAt(place, step) {
    if (this.#stream.consumed < place) await this.#advance(place, step);
    if (this.#stream.consumed <= place) return;
    await this.#hold();
    await this.#rewind(place);
  }

  /** Where it had run on, what guards did behind that token is void as well. @param {number} index */
  async #rewind(index) {
    const effective = await this.#stream.rewind(index);
    this.#heard.acts = this.#heard.acts.filter((act) => act.index <= index);
    return effective;
  }

  /** Go on, to this place or to where it was granted before. @param {number} place @param {Step} step */
  async #advance(place, step) {
    await this.#setOnward(place < this.#granted);
    if (this.#paused || this.#held || this.#waits) await this.#stream.resume();
    this.#held = false;
    this.#granted = Math.max(this.#granted, place);
    while (this.#stream.consumed < this.#granted) {
      const chunk = await this.#next(step);
      if (!chunk) break;
      this.#compare(chunk, place, step);
    }
    if (this.#paused && this.#stream.pauseReason !== "guard") await this.#stream.pause();
  }

  /** What only waits for results would go on by itself, where these are told or its calls taken back. */
  async #hold() {
    const { pauseReason } = this.#stream;
    if (pauseReason !== "client" && pauseReason !== "guard") await this.#stream.pause();
    this.#held ||= !this.#paused;
  }

  /** @param {boolean} onward */
  async #setOnward(onward) {
    if (onward === this.#onward) return;
    this.#onward = onward;
    const { ignore_eos, stop, max_tokens } = this.#params;
    await this.#stream.adjust(onward ? ONWARD : { ignore_eos, stop, max_tokens });
  }

  /** @param {Exclude<ControlLine, {type: "waits"}>} control */
  async #apply(control) {
    const effective = await this.#steer(control);
    if (effective !== this.#stream.consumed) {
      throw new Error(`the ${control.type} at token ${control.index} took effect at token ${effective} here`);
    }
    if (["adjust", "inject", "tool_result", "amend", "forked"].includes(control.type)) this.#floor = effective;
  }

  /** Send it: the index at which it took effect. @param {Exclude<ControlLine, {type: "waits"}>} control */
  async #steer(control) {
    const stream = this.#stream;
    switch (control.type) {
      case "pause":
        this.#paused = true;
        // Not where a guard's has come first here, or the record has let through what that has found: to go on is to let it through.
        if (stream.pauseReason === "guard" && (this.#heard.acts.length || this.#held)) return stream.consumed;
        this.#held = false;
        return stream.pause({ kv: control.kv });
      case "resume":
        // Where it would run on at once, it is still held until it is to go on.
        this.#held ||= stream.consumed < this.#granted;
        this.#paused = false;
        return this.#held ? stream.consumed : stream.resume();
      case "adjust": {
        Object.assign(this.#params, control.params);
        const kept = ["logprobs", ...(this.#onward ? Object.keys(ONWARD) : [])];
        const sent = Object.entries(control.params).filter(([name]) => !kept.includes(name));
        return stream.adjust(Object.fromEntries(sent));
      }
      case "inject": {
        const { text, messages, tokens, grammar } = control;
        return stream.inject({ text, messages, tokens, grammar });
      }
      case "rewind":
        this.#floor = control.index;
        if (control.index < this.#granted && !this.#waitsAt(control.index)) await this.#hold();
        return this.#rewind(control.index);
      case "tool_result": return this.#tell(control);
      case "amend":
        if (stream.consumed < this.#granted) await this.#hold();
        return stream.amend(this.#call(control.call), control.arguments, { partial: control.partial });
      case "forked": return this.#fork(control);
    }
  }

  /**
   * A fork runs, whatever its stream does, which may have ended here; what its guards have let by it has from that.
   * @param {import("./record-format.js").ForkedLine} forked
   */
  async #fork({ params, on_tool_call }) {
    if (this.#held && !this.#isPausedAgain(this.#following?.control)) await this.#stream.resume();
    const other = this.#stream;
    const at = other.consumed;
    const { ignore_eos, stop, max_tokens, seed } = this.#params;
    const own = { ignore_eos, stop, max_tokens, seed, ...params, on_tool_call };
    this.#heard = new Heard(this.#heard.fingerprints);
    const stream = await this.#client.fork(other, { at, ...own, ...this.#asked, credit: { limit: at }, onevent: this.#heard.receive });
    other.cancel().catch(() => {}); // it may have ended
    this.#stream = stream;
    if (at) await stream.next(); // what it begins with
    Object.assign(this.#params, params);
    this.#granted = at;
    this.#paused = this.#held = this.#onward = false;
    return at;
  }

  /** @param {number} number */
  #call(number) {
    const call = this.#stream.calls[number];
    if (!call) throw new Error(`there is no call ${number} here: ${this.#stream.calls.length} stand`);
    return call;
  }

  /**
   * Where it goes on with that it is held, and taken back to where it stood: what else came at the same token is done before.
   * @param {import("./record-format.js").ToolResultLine} result
   */
  async #tell({ call, content, error }) {
    const stream = this.#stream;
    const place = stream.consumed;
    await this.#setOnward(place < this.#granted);
    const { call_id } = this.#call(call);
    const effective = await (error === undefined ? stream.toolResult(call_id, content) : stream.toolError(call_id, error));
    if (place < this.#granted && !this.#waits) {
      await this.#hold();
      if (stream.index > place) await this.#rewind(place);
    }
    return effective;
  }

  /**
   * The model ends its turn behind its calls, here or behind what it had decoded ahead of what was sent, and waits, as it
   * did then. @param {Step} step
   */
  async #endTurn(step) {
    const stream = this.#stream;
    await this.#setOnward(false);
    if (this.#paused || this.#held) await stream.resume();
    this.#held = false;
    for (;;) {
      this.#granted = Math.max(this.#granted, stream.consumed + 1);
      const news = stream.news();
      const chunk = this.#take();
      if (chunk) this.#compare(chunk, MAX_INDEX, step);
      else if (this.#waits) break;
      else if (stream.final || stream.pauseReason === "guard") this.#endEarly(step);
      else await news;
    }
    this.#floor = stream.consumed;
  }

  /**
   * The guard acts by itself, as it did, with the first token that nobody is told, and the stream goes on.
   * @param {GuardLine} line @param {Step} step
   */
  async #haveGuarded(line, step) {
    const stream = this.#stream;
    const next = /** @type {Step} */ (this.#following);
    await this.#setOnward(false);
    if (!this.#heard.acts.length) await this.#goOnUntilGuarded(line, step);
    const act = (this.#heard.had = /** @type {GuardEvent} */ (this.#heard.acts.shift()));
    if (!is(act, line)) {
      throw new Error(`where "${line.name}" acted at token ${line.index} "${act.name}" does at ${act.index} here`);
    }
    const stands = Math.min(act.index, ...this.#heard.acts.map(({ index }) => index));
    for (let chunk; stream.consumed < stands && (chunk = this.#take()); ) this.#compare(chunk, stands, step);
    this.#floor = act.index;
    if (act.do === "pause") [this.#paused, this.#held] = [true, false];
    if (act.do !== "rewind" || next.control?.type === "guard" || next.place >= this.#granted || next.ends) return;
    // It runs on, to where it was granted; unless it comes to its own end there.
    await this.#hold().catch((error) => {
      if (error instanceof MidstreamError && error.code === "request_finished") this.#endEarly(next);
      throw error;
    });
    if (stream.index > act.index && this.#heard.acts.every(({ index }) => index > act.index)) await this.#rewind(act.index);
  }

  /** @param {GuardLine} line @param {Step} step */
  async #goOnUntilGuarded(line, step) {
    if (this.#isPausedAgain(line)) await this.#stream.pause(); // to go on from that is to let nothing through
    if (this.#paused || this.#held) await this.#stream.resume();
    this.#held = false;
    while (!this.#heard.acts.length) {
      this.#granted = Math.max(this.#granted, this.#stream.consumed + 1);
      const news = this.#stream.news();
      const chunk = this.#take();
      if (chunk) this.#compare(chunk, step.place, step); // what it takes back was perhaps never told
      else if (this.#stream.final || this.#waits) this.#endEarly(step);
      else await news;
    }
  }

  /**
   * Whether the guard that has paused it does so once more: whoever went on, before hearing of that or behind a pause of a
   * client's, had let nothing through. @param {Step["control"]} [control]
   */
  #isPausedAgain(control) {
    const { had } = this.#heard;
    return Boolean(this.#stream.pauseReason === "guard" && had && control?.type === "guard" && is(had, control));
  }

  /** Its own end is awaited; where it was ended from outside, or nobody knows, it is ended there. @param {Step} step */
  async #finish(step) {
    if (!step.ends) {
      if (this.#stream.consumed < step.place) await this.#advance(step.place, step);
      return;
    }
    await this.#setOnward(false);
    if (this.#paused || this.#held) await this.#stream.resume();
    for (let chunk; (chunk = await this.#next(step)); ) this.#compare(chunk, MAX_INDEX, step);
    this.#endEarly(step);
  }

  /** Null where a guard has paused it, as the record does not. @param {Step} step */
  async #next(step) {
    for (;;) {
      const news = this.#stream.news();
      const chunk = this.#take();
      if (chunk || this.#stream.pauseReason === "guard") return chunk;
      if (this.#stream.final || this.#waits) return this.#endEarly(step);
      await news;
    }
  }

  #take() {
    const chunk = this.#stream.tryNext();
    if (chunk) this.#onchunk?.(chunk);
    return chunk;
  }

  /**
   * It is over, as it should behind the last token that stands of the record, whatever took effect there before its end was
   * told. @param {Step} step @returns {never}
   */
  #endEarly(step) {
    const index = this.#stream.consumed;
    if (step.output !== this.#last?.output || index < this.#last.place) {
      const recorded = step.output[index - step.begin] ?? null;
      this.#difference = { index, recorded, replayed: null, recordedLogprobHere: null };
    }
    throw new Ended();
  }

  /** Up to `place`: what is behind it will be taken back. @param {Chunk} chunk @param {number} place @param {Step} step */
  #compare(chunk, place, { begin, output, ends }) {
    const { index: first, count, tokens } = chunk;
    for (let at = 0; at < Math.min(count, place - first); at++) {
      const index = first + at;
      const recorded = output[index - begin] ?? null;
      if (!recorded && !ends) continue; // it was decoded, and never told
      const token = /** @type {number[]} */ (tokens)[at];
      if (recorded?.token !== token) this.#endAt(chunk, at, recorded);
      this.#compared++;
    }
  }

  /** Another token than was recorded, if there was one. @param {Chunk} chunk @param {number} [at] @param {OutputToken | null} [recorded] */
  #endAt({ index, count, text, tokens, logprobs }, at = 0, recorded = null) {
    const told = logprobs?.[at];
    const token = /** @type {number[]} */ (tokens)[at];
    const replayed = { token, text: count === 1 ? text : null, logprob: told?.logprob ?? null };
    const recordedLogprobHere = told?.top?.find(([other]) => other === recorded?.token)?.[1] ?? null;
    this.#difference = { index: index + at, recorded, replayed, recordedLogprobHere };
    throw new Ended();
  }

  /** @returns {Replay} */
  #outcome() {
    const { start, lines } = this.#record;
    const moved = lines.flatMap((line) => (line.type === "moved" ? [line.fingerprint] : []));
    const recordedFingerprints = [...(start.fingerprint ? [start.fingerprint] : []), ...moved];
    return {
      equal: !this.#difference,
      tokens: this.#compared,
      difference: this.#difference,
      recordedFingerprints,
      replayedFingerprints: this.#heard.fingerprints,
      sameFingerprint: Boolean(recordedFingerprints.length && this.#heard.fingerprints.length)
        && new Set([...recordedFingerprints, ...this.#heard.fingerprints]).size === 1,
      recordedPromptTokens: start.prompt_tokens,
      replayedPromptTokens: this.#stream.promptTokens ?? 0,
    };
  }
}
