/**
 * Tools: what the wire is told of them, what comes of a call, and how both become messages. Pure.
 * @module
 * @import { Call, Message, MessageToolCall, Tool, ToolChoice } from "./protocol.js"
 * @import { ToolContext } from "./tool-runs.js"
 */

/**
 * @typedef {object} FunctionTool A function that the model may call.
 * @property {string} name
 * @property {string} [description] what the model is told of it
 * @property {object} [parameters] its arguments, as a JSON schema
 * @property {boolean} [strict] whether they are held to the schema
 * @property {(given: any, context: ToolContext) => unknown} [run] is called with the arguments
 */
/** @typedef {Tool | FunctionTool} AnyTool As OpenAI's API has it, or flat. */

/** The model called what there is not, or with arguments that are none. The message may be told to it. */
export class BadCall extends Error {
  /** @override */ name = "BadCall";
}

/** @param {AnyTool} tool @returns {Tool} */
export function wireTool(tool) {
  if ("function" in tool) return tool;
  const { name, description, parameters, strict } = tool;
  return { type: "function", function: { name, description, parameters, strict } };
}

/** The name of a tool stands for having to call that one. @param {string | object} choice @returns {ToolChoice} */
export function wireToolChoice(choice) {
  const named = typeof choice === "string" && !["auto", "none", "required"].includes(choice);
  return /** @type {ToolChoice} */ (named ? { type: "function", function: { name: choice } } : choice);
}

/**
 * Run the tool that the model has called, and return what it returns. What `run` throws is its own; a BadCall is
 * the model's fault, and `toolMessage(call, error.message)` tells it so.
 * @param {Call} call @param {AnyTool[]} tools
 * @param {Partial<ToolContext>} [context] beside what is known of the call
 */
export async function runCall(call, tools, context = {}) {
  const tool = tools.find((tool) => "run" in tool && tool.name === call.name);
  if (!tool || !("run" in tool) || !tool.run) {
    const names = tools.map((tool) => ("function" in tool ? tool.function.name : tool.name));
    throw new BadCall(`there is no tool "${call.name}"; there are ${names.join(", ")}`);
  }
  const { signal = new AbortController().signal, progress = () => {} } = context;
  return tool.run(callArguments(call), { call, signal, progress });
}

/** The arguments of a whole call. @param {Call} call @returns {Record<string, any>} */
export function callArguments(call) {
  try {
    return JSON.parse(call.arguments);
  } catch {
    throw new BadCall(`the arguments of ${call.name} are no JSON: ${call.arguments}`);
  }
}

/** What the model is told that a call has returned: a text as it is, anything else as JSON. @param {unknown} result */
export function resultText(result) {
  return typeof result === "string" ? result : (JSON.stringify(result) ?? "null");
}

/**
 * The message that tells the model what came of a call.
 * @param {Call} call @param {unknown} result
 * @returns {Message}
 */
export function toolMessage(call, result) {
  return { role: "tool", tool_call_id: call.call_id, content: resultText(result) };
}

/** The same of what a run says of a call. @param {{call: Call, content?: string, error?: string}} outcome @returns {Message} */
export function outcomeMessage({ call, content, error }) {
  return { ...toolMessage(call, error === undefined ? content : { error }), name: call.name };
}

/**
 * An answer as a turn of the conversation that goes on: what is no whole call is none.
 * @param {string} text @param {Call[]} calls
 * @returns {Message}
 */
export function answerMessage(text, calls) {
  /** @type {MessageToolCall[]} */
  const called = calls
    .filter((call) => call.end !== undefined)
    .map((call) => ({
      id: call.call_id,
      type: "function",
      function: { name: call.name, arguments: call.arguments },
    }));
  if (!called.length) return { role: "assistant", content: text };
  return { role: "assistant", content: text || null, tool_calls: called };
}
