"""The guards of one stream: what they have read, what they find, and what is to be done about it.

They are told what comes with each token, in order, and judge it before anybody else hears of it. Where the
output goes back they go back with it, to a copy of their states, and read on from there. They know
texts, indices and the events beside tokens, and no engine: how a verdict is carried out is others' business.
"""

from __future__ import annotations

import copy
from array import array
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import pairwise
from typing import Literal, NamedTuple, Protocol

from msgspec import UNSET, Struct
from msgspec.structs import asdict

from midstream.protocol import (
    Beside,
    Channel,
    Guard,
    GuardAction,
    Reasoning,
    ToolArguments,
    ToolCall,
    ToolCallDone,
)
from realtime.guards.acts import Acts
from realtime.guards.pattern import MOST_BACK
from realtime.guards.watches import Hit, Piece, Watch, watch_of

COPY_EVERY = 64  # tokens: a rewind reads hardly more than these anew
GUARD_BYTES, COPY_BYTES = 600, 200  # what they weigh, and each time that a watch is copied
DETAIL = 200  # characters of what was found that are told


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


class Verdict(Struct, frozen=True):
    """A guard acts: `index` is where the output goes back to, where it pauses, or the token it was found
    with. `token` is not to come again there. `times`: how often it has come to that."""

    guard: Guard
    do: GuardAction
    index: int
    detail: str
    times: int | None = None
    token: int | None = None


class Find(NamedTuple):
    """`base`: characters of arguments before those of the call that it was found in."""

    hit: Hit
    kind: Channel | Literal["call", "called"]
    call: int = -1  # which of all, where it is one's
    base: int = 0


class Counts(NamedTuple):
    """How much was read: characters, calls, the last call's arguments and all of them, and tokens that say
    reasoning."""

    content: int = 0
    reasoning: int = 0
    calls: int = 0
    arguments: int = 0
    all_arguments: int = 0
    reasoning_tokens: int = 0


class _Said:
    """The texts of what is written, each put together once however many guards have found something in it."""

    def __init__(self, written: Written) -> None:
        self.written = written
        self._arguments = dict[int, str]()

    def arguments(self, call: int) -> str:
        if call not in self._arguments:
            self._arguments[call] = "".join(self.written.calls[call].arguments)
        return self._arguments[call]

    @cached_property
    def content(self) -> str:
        return self.written.content()

    @cached_property
    def reasoning(self) -> str:
        return self.written.reasoning()


class Copy(NamedTuple):
    tokens: int
    counts: Counts
    watches: list[Watch | None]


