"""What a reader of spans says: parts of the output, in their order, and how much it has said of each kind."""

from __future__ import annotations

from typing import NamedTuple


class Content(NamedTuple):
    text: str


class Reasoning(NamedTuple):
    text: str


class CallBegun(NamedTuple):
    begin: int  # the index of its first token, its delimiter
    name: str


class Arguments(NamedTuple):
    """Of the call that has begun last."""

    text: str


class CallEnded(NamedTuple):
    end: int  # behind its last token


Part = Content | Reasoning | CallBegun | Arguments | CallEnded


class Lengths(NamedTuple):
    """How much was read: code points, and calls. `arguments` are the last call's; `open`: whether it has no
    end."""

    content: int = 0
    reasoning: int = 0
    calls: int = 0
    arguments: int = 0
    open: bool = False


class Parts:
    """Parts that were said and not taken. More text of the last one's kind is the same part."""

    def __init__(self, lengths: Lengths | None = None) -> None:
        self.lengths = lengths or Lengths()
        self._parts: list[Part] = []

    def take(self) -> list[Part]:
        parts, self._parts = self._parts, []
        return parts

    def add(self, part: Part) -> None:
        content, reasoning, calls, arguments, is_open = self.lengths
        match part:
            case Content("") | Reasoning("") | Arguments(""):
                return
            case Content(text):
                content += len(text)
            case Reasoning(text):
                reasoning += len(text)
            case CallBegun():
                calls, arguments, is_open = calls + 1, 0, True
            case Arguments(text):
                arguments += len(text)
            case CallEnded():
                is_open = False
        self.lengths = Lengths(content, reasoning, calls, arguments, is_open)
        last = self._parts[-1] if self._parts else None
        match last, part:
            case Content(before), Content(text):
                self._parts[-1] = Content(before + text)
            case Reasoning(before), Reasoning(text):
                self._parts[-1] = Reasoning(before + text)
            case Arguments(before), Arguments(text):
                self._parts[-1] = Arguments(before + text)
            case _:
                self._parts.append(part)
