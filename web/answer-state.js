/**
 * One answer and its state: read from a stream at the reader's pace, steered while it is written, and taken up again
 * after its end. Knows the SDK's stream and the transcript; knows no DOM. `onchange` tells of every change.
 *
 * @typedef {import("./answer-transcript.js").Position} Position @typedef {import("/sdk/midstream.js").Message} Message
 * @typedef {import("./connection.js").Client} Client
 * @typedef {"waiting" | "writing" | "paused" | "ended"} State
 * @typedef {import("/sdk/midstream.js").Call} Call
 * @typedef {{ params: Record<string, any>, window: number, pace: number, model?: string, tools?: any[] }} Settings
 */
import { Recorder, answerMessage, toolMessage } from "/sdk/midstream.js";
import { explain, explainSteering } from "./error-messages.js";
import { RateMeter } from "./rate-meter.js";
import { Transcript, injection } from "./answer-transcript.js";

export class Answer {
  transcript = new Transcript();
  meter = new RateMeter();
  /** @type {State} */ state = "waiting";
  /** @type {any} */ final = null;
  problem = "";
  pace = 0;
  /** What it has said to itself. */
  reasoning = "";
  /** Whether that goes on. */
  reasons = false;
  /** @type {Call[]} whole ones, and perhaps one that is being written */
  calls = [];
  /** @type {(news?: string) => void} */ onchange = () => {};
  /** @type {Recorder[]} of its runs since the page was loaded */ #recorders = [];
  #run = 0;
  #window = 0;
  /** @type {any} */ #stream = null;
  /** @type {PromiseWithResolvers<void> | null} */ #gate = null;
  /** @type {any} taken from the stream, and not shown yet */ #pendingChunk = null;
  #stopped = false;
  /** @type {Promise<number> | null} */ #cancelling = null;
  /** @type {Promise<void> | undefined} */ #written;
  #client;

  /** @param {() => Client | null} client @param {Message[]} question @param {string} label */
  constructor(client, question, label) {
    this.#client = client;
    this.question = question;
    this.label = label;
  }

