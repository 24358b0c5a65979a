"""A turn that the model has decoded, with calls: its tokens, and what it says, by which a client's message is
known to be this one, however it is spelt. Pure."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence

from msgspec import Struct

from midstream.protocol import Message
from realtime.tools.same_json import same_json

TURN_BYTES, CALL_BYTES = 400, 200  # beside what follows from lengths


class DecodedCall(Struct, frozen=True):
    call_id: str
    name: str
    arguments: str


class DecodedTurn(Struct, frozen=True):
    """`tokens`: all that stands in it, to before what ended it."""

    tokens: array[int]
    content: str
    reasoning: str
    calls: tuple[DecodedCall, ...]

    @property
    def bytes(self) -> int:
        texts = len(self.content) + len(self.reasoning) + sum(len(call.arguments) for call in self.calls)
        return TURN_BYTES + CALL_BYTES * len(self.calls) + 4 * len(self.tokens) + 4 * texts

    def is_told_by(self, message: Message) -> bool:
        """Whether this message says what the turn says: the same calls, with arguments that mean the same,
        and the same texts but for blanks. Reasoning may be left out."""
        told = message.tool_calls or []
        if len(told) != len(self.calls) or not _same_text("".join(message.texts), self.content):
            return False
        if message.reasoning_content and not _same_text(message.reasoning_content, self.reasoning):
            return False
        return all(
            (call.call_id, call.name) == (one.id, one.function.name)
            and same_json(call.arguments, one.function.arguments)
            for call, one in zip(self.calls, told, strict=True)
        )


Turns = Mapping[str, DecodedTurn]  # by the ids of their calls


def known_turns(messages: Sequence[Message], turns: Turns) -> list[tuple[int, DecodedTurn]]:
    """Which of these messages are such turns, in their order. Each turn is looked at for one message: it may
    be long, and a client may name it in many."""
    found, left = list[tuple[int, DecodedTurn]](), dict(turns)
    for at, message in enumerate(messages):
        first = message.tool_calls[0].id if message.tool_calls else None
        turn = None if first is None else left.pop(first, None)
        if turn is not None and message.role == "assistant" and turn.is_told_by(message):
            found.append((at, turn))
    return found


def _same_text(one: str, other: str) -> bool:
    return one.split() == other.split()
