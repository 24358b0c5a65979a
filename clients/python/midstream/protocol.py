"""The Midstream protocol, as types: every frame a client may send and every event a server may answer with.

This module is the protocol's one definition. The server imports it too. It knows what a
frame looks like and which values are in range; it does not know what a frame does, and imports nothing
but msgspec. `docs/protocol.md` says the same for people.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, get_args

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

VERSION = 1
JSON_SUBPROTOCOL = "midstream.v1.json"
MSGPACK_SUBPROTOCOL = "midstream.v1.msgpack"
SUBPROTOCOLS = (JSON_SUBPROTOCOL, MSGPACK_SUBPROTOCOL)

MAX_INDEX = 2**31 - 1
MAX_MILLISECONDS = 86_400_000  # a day
MAX_BIASES = 1024
MAX_TRACEPARENT = 256  # characters
MAX_CHOICES = 1000
MAX_TOOLS = 128
MAX_TOOL_NAME = 64  # characters
MAX_TOOL_CALLS = 128  # of one message
MAX_GUARDS = 16
MAX_PAST_STEERING = 4096
MAX_PAST_CALLS = 4096
MAX_ANSWERED = 64

RequestId = Annotated[str, Meta(min_length=1, max_length=128)]
Ref = Annotated[str, Meta(max_length=64)]
SessionId = Annotated[str, Meta(min_length=1, max_length=64)]  # a client says it again, as it was said
Index = Annotated[int, Meta(ge=0, le=MAX_INDEX)]
TokenId = Annotated[int, Meta(ge=0, le=MAX_INDEX)]
InjectedTokens = Annotated[list[TokenId], Meta(min_length=1)]
Milliseconds = Annotated[int, Meta(ge=0, le=MAX_MILLISECONDS)]
StopString = Annotated[str, Meta(min_length=1, max_length=256)]


class Grammar(Struct, omit_defaults=True, kw_only=True, forbid_unknown_fields=True, dict=True):
    """What output must be: exactly one of the first four. `whitespace`: whether JSON may have some between
    its tokens. `force`: whether tokens to which it leaves no choice are taken without being sampled; the text
    is the same."""

    json_schema: dict[str, Any] | bool | UnsetType = UNSET
    regex: Annotated[str, Meta(min_length=1)] | UnsetType = UNSET
    lark: Annotated[str, Meta(min_length=1)] | UnsetType = UNSET
    choice: (
        Annotated[list[Annotated[str, Meta(min_length=1)]], Meta(min_length=1, max_length=MAX_CHOICES)]
        | UnsetType
    ) = UNSET
    whitespace: bool = False
    force: bool = True


class Budget(Struct, omit_defaults=True, kw_only=True, forbid_unknown_fields=True):
    """What a stream may come to: output tokens, calls, tokens of reasoning, and seconds without its
    pauses."""

    tokens: Annotated[int, Meta(ge=1, le=MAX_INDEX)] | UnsetType = UNSET
    calls: Annotated[int, Meta(ge=0, le=MAX_INDEX)] | UnsetType = UNSET
    reasoning_tokens: Annotated[int, Meta(ge=0, le=MAX_INDEX)] | UnsetType = UNSET
    seconds: Annotated[float, Meta(gt=0, le=MAX_MILLISECONDS / 1000)] | UnsetType = UNSET


GuardAction = Literal["rewind", "pause", "finish", "tell"]
Channel = Literal["content", "reasoning", "arguments"]


class Guard(Struct, omit_defaults=True, kw_only=True, forbid_unknown_fields=True):
    """A rule that output is held to, and what becomes of what breaks it. It has one of `regex` (which must
    not be found, in some channels or all), `tool` (which may not be called; with `path`, of whose arguments
    the value there must not match `forbid`, or must match `require`; "*" is any tool), and `budget`.
    `times`: how often it rewinds, before it does `then`."""

    name: Annotated[str, Meta(min_length=1, max_length=64)]
    do: GuardAction
    times: Annotated[int, Meta(ge=1, le=16)] = 3
    then: Literal["pause", "finish"] = "finish"
    regex: str | UnsetType = UNSET
    in_: Annotated[list[Channel], Meta(min_length=1, max_length=3)] | UnsetType = msgspec.field(
        default=UNSET, name="in"
    )
    tool: Annotated[str, Meta(max_length=MAX_TOOL_NAME, pattern=r"^([a-zA-Z0-9_.-]+|\*)$")] | UnsetType = (
        UNSET
    )
    path: str | UnsetType = UNSET
    forbid: str | UnsetType = UNSET
    require: str | UnsetType = UNSET
    budget: Budget | UnsetType = UNSET


class Params(Struct, omit_defaults=True, kw_only=True):
    """Sampling parameters. A field left out of a `start` has its default, of an `adjust` stays as it is."""

    temperature: Annotated[float, Meta(ge=0, le=2)] | UnsetType = UNSET
    top_p: Annotated[float, Meta(gt=0, le=1)] | UnsetType = UNSET
    top_k: Annotated[int, Meta(ge=0, le=MAX_INDEX)] | UnsetType = UNSET
    min_p: Annotated[float, Meta(ge=0, le=1)] | UnsetType = UNSET
    max_tokens: Annotated[int, Meta(ge=1, le=MAX_INDEX)] | UnsetType = UNSET
    stop: StopString | Annotated[list[StopString], Meta(max_length=16)] | UnsetType = UNSET
    seed: Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)] | UnsetType = UNSET
    repetition_penalty: Annotated[float, Meta(gt=0, le=10)] | UnsetType = UNSET
    presence_penalty: Annotated[float, Meta(ge=-2, le=2)] | UnsetType = UNSET
    frequency_penalty: Annotated[float, Meta(ge=-2, le=2)] | UnsetType = UNSET
    logit_bias: (
        Annotated[dict[int, Annotated[float, Meta(ge=-100, le=100)]], Meta(max_length=MAX_BIASES)] | UnsetType
    ) = UNSET
    logprobs: Annotated[int, Meta(ge=0, le=20)] | UnsetType | None = UNSET
    ignore_eos: bool | UnsetType = UNSET
    min_tokens: Annotated[int, Meta(ge=0, le=MAX_INDEX)] | UnsetType = UNSET
    grammar: Grammar | UnsetType | None = UNSET
    reasoning_tokens: Annotated[int, Meta(ge=0, le=MAX_INDEX)] | UnsetType | None = UNSET
    guards: Annotated[list[Guard], Meta(max_length=MAX_GUARDS)] | UnsetType | None = UNSET


class TextPart(Struct, tag_field="type", tag="text", omit_defaults=True):
    text: str


ToolName = Annotated[str, Meta(min_length=1, max_length=MAX_TOOL_NAME, pattern=r"^[a-zA-Z0-9_.-]+$")]
CallId = Annotated[str, Meta(min_length=1, max_length=128)]


class CalledFunction(Struct, omit_defaults=True, kw_only=True):
    """`arguments` are a JSON object, as text."""

    name: ToolName
    arguments: str


class MessageToolCall(Struct, omit_defaults=True, kw_only=True):
    """A call that the model has made, in a message of role `assistant`."""

    id: CallId
    type: Literal["function"] = "function"
    function: CalledFunction


class Message(Struct, omit_defaults=True, kw_only=True):
    """One turn of a conversation, as the chat template of the model will render it. One of role `tool` has a
    call's result; one of role `assistant` that has called tools need have no content."""

    role: Annotated[str, Meta(min_length=1, max_length=32)]
    content: str | list[TextPart] | None = None
    name: str | None = None
    tool_calls: Annotated[list[MessageToolCall], Meta(max_length=MAX_TOOL_CALLS)] | None = None
    tool_call_id: CallId | None = None
    reasoning_content: str | None = None

    @property
    def texts(self) -> list[str]:
        """The content's parts, of which there is one where it is a plain string."""
        if isinstance(self.content, str):
            return [self.content]
        return [part.text for part in self.content or ()]


