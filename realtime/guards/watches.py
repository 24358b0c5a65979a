"""Watches: what each kind of guard looks for in what a stream says, piece by piece.

A watch says where it found something, in the text that it was found in; whose token that is, and what becomes
of it, is no business of its own. Its state is small, and can be copied.
"""

from __future__ import annotations

import copy
from bisect import bisect_left
from collections.abc import Collection, Sequence
from typing import Literal, NamedTuple, Protocol

from midstream.protocol import Channel, Guard
from realtime.guards.json_path import ValueReader, decoded, parsed
from realtime.guards.pattern import START, Pattern, pattern_of

FEW = 64  # characters that are decoded first to find where something begins: it takes some us each
CHANNELS: tuple[Channel, ...] = ("content", "reasoning", "arguments")


class Piece(NamedTuple):
    """What is said with a token. `at`: how much of the text that it is part of was said before; a text of
    arguments is one call's. Of a call, `text` is the tool's name."""

    kind: Channel | Literal["call", "called"]
    text: str
    at: int = 0


class Hit(NamedTuple):
    """Found: it ends before the place `end` of the text that the piece is part of; or with the text, where it
    `closes`. `begin` is the least place where it can begin: `pattern` knows which it is, and without one
    it is that. `quoted`: it was found in what the string of JSON says that begins there."""

    end: int
    begin: int
    pattern: Pattern | None = None
    closes: bool = False
    quoted: bool = False

    def begins(self, text: str, most: int) -> int:
        """Where, in the whole text; looked for in so many characters."""
        if self.pattern is None:
            return self.begin
        until = min(len(text), self.end + (not self.closes))
        if not self.quoted:
            since = max(self.begin, self.end - most - 1)  # no more is read, and one asks what stood before
            return since + self.pattern.begin(text[since:until], self.end - since, most)
        looked = min(FEW, most)
        while True:
            said, places = decoded(text, self.begin, until, 6 * looked)
            end = bisect_left(places, self.end)
            begin = self.pattern.begin(said, end, looked) if end else 0
            if begin > max(0, end - looked) or looked == most:
                return places[begin] if end else self.begin
            looked = min(4 * looked, most)


class Watch(Protocol):
    @property
    def copy_bytes(self) -> int:
        """About what a copy takes, as measured."""

    def read(self, piece: Piece) -> Hit | None: ...

    def at_end(self, channel_at: dict[Channel, int]) -> tuple[Channel, Hit] | None:
        """What is found where the output ends. `channel_at`: how much was said in each."""

    def copy(self) -> Watch: ...


class RegexWatch:
    copy_bytes = 400

    def __init__(self, pattern: Pattern, channels: Collection[Channel]) -> None:
        self._pattern = pattern
        self._states = dict.fromkeys(channels, START)

    def copy(self) -> RegexWatch:
        again = copy.copy(self)
        again._states = dict(self._states)
        return again

    def read(self, piece: Piece) -> Hit | None:
        if piece.kind == "called" and "arguments" in self._states:
            state, self._states["arguments"] = self._states["arguments"], START
            ended = self._pattern.found_at_end(state)
            return Hit(piece.at, 0, self._pattern, closes=True) if ended else None
        if piece.kind == "call" and "arguments" in self._states:  # one before may have had no end
            self._states["arguments"] = START
        if piece.kind not in self._states:
            return None
        self._states[piece.kind], found = self._pattern.find(self._states[piece.kind], piece.text)
        return None if found < 0 else Hit(piece.at + found, 0, self._pattern)

    def at_end(self, channel_at: dict[Channel, int]) -> tuple[Channel, Hit] | None:
        for channel, state in self._states.items():
            if self._pattern.found_at_end(state):
                return channel, Hit(channel_at[channel], 0, self._pattern, closes=True)
        return None


