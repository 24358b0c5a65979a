"""What guards have read is what stands, however it came: with tokens or without, in one part or in many, and
after any way back."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from midstream.protocol import Beside, Guard, Reasoning, ToolArguments, ToolCall, ToolCallDone
from realtime.guards import reading
from realtime.guards.json_path import ValueReader
from realtime.guards.pattern import Pattern
from realtime.guards.reading import GuardReading

GUARDS = [
    Guard(name="r", do="tell", regex=r"a[^b]{3}c|\bbb"),
    Guard(name="t", do="tell", tool="find"),
    Guard(name="f", do="tell", tool="find", path="$.q", forbid="ab+a"),
    Guard(name="q", do="tell", tool="find", path="$.q", require="c"),
]
KINDS = ("content", "reasoning", "call", "arguments", "called")


@dataclass
class Call:
    name: str
    index: int
    arguments: list[str] = field(default_factory=list)
    end: int | None = None


@dataclass
class Piece:
    """`late`: it came without a token."""

    late: bool
    content: str = ""
    beside: Sequence[Beside] = ()


class Written:
    """What stands of some pieces."""

    def __init__(self, pieces: Sequence[Piece]) -> None:
        self.pieces = pieces
        self.tokens = array("i", [0] * sum(not piece.late for piece in pieces))
        self.calls: list[Call] = []
        for event in self._events():
            match event:
                case ToolCall(name=name):
                    self.calls.append(Call(name, 0))
                case ToolArguments(delta=text):
                    self.calls[-1].arguments.append(text)
                case ToolCallDone():
                    self.calls[-1].end = 0

    def _events(self) -> list[Beside]:
        return [event for piece in self.pieces for event in piece.beside]

    def __len__(self) -> int:
        return len(self.tokens)

    def content(self) -> str:
        return "".join(piece.content for piece in self.pieces)

    def reasoning(self) -> str:
        return "".join(event.delta for event in self._events() if isinstance(event, Reasoning))

    def token_with(self, character: int) -> int:
        return character

    def token_that_spells(self, text: str, since: int) -> int:
        return since


def call(name: str) -> ToolCall:
    return ToolCall(request_id="r", index=0, call_id="c", name=name)


def arguments(text: str) -> ToolArguments:
    return ToolArguments(request_id="r", index=0, count=1, call_id="c", delta=text)


def pieces_of(drawn: Sequence[tuple[bool, str, str]]) -> list[Piece]:
    """As a model might write them: calls are opened before they are filled, and one at a time."""
    pieces, is_open = list[Piece](), False
    for late, kind, text in drawn:
        event: Beside | None = None
        if kind == "reasoning":
            event = Reasoning(request_id="r", index=0, count=1, delta=text)
        elif kind == "call" and not is_open:
            event, is_open = call("find" if "a" in text else "take"), True
        elif kind == "arguments" and is_open:
            event = arguments(text)
        elif kind == "called" and is_open:
            event, is_open = ToolCallDone(request_id="r", index=0, end=0, call_id="c"), False
        if event is not None:
            pieces.append(Piece(late, "", [event]))
        elif kind == "content" and text:
            pieces.append(Piece(late, text))
    return pieces


def read(guards: GuardReading, pieces: Sequence[Piece]) -> None:
    for piece in pieces:
        if not piece.late:
            guards.read_token(piece.content, piece.beside)
            continue
        guards.add(piece.content, piece.beside)
        while guards.unread:
            guards.read_on()


def state(guards: GuardReading) -> list[object]:
    """Where each watch stands, and what was counted."""
    while guards.unread:
        guards.read_on()
    watches = [
        {name: _plain(value) for name, value in vars(watch).items()} for watch in guards._watches if watch
    ]
    return [*watches, guards.counts]


def _plain(value: object) -> object:
    if isinstance(value, list):
        return [_plain(one) for one in value]
    if isinstance(value, ValueReader):
        return [getattr(value, name) for name in ValueReader.__slots__]
    shared = isinstance(value, Pattern) or not hasattr(value, "__dict__")
    return value if shared else {name: _plain(of) for name, of in vars(value).items()}


TEXT = st.text('abc{}":q ', min_size=1, max_size=12)


@given(
    drawn=st.lists(st.tuples(st.booleans(), st.sampled_from(KINDS), TEXT), max_size=60),
    more=st.lists(st.tuples(st.booleans(), st.sampled_from(KINDS), TEXT), max_size=10),
    ends=st.lists(st.integers(0, 60), min_size=1, max_size=4),
)
def test_after_a_way_back_it_is_as_if_nothing_had_been_behind(
    drawn: list[tuple[bool, str, str]], more: list[tuple[bool, str, str]], ends: list[int]
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reading, "COPY_EVERY", 5)
        patch.setattr(reading, "COPY_CHARACTERS", 20)
        patch.setattr(reading, "READ_AT_ONCE", 12)
        guards, pieces = GuardReading(GUARDS, Written([])), list[Piece]()
        for end in ends:
            come = pieces_of(drawn)[len(pieces) :]
            read(guards, come)
            drawn = drawn[:end]
            pieces = pieces_of(drawn)
            fork = guards.forked(Written(pieces))
            guards.cut(Written(pieces))
            fresh = GuardReading(GUARDS, Written([]))
            read(fresh, pieces)
            expected = state(fresh)
            assert state(fork) == expected
            assert state(guards) == expected
            drawn = drawn + more


@given(
    drawn=st.lists(st.tuples(st.booleans(), st.sampled_from(KINDS), TEXT), max_size=60),
    asked=st.lists(st.integers(0, 9), min_size=1, max_size=60),
    end=st.integers(0, 60),
)
def test_what_is_read_before_it_is_said_is_found_all_the_same(
    drawn: list[tuple[bool, str, str]], asked: list[int], end: int
) -> None:
    """However much of it was read by then, and whatever else was to be said and was not."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reading, "READ_AT_ONCE", 12)
        guards, plain = GuardReading(GUARDS, Written([])), GuardReading(GUARDS, Written([]))
        pieces = pieces_of(drawn)
        for at, piece in enumerate(pieces):
            guards.foresee([("arguments", "another" * asked[at % len(asked)])])
            for _ in range(asked[at % len(asked)]):
                guards.foresee(list(reading.texts_of(piece.content, piece.beside)))
                guards.read_on()
            if piece.late:
                read(guards, [piece])
                read(plain, [piece])
                continue
            found = guards.read_token(piece.content, piece.beside)
            assert found == plain.read_token(piece.content, piece.beside)
            assert state(guards) == state(plain)
            assert not guards.unread or not (piece.content or piece.beside)
        for one in (guards, plain):
            one.foresee([("arguments", "abc" * 20)])
            one.cut(Written(pieces[:end]))
            assert one._ahead is None
        assert state(guards) == state(plain)


def test_what_is_read_again_is_read_a_part_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    found = list[int]()
    find = Pattern.find

    def counted(self: Pattern, at: int, text: str) -> tuple[int, int]:
        found.append(len(text))
        return find(self, at, text)

    asked = [Guard(name=str(at), do="tell", regex=f"{at}[^x]{{9}}b") for at in range(16)]
    long = Piece(True, beside=[call("find"), arguments("ab1" * 5_000)])
    guards = GuardReading(asked, Written([]))
    monkeypatch.setattr(Pattern, "find", counted)

    def parts() -> list[int]:
        sums = [sum(found)]
        while guards.unread:
            found.clear()
            guards.read_on()
            sums.append(sum(found))
        found.clear()
        return sums

    guards.add(long.content, long.beside)
    sums = parts()
    assert sum(sums) == 16 * 15_000
    assert max(sums) <= reading.READ_AT_ONCE
    guards.read_token("x", ())
    found.clear()
    guards.cut(Written([long]))
    assert sum(parts()) <= 16 * reading.COPY_CHARACTERS, "a copy was kept behind it"
    guards = GuardReading(asked, Written([long]))
    sums = parts()
    assert sum(sums) == 16 * 15_000
    assert max(sums) <= reading.READ_AT_ONCE
