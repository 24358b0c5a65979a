/**
 * One answer and its state: a run of an agent, whose tools are the page's, or which has none. It is read from its
 * stream at the reader's pace, steered while it is written, forked, and taken up again after its end. Knows the SDK's
 * run and the transcript; knows no DOM. `onchange` tells of every change.
 *
 * @typedef {import("./answer-transcript.js").Position} Position @typedef {import("/sdk/midstream.js").Message} Message
 * @typedef {import("./connection.js").Client} Client
 * @typedef {"waiting" | "writing" | "paused" | "ended"} State
 * @typedef {import("/sdk/midstream.js").FunctionTool} FunctionTool @typedef {import("/sdk/midstream.js").Call} Call
 * @typedef {import("/sdk/midstream.js").Run} Run
 * @typedef {{ params: Record<string, any>, window: number, pace: number, model?: string, tools: FunctionTool[],
 *   approvals: string[], toolChoice?: string }} Settings
 */
import { Agent, Recorder } from "/sdk/midstream.js";
import { AnswerCalls } from "./answer-calls.js";
import { explain, explainSteering } from "./error-messages.js";
import { RateMeter } from "./rate-meter.js";
import { START, Transcript, injection } from "./answer-transcript.js";

export class Answer {
  /** What it is a fork of, and from where. @type {{ answer: Answer, at: Position } | null} */ origin = null;
  /** Beside which it answers the same question. @type {Answer | null} */ #beside = null;
  transcript = new Transcript();
  calls = new AnswerCalls(() => this.#agentRun, (asked) => this.#try(asked));
  meter = new RateMeter();
  /** @type {State} */ state = "waiting";
  /** @type {any} */ final = null;
  problem = "";
  pace = 0;
  /** What it has said to itself. */
  reasoning = "";
  /** Whether that goes on. */
  reasons = false;
  /** Whether it waits for what its calls return. */
  awaitsTools = false;
  /** @type {(news?: string) => void} */ onchange = () => {};
  /** @type {(event: any) => void} */ onguard = () => {};
  /** @type {Recorder[]} of its runs since the page was loaded */ #recorders = [];
  #run = 0;
  #window = 0;
  /** @type {Run | null} */ #agentRun = null;
  /** @type {PromiseWithResolvers<void> | null} */ #gate = null;
  /** @type {any} taken from the stream, and not shown yet */ #pendingChunk = null;
  #stopped = false;
  /** Where it is to go on from, once what runs has ended. @type {Position | null} */ #chosen = null;
  /** @type {Promise<number> | null} */ #cancelling = null;
  /** Settled once it has a stream, or will have none. @type {PromiseWithResolvers<void> | null} */ #begun = null;
  /** @type {Promise<void> | undefined} */ #written;
  #client;

  /** @param {() => Client | null} client @param {Message[]} question @param {string} label */
  constructor(client, question, label) {
    this.#client = client;
    this.question = question;
    this.label = label;
  }

  /** Another to the same question, which begins where this one's output does. @param {string} label */
  another(label) {
    const other = new Answer(this.#client, this.question, label);
    other.#beside = this;
    return other;
  }

  /** Another, which goes on from `at` in its own way; this one notices nothing. @param {Position} at @param {string} label */
  forked(at, label) {
    const fork = new Answer(this.#client, this.question, label);
    fork.origin = { answer: this, at };
    fork.transcript = this.transcript.before(at);
    fork.#run = at.run;
    return fork;
  }

  /** What is kept of it when the page is loaded anew. */
  toJSON() {
    const { question, label, final, transcript, reasoning } = this;
    const { pieces, marks, calls } = transcript;
    return { question, label, final, pieces, marks, run: this.#run, reasoning, calls };
  }

  /** @param {() => Client | null} client @param {any} kept */
  static from(client, kept) {
    const answer = new Answer(client, kept.question, kept.label);
    answer.transcript.marks = kept.marks;
    answer.transcript.calls = kept.calls;
    for (const piece of kept.pieces) answer.transcript.add(piece);
    answer.#run = kept.run;
    const problem = kept.final ? "" : "This was broken off. \u201cGo on\u201d continues it.";
    const { final, reasoning } = kept;
    return Object.assign(answer, { state: "ended", final, problem, reasoning });
  }

  /** @returns {any} */
  get #stream() {
    return this.#agentRun?.stream ?? null;
  }

  get running() {
    return this.state !== "ended";
  }

  /** As turns of a conversation. */
  get messages() {
    return this.transcript.messages();
  }

  /** Where the reader is. @returns {Position} */
  get end() {
    return { run: this.#run, index: this.transcript.end(this.#run) };
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
    this.#begun = Promise.withResolvers();
    this.#written = this.#write(settings);
    return this.#written;
  }

  /** @param {Settings} settings */
  async #write({ params, window, pace, model, tools, approvals, toolChoice: tool_choice }) {
    const { turns, parts } = this.transcript.standing();
    Object.assign(this, { state: "waiting", final: null, problem: "", pace, meter: new RateMeter(), reasons: false });
    this.#window = window;
    this.#agentRun = this.#cancelling = null;
    this.#stopped = false;
    this.onchange("The answer begins");
    try {
      if (!(await this.#fork(window, params.seed))) {
        this.#run += this.transcript.pieces.length ? 1 : 0;
        const agent = new Agent({ tools, approvals: approvals.length ? approvals : undefined });
        const options = { return_tokens: true, window, ...params, ...(model && { model }), ...(tool_choice && { tool_choice }) };
        // Not a token before the old ones stand.
        await this.#start(agent, [...this.question, ...turns], parts.length ? { ...options, credit: { limit: 0 } } : options);
        for (const part of parts) await this.#stream.inject(injection(part));
      }
      await this.#read(this.#run);
      this.#end(this.#stream.final, "");
    } catch (error) {
      if (this.#stream) this.#cancel().catch(() => {}); // where the connection is gone there is nothing to cancel
      this.#end(this.#stream?.final ?? null, explain(error));
    }
  }

  /** @param {Agent} agent @param {Message[]} messages @param {Record<string, any>} options */
  async #start(agent, messages, options) {
    const client = this.#client();
    if (!client) throw Object.assign(new Error("there is no connection"), { code: "connection_lost" });
    const recorder = new Recorder(this.#recorders.length + 1);
    this.#recorders.push(recorder);
    this.#take(await client.run(agent, messages, { ...options, onevent: this.#receiver(), recorder }));
  }

  /**
   * The stream of its origin, or of the answer beside it, is forked where the server has it; where not, what stands is
   * all that is needed. @param {number} window @param {number} [seed]
   */
  async #fork(window, seed) {
    const from = this.origin ?? (this.#beside && { answer: this.#beside, at: START });
    if (!from || this.#recorders.length) return false;
    const { answer, at } = from;
    await answer.#begun?.promise;
    if (!answer.#agentRun || at.run !== answer.#run) return false;
    const recorder = answer.#recorders.at(-1)?.fork(at.index);
    const own = seed === undefined || this.origin ? {} : { seed };
    try {
      this.#take(await answer.#agentRun.fork({ at: at.index, window, return_tokens: true, ...own, onevent: this.#receiver(), recorder }));
    } catch (error) {
      if (!FORGOTTEN.includes(/** @type {any} */ (error).code)) throw error;
      return false;
    }
    this.#recorders = [...answer.#recorders.slice(0, -1), ...(recorder ? [recorder] : [])];
    return true;
  }

  /** @param {Run} run */
  #take(run) {
    this.#agentRun = run;
    this.#begun?.resolve();
    this.#showCalls(this.#run);
  }

  #receiver() {
    const run = this.#run;
    return (/** @type {any} */ event) => this.#receive(run, event);
  }

  /** Where it is stopped, what had come is still shown to a reader who has kept up. @param {number} run */
  async #read(run) {
    if (this.#stopped) await this.#cancel();
    while ((this.#pendingChunk = await this.#stream.next())) {
      await this.#gate?.promise;
      if (this.#stopped && (this.pace || this.#gate)) break;
      if (!this.#pendingChunk) continue;
      const { index, count, text, tokens, end } = this.#pendingChunk;
      this.#pendingChunk = null;
      if (count && end <= this.transcript.end(run)) continue; // a fork begins with what stands
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
      this.#halt(event.paused);
    } else if (event.type === "restarted") {
      this.#halt(event.begun.paused);
    } else if (event.type === "paused" || event.type === "resumed") {
      this.#halt(event.reason);
    } else if (event.type === "guard") {
      this.transcript.mark({ ...at, kind: "guard", name: event.name, does: event.do });
      this.onguard(event);
    }
    if (event.type === "token") return;
    this.#showCalls(run);
    this.onchange(news);
  }

  /** Or go on, where there is no reason. @param {string} [reason] */
  #halt(reason) {
    this.state = reason ? "paused" : "writing";
    this.awaitsTools = reason === "tool_call";
  }

  /** What stands beside the text: what there is to say of it. @param {any} event @returns {string | undefined} */
  #receiveSpan(event) {
    const began = event.type === "reasoning" && !this.reasons;
    if (event.type === "reasoning") this.reasons = true;
    else if (event.type === "tool_call" || (event.type === "token" && event.delta)) this.reasons = false;
    if (this.#stream && event.type !== "token") this.reasoning = this.#stream.reasoning;
    return began ? "Reasoning" : this.calls.news(event);
  }

  /** @param {number} run */
  #showCalls(run) {
    const entries = run === this.#run ? this.calls.entries(run) : null;
    if (entries) this.transcript.show(run, entries);
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
    this.#begun?.resolve();
    if (this.#stream) this.reasoning = this.#stream.reasoning;
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
    if (index === null) this.#open(); // it goes on being written, so it is read
    else this.onchange(`Paused at token ${index}`);
  }

  async resume() {
    if (this.state !== "paused" && !this.#gate) return; // with a gate a pause is on its way, and comes first
    this.#open();
    const index = await this.#try(this.#stream.resume());
    if (index !== null) this.onchange(`Going on from token ${index}`);
  }

  /** What has come is read on. */
  #open() {
    this.#gate?.resolve();
    this.#gate = null;
  }

  /** @param {Record<string, any>} params */
  async adjust(params) {
    if (!this.#steerable) return;
    const run = this.#run;
    const index = await this.#try(this.#stream.adjust({ ...params, ...this.#atShown }));
    const { guards, ...shown } = params;
    if (index === null || guards) return; // guards are chips, and no mark in the text
    this.transcript.mark({ run, index, kind: "adjust", params: shown });
    const what = Object.entries(shown).map(([name, value]) => `${name.replaceAll("_", " ")} ${value}`);
    this.onchange(`${what.join(", ")} from token ${index}`);
  }

  /** Whether it was put in. @param {{ text: string } | { messages: { role: string, content: string }[] }} what */
  async inject(what) {
    if (!this.#steerable) return false;
    const run = this.#run;
    const index = await this.#try(this.#stream.inject({ ...what, ...this.#atShown }));
    if (index === null) return false;
    this.transcript.mark({ run, index, kind: "inject", ...what });
    this.onchange(`Put in before token ${index}`);
    return true;
  }

  /** A call, which goes on as it is changed; where the answer was stopped for that, it goes on too. @param {Call} call @param {string} given @param {boolean} partial */
  async amend(call, given, partial) {
    if ((await this.calls.amend(call, given, partial)) === null) return false;
    await this.resume();
    return true;
  }

  async stop() {
    this.#stopped = true;
    this.#chosen = null;
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
    const chosen = (this.#chosen = { ...position }); // the same word may be chosen twice
    await this.#written;
    if (this.#chosen !== chosen) return; // another was chosen meanwhile, or it was stopped
    this.transcript.cut(position);
    this.transcript.mark({ ...position, kind: "rewind" });
    await this.write({ ...settings, params: { ...settings.params, seed: freshSeed() } });
  }

  /** The index that a steering frame took effect at, or null if it did not. @param {Promise<number> | undefined} asked */
  async #try(asked) {
    try {
      this.problem = "";
      return (await asked) ?? null;
    } catch (error) {
      if (this.running) this.problem = explainSteering(error);
      this.onchange();
      return null;
    }
  }
}

/** Of a stream that a server does not have, or had, any more. */
const FORGOTTEN = ["unknown_request", "request_expired"];

const freshSeed = () => crypto.getRandomValues(new Uint32Array(1))[0];
