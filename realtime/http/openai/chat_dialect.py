"""The chat dialect, of `/v1/chat/completions`: what a choice and each of its events look like there."""

from __future__ import annotations

from midstream.protocol import Rewound
from realtime.http.openai.choice_accumulator import Choice
from realtime.http.openai.logprobs import EncodedLogprob, chat_logprob, chat_logprobs
from realtime.http.openai.requests import ChatBody
from realtime.http.openai.response_types import (
    AnyChoice,
    ChatChoice,
    ChatChunkChoice,
    ChatMessage,
    Delta,
    Rewinding,
)

BODY = ChatBody
PREFIX = "chatcmpl-"
WHOLE = "chat.completion"
CHUNK = "chat.completion.chunk"
encoded_logprob = chat_logprob


def first_chunk(index: int) -> AnyChoice | None:
    return ChatChunkChoice(index=index, delta=Delta(role="assistant", content=""))


def text_chunk(choice: Choice, text: str, logprobs: list[EncodedLogprob]) -> AnyChoice:
    """`text` is to be written on, and `choice` knows it already."""
    told = chat_logprobs(logprobs) if logprobs else None
    return ChatChunkChoice(index=choice.index, delta=Delta(content=text), logprobs=told)


def rewind_chunk(choice: Choice, event: Rewound) -> AnyChoice:
    rewound = Rewinding(event.index, event.text_length)
    return ChatChunkChoice(index=choice.index, delta=Delta(), rewound=rewound)


def final_chunk(choice: Choice, reason: str) -> AnyChoice:
    return ChatChunkChoice(index=choice.index, delta=Delta(), finish_reason=reason)


def whole_choice(choice: Choice, reason: str) -> AnyChoice:
    logprobs = chat_logprobs(choice.logprobs) if choice.shows_logprobs else None
    return ChatChoice(choice.index, ChatMessage(choice.text), logprobs, reason)