Messages = Annotated[list[Message], Meta(min_length=1, max_length=4096)]


class Credit(Struct, omit_defaults=True, kw_only=True):
    """Explicit credit at `start`: output tokens that the client is ready for, and how many to decode
    ahead."""

    limit: Index = 0
    prefetch: Annotated[int, Meta(ge=0, le=4096)] = 0


class Function(Struct, omit_defaults=True, kw_only=True):
    """What a tool does, and its arguments as a JSON schema."""

    name: ToolName
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(Struct, omit_defaults=True, kw_only=True):
    """A function that the model may call, as OpenAI's API has it."""

    type: Literal["function"] = "function"
    function: Function


class NamedFunction(Struct, omit_defaults=True, kw_only=True):
    name: ToolName


class NamedTool(Struct, omit_defaults=True, kw_only=True):
    """The one tool that is to be called."""

    type: Literal["function"] = "function"
    function: NamedFunction


Tools = Annotated[list[Tool], Meta(max_length=MAX_TOOLS)]
# Names that `tools` has. They are looked at one by one before they are counted, and an expression takes long.
Approvals = bool | Annotated[list[Annotated[str, Meta(max_length=MAX_TOOL_NAME)]], Meta(max_length=MAX_TOOLS)]
ToolChoice = Literal["auto", "none", "required"] | NamedTool


