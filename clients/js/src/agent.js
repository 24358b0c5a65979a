/**
 * An agent: tools, and how a model is to use them; what is the same in every run of it. It knows no server.
 * @module
 * @import { Call, Message } from "./protocol.js"
 * @import { StartOptions } from "./options.js"
 * @import { FunctionTool } from "./tools.js"
 */

import { checkTime } from "./options.js";

/**
 * @typedef {boolean | string | Record<string, any>} Verdict Whether a call may run: yes; no; no, and the model is told
 *   why; or yes, with these arguments instead.
 */

/**
 * @typedef {object} AgentFields
 * @property {FunctionTool[]} [tools] one without `run` is answered by hand: `run.give`
 * @property {string} [system] what the model is told before all else
 * @property {string[] | true} [approvals] the tools, or all, of which each call waits for a yes
 * @property {(call: Call) => Verdict | Promise<Verdict>} [approve] is asked for that yes; without it somebody says
 *   `run.approve`, `run.amend` or `run.refuse`
 * @property {"pause" | "continue"} [onToolCall] whether the model waits for results, or goes on meanwhile
 * @property {number} [maxCalls] one more, with those that are taken back, ends the run in a LimitReached
 * @property {number} [toolTimeoutMs] the longest that a tool may take
 * @property {object | boolean} [output] a JSON schema that the answer fits
 */

/**
 * @typedef {Omit<StartOptions, "tools" | "approvals" | "on_tool_call" | "messages" | "prompt" | "fork" | "onevent" | "grammar">
 *   & {onevent?: (event: import("./agent-run.js").RunEvent) => void}} RunOptions
 */
/** @typedef {AgentFields & RunOptions} AgentOptions */

/** `client.run(agent, question)` runs one. */
export class Agent {
  /** @type {FunctionTool[]} */ tools;
  system;
  approvals;
  approve;
  onToolCall;
  maxCalls;
  toolTimeoutMs;
  output;
  options;

  /** @param {AgentOptions} options what is not the agent's own is as for `client.start` */
  constructor({ tools = [], system, approvals, approve, onToolCall = "pause", maxCalls = Infinity, toolTimeoutMs, output, ...options }) {
    this.tools = tools;
    this.system = system;
    this.approvals = approvals ?? (approve ? /** @type {const} */ (true) : undefined);
    this.approve = approve;
    this.onToolCall = onToolCall;
    this.maxCalls = maxCalls;
    this.toolTimeoutMs = toolTimeoutMs === undefined ? undefined : checkTime("toolTimeoutMs", toolTimeoutMs);
    this.output = output;
    this.options = options;
  }

  /** The conversation that a run begins with. @param {string | Message[]} question @returns {Message[]} */
  messages(question) {
    const asked = typeof question === "string" ? [{ role: "user", content: question }] : question;
    const told = asked[0]?.role === "system" || this.system === undefined;
    return told ? asked : [{ role: "system", content: /** @type {string} */ (this.system) }, ...asked];
  }

  /** What every stream of it starts with, its forks too. */
  get fields() {
    const { approvals, onToolCall: on_tool_call } = this;
    return this.tools.length ? { on_tool_call, ...(approvals && { approvals }) } : {};
  }
}
