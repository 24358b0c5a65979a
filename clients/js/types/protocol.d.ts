/** @param {StreamEvent} event @returns {event is Exclude<Answer, Attached | Pong>} */
export function mayAnswer(event: StreamEvent): event is Started | Approved | Paused | Resumed | Adjusted | Injected | Rewound | Final;
/** The output token to which a frame takes the stream back, if it does. @param {RequestFrame} frame @returns {number | undefined} */
export function goesBackTo(frame: RequestFrame): number | undefined;
/**
 * The Midstream protocol, as types: every frame a client may send and every event a server may answer with.
 *
 * The mirror of `midstream/protocol.py`, which is the definition; a test compares the two. It knows what a
 * frame looks like, not what it does. Which values are in range is the server's to say.
 * @module
 */
export const VERSION: 1;
export const SUBPROTOCOL: "midstream.v1.json";
export const MAX_INDEX: number;
export namespace ANSWERS {
    let start: "started";
    let pause: "paused";
    let resume: "resumed";
    let adjust: "adjusted";
    let inject: "injected";
    let tool_result: "injected";
    let approve: "approved";
    let amend: "injected";
    let rewind: "rewound";
    let cancel: "final";
    let attach: "attached";
    let ping: "pong";
}
/** Sampling parameters, by their names on the wire. */
export const PARAMS: string[];
/** Answers that a snapshot tells of, at most. */
export const MAX_ANSWERED: 64;
/** Steps of steering, and calls, that a start may say again, at most. */
export const MAX_PAST: 4096;
/** The fields of `start` that are no sampling parameters, and that a caller gives. */
export const START_FIELDS: string[];
/** WebSocket close codes after which a new connection is worth a try. */
export const RETRYABLE_CLOSE_CODES: number[];
/**
 * Sampling parameters. `temperature: 0` is greedy.
 */
export type Params = {
    temperature?: number | undefined;
    top_p?: number | undefined;
    top_k?: number | undefined;
    min_p?: number | undefined;
    max_tokens?: number | undefined;
    stop?: string | string[] | undefined;
    seed?: number | undefined;
    repetition_penalty?: number | undefined;
    presence_penalty?: number | undefined;
    frequency_penalty?: number | undefined;
    logit_bias?: Record<number, number> | undefined;
    /**
     * how many alternatives to report for each token
     */
    logprobs?: number | null | undefined;
    ignore_eos?: boolean | undefined;
    min_tokens?: number | undefined;
    reasoning_tokens?: number | null | undefined;
    /**
     * what output must be; in an adjust, null takes it away
     */
    grammar?: Grammar | null | undefined;
    /**
     * what output is held to, and what becomes of what breaks it
     */
    guards?: Guard[] | null | undefined;
};
export type GuardAction = "rewind" | "pause" | "finish" | "tell";
/**
 * A rule. It has one of `regex`, `tool` and `budget`.
 */
export type Guard = {
    name: string;
    do: GuardAction;
    /**
     * how often it rewinds, before it does `then`
     */
    times?: number | undefined;
    then?: "pause" | "finish" | undefined;
    /**
     * must not be found
     */
    regex?: string | undefined;
    /**
     * where; everywhere by default
     */
    in?: ("content" | "reasoning" | "arguments")[] | undefined;
    /**
     * may not be called, "*" is any; with `path`, see `forbid` and `require`
     */
    tool?: string | undefined;
    /**
     * of a value in the arguments
     */
    path?: string | undefined;
    /**
     * must not be found in that value
     */
    forbid?: string | undefined;
    /**
     * must be found in that value
     */
    require?: string | undefined;
    budget?: {
        tokens?: number;
        calls?: number;
        reasoning_tokens?: number;
        seconds?: number;
    } | undefined;
};
/**
 * One of the first four, and how it is held to.
 */
export type Grammar = {
    json_schema?: boolean | object | undefined;
    regex?: string | undefined;
    lark?: string | undefined;
    choice?: string[] | undefined;
    /**
     * whether JSON may have some between its tokens
     */
    whitespace?: boolean | undefined;
    /**
     * false: tokens to which it leaves no choice are sampled all the same
     */
    force?: boolean | undefined;
};
/**
 * One turn of a conversation.
 */