# -- client to server ------------------------------------------------------------------------------


class Frame(Struct, tag_field="type", tag=str.lower, omit_defaults=True, kw_only=True):
    ref: Ref | None = None


class Fork(Struct, omit_defaults=True, kw_only=True):
    """A stream begins as another one stood before output token `at`; without, behind all that was sent of
    it."""

    request_id: RequestId
    at: Index | None = None


class PastAdjust(Struct, tag_field="type", tag="adjust", omit_defaults=True, kw_only=True):
    """From the output token at `index` on these were in force."""

    index: Index
    params: Params


class PastInject(Struct, tag_field="type", tag="inject", omit_defaults=True, kw_only=True):
    """This stood before the output token at `index`; as in an `inject`."""

    index: Index
    text: str | None = None
    messages: Messages | None = None
    tokens: InjectedTokens | None = None
    grammar: Literal["fit", "anew"] = "fit"


class Past(Struct, omit_defaults=True, kw_only=True):
    """What has come of a stream that nobody knows any more but its client: its output, and what it was told
    at which token of that. So many code points stand of its text, its reasoning, and the arguments of its
    last call. `call_ids`: of its calls that stand, in their order, and it has told `told_calls` ever.
    `waits`: it was paused until results of calls come, whatever was put in since."""

    tokens: list[TokenId] = []
    text_length: Index | None = None
    reasoning_length: Index | None = None
    arguments_length: Index | None = None
    call_ids: Annotated[list[CallId], Meta(max_length=MAX_PAST_CALLS)] = []
    told_calls: Index | None = None
    waits: bool = False
    steering: Annotated[list[PastAdjust | PastInject], Meta(max_length=MAX_PAST_STEERING)] = []


class Start(Frame, kw_only=True):
    request_id: RequestId
    messages: Messages | None = None
    prompt: str | list[TokenId] | None = None
    fork: Fork | None = None
    past: Past | None = None
    model: str | None = None
    params: Params = msgspec.field(default_factory=Params)
    credit: Credit | None = None
    stream_interval: Annotated[int, Meta(ge=1, le=4096)] = 1
    priority: Annotated[int, Meta(ge=-8, le=8)] = 0
    timeout_ms: Annotated[int, Meta(ge=1, le=MAX_MILLISECONDS)] | None = None
    on_disconnect: Literal["cancel", "pause", "continue"] = "cancel"
    grace_ms: Milliseconds | None = None
    on_cold: Literal["wait", "refuse"] = "wait"
    return_tokens: bool = False
    traceparent: Annotated[str, Meta(max_length=MAX_TRACEPARENT)] | None = None
    tools: Tools | None = None
    tool_choice: ToolChoice = "auto"
    parallel_tool_calls: bool = True
    on_tool_call: Literal["finish", "pause", "continue"] = "finish"
    tool_hold_ms: Milliseconds | None = None
    approvals: Approvals = False
    whole_arguments: bool = False


