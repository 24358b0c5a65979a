/** @param {AnyTool} tool @returns {Tool} */
export function wireTool(tool: AnyTool): Tool;
/** The name of a tool stands for having to call that one. @param {string | object} choice @returns {ToolChoice} */
export function wireToolChoice(choice: string | object): ToolChoice;
/**
 * Run the tool that the model has called, and return what it returns. What `run` throws is its own; a BadCall is
 * the model's fault, and `toolMessage(call, error.message)` tells it so.
 * @param {Call} call @param {AnyTool[]} tools
 * @param {Partial<ToolContext>} [context] beside what is known of the call
 */
export function runCall(call: Call, tools: AnyTool[], context?: Partial<ToolContext>): Promise<unknown>;
/** The arguments of a whole call. @param {Call} call @returns {Record<string, any>} */
export function callArguments(call: Call): Record<string, any>;
/** What the model is told that a call has returned: a text as it is, anything else as JSON. @param {unknown} result */
export function resultText(result: unknown): string;
/**
 * The message that tells the model what came of a call.
 * @param {Call} call @param {unknown} result
 * @returns {Message}
 */
export function toolMessage(call: Call, result: unknown): Message;
/** The same of what a run says of a call. @param {{call: Call, content?: string, error?: string}} outcome @returns {Message} */
export function outcomeMessage({ call, content, error }: {
    call: Call;
    content?: string;
    error?: string;
}): Message;
/**
 * An answer as a turn of the conversation that goes on: what is no whole call is none.
 * @param {string} text @param {Call[]} calls
 * @returns {Message}
 */
export function answerMessage(text: string, calls: Call[]): Message;
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
}
/**
 * A function that the model may call.
 */
export type FunctionTool = {
    name: string;
    /**
     * what the model is told of it
     */
    description?: string | undefined;
    /**
     * its arguments, as a JSON schema
     */
    parameters?: object | undefined;
    /**
     * whether they are held to the schema
     */
    strict?: boolean | undefined;
    /**
     * is called with the arguments
     */
    run?: ((given: any, context: ToolContext) => unknown) | undefined;
};
/**
 * As OpenAI's API has it, or flat.
 */
export type AnyTool = Tool | FunctionTool;
import type { Tool } from "./protocol.js";
import type { ToolChoice } from "./protocol.js";
import type { Call } from "./protocol.js";
import type { ToolContext } from "./tool-runs.js";
import type { Message } from "./protocol.js";
