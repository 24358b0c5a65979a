"""The responses of OpenAI's API, as types: whole, or in chunks. They know fields alone."""

from __future__ import annotations

from msgspec import UNSET, Raw, Struct, UnsetType


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


class Rewinding(Struct):
    """Our own: of what was sent, only so many code points stand."""

    index: int
    text_length: int


class ChatMessage(Struct):
    content: str
    role: str = "assistant"
    refusal: None = None


class ChatChoice(Struct):
    index: int
    message: ChatMessage
    logprobs: ChatLogprobs | None
    finish_reason: str


class Delta(Struct, omit_defaults=True):
    role: str | UnsetType = UNSET
    content: str | UnsetType = UNSET


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


class Usage(Struct):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails


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
    id: str
    object: str = "model"
    created: int
    owned_by: str = "midstream"
    context_length: int


class ModelList(Struct):
    data: list[Model]
    object: str = "list"