class Grant(Frame, kw_only=True, tag="credit"):
    request_id: RequestId
    limit: Index


class Pause(Frame, kw_only=True):
    request_id: RequestId
    kv: Literal["hold", "release"] = "hold"


class Resume(Frame, kw_only=True):
    request_id: RequestId


class Adjust(Frame, kw_only=True):
    request_id: RequestId
    params: Params
    at: Index | None = None


class Inject(Frame, kw_only=True):
    request_id: RequestId
    text: str | None = None
    messages: Messages | None = None
    tokens: InjectedTokens | None = None
    at: Index | None = None
    grammar: Literal["fit", "anew"] = "fit"
    resume: bool = False


class ToolResult(Frame, kw_only=True, tag="tool_result"):
    """What came of a call: its `content`, or the `error` that it ended with."""

    request_id: RequestId
    call_id: CallId
    content: str | list[TextPart] | None = None
    error: str | None = None


class Approve(Frame, kw_only=True):
    """A call may be run: whoever runs it waited for this."""

    request_id: RequestId
    call_id: CallId


class Amend(Frame, kw_only=True):
    """A call has these arguments: an object, or the text of one. `partial`: the text of its beginning, behind
    which the model writes on."""

    request_id: RequestId
    call_id: CallId
    arguments: str | dict[str, Any]
    partial: bool = False


class Rewind(Frame, kw_only=True):
    request_id: RequestId
    to: Index


class Cancel(Frame, kw_only=True):
    request_id: RequestId


class Attach(Frame, kw_only=True):
    """`epoch`: which `after` counts in."""

    request_id: RequestId
    after: Annotated[int, Meta(ge=-1, le=MAX_INDEX)]
    epoch: Index = 0


class Replace(Frame, kw_only=True):
    """This connection stands in for the one whose `ready` had this `session_id`: that one is closed, and
    nothing that it still sends is heard."""

    session_id: SessionId


class Ping(Frame, kw_only=True):
    pass


StreamFrame = (
    Start | Grant | Pause | Resume | Adjust | Inject | ToolResult | Approve | Amend | Rewind | Cancel | Attach
)
ClientFrame = StreamFrame | Replace | Ping


# -- server to client ------------------------------------------------------------------------------


def _one_of(words: object) -> Meta:
    """Of a field that has one of these words, as far as this version knows. A newer server may say others:
    whoever reads them is given them as they are."""
    return Meta(extra_json_schema={"enum": sorted(get_args(words))})


class TokenLogprob(Struct, omit_defaults=True):
    """One output token's log probability, and those of the most likely tokens in its place."""

    token: int
    logprob: float
    top: list[tuple[int, float]] = []


class Usage(Struct, kw_only=True):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    cached_tokens: int
    injected_tokens: int
    discarded_tokens: int
    forced_tokens: int = 0
    inherited_tokens: int = 0
    reasoning_tokens: int = 0


class Timing(Struct, kw_only=True):
    queue_ms: float
    ttft_ms: float | None
    total_ms: float
    paused_ms: float
    tokens_per_s: float | None


class Event(Struct, tag_field="type", tag=str.lower, omit_defaults=True, kw_only=True):
    pass


ModelState = Literal["cold", "loading", "ready", "unloading"]
AnyModelState = Annotated[str, _one_of(ModelState)]


class CatalogModel(Struct, kw_only=True, omit_defaults=True):
    """A model of the server. `context` and `fingerprint` are there once they are known."""

    name: str
    state: AnyModelState
    aliases: list[str] = []
    parent: str | None = None  # of an adapter, the model that it changes
    pinned: bool = False  # whether it stays loaded when nobody uses it
    context: int | None = None
    fingerprint: str | None = None


