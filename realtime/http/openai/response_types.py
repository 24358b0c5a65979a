"""The responses of OpenAI's API, as types: whole, or in chunks. They know fields alone."""

from __future__ import annotations

from msgspec import UNSET, Raw, Struct, UnsetType

from midstream.protocol import AnyModelState


class TopLogprob(Struct):
    token: str
    logprob: float
    bytes: list[int]


class ChatLogprob(Struct):
    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[TopLogprob]


class ChatLogprobs(Struct):
    content: list[Raw]  # each a `ChatLogprob`
    refusal: None = None


class TextLogprobs(Struct):
    tokens: list[str]
    token_logprobs: list[float]
    top_logprobs: list[Raw]  # each an object of tokens to numbers
    text_offset: list[int]

    def add(self, behind: TextLogprobs) -> None:
        self.tokens += behind.tokens
        self.token_logprobs += behind.token_logprobs
        self.top_logprobs += behind.top_logprobs
        self.text_offset += behind.text_offset


class Rewinding(Struct, omit_defaults=True):
    """Our own: of what was sent, only so many code points stand; so many of reasoning, so many calls, and so
    much of the last one's arguments."""

    index: int
    text_length: int
    reasoning_length: int = 0
    tool_calls: int = 0
    arguments_length: int = 0


class FunctionCall(Struct):
    name: str
    arguments: str


class ChatToolCall(Struct):
    id: str
    function: FunctionCall
    type: str = "function"


class ChatMessage(Struct, kw_only=True):
    content: str | None
    role: str = "assistant"
    refusal: None = None
    reasoning_content: str | UnsetType = UNSET
    tool_calls: list[ChatToolCall] | UnsetType = UNSET


class ChatChoice(Struct):
    index: int
    message: ChatMessage
    logprobs: ChatLogprobs | None
    finish_reason: str


class DeltaFunction(Struct, omit_defaults=True):
    name: str | UnsetType = UNSET
    arguments: str | UnsetType = UNSET


class DeltaToolCall(Struct, omit_defaults=True):
    """The first of a call has all fields, and those behind it more of its arguments."""

    index: int
    id: str | UnsetType = UNSET
    type: str | UnsetType = UNSET
    function: DeltaFunction | UnsetType = UNSET


class Delta(Struct, omit_defaults=True):
    role: str | UnsetType = UNSET
    content: str | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET
    tool_calls: list[DeltaToolCall] | UnsetType = UNSET


class ChatChunkChoice(Struct, kw_only=True):
    index: int
    delta: Delta
    logprobs: ChatLogprobs | None = None
    finish_reason: str | None = None
    rewound: Rewinding | UnsetType = UNSET


class TextChoice(Struct, kw_only=True):
    """Of completions: in chunks it has the same form as whole."""

    index: int
    text: str
    logprobs: TextLogprobs | None = None
    finish_reason: str | None = None
    rewound: Rewinding | UnsetType = UNSET


class PromptDetails(Struct):
    cached_tokens: int


class CompletionDetails(Struct):
    reasoning_tokens: int


class Usage(Struct):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails
    completion_tokens_details: CompletionDetails


AnyChoice = ChatChoice | ChatChunkChoice | TextChoice


class CompletionObject(Struct):
    """A whole answer, or a chunk of one."""

    id: str
    object: str
    created: int
    model: str
    system_fingerprint: str | None  # None where a whole answer came from engines of several
    choices: list[AnyChoice]
    usage: Usage | UnsetType | None = UNSET


class Model(Struct, kw_only=True):
    """OpenAI's fields, and behind them our own."""

    id: str
    object: str = "model"
    created: int
    owned_by: str = "midstream"
    context_length: int | None  # null until it is known
    state: AnyModelState
    aliases: list[str]
    parent: str | None
    pinned: bool
    fingerprint: str | None


class ModelList(Struct):
    data: list[Model]
    object: str = "list"
