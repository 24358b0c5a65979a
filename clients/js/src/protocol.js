/**
 * The Midstream protocol, as types: every frame a client may send and every event a server may answer with.
 *
 * The mirror of `midstream/protocol.py`, which is the definition; a test compares the two. It knows what a
 * frame looks like, not what it does. Which values are in range is the server's to say.
 * @module
 */

export const VERSION = 1;
export const SUBPROTOCOL = "midstream.v1.json";
export const MAX_INDEX = 2 ** 31 - 1;

/** The event that answers each frame. One with `at`, and an `amend`, is first answered by the `rewound` that it causes. */
export const ANSWERS = /** @type {const} */ ({
  start: "started",
  pause: "paused",
  resume: "resumed",
  adjust: "adjusted",
  inject: "injected",
  tool_result: "injected",
  approve: "approved",
  amend: "injected",
  rewind: "rewound",
  cancel: "final",
  attach: "attached",
  ping: "pong",
});

/** Events of a stream that answer no frame. */
const UNASKED = ["token", "reasoning", "tool_call", "tool_arguments", "tool_call_done", "snapshot"];

/** @param {StreamEvent} event @returns {event is Exclude<Answer, Attached | Pong>} */
export function mayAnswer(event) {
  return !UNASKED.includes(event.type);
}

/** The output token to which a frame takes the stream back, if it does. @param {RequestFrame} frame @returns {number | undefined} */
export function goesBackTo(frame) {
  return frame.type === "rewind" ? frame.to : "at" in frame ? frame.at : undefined;
}

/** Sampling parameters, by their names on the wire. */
export const PARAMS = [
  "temperature", "top_p", "top_k", "min_p", "max_tokens", "stop", "seed", "repetition_penalty",
  "presence_penalty", "frequency_penalty", "logit_bias", "logprobs", "ignore_eos", "min_tokens",
  "grammar", "reasoning_tokens", "guards",
];

/** Answers that a snapshot tells of, at most. */
export const MAX_ANSWERED = 64;

/** Steps of steering, and calls, that a start may say again, at most. */
export const MAX_PAST = 4096;

/** The fields of `start` that are no sampling parameters, and that a caller gives. */
export const START_FIELDS = [
  "request_id", "messages", "prompt", "model", "stream_interval", "priority", "timeout_ms", "on_disconnect",
  "grace_ms", "on_cold", "return_tokens", "tools", "tool_choice", "parallel_tool_calls", "fork", "on_tool_call",
  "tool_hold_ms", "approvals", "whole_arguments",
];

/** WebSocket close codes after which a new connection is worth a try. */
export const RETRYABLE_CLOSE_CODES = [1001, 1006, 1011, 1012, 1013];

/**
 * @typedef {object} Params Sampling parameters. `temperature: 0` is greedy.
 * @property {number} [temperature]
 * @property {number} [top_p]
 * @property {number} [top_k]
 * @property {number} [min_p]
 * @property {number} [max_tokens]
 * @property {string | string[]} [stop]
 * @property {number} [seed]
 * @property {number} [repetition_penalty]
 * @property {number} [presence_penalty]
 * @property {number} [frequency_penalty]
 * @property {Record<number, number>} [logit_bias]
 * @property {number | null} [logprobs] how many alternatives to report for each token
 * @property {boolean} [ignore_eos]
 * @property {number} [min_tokens]
 * @property {number | null} [reasoning_tokens]
 * @property {Grammar | null} [grammar] what output must be; in an adjust, null takes it away
 * @property {Guard[] | null} [guards] what output is held to, and what becomes of what breaks it
 */

/** @typedef {"rewind" | "pause" | "finish" | "tell"} GuardAction */
/**
 * @typedef {object} Guard A rule. It has one of `regex`, `tool` and `budget`.
 * @property {string} name
 * @property {GuardAction} do
 * @property {number} [times] how often it rewinds, before it does `then`
 * @property {"pause" | "finish"} [then]
 * @property {string} [regex] must not be found
 * @property {("content" | "reasoning" | "arguments")[]} [in] where; everywhere by default
 * @property {string} [tool] may not be called, "*" is any; with `path`, see `forbid` and `require`
 * @property {string} [path] of a value in the arguments
 * @property {string} [forbid] must not be found in that value
 * @property {string} [require] must be found in that value
 * @property {{tokens?: number, calls?: number, reasoning_tokens?: number, seconds?: number}} [budget]
 */

