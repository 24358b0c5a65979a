/**
 * The format of records: what was started, what came, and how it was steered, a line of JSON each. Pure.
 *
 * The mirror of `midstream/record_format.py`; `docs/records.md` describes it.
 * @module
 * @import { Message, Params, Tool, ToolChoice } from "./protocol.js"
 */

import { kindOf } from "./json-kinds.js";
import { PARAMS } from "./protocol.js";

export const RECORD_VERSION = 1;

/** @typedef {{type: string, stream: number}} LineFields */
/**
 * @typedef {LineFields & {type: "start", record: number, request_id: string, model: string, fingerprint: string | null,
 *   prompt?: string | number[], messages?: Message[], fork?: {request_id: string, at?: number}, tools?: Tool[],
 *   tool_choice?: ToolChoice, parallel_tool_calls?: boolean, on_tool_call?: "finish" | "pause" | "continue",
 *   prompt_tokens: number, params: Params}} StartLine
 */
/** @typedef {LineFields & {type: "tokens", index: number, text: string, tokens: number[], logprobs?: number[]}} TokensLine */
/** @typedef {LineFields & {type: "pause", index: number, kv?: "hold" | "release"}} PauseLine */
/** @typedef {LineFields & {type: "resume", index: number}} ResumeLine */
/** @typedef {LineFields & {type: "adjust", index: number, params: Params}} AdjustLine */
/**
 * @typedef {LineFields & {type: "inject", index: number, text?: string, messages?: Message[],
 *   tokens?: number[], grammar?: "fit" | "anew"}} InjectLine
 */
/** @typedef {LineFields & {type: "rewind", index: number}} RewindLine */
/**
 * @typedef {LineFields & {type: "forked", index: number, params: Params, on_tool_call?: "finish" | "pause" | "continue"}} ForkedLine
 *   It goes on as a fork of it does, whose parameters differ in these
 */
/** @typedef {LineFields & {type: "waits", index: number}} WaitsLine It waits for results of its calls. */
/**
 * @typedef {LineFields & {type: "tool_result", index: number, call: number, content?: string, error?: string}} ToolResultLine
 *   `call`: its number among those that stood
 */
/**
 * @typedef {LineFields & {type: "amend", index: number, call: number, arguments: string | object, partial?: boolean}} AmendLine
 */
/**
 * @typedef {LineFields & {type: "guard", index: number, name: string, do: "rewind" | "pause" | "finish" | "tell"}} GuardLine
 *   Output from `index` on is void
 */
/** @typedef {LineFields & {type: "moved", index: number, fingerprint: string}} MovedLine */
/** @typedef {LineFields & {type: "lost", index: number, why: string}} LostLine */
/** @typedef {LineFields & {type: "final", index: number, finish_reason: string, stop_reason?: string}} FinalLine */
/** @typedef {PauseLine | ResumeLine | AdjustLine | InjectLine | RewindLine | ForkedLine | WaitsLine | ToolResultLine | AmendLine} ControlLine */
/** @typedef {StartLine | TokensLine | ControlLine | GuardLine | MovedLine | LostLine | FinalLine} Line */

/** @typedef {{start: StartLine, lines: Line[]}} StreamRecord One stream's lines, those behind the first in their order. */

/** What a line of each type must have, and of which kind. @type {Record<string, Record<string, string>>} */
const FIELDS = {
  start: { record: "number", request_id: "string", model: "string", prompt_tokens: "number", params: "object" },
  tokens: { index: "number", text: "string", tokens: "array" },
  pause: { index: "number" },
  resume: { index: "number" },
  adjust: { index: "number", params: "object" },
  inject: { index: "number" },
  rewind: { index: "number" },
  forked: { index: "number", params: "object" },
  waits: { index: "number" },
  tool_result: { index: "number", call: "number" },
  amend: { index: "number", call: "number" },
  guard: { index: "number", name: "string", do: "string" },
  moved: { index: "number", fingerprint: "string" },
  lost: { index: "number", why: "string" },
  final: { index: "number", finish_reason: "string" },
};

/** What one may have beside. @type {Record<string, string[]>} */
const OPTIONAL = {
  start: ["fingerprint", "prompt", "messages", "fork", "tools", "tool_choice", "parallel_tool_calls", "on_tool_call"],
  tokens: ["logprobs"],
  pause: ["kv"],
  inject: ["text", "messages", "tokens", "grammar"],
  forked: ["on_tool_call"],
  tool_result: ["content", "error"],
  amend: ["arguments", "partial"],
  final: ["stop_reason"],
};

