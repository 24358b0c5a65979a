/**
 * A run of an agent: one stream from the question to the answer, and the tools that run for it.
 *
 * It is read here. What is done about calls is `StreamCalls`'s.
 * @module
 * @import { Agent, RunOptions } from "./agent.js"
 * @import { Client } from "./client.js"
 * @import { Call, Message, StreamEvent } from "./protocol.js"
 * @import { CallState, Outcome, ToolOutcome, ToolProgress } from "./stream-calls.js"
 * @import { Stream } from "./stream.js"
 */

import { abortable } from "./abortable.js";
import { notify } from "./callbacks.js";
import { LimitReached, parsedAnswer } from "./errors.js";
import { StreamCalls } from "./stream-calls.js";
import { answerMessage, outcomeMessage } from "./tools.js";

/** @typedef {StreamEvent | ToolProgress | ToolOutcome} RunEvent What the server says, and what tools do. */

/** Events that make no call whole, nor any that is another: to look at all calls with each of them is too much. */
const OTHERS = ["token", "reasoning", "tool_call", "tool_arguments"];
const MOST_UNREAD = 100; // words of tools on how far they are, which one may say without end

/**
 * Made by `client.run`. It is read by iterating over its events, by `answer`, or, where `onevent` was given, as its stream is.
 * Leaving a loop over it before its end cancels it, and every tool that runs for it.
 */
export class Run {
  #client;
  #agent;
  #question;
  #calls;
  #onevent;
  /** @type {RunEvent[] | null} those to be iterated over, where nobody is called with them */ #events;
  #progress = 0; // of those say how far a tool is, and
  /** @type {ToolProgress | null} this one last */ #newest = null;
  #wake = () => {};
  /** @type {Promise<unknown> | null} of what was asked for */ #reading = null;
  /** Whether, and why, it was ended from here. */ #ending = new AbortController();
  /** @type {Set<string>} the ids of calls that were whole, also of those that were taken back */ #made = new Set();

  /**
   * @param {Client} client @param {Agent} agent @param {Message[]} question @param {Stream} stream
   * @param {RunOptions["onevent"]} onevent
   */
  constructor(client, agent, question, stream, onevent) {
    this.#client = client;
    this.#agent = agent;
    this.#question = question;
    /** To be steered. */
    this.stream = stream;
    this.#onevent = onevent;
    this.#events = onevent ? null : [];
    this.#calls = new StreamCalls(agent, stream, (event) => this.#tell(event), (why) => this.#fail(why));
    this.#endWithStream();
  }