export type Message = {
    role: string;
    /**
     * only where there are `tool_calls` there may be none
     */
    content?: string | {
        type: "text";
        text: string;
    }[] | null | undefined;
    name?: string | undefined;
    /**
     * of role `assistant`: what the model has called
     */
    tool_calls?: MessageToolCall[] | undefined;
    /**
     * of role `tool`: the call whose result this is
     */
    tool_call_id?: string | undefined;
    reasoning_content?: string | undefined;
};
export type MessageToolCall = {
    id: string;
    type?: "function";
    function: {
        name: string;
        arguments: string;
    };
};
/**
 * A function that the model may call, as OpenAI's API has it.
 */
export type Tool = {
    type?: "function" | undefined;
    function: {
        name: string;
        description?: string;
        parameters?: object;
        strict?: boolean;
    };
};
/**
 * The one tool that is to be called.
 */
export type NamedTool = {
    type?: "function";
    function: {
        name: string;
    };
};
export type ToolChoice = "auto" | "none" | "required" | NamedTool;
/**
 * What a stream may be started with, beside sampling parameters.
 */
export type StartFields = {
    /**
     * a conversation; or else `prompt`
     */
    messages?: Message[] | undefined;
    /**
     * text or token ids
     */
    prompt?: string | number[] | undefined;
    /**
     * or else begin as another stream stands at a token
     */
    fork?: {
        request_id: string;
        at?: number;
    } | undefined;
    model?: string | undefined;
    /**
     * a name of one's own, up to 128 characters; a random one by default
     */
    request_id?: string | undefined;
    /**
     * tokens in a chunk
     */
    stream_interval?: number | undefined;
    /**
     * from -8 to 8
     */
    priority?: number | undefined;
    /**
     * the longest that the stream may live
     */
    timeout_ms?: number | undefined;
    /**
     * what becomes of it when the connection ends; by
     * default "pause" where the client connects anew by itself
     */
    on_disconnect?: "pause" | "cancel" | "continue" | undefined;
    /**
     * how long it then waits for somebody to come
     */
    grace_ms?: number | undefined;
    /**
     * whether it waits for a model that is to be loaded, or is refused
     */
    on_cold?: "wait" | "refuse" | undefined;
    /**
     * chunks carry token ids
     */
    return_tokens?: boolean | undefined;
    /**
     * functions that the model may call
     */
    tools?: Tool[] | undefined;
    tool_choice?: ToolChoice | undefined;
    /**
     * false: the first call that is whole ends the stream
     */
    parallel_tool_calls?: boolean | undefined;
    /**
     * whether it ends with its calls, waits for their results, or
     * goes on meanwhile
     */
    on_tool_call?: "pause" | "finish" | "continue" | undefined;
    /**
     * how long its memory is held while it waits for results
     */
    tool_hold_ms?: number | undefined;
    /**
     * the tools whose calls wait for an `approve`, or true for all
     */
    approvals?: boolean | string[] | undefined;
    /**
     * no string, number or word among a call's arguments is told in parts
     */
    whole_arguments?: boolean | undefined;
};
export type Credit = {
    limit?: number;
    prefetch?: number;
};
export type Kv = "hold" | "release";
/**
 * What a stream was told before a token.
 */
export type PastStep = {
    type: "adjust";
    index: number;
    params: Params;
} | {
    type: "inject";
    index: number;
    text?: string;
    messages?: Message[];
    tokens?: number[];
    grammar?: "fit" | "anew";
};
/**
 * What has come of a stream that only its client knows.
 */
export type PastFields = {
    tokens: number[];
    text_length: number;
    reasoning_length?: number;
    arguments_length?: number;
    call_ids?: string[];
    told_calls?: number;
    waits?: boolean;
    steering: PastStep[];
};
export type Start = StartFields & {
    type: "start";
    request_id: string;
    params: Params;
    credit?: Credit;
    past?: PastFields;
};
export type Grant = {
    type: "credit";
    request_id: string;
    limit: number;
};
export type Cancel = {
    type: "cancel";
    request_id: string;
};
/**
 * What `inject` puts into the context: one of the three.
 */