class Ready(Event, kw_only=True):
    protocol: int
    session_id: SessionId
    models: list[str]
    limits: dict[str, Any]
    catalog: list[CatalogModel] = []
    fingerprint: str | None = None  # of the engine; equal ones promise equal tokens
    exact: bool = False  # whether they do so in any company
    weights: str | None = None  # how wide the model's weights are, and what multiplies them


class StreamEvent(Event, kw_only=True):
    """An event in a stream's life. `seq` is set when the event is taken for sending, and never before."""

    request_id: str
    seq: int | UnsetType = UNSET
    ref: str | None = None


class Started(StreamEvent, kw_only=True):
    model: str
    prompt_tokens: int
    params: Params
    fingerprint: str | None = None
    exact: bool = False


class Token(StreamEvent, kw_only=True, gc=False):
    index: int
    count: int
    delta: str
    tokens: list[int] | None = None
    logprobs: list[TokenLogprob] | None = None


class Reasoning(StreamEvent, kw_only=True):
    """What the model says to itself, of the tokens from `index` on: it is in no `delta` of a `token`."""

    index: int
    count: int
    delta: str


class ToolCall(StreamEvent, kw_only=True, tag="tool_call"):
    """The model calls a tool. `index`: the first token of the call, with all its markup."""

    index: int
    call_id: str
    name: str


class ToolArguments(StreamEvent, kw_only=True, tag="tool_arguments"):
    """More of a call's arguments, which together are JSON. `count` is 0 where they were injected."""

    index: int
    count: int
    call_id: str
    delta: str


class ToolCallDone(StreamEvent, kw_only=True, tag="tool_call_done"):
    """The call is whole: it stands in the tokens from `index` to before `end`. `approval`: it waits for
    one."""

    index: int
    end: int
    call_id: str
    approval: bool = False


Beside = Reasoning | ToolCall | ToolArguments | ToolCallDone  # what is told beside the tokens that say it


class Approved(StreamEvent, kw_only=True):
    """Somebody has approved the call that begins at `index`."""

    index: int
    call_id: str


PauseReason = Literal["client", "memory", "detached", "engine", "tool_call", "guard", "loading"]
AnyPauseReason = Annotated[str, _one_of(PauseReason)]


class Paused(StreamEvent, kw_only=True):
    """`eta_ms`: while the model is loaded, until it is, by how long that took before."""

    index: int
    reason: AnyPauseReason
    eta_ms: int | None = None


class Resumed(StreamEvent, kw_only=True):
    index: int
    recomputed_tokens: int
    fingerprint: str | None = None  # where it is another than before


class Adjusted(StreamEvent, kw_only=True):
    index: int
    params: Params


InjectionReason = Literal["reasoning_tokens"]
AnyInjectionReason = Annotated[str, _one_of(InjectionReason)]


class Injected(StreamEvent, kw_only=True):
    """`reason`: why it was done, where nobody asked for it in a frame."""

    index: int
    count: int
    reason: AnyInjectionReason | None = None


class Rewound(StreamEvent, kw_only=True):
    """`text_length` code points of the stream's text stand. Where it has reasoning or calls, so many code
    points of reasoning stand too, the first `tool_calls` calls, and so much of the last one's arguments; that
    is whole only if it had no more of them, and its `end` is at most `index`."""

    index: int
    text_length: int
    reasoning_length: int = 0
    tool_calls: int = 0
    arguments_length: int = 0


class Guarded(StreamEvent, kw_only=True, tag="guard"):
    """A guard acts: `do` is what it does now. `index`: the token that it goes back to, pauses before, or was
    found with where it only tells. `times`: how often it has rewound, `token`: what is banned at `index`;
    `detail`: what was found."""

    index: int
    name: str
    do: GuardAction
    times: int | None = None
    token: int | None = None
    detail: str | None = None