/**
 * @typedef {object} Grammar One of the first four, and how it is held to.
 * @property {object | boolean} [json_schema]
 * @property {string} [regex]
 * @property {string} [lark]
 * @property {string[]} [choice]
 * @property {boolean} [whitespace] whether JSON may have some between its tokens
 * @property {boolean} [force] false: tokens to which it leaves no choice are sampled all the same
 */

/**
 * @typedef {object} Message One turn of a conversation.
 * @property {string} role
 * @property {string | {type: "text", text: string}[] | null} [content] only where there are `tool_calls` there may be none
 * @property {string} [name]
 * @property {MessageToolCall[]} [tool_calls] of role `assistant`: what the model has called
 * @property {string} [tool_call_id] of role `tool`: the call whose result this is
 * @property {string} [reasoning_content]
 */

/** @typedef {{id: string, type?: "function", function: {name: string, arguments: string}}} MessageToolCall */
/**
 * @typedef {object} Tool A function that the model may call, as OpenAI's API has it.
 * @property {"function"} [type]
 * @property {{name: string, description?: string, parameters?: object, strict?: boolean}} function
 */
/** @typedef {{type?: "function", function: {name: string}}} NamedTool The one tool that is to be called. */
/** @typedef {"auto" | "none" | "required" | NamedTool} ToolChoice */

/**
 * @typedef {object} StartFields What a stream may be started with, beside sampling parameters.
 * @property {Message[]} [messages] a conversation; or else `prompt`
 * @property {string | number[]} [prompt] text or token ids
 * @property {{request_id: string, at?: number}} [fork] or else begin as another stream stands at a token
 * @property {string} [model]
 * @property {string} [request_id] a name of one's own, up to 128 characters; a random one by default
 * @property {number} [stream_interval] tokens in a chunk
 * @property {number} [priority] from -8 to 8
 * @property {number} [timeout_ms] the longest that the stream may live
 * @property {"cancel" | "pause" | "continue"} [on_disconnect] what becomes of it when the connection ends; by
 *   default "pause" where the client connects anew by itself
 * @property {number} [grace_ms] how long it then waits for somebody to come
 * @property {"wait" | "refuse"} [on_cold] whether it waits for a model that is to be loaded, or is refused
 * @property {boolean} [return_tokens] chunks carry token ids
 * @property {Tool[]} [tools] functions that the model may call
 * @property {ToolChoice} [tool_choice]
 * @property {boolean} [parallel_tool_calls] false: the first call that is whole ends the stream
 * @property {"finish" | "pause" | "continue"} [on_tool_call] whether it ends with its calls, waits for their results, or
 *   goes on meanwhile
 * @property {number} [tool_hold_ms] how long its memory is held while it waits for results
 * @property {boolean | string[]} [approvals] the tools whose calls wait for an `approve`, or true for all
 * @property {boolean} [whole_arguments] no string, number or word among a call's arguments is told in parts
 */

/** @typedef {{limit?: number, prefetch?: number}} Credit */
/** @typedef {"hold" | "release"} Kv */
/**
 * @typedef {{type: "adjust", index: number, params: Params} | {type: "inject", index: number, text?: string,
 *   messages?: Message[], tokens?: number[], grammar?: "fit" | "anew"}} PastStep What a stream was told before a token.
 */
/**
 * @typedef {{tokens: number[], text_length: number, reasoning_length?: number, arguments_length?: number, call_ids?: string[],
 *   told_calls?: number, waits?: boolean, steering: PastStep[]}} PastFields What has come of a stream that only its client knows.
 */
/**
 * @typedef {StartFields & {type: "start", request_id: string, params: Params, credit?: Credit, past?: PastFields}} Start
 */
