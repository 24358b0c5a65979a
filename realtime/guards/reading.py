"""What the guards of a stream have read: how far, where each watch stands in it, and the way back.

What comes with a token is read at once, and where it is long, as an argument that is told once it is whole,
or what may have been a call and is none, a part at a time before it is said. What stands without a token may
be long: a call that an injection fills, one that is open where guards begin, what is read again after a
rewind. That is read a part at a time, too, so that others have their turn in between. Where the output goes
back they go back to a copy, and read on from there. It knows texts and counts; what is found is judged by
others.
"""

from __future__ import annotations

import copy
from array import array
from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from sys import getsizeof
from typing import Literal, NamedTuple, Protocol

from midstream.protocol import Beside, Channel, Guard, Reasoning, ToolArguments, ToolCall, ToolCallDone
from realtime.guards.watches import Hit, Piece, Watch, watch_of

COPY_EVERY, COPY_CHARACTERS = 64, 4096  # tokens, or characters: a rewind reads hardly more than these anew
READ_AT_ONCE = 4096  # characters, of as many watches as there are: some ms
COPY_BYTES = 500  # what a copy weighs, beside its watches

Kind = Channel | Literal["call", "called"]
Text = tuple[Kind, str]


class CallWritten(Protocol):
    index: int
    name: str
    arguments: list[str]
    end: int | None


class Written(Protocol):
    """What a stream has written, as far as it was told."""

    tokens: array[int]

    def __len__(self) -> int: ...

    def content(self) -> str: ...

    def reasoning(self) -> str: ...

    @property
    def calls(self) -> Sequence[CallWritten]: ...

    def token_with(self, character: int) -> int:
        """With which this character of the content was told."""

    def token_that_spells(self, text: str, since: int) -> int:
        """In which the text begins last, of what the tokens from this one on say."""


class Find(NamedTuple):
    """`base`: characters of arguments before those of the call that it was found in."""

    hit: Hit
    kind: Kind
    call: int = -1  # which of all, where it is one's
    base: int = 0


class Counts(NamedTuple):
    """How much was read: characters, calls, whether the last one is open, its arguments and all of them, and
    tokens that say reasoning."""

    content: int = 0
    reasoning: int = 0
    calls: int = 0
    is_open: bool = False
    arguments: int = 0
    all_arguments: int = 0
    reasoning_tokens: int = 0

    @property
    def characters(self) -> int:
        return self.content + self.reasoning + self.all_arguments

    def stand(self, content: int, reasoning: int, calls: Sequence[CallWritten]) -> bool:
        """Whether all of that is written, where so much is."""
        if self.content > content or self.reasoning > reasoning or self.calls > len(calls):
            return False
        if not self.calls:
            return True
        last = calls[self.calls - 1]
        return self.arguments <= sum(map(len, last.arguments)) and (self.is_open or last.end is not None)


class Copy(NamedTuple):
    tokens: int
    counts: Counts
    watches: list[Watch | None]