class ToolWatch:
    """No call of a tool."""

    copy_bytes = 0  # it is its own

    def __init__(self, tool: str) -> None:
        self._tool = tool

    def copy(self) -> ToolWatch:
        return self

    def read(self, piece: Piece) -> Hit | None:
        return Hit(0, 0) if piece.kind == "call" and self._tool in ("*", piece.text) else None

    def at_end(self, channel_at: dict[Channel, int]) -> None:
        return None


class ValueWatch:
    """A value in a tool's arguments, in which a pattern must not be found; or must, and `required` says so.
    Where it must it must also be there."""

    copy_bytes = 800  # some of which may be a name that is being read

    def __init__(self, tool: str, path: str, pattern: Pattern, *, required: bool) -> None:
        self._tool = tool
        self._path = parsed(path)
        self._pattern = pattern
        self._required = required
        self._reader: ValueReader | None = None  # of the call that is open, if it is of that tool
        self._state: int | None = None  # within the value
        self._begin = self._next = 0  # where the value begins, and its next character
        self._quoted = self._found = self._missing = False

    def copy(self) -> ValueWatch:
        again = copy.copy(self)
        again._reader = None if self._reader is None else self._reader.copy()
        return again

    def read(self, piece: Piece) -> Hit | None:
        if piece.kind == "call":
            called = self._tool in ("*", piece.text)
            self._reader = ValueReader(self._path) if called else None
            self._state, self._missing = None, self._required
        elif piece.kind == "called":
            return self._ended(piece.at)
        elif piece.kind == "arguments" and self._reader is not None:
            return self._read(piece)
        return None

    def at_end(self, channel_at: dict[Channel, int]) -> None:
        return None

    def _read(self, piece: Piece) -> Hit | None:
        assert self._reader is not None
        hit: Hit | None = None
        for at, char in enumerate(piece.text, piece.at):
            said = self._reader.read(char)
            if said.begins:
                self._state, self._begin, self._found = START, at, False
                self._quoted, self._missing = char == '"', False
                self._next = at + self._quoted
            if self._state is not None:
                hit = self._read_value(said.text, at, ends=said.ends) or hit
            if char == "}" and not self._reader.open:
                hit = hit or self._ended(at)
        return hit

    def _read_value(self, text: str, at: int, *, ends: bool) -> Hit | None:
        assert self._state is not None
        self._state, found = self._pattern.find(self._state, text)
        closes = found < 0 and ends and self._pattern.found_at_end(self._state)
        self._found = self._found or found >= 0 or closes
        if found >= 0 or closes:
            end = self._next if found == 0 else at + bool(text)
        if text:
            self._next = at + 1
        if ends:
            self._state = None
        if self._required:
            return Hit(at, self._begin + self._quoted) if ends and not self._found else None
        if found < 0 and not closes:
            return None
        return Hit(end, self._begin, self._pattern, closes, self._quoted)

    def _ended(self, at: int) -> Hit | None:
        """The arguments have: what was to be there must have been."""
        missing, self._missing = self._missing and self._reader is not None, False
        return Hit(at, at) if missing else None


def watch_of(guard: Guard) -> Watch | None:
    """None for a budget, which looks at numbers alone. Raises `RegexError` and `PathError`."""
    match guard:
        case Guard(regex=str() as regex, in_=channels):
            return RegexWatch(pattern_of(regex), channels or CHANNELS)
        case Guard(tool=str() as tool, path=str() as path, forbid=str() as forbid):
            return ValueWatch(tool, path, pattern_of(forbid), required=False)
        case Guard(tool=str() as tool, path=str() as path, require=str() as require):
            return ValueWatch(tool, path, pattern_of(require), required=True)
        case Guard(tool=str() as tool):
            return ToolWatch(tool)
    return None


def patterns_of(guards: Sequence[Guard]) -> list[Pattern]:
    """What they look for: whoever holds these need not make them anew for their watches."""
    texts = (text for guard in guards for text in (guard.regex, guard.forbid, guard.require))
    return [pattern_of(text) for text in texts if isinstance(text, str)]