export type Injection = {
    /**
     * continues the model's own turn
     */
    text?: string | undefined;
    /**
     * close the model's turn, and open a new one after them
     */
    messages?: Message[] | undefined;
    /**
     * continue the model's own turn
     */
    tokens?: number[] | undefined;
    /**
     * rewind to this token first
     */
    at?: number | undefined;
    /**
     * it fits into the stream's grammar (default), or that begins anew behind it
     */
    grammar?: "fit" | "anew" | undefined;
};
export type ToolResultFrame = {
    type: "tool_result";
    request_id: string;
    call_id: string;
    content?: string;
    error?: string;
};
export type Steering = Cancel | {
    type: "pause";
    request_id: string;
    kv?: Kv;
} | {
    type: "resume";
    request_id: string;
} | {
    type: "adjust";
    request_id: string;
    params: Params;
    at?: number;
} | ({
    type: "inject";
    request_id: string;
} & Injection) | ToolResultFrame | {
    type: "approve";
    request_id: string;
    call_id: string;
} | {
    type: "amend";
    request_id: string;
    call_id: string;
    arguments: string | object;
    partial?: boolean;
} | {
    type: "rewind";
    request_id: string;
    to: number;
};
export type Attach = {
    type: "attach";
    request_id: string;
    after: number;
    epoch?: number;
};
export type Replace = {
    type: "replace";
    session_id: string;
};
/**
 * A frame that brings a stream to this connection.
 */
export type OpeningFrame = Start | Attach;
/**
 * A frame that is answered.
 */
export type RequestFrame = OpeningFrame | Steering | {
    type: "ping";
};
export type Frame = (RequestFrame | Grant | Replace) & {
    ref?: string;
};
export type TokenLogprob = {
    token: number;
    logprob: number;
    top?: [number, number][];
};
export type Usage = {
    prompt_tokens: number;
    completion_tokens: number;
    total_tokens: number;
    /**
     * of the prompt, taken from the prefix cache
     */
    cached_tokens: number;
    injected_tokens: number;
    /**
     * decoded, then rewound or never delivered
     */
    discarded_tokens: number;
    /**
     * to which a grammar left no choice
     */
    forced_tokens: number;
    /**
     * of the output, with which a fork began, or a stream that was started again
     */
    inherited_tokens: number;
    /**
     * of the output, that the model said to itself
     */
    reasoning_tokens: number;
};
export type Timing = {
    queue_ms: number;
    /**
     * time to first token
     */
    ttft_ms: number | null;
    total_ms: number;
    paused_ms: number;
    tokens_per_s: number | null;
};
/**
 * One that a newer server says, and this version does not know.
 */
export type AnotherWord = string & {};
export type FinishReason = "stop" | "length" | "cancelled" | "error" | "tool_calls" | "guard" | AnotherWord;
export type PauseReason = "client" | "memory" | "detached" | "engine" | "tool_call" | "guard" | "loading" | AnotherWord;
/**
 * What every event of a stream has.
 */
export type StreamEventFields = {
    request_id: string;
    seq: number;
    ref?: string;
};
export type Started = StreamEventFields & {
    type: "started";
    model: string;
    prompt_tokens: number;
    params: Params;
    fingerprint?: string;
    exact?: boolean;
};
export type Token = StreamEventFields & {
    type: "token";
    index: number;
    count: number;
    delta: string;
    tokens?: number[];
    logprobs?: TokenLogprob[];
};
export type Paused = StreamEventFields & {
    type: "paused";
    index: number;
    reason: PauseReason;
    eta_ms?: number;
};
export type Resumed = StreamEventFields & {
    type: "resumed";
    index: number;
    recomputed_tokens: number;
    fingerprint?: string;
};
export type Adjusted = StreamEventFields & {
    type: "adjusted";
    index: number;
    params: Params;
};
export type Injected = StreamEventFields & {
    type: "injected";
    index: number;
    count: number;
    reason?: "reasoning_tokens" | AnotherWord;
};
export type Reasoning = StreamEventFields & {
    type: "reasoning";
    index: number;
    count: number;
    delta: string;
};
export type ToolCall = StreamEventFields & {
    type: "tool_call";
    index: number;
    call_id: string;
    name: string;
};
export type ToolArguments = StreamEventFields & {
    type: "tool_arguments";
    index: number;
    count: number;
    call_id: string;
    delta: string;
};
export type ToolCallDone = StreamEventFields & {
    type: "tool_call_done";
    index: number;
    end: number;
    call_id: string;
    approval?: boolean;
};
/**
 * What is told beside the tokens that say it.
 */