class SnapshotCall(Struct, omit_defaults=True, kw_only=True):
    """A call as far as it has come; one with an `end` is whole, and may wait for an approval."""

    index: int
    call_id: str
    name: str
    arguments: str
    end: int | None = None
    approval: bool = False


class Snapshot(StreamEvent, kw_only=True):
    """Everything that a reader must know of a stream up to and with event `seq`. `answered` are the answers
    to frames for which it stands too, `MAX_ANSWERED` at most; of an `adjusted` there without `params`."""

    index: int
    text: str
    tokens: list[int] | None = None
    model: str
    prompt_tokens: int
    params: Params
    fingerprint: str | None = None
    paused: AnyPauseReason | None = None
    reasoning: str = ""
    tool_calls: list[SnapshotCall] = []
    injected_tokens: int = 0
    answered: list[Paused | Resumed | Adjusted | Injected | Rewound | Approved | Error] | None = None
    epoch: int = 0


FinishReason = Literal["stop", "length", "cancelled", "error", "tool_calls", "guard"]
AnyFinishReason = Annotated[str, _one_of(FinishReason)]


class Final(StreamEvent, kw_only=True):
    index: int
    finish_reason: AnyFinishReason
    stop_reason: str | None = None
    usage: Usage
    timing: Timing


class Attached(Event, kw_only=True):
    """The stream is this connection's, and all that was missed has been sent. It is no part of the stream's
    history: no `seq`. `pending` are the refs of frames that the server has, and has not answered yet.
    `epoch`: how often another server has adopted the stream; events are counted anew each time."""

    request_id: str
    pending: list[str] = []
    ref: str | None = None
    epoch: int = 0


class Error(Event, kw_only=True):
    """What was wrong with a frame, a stream or the connection. It is no part of a stream's history: no
    `seq`."""

    status: int
    code: str
    message: str
    retryable: bool
    retry_after_ms: int | None = None
    request_id: str | None = None
    ref: str | None = None


class Pong(Event, kw_only=True):
    ref: str | None = None


class GoingAway(Event, kw_only=True, tag="going_away"):
    deadline_ms: int


ServerEvent = (
    Ready
    | Started
    | Token
    | Reasoning
    | ToolCall
    | ToolArguments
    | ToolCallDone
    | Approved
    | Paused
    | Resumed
    | Adjusted
    | Injected
    | Rewound
    | Guarded
    | Snapshot
    | Final
    | Attached
    | Error
    | Pong
    | GoingAway
)

# Every error code, its HTTP status, and whether the same frame may succeed if it is sent again later.
ERRORS: dict[str, tuple[int, bool]] = {
    "invalid_frame": (400, False),
    "invalid_params": (400, False),
    "context_too_long": (400, False),
    "unauthenticated": (401, False),
    "forbidden": (403, False),
    "unknown_request": (404, False),
    "unknown_model": (404, False),
    "request_conflict": (409, False),
    "request_finished": (409, False),
    "request_taken": (409, False),
    "request_expired": (410, False),
    "too_large": (413, False),
    "unsupported": (422, False),
    "rate_limited": (429, True),
    "too_many_streams": (429, True),
    "engine_error": (500, True),
    "overloaded": (503, True),
    "model_loading": (503, True),
    "draining": (503, True),
}


class CloseCode:
    """WebSocket close codes. The first four are worth a retry, the others are not."""

    DRAINING = 1001
    INTERNAL = 1011
    RESTART = 1012
    OVERLOADED = 1013

    INVALID_TEXT = 1007
    POLICY = 1008
    TOO_LARGE = 1009
    NOT_AUTHENTICATED = 4401
    ORIGIN_REFUSED = 4403
    IDLE = 4408
    TAKEN_OVER = 4409
    QUOTA = 4429


RETRYABLE_CLOSE_CODES = frozenset(
    {CloseCode.DRAINING, CloseCode.INTERNAL, CloseCode.RESTART, CloseCode.OVERLOADED}
)