/** @typedef {{type: "credit", request_id: string, limit: number}} Grant */
/** @typedef {{type: "cancel", request_id: string}} Cancel */
/**
 * @typedef {object} Injection What `inject` puts into the context: one of the three.
 * @property {string} [text] continues the model's own turn
 * @property {Message[]} [messages] close the model's turn, and open a new one after them
 * @property {number[]} [tokens] continue the model's own turn
 * @property {number} [at] rewind to this token first
 * @property {"fit" | "anew"} [grammar] it fits into the stream's grammar (default), or that begins anew behind it
 */
/** @typedef {{type: "tool_result", request_id: string, call_id: string, content?: string, error?: string}} ToolResultFrame */
/**
 * @typedef {Cancel
 *   | {type: "pause", request_id: string, kv?: Kv}
 *   | {type: "resume", request_id: string}
 *   | {type: "adjust", request_id: string, params: Params, at?: number}
 *   | ({type: "inject", request_id: string} & Injection)
 *   | ToolResultFrame
 *   | {type: "approve", request_id: string, call_id: string}
 *   | {type: "amend", request_id: string, call_id: string, arguments: string | object, partial?: boolean}
 *   | {type: "rewind", request_id: string, to: number}} Steering
 */
/** @typedef {{type: "attach", request_id: string, after: number, epoch?: number}} Attach */
/** @typedef {{type: "replace", session_id: string}} Replace */
/** @typedef {Start | Attach} OpeningFrame A frame that brings a stream to this connection. */
/** @typedef {OpeningFrame | Steering | {type: "ping"}} RequestFrame A frame that is answered. */
/** @typedef {(RequestFrame | Grant | Replace) & {ref?: string}} Frame */

/** @typedef {{token: number, logprob: number, top?: [number, number][]}} TokenLogprob */

/**
 * @typedef {object} Usage
 * @property {number} prompt_tokens
 * @property {number} completion_tokens
 * @property {number} total_tokens
 * @property {number} cached_tokens of the prompt, taken from the prefix cache
 * @property {number} injected_tokens
 * @property {number} discarded_tokens decoded, then rewound or never delivered
 * @property {number} forced_tokens to which a grammar left no choice
 * @property {number} inherited_tokens of the output, with which a fork began, or a stream that was started again
 * @property {number} reasoning_tokens of the output, that the model said to itself
 */

/**
 * @typedef {object} Timing
 * @property {number} queue_ms
 * @property {number | null} ttft_ms time to first token
 * @property {number} total_ms
 * @property {number} paused_ms
 * @property {number | null} tokens_per_s
 */

/** @typedef {string & {}} AnotherWord One that a newer server says, and this version does not know. */
/** @typedef {"stop" | "length" | "cancelled" | "error" | "tool_calls" | "guard" | AnotherWord} FinishReason */
/** @typedef {"client" | "memory" | "detached" | "engine" | "tool_call" | "guard" | "loading" | AnotherWord} PauseReason */
/** @typedef {{request_id: string, seq: number, ref?: string}} StreamEventFields What every event of a stream has. */

/**
 * @typedef {StreamEventFields & {type: "started", model: string, prompt_tokens: number, params: Params,
 *   fingerprint?: string, exact?: boolean}} Started
 */
/**
 * @typedef {StreamEventFields & {type: "token", index: number, count: number, delta: string, tokens?: number[],
 *   logprobs?: TokenLogprob[]}} Token
 */
/** @typedef {StreamEventFields & {type: "paused", index: number, reason: PauseReason, eta_ms?: number}} Paused */
/**
 * @typedef {StreamEventFields & {type: "resumed", index: number, recomputed_tokens: number,
 *   fingerprint?: string}} Resumed
 */
/** @typedef {StreamEventFields & {type: "adjusted", index: number, params: Params}} Adjusted */
/** @typedef {StreamEventFields & {type: "injected", index: number, count: number, reason?: "reasoning_tokens" | AnotherWord}} Injected */
/** @typedef {StreamEventFields & {type: "reasoning", index: number, count: number, delta: string}} Reasoning */
/** @typedef {StreamEventFields & {type: "tool_call", index: number, call_id: string, name: string}} ToolCall */
/**
 * @typedef {StreamEventFields & {type: "tool_arguments", index: number, count: number, call_id: string,
 *   delta: string}} ToolArguments
 */