class Guards:
    """`written`: what stands where they begin. It is not judged, but a call that is open is read."""

    def __init__(self, asked: Sequence[Guard], written: Written) -> None:
        self.asked = list(asked)
        self._begin_at(written)

    def _begin_at(self, written: Written) -> None:
        self._watches = [watch_of(guard) for guard in self.asked]
        calls = written.calls
        is_open = bool(calls) and calls[-1].end is None
        self._counts = Counts(len(written.content()), len(written.reasoning()), len(calls) - is_open)
        self._begin = len(written)
        self._reasoning_ends, self._arguments_ends = array("q"), array("q")  # characters, up to each token
        for piece in self._unread(written):
            self._read(piece)
        self._copies = [self._copy()]

    @property
    def bytes(self) -> int:
        copies = COPY_BYTES * len(self._watches) * len(self._copies)
        return GUARD_BYTES * len(self.asked) + copies + 16 * len(self._reasoning_ends)

    # -- reading ---------------------------------------------------------------------------------

    def judge(
        self, content: str, beside: Sequence[Beside], written: Written, seconds: float, acts: Acts
    ) -> list[Verdict]:
        """Of one token more, the last that is written: what guards have to say, in their order. What is done
        is what the first one does that does not tell alone; it comes last."""
        before = self._counts.reasoning
        finds = self._finds(content, beside)
        self._counts = self._counts._replace(
            reasoning_tokens=self._counts.reasoning_tokens + (self._counts.reasoning > before)
        )
        self._reasoning_ends.append(self._counts.reasoning)
        self._arguments_ends.append(self._counts.all_arguments)
        verdicts = self._verdicts(finds, written, seconds, acts)
        if self._tokens - self._copies[-1].tokens >= COPY_EVERY:
            self._copies.append(self._copy())
        return verdicts

    def judge_end(
        self, content: str, beside: Sequence[Beside], written: Written, acts: Acts
    ) -> list[Verdict]:
        """The output ends, and says this besides. What is found is its last token's. They go back behind it,
        or are no more."""
        finds = self._finds(content, beside)
        ends: dict[Channel, int] = {
            "content": self._counts.content,
            "reasoning": self._counts.reasoning,
            "arguments": self._counts.arguments,
        }
        for at, watch in enumerate(self._watches):
            found = watch and watch.at_end(ends)
            if found:
                finds.setdefault(at, self._find(*found))
        return self._verdicts(finds, written, 0.0, acts)

    def read(self, content: str, beside: Sequence[Beside]) -> None:
        """What is said without a token, and is not judged."""
        self._finds(content, beside)

    def _finds(self, content: str, beside: Sequence[Beside]) -> dict[int, Find]:
        """What each watch finds first."""
        finds = dict[int, Find]()
        for piece in self._pieces(content, beside):
            for at, find in self._read(piece):
                finds.setdefault(at, find)
        return finds

    def _pieces(self, content: str, beside: Sequence[Beside]) -> Iterator[Piece]:
        if content:
            yield Piece("content", content, self._counts.content)
        for event in beside:
            match event:
                case Reasoning(delta=text):
                    yield Piece("reasoning", text, self._counts.reasoning)
                case ToolCall(name=name):
                    yield Piece("call", name)
                case ToolArguments(delta=text):
                    yield Piece("arguments", text, self._counts.arguments)
                case ToolCallDone():
                    yield Piece("called", "", self._counts.arguments)

    def _unread(self, written: Written) -> Iterator[Piece]:
        """All that is written and was not read."""
        counts = self._counts
        yield Piece("content", written.content()[counts.content :], counts.content)
        yield Piece("reasoning", written.reasoning()[counts.reasoning :], counts.reasoning)
        first = max(0, counts.calls - 1)
        for number, call in enumerate(written.calls[first:], first):
            if number >= counts.calls:
                yield Piece("call", call.name)
            read = self._counts.arguments
            yield Piece("arguments", "".join(call.arguments)[read:], read)
            if call.end is not None:
                yield Piece("called", "", self._counts.arguments)

    def _read(self, piece: Piece) -> list[tuple[int, Find]]:
        """What each watch found in it."""
        counts, length = self._counts, len(piece.text)
        match piece.kind:
            case "content":
                self._counts = counts._replace(content=counts.content + length)
            case "reasoning":
                self._counts = counts._replace(reasoning=counts.reasoning + length)
            case "arguments":
                self._counts = counts._replace(
                    arguments=counts.arguments + length, all_arguments=counts.all_arguments + length
                )
            case "call":
                self._counts = counts._replace(calls=counts.calls + 1, arguments=0)
        found = list[tuple[int, Find]]()
        for at, watch in enumerate(self._watches):
            hit = watch and watch.read(piece)
            if hit:
                found.append((at, self._find(piece.kind, hit)))
        return found

    def _find(self, kind: Channel | Literal["call", "called"], hit: Hit) -> Find:
        counts = self._counts
        return Find(hit, kind, counts.calls - 1, counts.all_arguments - counts.arguments)

    # -- verdicts --------------------------------------------------------------------------------

    def _verdicts(
        self, finds: dict[int, Find], written: Written, seconds: float, acts: Acts
    ) -> list[Verdict]:
        verdicts = list[Verdict]()
        said = _Said(written)
        for at, guard in enumerate(self.asked):
            verdict = self._of_budget(guard, written, seconds, acts) if guard.budget else None
            if at in finds:  # what all of them tell of one token is no more than one may
                verdict = self._of_find(guard, finds[at], said, acts, DETAIL // len(finds))
            if verdict is not None:
                verdicts.append(verdict)
                if verdict.do != "tell":
                    break
        return verdicts

    def _of_find(self, guard: Guard, find: Find, said: _Said, acts: Acts, most: int) -> Verdict | None:
        """`most`: characters that are looked back through to tell of it."""
        written = said.written
        do, last = action(guard, acts), len(written) - 1
        if do == "pause" and acts.passed(guard, last):
            return None
        goes_back = do in ("rewind", "finish")
        index, detail = self._where(find, said, MOST_BACK if goes_back else most)
        if not detail and isinstance(guard.path, str):  # which no value stands at
            detail = guard.path
        return _verdict(guard, do, min(index, last) if goes_back else last, detail, written, acts)

    def _where(self, find: Find, said: _Said, most: int) -> tuple[int, str]:
        """The token with which that begins which was found, and what it says."""
        hit, written = find.hit, said.written
        if find.kind == "call":
            call = written.calls[find.call]
            return written.token_that_spells(call.name, call.index), call.name
        if find.kind == "content":
            text = said.content
            begin = hit.begins(text, most)
            token = written.token_with(begin)
        elif find.kind == "reasoning":
            text = said.reasoning
            begin = hit.begins(text, most)
            token = self._begin + bisect_right(self._reasoning_ends, begin)
        else:
            text = said.arguments(find.call)
            begin = hit.begins(text, most)
            token = self._begin + bisect_right(self._arguments_ends, find.base + begin)
        return token, text[begin : hit.end]

    def _of_budget(self, guard: Guard, written: Written, seconds: float, acts: Acts) -> Verdict | None:
        assert guard.budget
        budget, last = guard.budget, len(written) - 1
        used = {
            "tokens": last,
            "calls": len(written.calls) - 1,
            "reasoning_tokens": self._counts.reasoning_tokens - 1,
            "seconds": seconds,
        }
        limits = asdict(budget).items()
        spent = next((name for name, most in limits if most is not UNSET and used[name] >= most), None)
        do = action(guard, acts)
        if spent is None or (do != "rewind" and acts.passed(guard)):
            return None
        index = last
        if spent == "calls" and isinstance(budget.calls, int) and do in ("rewind", "finish"):
            index = written.calls[budget.calls].index
        return _verdict(guard, do, index, spent, written, acts)

    # -- back ------------------------------------------------------------------------------------

    @property
    def _tokens(self) -> int:
        """Output tokens that were read."""
        return self._begin + len(self._reasoning_ends)

    def _copy(self) -> Copy:
        return Copy(self._tokens, self._counts, [watch and watch.copy() for watch in self._watches])

    def cut(self, written: Written) -> None:
        """Only that stands. Where that is less than stood where they began, they begin there."""
        index, content = len(written), len(written.content())
        while self._copies and (self._copies[-1].tokens > index or self._copies[-1].counts.content > content):
            self._copies.pop()
        if not self._copies:
            self._begin_at(written)
            return
        last = self._copies[-1]
        del self._reasoning_ends[index - self._begin :], self._arguments_ends[index - self._begin :]
        ends = [last.counts.reasoning, *self._reasoning_ends[last.tokens - self._begin :]]
        said = sum(later > earlier for earlier, later in pairwise(ends))
        self._watches = [watch and watch.copy() for watch in last.watches]
        self._counts = last.counts._replace(reasoning_tokens=last.counts.reasoning_tokens + said)
        for piece in self._unread(written):
            self._read(piece)

    def forked(self, written: Written) -> Guards:
        """Those of another that goes on behind what is written; these stay as they are."""
        again = copy.copy(self)
        again._reasoning_ends, again._arguments_ends = self._reasoning_ends[:], self._arguments_ends[:]
        again._copies = self._copies[:]
        again.cut(written)
        return again


def _verdict(guard: Guard, do: GuardAction, index: int, detail: str, written: Written, acts: Acts) -> Verdict:
    if do != "rewind":
        return Verdict(guard, do, index, detail[:DETAIL])
    return Verdict(guard, do, index, detail[:DETAIL], acts.times(guard.name) + 1, written.tokens[index])


def action(guard: Guard, acts: Acts) -> GuardAction:
    """What it does now."""
    return guard.then if guard.do == "rewind" and acts.times(guard.name) >= guard.times else guard.do