class GuardReading:
    """`written`: what stands where it begins. It is not read, but for a call that is open."""

    def __init__(self, asked: Sequence[Guard], written: Written) -> None:
        self._asked = asked
        self._begin_at(written)

    def _begin_at(self, written: Written) -> None:
        self._watches = [watch_of(guard) for guard in self._asked]
        self._copy_bytes = COPY_BYTES + sum(watch.copy_bytes for watch in self._watches if watch)
        calls = written.calls
        ended = len(calls) - (bool(calls) and calls[-1].end is None)
        self.counts = Counts(len(written.content()), len(written.reasoning()), ended)
        self._begin = len(written)
        # Of each token: characters up to its end, and how many up to it say reasoning.
        self._reasoning_ends, self._arguments_ends = array("q"), array("q")
        self._reasoning_tokens = array("q")
        self._copies = [self._copy()]
        self._ahead: _Ahead | None = None
        self._read_what_stands(written)

    @property
    def bytes(self) -> int:
        copies = self._copy_bytes * len(self._copies)
        ahead = 0 if self._ahead is None else self._ahead.bytes
        return copies + 24 * len(self._reasoning_ends) + _weight(self._unread) + ahead

    @property
    def unread(self) -> bool:
        """Whether they have to read on, in what stands or in what was foreseen."""
        return bool(self._unread) or (self._ahead is not None and bool(self._ahead.unread))

    def token_of_reasoning(self, character: int) -> int:
        return self._begin + bisect_right(self._reasoning_ends, character)

    def token_of_arguments(self, character: int) -> int:
        """Of those of all calls."""
        return self._begin + bisect_right(self._arguments_ends, character)

    # -- forth -----------------------------------------------------------------------------------

    def read_token(self, content: str, beside: Sequence[Beside]) -> dict[int, Find]:
        """What each watch finds first in what comes with one token more."""
        before = self.counts.reasoning
        finds = self.read(content, beside)
        tokens = self.counts.reasoning_tokens + (self.counts.reasoning > before)
        self.counts = self.counts._replace(reasoning_tokens=tokens)
        self._reasoning_ends.append(self.counts.reasoning)
        self._arguments_ends.append(self.counts.all_arguments)
        self._reasoning_tokens.append(tokens)
        self._copy_if_far()
        return finds

    @property
    def at_once(self) -> int:
        """How many characters are read at once: some ms."""
        return max(1, READ_AT_ONCE // max(1, len(self._watches)))

    def foresee(self, texts: Sequence[Text]) -> None:
        """What is said next, with all read that stands: where it is long it is to be read on before."""
        if self._ahead is None or not self._ahead.is_of(self.counts, texts):
            self._ahead = _Ahead(self, texts) if _length(texts) > self.at_once else None

    def read(self, content: str, beside: Sequence[Beside]) -> dict[int, Find]:
        """What each watch finds first."""
        while self._unread:
            self.read_on()
        finds, texts, ahead = dict[int, Find](), list(texts_of(content, beside)), self._ahead
        if texts and ahead is not None:
            self._ahead = None
            if ahead.is_of(self.counts, texts):
                self._watches, self.counts, finds = ahead.whole()
                return finds
        for kind, text in texts:
            for at, find in self._read(kind, text):
                finds.setdefault(at, find)
        return finds

    def add(self, content: str, beside: Sequence[Beside]) -> None:
        """What is said without a token, and is not judged."""
        self._unread += texts_of(content, beside)
        self.read_on()

    def read_on(self) -> None:
        """Read a part of what is unread."""
        if self._ahead is not None and not self._unread:
            self._ahead.read_on()
            return
        self.read_part(self._unread)
        if not self._unread:
            self._copy_if_far()

    def read_part(self, unread: deque[Text]) -> list[tuple[int, Find]]:
        """What each watch found in it."""
        left, finds = self.at_once, list[tuple[int, Find]]()
        while unread and left > 0:
            kind, text = unread.popleft()
            if kind != "call" and len(text) > left:
                unread.appendleft((kind, text[left:]))
                text = text[:left]
            finds += self._read(kind, text)
            left -= max(1, len(text))
        return finds

    def _read(self, kind: Kind, text: str) -> list[tuple[int, Find]]:
        """What each watch found in it."""
        counts, length = self.counts, len(text)
        piece = Piece(kind, text, counts.arguments)
        match kind:
            case "content":
                piece = Piece(kind, text, counts.content)
                counts = counts._replace(content=counts.content + length)
            case "reasoning":
                piece = Piece(kind, text, counts.reasoning)
                counts = counts._replace(reasoning=counts.reasoning + length)
            case "arguments":
                counts = counts._replace(
                    arguments=counts.arguments + length, all_arguments=counts.all_arguments + length
                )
            case "call":
                counts = counts._replace(calls=counts.calls + 1, is_open=True, arguments=0)
            case "called":
                counts = counts._replace(is_open=False)
        self.counts = counts
        hits = [(at, watch.read(piece)) for at, watch in enumerate(self._watches) if watch]
        return [(at, self._find(kind, hit)) for at, hit in hits if hit]

    def finds_at_end(self) -> Iterator[tuple[int, Find]]:
        """What each finds where the output ends."""
        counts = self.counts
        ends: dict[Channel, int] = {
            "content": counts.content,
            "reasoning": counts.reasoning,
            "arguments": counts.arguments,
        }
        for at, watch in enumerate(self._watches):
            found = watch and watch.at_end(ends)
            if found:
                yield at, self._find(*found)

    def _find(self, kind: Kind, hit: Hit) -> Find:
        counts = self.counts
        return Find(hit, kind, counts.calls - 1, counts.all_arguments - counts.arguments)

    # -- back ------------------------------------------------------------------------------------

    def cut(self, written: Written) -> None:
        """Only that stands. Where that is less than stood where they began, they begin there."""
        self._ahead = None
        index, stands = len(written), (len(written.content()), len(written.reasoning()), written.calls)
        while self._copies:
            last = self._copies[-1]
            if last.tokens <= index and last.counts.stand(*stands):
                break
            self._copies.pop()
        if not self._copies:
            self._begin_at(written)
            return
        for of_tokens in (self._reasoning_ends, self._arguments_ends, self._reasoning_tokens):
            del of_tokens[index - self._begin :]
        said = self._reasoning_tokens[-1] if self._reasoning_tokens else 0
        self._watches = [watch and watch.copy() for watch in last.watches]
        self.counts = last.counts._replace(reasoning_tokens=said)
        self._read_what_stands(written)

    def forked(self, written: Written) -> GuardReading:
        """That of another that goes on behind what is written; this one stays as it is."""
        again = copy.copy(self)
        again._reasoning_ends, again._arguments_ends = self._reasoning_ends[:], self._arguments_ends[:]
        again._reasoning_tokens, again._copies = self._reasoning_tokens[:], self._copies[:]
        again.cut(written)
        return again

    def _read_what_stands(self, written: Written) -> None:
        """All that is written and was not read."""
        self._unread = deque(self._behind(written))
        self.read_on()

    def _behind(self, written: Written) -> Iterator[Text]:
        counts = self.counts
        texts: list[Text] = [
            ("content", written.content()[counts.content :]),
            ("reasoning", written.reasoning()[counts.reasoning :]),
        ]
        first, read = counts.calls - counts.is_open, counts.arguments
        for number, call in enumerate(written.calls[first:], first):
            if number >= counts.calls:
                texts.append(("call", call.name))
                read = 0
            texts.append(("arguments", "".join(call.arguments)[read:]))
            if call.end is not None:
                texts.append(("called", ""))
        return (text for text in texts if text[1] or text[0] == "called")

    def _copy_if_far(self) -> None:
        """Behind the last copy."""
        last = self._copies[-1]
        characters = self.counts.characters - last.counts.characters
        if self._tokens - last.tokens >= COPY_EVERY or characters >= COPY_CHARACTERS:
            self._copies.append(self._copy())

    @property
    def _tokens(self) -> int:
        """Output tokens that were read."""
        return self._begin + len(self._reasoning_ends)

    def _copy(self) -> Copy:
        return Copy(self._tokens, self.counts, self.copied_watches())

    def copied_watches(self) -> list[Watch | None]:
        return [watch and watch.copy() for watch in self._watches]


class _Ahead:
    """Texts that are to be said, as read by what stands where another reading does; that one stays as it
    is."""

    def __init__(self, reading: GuardReading, texts: Sequence[Text]) -> None:
        self.unread = deque(texts)
        self._texts = list(texts)
        self._begun = reading.counts
        self._reading = copy.copy(reading)
        self._reading._watches, self._reading._ahead = reading.copied_watches(), None
        self._finds = dict[int, Find]()

    @property
    def bytes(self) -> int:
        return _weight(self._texts) + self._reading._copy_bytes

    def is_of(self, counts: Counts, texts: Sequence[Text]) -> bool:
        """Whether it is these texts that are read here, from there on."""
        return counts == self._begun and texts == self._texts

    def read_on(self) -> None:
        for at, find in self._reading.read_part(self.unread):
            self._finds.setdefault(at, find)

    def whole(self) -> tuple[list[Watch | None], Counts, dict[int, Find]]:
        """The watches and counts behind them, and what was found first."""
        while self.unread:
            self.read_on()
        return self._reading._watches, self._reading.counts, self._finds


def _length(texts: Iterable[Text]) -> int:
    return sum(len(text) for _, text in texts)


def _weight(texts: Iterable[Text]) -> int:
    return sum(getsizeof(text) for _, text in texts)


def texts_of(content: str, beside: Sequence[Beside]) -> Iterator[Text]:
    """In the order in which they are read."""
    if content:
        yield "content", content
    for event in beside:
        match event:
            case Reasoning(delta=text):
                yield "reasoning", text
            case ToolCall(name=name):
                yield "call", name
            case ToolArguments(delta=text):
                yield "arguments", text
            case ToolCallDone():
                yield "called", ""
