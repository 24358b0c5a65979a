"""The chat dialect, of `/v1/chat/completions`: what a choice and each of its events look like there."""

from __future__ import annotations

from functools import partial

from msgspec import UNSET

from midstream.protocol import Beside, Reasoning, Rewound, Snapshot, ToolArguments, ToolCall, ToolCallDone
from realtime.http.openai.choice_accumulator import Choice
from realtime.http.openai.logprobs import EncodedLogprob, chat_logprob, chat_logprobs
from realtime.http.openai.requests import ChatBody
from realtime.http.openai.response_types import (
    AnyChoice,
    ChatChoice,
    ChatChunkChoice,
    ChatMessage,
    ChatToolCall,
    Delta,
    DeltaFunction,
    DeltaToolCall,
    FunctionCall,
    Rewinding,
)
from realtime.pieces import Pieces, in_one

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


def beside_chunk(choice: Choice, event: Beside) -> AnyChoice | None:
    """Of reasoning, or of the call that is the choice's last. That a call is whole is told by the finish
    reason."""
    at = len(choice.calls) - 1
    match event:
        case Reasoning(delta=delta):
            return ChatChunkChoice(index=choice.index, delta=Delta(reasoning_content=delta))
        case ToolCall(call_id=call_id, name=name):
            told = DeltaToolCall(at, call_id, "function", DeltaFunction(name, ""))
        case ToolArguments(delta=delta):
            told = DeltaToolCall(at, function=DeltaFunction(arguments=delta))
        case ToolCallDone():
            return None
    return ChatChunkChoice(index=choice.index, delta=Delta(tool_calls=[told]))


def snapshot_chunks(choice: Choice, event: Snapshot) -> list[AnyChoice]:
    """All that there is beside the text of a choice that was begun before."""
    calls = [
        DeltaToolCall(at, call.call_id, "function", DeltaFunction(call.name, call.arguments))
        for at, call in enumerate(event.tool_calls)
    ]
    deltas = [Delta(reasoning_content=event.reasoning)] if event.reasoning else []
    deltas += [Delta(tool_calls=calls)] if calls else []
    return [ChatChunkChoice(index=choice.index, delta=delta) for delta in deltas]


def rewind_chunk(choice: Choice, event: Rewound) -> AnyChoice:
    rewound = Rewinding(
        event.index, event.text_length, event.reasoning_length, event.tool_calls, event.arguments_length
    )
    return ChatChunkChoice(index=choice.index, delta=Delta(), rewound=rewound)


def final_chunk(choice: Choice, reason: str) -> AnyChoice:
    return ChatChunkChoice(index=choice.index, delta=Delta(), finish_reason=reason)


def whole_choice(choice: Choice, reason: str) -> Pieces[AnyChoice]:
    """In one: its log probabilities are encoded already."""
    return in_one(partial(_whole_choice, choice, reason))


def _whole_choice(choice: Choice, reason: str) -> AnyChoice:
    logprobs = chat_logprobs(choice.logprobs) if choice.shows_logprobs else None
    calls = [
        ChatToolCall(call.call_id, FunctionCall(call.name, call.arguments)) for call in choice.whole_calls
    ]
    message = ChatMessage(
        content=choice.text or (None if calls else ""),
        reasoning_content=choice.reasoning or UNSET,
        tool_calls=calls or UNSET,
    )
    return ChatChoice(choice.index, message, logprobs, reason)