  /** What is kept of it when the page is loaded anew. */
  toJSON() {
    const { question, label, final, transcript, reasoning, calls } = this;
    const { pieces, marks } = transcript;
    return { question, label, final, pieces, marks, run: this.#run, reasoning, calls };
  }

  /** @param {() => Client | null} client @param {any} kept */
  static from(client, kept) {
    const answer = new Answer(client, kept.question, kept.label);
    for (const piece of kept.pieces) answer.transcript.add(piece);
    answer.transcript.marks = kept.marks;
    answer.#run = kept.run;
    const problem = kept.final ? "" : "This was broken off. \u201cGo on\u201d continues it.";
    const { final, reasoning, calls } = kept;
    return Object.assign(answer, { state: "ended", final, problem, reasoning, calls });
  }

  get running() {
    return this.state !== "ended";
  }

  /** Whether it waits to be told what its calls returned. */
  get asksForResults() {
    return this.final?.finish_reason === "tool_calls";
  }

  /**
   * As turns of a conversation: with its calls where `results` say what they returned.
   * @param {string[]} [results] @returns {Message[]}
   */
  messages(results) {
    const messages = this.transcript.messages();
    if (!results) return messages;
    const said = messages.at(-1)?.role === "assistant" ? messages.pop()?.content : "";
    return [
      ...messages,
      answerMessage(said ?? "", this.calls),
      ...this.calls.map((call, at) => toolMessage(call, results[at] ?? "")),
    ];
  }

  get requestId() {
    return this.#stream?.requestId ?? "";
  }

  /** What was asked, how it was steered and what came, for a replay; "" where the page was loaded since. */
  get record() {
    return this.#recorders.map((recorder) => recorder.text).join("");
  }

  /** How many tokens were received and stand, in this run. */
  get index() {
    return this.#stream?.index ?? 0;
  }

  /** Tokens that were granted and have not come: an estimate by half a window, as the SDK grants no oftener. */
  get credit() {
    return this.#stream && this.running ? Math.max(this.#stream.consumed + this.#window - this.#stream.index, 0) : 0;
  }

  /** Write, behind what stands already. @param {Settings} settings */
  write(settings) {
    this.#written = this.#write(settings);
    return this.#written;
  }

  /** @param {Settings} settings */
  async #write({ params, window, pace, model, tools }) {
    const parts = this.transcript.parts();
    Object.assign(this, { state: "waiting", final: null, problem: "", pace, meter: new RateMeter(), reasons: false });
    this.#run += parts.length ? 1 : 0;
    this.#window = window;
    this.#stream = this.#cancelling = null;
    this.#stopped = false;
    this.onchange("The answer begins");
    try {
      /** @type {Record<string, any> & { window: number }} */
      const options = { messages: this.question, return_tokens: true, window, ...params, ...(model && { model }), tools };
      if (parts.length) options.credit = { limit: 0 }; // not a token before the old ones stand
      await this.#start(options);
      for (const part of parts) await this.#stream.inject(injection(part));
      await this.#read(this.#run);
      this.#end(this.#stream.final, "");
    } catch (error) {
      if (this.#stream) this.#cancel().catch(() => {}); // where the connection is gone there is nothing to cancel
      this.#end(this.#stream?.final ?? null, explain(error));
    }
  }

  /** @param {Record<string, any>} options */
  async #start(options) {
    const client = this.#client();
    if (!client) throw Object.assign(new Error("there is no connection"), { code: "connection_lost" });
    const run = this.#run;
    const recorder = new Recorder(this.#recorders.length + 1);
    this.#recorders.push(recorder);
    const onevent = (/** @type {any} */ event) => this.#receive(run, event);
    this.#stream = await client.start({ ...options, onevent, recorder });
  }

  /** @param {number} run */
  async #read(run) {
    while (!this.#stopped && (this.#pendingChunk = await this.#stream.next())) {
      await this.#gate?.promise;
      if (!this.#pendingChunk || this.#stopped) continue;
      const { index, count, text, tokens } = this.#pendingChunk;
      this.#pendingChunk = null;
      this.meter.record(count);
      this.transcript.add({ run, index, count, text, tokens });
      if (this.state === "waiting") this.state = "writing";
      this.onchange();
      if (this.pace) await new Promise((done) => setTimeout(done, (1000 * count) / this.pace));
    }
    if (this.#stopped) await this.#cancel();
  }

  /** @param {number} run @param {any} event */
  #receive(run, event) {
    const at = { run, index: event.index };
    const news = this.#receiveSpan(event);
    if (event.type === "rewound") {
      if (this.#pendingChunk && this.#pendingChunk.end > event.index) this.#pendingChunk = null;
      this.transcript.cut(at, event.text_length);
    } else if (event.type === "snapshot") {
      this.#receiveSnapshot(run);
      this.state = event.paused ? "paused" : "writing";
    } else if (event.type === "paused" || event.type === "resumed") {
      this.state = event.type === "paused" ? "paused" : "writing";
    } else if (news === null) return;
    this.onchange(news ?? undefined);
  }

  /** What stands beside the text: what there is to say of it, null for nothing. @param {any} event */
  #receiveSpan(event) {
    const began = event.type === "reasoning" && !this.reasons;
    if (event.type === "reasoning") this.reasons = true;
    else if (event.type === "tool_call" || (event.type === "token" && event.delta)) this.reasons = false;
    if (!this.#stream || event.type === "token") return null;
    ({ reasoning: this.reasoning, calls: this.calls } = this.#stream);
    if (began) return "Reasoning";
    if (event.type === "tool_call") return `Calls ${event.name}`;
    return ["reasoning", "tool_arguments", "tool_call_done"].includes(event.type) ? "" : null;
  }

  /** Where less stands than is shown, the rest is read again. @param {number} run */
  #receiveSnapshot(run) {
    const index = this.#stream?.consumed ?? 0;
    if (index >= this.transcript.end(run)) return;
    this.#pendingChunk = null;
    this.transcript.cut({ run, index });
  }

  /** @param {any} final @param {string} problem */
  #end(final, problem) {
    Object.assign(this, { state: "ended", final, problem, reasons: false });
    if (this.#stream) ({ reasoning: this.reasoning, calls: this.calls } = this.#stream);
    this.#gate = null;
    this.onchange(problem || "The answer has ended");
  }

  // -- steering; `at` is what the reader sees, where that is behind what was decoded ------------------------

  get #atShown() {
    const shown = this.transcript.end(this.#run);
    return (this.pace || this.#gate) && shown < this.#stream.index ? { at: shown } : {};
  }

  get #steerable() {
    return this.#stream && this.running;
  }

  async pause() {
    if (!this.#steerable || this.state === "paused") return;
    this.#gate ??= Promise.withResolvers();
    const index = await this.#try(this.#stream.pause());
    if (index !== null) this.onchange(`Paused at token ${index}`);
  }

  async resume() {
    if (this.state !== "paused" && !this.#gate) return; // with a gate a pause is on its way, and comes first
    this.#gate?.resolve();
    this.#gate = null;
    const index = await this.#try(this.#stream.resume());
    if (index !== null) this.onchange(`Going on from token ${index}`);
  }

  /** @param {Record<string, number>} params */
  async adjust(params) {
    if (!this.#steerable) return;
    const run = this.#run;
    const index = await this.#try(this.#stream.adjust({ ...params, ...this.#atShown }));
    if (index === null) return;
    this.transcript.mark({ run, index, kind: "adjust", params });
    const what = Object.entries(params).map(([name, value]) => `${name.replaceAll("_", " ")} ${value}`);
    this.onchange(`${what.join(", ")} from token ${index}`);
  }

  /** @param {{ text: string } | { messages: import("./answer-transcript.js").Message[] }} what */
  async inject(what) {
    if (!this.#steerable) return;
    const run = this.#run;
    const index = await this.#try(this.#stream.inject({ ...what, ...this.#atShown }));
    if (index === null) return;
    this.transcript.mark({ run, index, kind: "inject", ...what });
    this.onchange(`Put in before token ${index}`);
  }

  async stop() {
    this.#stopped = true;
    this.#gate?.resolve();
    if (this.#steerable) await this.#try(this.#cancel());
  }

  /** Said once, however often it is asked for. @returns {Promise<number>} */
  #cancel() {
    this.#cancelling ??= this.#stream.cancel();
    return /** @type {Promise<number>} */ (this.#cancelling);
  }

  /**
   * Forget what was written from `position` on, and go on differently: in the running stream where that is possible,
   * else in a new one. With the seed as it was, the same words would come again. @param {Position} position
   * @param {Settings} settings
   */
  async goOnFrom(position, settings) {
    if (this.#steerable && position.run === this.#run) {
      const index = await this.#try(this.#stream.adjust({ seed: freshSeed(), at: position.index }));
      if (index !== null) {
        this.transcript.mark({ run: position.run, index, kind: "rewind" });
        this.onchange(`Forgotten from token ${index} on`);
        return this.resume();
      }
    }
    this.stop();
    await this.#written;
    this.transcript.cut(position);
    this.transcript.mark({ ...position, kind: "rewind" });
    await this.write({ ...settings, params: { ...settings.params, seed: freshSeed() } });
  }

  /** The index that a steering frame took effect at, or null if it did not. @param {Promise<number>} asked */
  async #try(asked) {
    try {
      this.problem = "";
      return await asked;
    } catch (error) {
      if (this.running) this.problem = explainSteering(error);
      this.onchange();
      return null;
    }
  }
}

const freshSeed = () => crypto.getRandomValues(new Uint32Array(1))[0];