/** A file is no record; the message says where and why. */
export class RecordError extends Error {
  /** @override */ name = "RecordError";
}

/**
 * Every record of a file, in the order of their starts. Throws RecordError for the first line that is not right.
 * @param {string} text @returns {StreamRecord[]}
 */
export function parseRecords(text) {
  /** @type {StreamRecord[]} */ const records = [];
  /** @type {Map<number, {record: StreamRecord, end: number}>} */ const open = new Map();
  for (const [at, said] of text.replace(/^\ufeff/, "").split("\n").entries()) {
    if (!said.trim()) continue;
    const place = `line ${at + 1}`;
    const line = parseLine(said, place);
    if (line.type === "start") {
      const record = { start: line, lines: [] };
      records.push(record);
      open.set(line.stream, { record, end: 0 });
      continue;
    }
    const found = open.get(line.stream);
    if (!found) throw new RecordError(`${place}: stream ${line.stream} has no \`start\` before it, or has ended`);
    found.end = endAfter(line, found.end, place);
    found.record.lines.push(line);
    if (line.type === "lost" || line.type === "final") open.delete(line.stream);
  }
  if (!records.length) throw new RecordError("there is no record in it: its first line would be a `start`");
  return records;
}

/** @param {string} text @param {string} place @returns {Line} */
function parseLine(text, place) {
  /** @type {any} */ let line;
  try {
    line = JSON.parse(text);
  } catch {
    throw new RecordError(`${place}: this is not JSON`);
  }
  if (typeof line !== "object" || line === null || !Object.hasOwn(FIELDS, line.type)) {
    throw new RecordError(`${place}: a line has a \`type\`, one of ${Object.keys(FIELDS).join(", ")}`);
  }
  if (line.type === "start" && line.record !== RECORD_VERSION) {
    throw new RecordError(`${place}: it is a record of version ${line.record}; this client reads ${RECORD_VERSION}`);
  }
  for (const name in line) if (line[name] === null && name !== "fingerprint") delete line[name]; // what is null is left out
  for (const [name, kind] of Object.entries({ stream: "number", ...FIELDS[line.type] })) {
    if (kindOf(line[name]) !== kind) throw new RecordError(`${place}: \`${name}\` must be of kind ${kind}`);
  }
  const known = ["type", "stream", ...Object.keys(FIELDS[line.type]), ...(OPTIONAL[line.type] ?? [])];
  const unknown = Object.keys(line).find((name) => !known.includes(name));
  if (unknown !== undefined) throw new RecordError(`${place}: there is no field \`${unknown}\``);
  checkContent(line, place);
  if (line.params) line.params = samplingParams(line.params);
  return line;
}

/** Those that are known, and nothing else that a start may say: whoever wrote the file may be a stranger. @param {object} params @returns {Params} */
function samplingParams(params) {
  return Object.fromEntries(Object.entries(params).filter(([name]) => PARAMS.includes(name)));
}

/** @param {any} line @param {string} place */
function checkContent(line, place) {
  const given = (/** @type {string[]} */ ...names) => names.filter((name) => line[name] !== undefined).length;
  if (line.type === "start" && given("prompt", "messages", "fork") !== 1) {
    throw new RecordError(`${place}: a start has one of \`messages\`, \`prompt\` and \`fork\``);
  }
  if (line.type === "inject" && given("text", "messages", "tokens") !== 1) {
    throw new RecordError(`${place}: an inject has one of \`text\`, \`messages\` and \`tokens\``);
  }
  if (line.type === "tool_result" && given("content", "error") !== 1) {
    throw new RecordError(`${place}: a tool_result has either \`content\` or \`error\``);
  }
  const seed = line.params?.seed;
  if (seed !== undefined && !Number.isSafeInteger(seed)) {
    throw new RecordError(`${place}: the seed is beyond 2**53, and JavaScript cannot hold it: use \`midstream replay\``);
  }
}

/** How much output stands behind a line. @param {Line} line @param {number} end @param {string} place */
function endAfter(line, end, place) {
  if (line.type === "tokens") {
    if (line.index !== end) throw new RecordError(`${place}: token ${line.index} stands where token ${end} is due`);
    return end + line.tokens.length;
  }
  if (line.type === "forked" && line.index !== end) throw new RecordError(`${place}: it is forked at token ${line.index}, but ${end} stand`);
  if (line.type === "guard") return Math.min(line.index, end); // it may have looked ahead of what had been sent
  if (line.type !== "rewind") return end;
  if (line.index > end) throw new RecordError(`${place}: it rewinds to token ${line.index}, but ${end} stand`);
  return line.index;
}