/**
 * @typedef {StreamEventFields & {type: "tool_call_done", index: number, end: number, call_id: string,
 *   approval?: boolean}} ToolCallDone
 */
/** @typedef {Reasoning | ToolCall | ToolArguments | ToolCallDone} Beside What is told beside the tokens that say it. */
/** @typedef {StreamEventFields & {type: "approved", index: number, call_id: string}} Approved */
/**
 * @typedef {StreamEventFields & {type: "rewound", index: number, text_length: number, reasoning_length?: number,
 *   tool_calls?: number, arguments_length?: number}} Rewound
 */
/**
 * @typedef {StreamEventFields & {type: "guard", index: number, name: string, do: GuardAction, times?: number,
 *   token?: number, detail?: string}} GuardEvent A guard acts.
 */
/**
 * @typedef {object} Call A call of a tool as far as it has come; one with an `end` is whole, and its `arguments` are JSON.
 * @property {string} call_id
 * @property {string} name
 * @property {string} arguments
 * @property {number} index its first token
 * @property {number} [end] the index behind its last token
 * @property {boolean} [approval] whether it waits for one
 */
/**
 * @typedef {StreamEventFields & {type: "snapshot", index: number, text: string, tokens?: number[], model: string,
 *   prompt_tokens: number, params: Params, fingerprint?: string, paused?: PauseReason, reasoning?: string,
 *   tool_calls?: Call[], injected_tokens?: number, answered?: Answered[], epoch?: number}} Snapshot
 */
/** @typedef {Paused | Resumed | Adjusted | Injected | Rewound | Approved | (ErrorEvent & {ref: string})} Answered It is told by a snapshot. */
/**
 * @typedef {StreamEventFields & {type: "restarted", index: number, exact: boolean, begun: Snapshot, again: string[]}} Restarted
 *   The client's own: nobody knew the stream any more, and it was started again from what had come of it. The output before
 *   token `index` stands, and goes on there; `exact`: as it would have. `begun` is what the server says that it began with,
 *   `again` the refs of results that wait, and are told to it once more.
 */
/**
 * @typedef {StreamEventFields & {type: "final", index: number, finish_reason: FinishReason, stop_reason?: string,
 *   usage: Usage, timing: Timing}} Final
 */
/**
 * @typedef {Started | Token | Beside | Approved | Paused | Resumed | Adjusted | Injected | Rewound
 *   | GuardEvent | Snapshot | Restarted | Final} StreamEvent
 */

/**
 * @typedef {object} Limits What a connection may ask for, and the model's context.
 * @property {number} max_message_bytes
 * @property {number} streams_per_connection
 * @property {number} auto_credit_window
 * @property {number} [max_grace_ms]
 * @property {number} [max_timeout_ms]
 * @property {number} [context]
 */
/**
 * @typedef {object} CatalogModel A model of the server, and whether it is loaded.
 * @property {string} name
 * @property {"cold" | "loading" | "ready" | "unloading" | AnotherWord} state
 * @property {string[]} [aliases]
 * @property {string} [parent] of an adapter, the model that it changes
 * @property {boolean} [pinned] it stays loaded when nobody uses it
 * @property {number} [context]
 * @property {string} [fingerprint]
 */
/**
 * @typedef {{type: "ready", protocol: number, session_id: string, models: string[], catalog?: CatalogModel[],
 *   limits: Limits & Record<string, unknown>, fingerprint?: string, exact?: boolean, weights?: string}} Ready
 */
/**
 * @typedef {{type: "error", status: number, code: string, message: string, retryable: boolean,
 *   retry_after_ms?: number, request_id?: string, ref?: string}} ErrorEvent
 */
/** @typedef {{type: "attached", request_id: string, pending?: string[], ref?: string, epoch?: number}} Attached */
/** @typedef {{type: "pong", ref?: string}} Pong */
/** @typedef {{type: "going_away", deadline_ms: number}} GoingAway */
/** @typedef {StreamEvent | Ready | Attached | ErrorEvent | Pong | GoingAway} ServerEvent */
/** @typedef {Exclude<StreamEvent, Token | Beside | GuardEvent | Snapshot | Restarted> | Attached | Pong} Answer */