export type Beside = Reasoning | ToolCall | ToolArguments | ToolCallDone;
export type Approved = StreamEventFields & {
    type: "approved";
    index: number;
    call_id: string;
};
export type Rewound = StreamEventFields & {
    type: "rewound";
    index: number;
    text_length: number;
    reasoning_length?: number;
    tool_calls?: number;
    arguments_length?: number;
};
/**
 * A guard acts.
 */
export type GuardEvent = StreamEventFields & {
    type: "guard";
    index: number;
    name: string;
    do: GuardAction;
    times?: number;
    token?: number;
    detail?: string;
};
/**
 * A call of a tool as far as it has come; one with an `end` is whole, and its `arguments` are JSON.
 */
export type Call = {
    call_id: string;
    name: string;
    arguments: string;
    /**
     * its first token
     */
    index: number;
    /**
     * the index behind its last token
     */
    end?: number | undefined;
    /**
     * whether it waits for one
     */
    approval?: boolean | undefined;
};
export type Snapshot = StreamEventFields & {
    type: "snapshot";
    index: number;
    text: string;
    tokens?: number[];
    model: string;
    prompt_tokens: number;
    params: Params;
    fingerprint?: string;
    paused?: PauseReason;
    reasoning?: string;
    tool_calls?: Call[];
    injected_tokens?: number;
    answered?: Answered[];
    epoch?: number;
};
/**
 * It is told by a snapshot.
 */
export type Answered = Paused | Resumed | Adjusted | Injected | Rewound | Approved | (ErrorEvent & {
    ref: string;
});
/**
 * The client's own: nobody knew the stream any more, and it was started again from what had come of it. The output before
 * token `index` stands, and goes on there; `exact`: as it would have. `begun` is what the server says that it began with,
 * `again` the refs of results that wait, and are told to it once more.
 */
export type Restarted = StreamEventFields & {
    type: "restarted";
    index: number;
    exact: boolean;
    begun: Snapshot;
    again: string[];
};
export type Final = StreamEventFields & {
    type: "final";
    index: number;
    finish_reason: FinishReason;
    stop_reason?: string;
    usage: Usage;
    timing: Timing;
};
export type StreamEvent = Started | Token | Beside | Approved | Paused | Resumed | Adjusted | Injected | Rewound | GuardEvent | Snapshot | Restarted | Final;
/**
 * What a connection may ask for, and the model's context.
 */
export type Limits = {
    max_message_bytes: number;
    streams_per_connection: number;
    auto_credit_window: number;
    max_grace_ms?: number | undefined;
    max_timeout_ms?: number | undefined;
    context?: number | undefined;
};
/**
 * A model of the server, and whether it is loaded.
 */
export type CatalogModel = {
    name: string;
    state: "cold" | "loading" | "ready" | "unloading" | AnotherWord;
    aliases?: string[] | undefined;
    /**
     * of an adapter, the model that it changes
     */
    parent?: string | undefined;
    /**
     * it stays loaded when nobody uses it
     */
    pinned?: boolean | undefined;
    context?: number | undefined;
    fingerprint?: string | undefined;
};
export type Ready = {
    type: "ready";
    protocol: number;
    session_id: string;
    models: string[];
    catalog?: CatalogModel[];
    limits: Limits & Record<string, unknown>;
    fingerprint?: string;
    exact?: boolean;
    weights?: string;
};
export type ErrorEvent = {
    type: "error";
    status: number;
    code: string;
    message: string;
    retryable: boolean;
    retry_after_ms?: number;
    request_id?: string;
    ref?: string;
};
export type Attached = {
    type: "attached";
    request_id: string;
    pending?: string[];
    ref?: string;
    epoch?: number;
};
export type Pong = {
    type: "pong";
    ref?: string;
};
export type GoingAway = {
    type: "going_away";
    deadline_ms: number;
};
export type ServerEvent = StreamEvent | Ready | Attached | ErrorEvent | Pong | GoingAway;
export type Answer = Exclude<StreamEvent, Token | Beside | GuardEvent | Snapshot | Restarted> | Attached | Pong;
