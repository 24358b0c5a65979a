/**
 * The tools that run for a stream's calls: each begins when its call may run, and one whose call is no more is stopped.
 *
 * Knows tools and calls; knows no stream: which calls may run it is told, and what comes of them it tells.
 * @module
 * @import { Call } from "./protocol.js"
 * @import { FunctionTool } from "./tools.js"
 */

import { abortable } from "./abortable.js";
import { resultText, runCall } from "./tools.js";

/** @typedef {{done: number, total?: number, message?: string}} Progress */
/**
 * @typedef {object} ToolContext What a tool is told beside its arguments.
 * @property {Call} call
 * @property {AbortSignal} signal aborted when nobody wants the result any more: the call was taken back or changed, its
 *   stream has ended, or it takes too long
 * @property {(done: number, total?: number, message?: string) => void} progress says how far it is
 */
/** @typedef {{content: string} | {error: string}} Result */

export class ToolRuns {
  /** @type {Map<Call, AbortController>} */ #running = new Map();
  #tools;
  #timeoutMs;
  #onprogress;
  #onresult;

  /**
   * @param {FunctionTool[]} tools
   * @param {{timeoutMs?: number, onprogress: (call: Call, progress: Progress) => void,
   *   onresult: (call: Call, result: Result) => void}} options
   */
  constructor(tools, { timeoutMs, onprogress, onresult }) {
    this.#tools = tools;
    this.#timeoutMs = timeoutMs;
    this.#onprogress = onprogress;
    this.#onresult = onresult;
  }

  /** Whether its tool runs. @param {Call} call */
  has(call) {
    return this.#running.has(call);
  }

  /** These may run, and no others: they are whole, and have no result. @param {Call[]} calls */
  follow(calls) {
    for (const [call, controller] of this.#running) {
      if (calls.includes(call)) continue;
      this.#running.delete(call);
      controller.abort(new DOMException("nobody waits for this call any more", "AbortError"));
    }
    for (const call of calls) if (!this.has(call) && this.#isOurs(call)) this.#start(call);
  }

  /** A tool without a function is somebody else's; a call of what there is not has that for a result. @param {Call} call */
  #isOurs(call) {
    const tool = this.#tools.find(({ name }) => name === call.name);
    return !tool || tool.run !== undefined;
  }

  /** @param {Call} call */
  async #start(call) {
    const controller = new AbortController();
    this.#running.set(call, controller);
    const result = await this.#run(call, controller.signal);
    if (this.#running.get(call) !== controller) return; // nobody waits for it any more
    this.#running.delete(call);
    this.#onresult(call, result);
  }

  /** @param {Call} call @param {AbortSignal} stopped @returns {Promise<Result>} */
  async #run(call, stopped) {
    const signal = this.#timeoutMs === undefined ? stopped : AbortSignal.any([stopped, AbortSignal.timeout(this.#timeoutMs)]);
    /** @type {ToolContext["progress"]} */
    const progress = (done, total, message) => {
      if (this.has(call)) this.#onprogress(call, { done, total, message });
    };
    try {
      const running = runCall(call, this.#tools, { call, signal, progress });
      return { content: resultText(await abortable(running, signal)) };
    } catch (error) {
      return { error: error instanceof Error ? error.message || error.name : String(error) };
    }
  }
}