  /** @param {Client} client @param {Agent} agent @param {string | Message[]} question @param {RunOptions} given */
  static start(client, agent, question, { onevent = agent.options.onevent, ...given }) {
    const { tools, output, fields, options } = agent;
    const grammar = output === undefined ? {} : { grammar: { json_schema: output } };
    const messages = agent.messages(question);
    const asked = { ...options, ...given, ...fields, ...grammar, messages, ...(tools.length && { tools }) };
    return Run.#begin(
      (receive) => client.start({ ...asked, onevent: receive }),
      (stream) => new Run(client, agent, messages, stream, onevent),
    );
  }

  /**
   * Another run, which begins as this one stands before output token `at`, or behind all that has come. Results that stand
   * there stand in it too, and the others are told to it as they were to this one.
   * @param {{at?: number} & RunOptions} [options]
   */
  fork({ at = this.stream.index, onevent, ...given } = {}) {
    const asked = { ...given, ...this.#agent.fields, at };
    return Run.#begin(
      (receive) => this.#client.fork(this.stream, { ...asked, onevent: receive }),
      (stream) => {
        const run = new Run(this.#client, this.#agent, this.#question, stream, onevent);
        run.#calls.inherit(this.#calls, at);
        return run;
      },
    );
  }

  /**
   * Events may come before the stream itself does.
   * @param {(receive: (event: StreamEvent) => void) => Promise<Stream>} open @param {(stream: Stream) => Run} make
   */
  static async #begin(open, make) {
    /** @type {StreamEvent[]} */ const early = [];
    /** @type {Run | null} */ let run = null;
    const stream = await open((event) => (run ? run.#receive(event) : early.push(event)));
    run = make(stream);
    for (const event of early) run.#receive(event);
    return run;
  }

  // -- what came of it ------------------------------------------------------------------------------------

  /** What came of each call that stands. @returns {Outcome[]} */
  get outcomes() {
    return this.#calls.outcomes;
  }

  /** Where a call that stands has got to. @param {Call} call @returns {CallState} */
  state(call) {
    return this.#calls.state(call);
  }

  /** The whole conversation so far: with another question behind it, the next run's. @returns {Message[]} */
  get messages() {
    const { text } = this.stream;
    const messages = [...this.#question];
    let from = 0;
    for (const { length, calls, said } of this.#turns()) {
      messages.push(answerMessage(text.slice(from, length), calls), ...said);
      from = length;
    }
    return from < text.length ? [...messages, { role: "assistant", content: text.slice(from) }] : messages;
  }

  /** Where the model's own words end, which calls are answered there, and what stands between. */
  #turns() {
    const { results, turns } = this.stream.told;
    /** @type {Map<string, {index: number, length: number, calls: Call[], said: Message[]}>} */ const byPlace = new Map();
    const at = (/** @type {import("./told.js").Place} */ place) => {
      const key = `${place.index} ${place.length}`;
      const turn = byPlace.get(key) ?? { ...place, calls: [], said: [] };
      byPlace.set(key, turn);
      return turn;
    };
    for (const outcome of this.outcomes) {
      const place = results.get(outcome.call.call_id);
      if (!place) continue;
      at(place).calls.push(outcome.call);
      at(place).said.push(outcomeMessage(outcome));
    }
    for (const { place, messages } of turns) at(place).said.push(...messages);
    return [...byPlace.values()].sort((one, other) => one.index - other.index || one.length - other.length);
  }

  /**
   * Read it to its end: what it says behind the last results, or, where the agent has an `output`, the value of that.
   * Throws as reading its stream does, a LimitReached, and a ParseError where there is no such value.
   */
  async answer() {
    if (!this.#reading) this.#events = null;
    while (await abortable(this.stream.next(), this.#ending.signal));
    const text = this.stream.text.slice(this.#turns().at(-1)?.length ?? 0);
    if (this.#agent.output === undefined) return text;
    return parsedAnswer(text, /** @type {import("./protocol.js").Final} */ (this.stream.final));
  }

  // -- reading --------------------------------------------------------------------------------------------

  /** Every event of the stream, and what tools do. @returns {AsyncIterableIterator<RunEvent>} */
  [Symbol.asyncIterator]() {
    return {
      next: async () => {
        const value = await this.#next();
        return value ? { value, done: false } : { value: undefined, done: true };
      },
      return: async () => {
        this.stream.cancel().catch(() => {}); // where the connection is gone there is nothing to cancel
        return { value: undefined, done: true };
      },
      [Symbol.asyncIterator]() {
        return this;
      },
    };
  }

  /** Chunks are asked for while nothing is here: so it decodes as it is read. @returns {Promise<RunEvent | null>} */
  async #next() {
    if (!this.#events) throw new TypeError("its events are told to `onevent`, or were read by `answer`");
    for (;;) {
      const event = this.#events.shift();
      if (event?.type === "tool_progress") this.#progress--;
      if (event) return event;
      this.#ending.signal.throwIfAborted();
      if (this.stream.final && !this.#reading) {
        if (!this.stream.tryNext()) return null; // which throws where it ended in an error
        continue;
      }
      const news = new Promise((resolve) => (this.#wake = () => resolve(undefined)));
      this.#reading ??= this.stream.next().finally(() => (this.#reading = null));
      await Promise.race([this.#reading, news]);
    }
  }

  /** Whoever reads it is told, also where no end of the stream tells of it: the connection may be gone. @param {Error} why */
  #fail(why) {
    this.#ending.abort(why);
    this.#wake();
    this.stream.cancel().catch(() => {}); // where the connection is gone there is nothing to cancel
  }

  /** @param {StreamEvent} event */
  #receive(event) {
    this.#tell(event);
    if (OTHERS.includes(event.type)) return;
    this.#checkLimit();
    if (!this.#ending.signal.aborted || event.type === "final") this.#calls.receive(event); // what has failed begins no tool
  }

  #checkLimit() {
    const { maxCalls } = this.#agent;
    for (const { call_id, end } of this.stream.calls) if (end !== undefined) this.#made.add(call_id);
    if (this.#ending.signal.aborted || this.#made.size <= maxCalls) return;
    this.#fail(new LimitReached(`the model made more than ${maxCalls} calls`, this.stream.requestId));
  }

  /** Of a stream that is lost no event tells: its tools are stopped all the same. */
  async #endWithStream() {
    while (!this.stream.ended) await this.stream.news();
    this.#calls.end();
  }

  /** @param {RunEvent} event */
  #tell(event) {
    notify(this.#onevent, event);
    if (this.#events) this.#keep(this.#events, event);
    this.#wake();
  }

  /**
   * For who iterates. Of what tools say on how far they are, and nobody reads, the newest stands for the one before it; but
   * behind all that has come: its call may not have been read of when that was said.
   * @param {RunEvent[]} events @param {RunEvent} event
   */
  #keep(events, event) {
    if (event.type === "tool_progress") {
      if (this.#progress < MOST_UNREAD) this.#progress++;
      else events.splice(events.lastIndexOf(/** @type {RunEvent} */ (this.#newest)), 1);
      this.#newest = event;
    }
    events.push(event);
  }

  // -- what is said of its calls --------------------------------------------------------------------------

  /** A call that waits for a yes may run. @param {Call} call */
  approve(call) {
    return this.stream.approve(call);
  }

  /** A call does not run, and the model is told so. @param {Call} call @param {string} [why] */
  refuse(call, why) {
    return this.#calls.refuse(call, why);
  }

  /**
   * A call has other arguments, or, with `partial`, begins with this text, and the model writes on. What waits for a yes
   * still does.
   * @param {Call} call @param {Record<string, any> | string} given @param {{partial?: boolean}} [options]
   */
  amend(call, given, options) {
    return this.stream.amend(call, given, options);
  }

  /** Say what a call returned, by hand. @param {Call} call @param {unknown} content */
  give(call, content) {
    return this.#calls.give(call, content);
  }
}
