"""What an outbox keeps of what it gave out, and how that is told again: on the outbox alone."""

from __future__ import annotations

from typing import Any

import pytest

from midstream import protocol
from midstream.protocol import (
    Adjusted,
    Attached,
    Params,
    Paused,
    Resumed,
    Rewound,
    Snapshot,
    Token,
)
from realtime.refusal import Refusal
from realtime.stream import outbox
from realtime.stream.credit import Credit
from realtime.stream.memory import event_bytes
from realtime.stream.outbox import HISTORY_LIMIT, Outbox, PendingToken
from tests.fakes.lone_stream import RUN_OUT, LoneStream


def filled(events: int) -> Outbox:
    """One that has given out so many events, a token each."""
    box = Outbox("a", Credit(protocol.Credit(limit=10_000), window=1), tokens=True)
    for index in range(events):
        box.put(PendingToken(index, "x", 65))
        box.take()
    return box


def since(box: Outbox, after: int) -> list[Any] | None:
    events = box.since(after)
    return None if events is None else [event.seq for event in events]


def snapshot(index: int, text: str = "") -> Snapshot:
    return Snapshot(
        request_id="a", index=index, text=text, tokens=[], model="toy", prompt_tokens=1, params=Params()
    )


# -- what is kept ----------------------------------------------------------------------------------


def test_what_was_given_out_is_kept_as_it_was() -> None:
    box = filled(0)
    for index in range(3):
        box.put(PendingToken(index, f"{index}", index))
        box.put(Adjusted(request_id="a", index=index, params=Params()))
    given = box.take()
    assert box.since(-1) == given
    assert since(box, 2) == [3, 4, 5]
    assert since(box, 5) == []


def test_what_has_been_read_is_forgotten() -> None:
    box = filled(5)
    box.acknowledge(1)
    assert since(box, 1) == [2, 3, 4]
    assert since(box, 0) is None
    box.acknowledge(4)
    assert since(box, 4) == []
    assert since(box, 3) is None


@pytest.mark.parametrize("read", [1, 3, HISTORY_LIMIT // 2, HISTORY_LIMIT - 3, HISTORY_LIMIT])
def test_what_is_forgotten_is_weighed_no_more(read: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """One pong may say that all events of a thousand streams were read."""
    box = filled(HISTORY_LIMIT)
    with monkeypatch.context() as unweighed:
        unweighed.setattr(outbox, "event_bytes", None)
        box.acknowledge(read - 1)
    assert since(box, read - 1) == list(range(read, HISTORY_LIMIT))
    kept = box.since(read - 1)
    assert kept is not None
    assert box.bytes == sum(map(event_bytes, kept))


def test_what_is_to_be_told_again_weighs_though_it_was_read_meanwhile() -> None:
    """Whoever has it told again may say only then that it was read, and take nothing."""
    box = filled(5)
    before = box.bytes
    again = box.since(-1)
    assert again is not None
    box.replay([*again, Attached(request_id="a")])
    box.acknowledge(4)
    assert box.bytes > before
    box.take()
    assert box.bytes == 0


def test_a_history_can_be_made_shorter_and_what_is_gone_is_told_by_a_snapshot() -> None:
    box = filled(10)
    box.shorten_history(3 * event_bytes(Token(request_id="a", index=0, count=1, delta="x", tokens=[1])))
    assert (since(box, 6), since(box, 5)) == ([7, 8, 9], None)
    box.shorten_history(0)
    assert since(box, 8) == [9], "the last is kept"


def test_to_have_read_less_than_before_changes_nothing() -> None:
    box = filled(9)
    box.acknowledge(3)
    for read in 2, 1, -1:
        box.acknowledge(read)
        assert since(box, 3) == [4, 5, 6, 7, 8]


def test_errors_are_no_history() -> None:
    box = filled(1)
    box.put(Refusal("request_finished", "Too late.").event("a", "r"))
    box.take()
    assert since(box, -1) == [0]


def test_the_oldest_are_forgotten_where_nobody_reads() -> None:
    box = filled(HISTORY_LIMIT + 1)
    assert since(box, 0) == list(range(1, HISTORY_LIMIT + 1))
    assert since(box, -1) is None


def test_what_waits_is_no_history_yet() -> None:
    box = Outbox("a", Credit(protocol.Credit(limit=1), window=1))
    box.put(PendingToken(0, "x", 65))
    box.put(PendingToken(1, "y", 66))
    box.take()
    assert since(box, -1) == [0]


def test_an_end_is_kept_whoever_has_read_it() -> None:
    lone = LoneStream()
    lone.write("ab")
    lone.take()
    box = lone.stream.outbox
    lone.answer(finish=RUN_OUT)
    concluded = [box.final_sent]
    (final,) = lone.take()
    assert [*concluded, box.final_sent] == [False, True], "first it waits, and nobody has it"
    box.acknowledge(box.seq - 1)
    assert box.since(1) == [final]
    assert since(box, 0) is None
    told, last = box.with_snapshot(snapshot(2, "ab"))
    assert (told.seq, last) == (1, final)


# -- told again ------------------------------------------------------------------------------------


def test_what_is_repeated_comes_first_and_takes_no_number() -> None:
    box = filled(2)
    box.put(PendingToken(2, "new", 67))
    attached = Attached(request_id="a")
    again = box.since(0)
    assert again is not None
    box.replay([*again, attached])
    token, mark, new = box.take()
    assert [token, mark] == [*again, attached]
    assert isinstance(new, Token)
    assert (new.seq, new.delta) == (2, "new")
    assert not box.waiting


def test_what_is_to_be_repeated_waits_and_can_be_forgotten() -> None:
    box = filled(2)
    box.replay([Attached(request_id="a")])
    waiting = [box.waiting]
    box.drop_replay()
    assert [*waiting, box.waiting] == [True, False]
    assert box.take() == []


def test_refs_are_those_of_answers_that_nobody_took() -> None:
    box = filled(0)
    box.put(Paused(request_id="a", index=0, reason="client", ref="p"))
    box.put(PendingToken(0, "x", 65))
    box.put(Resumed(request_id="a", index=0, recomputed_tokens=0))
    box.put(Refusal("request_finished", "Too late.").event("a", "late"))
    assert box.pending_refs == ["p", "late"]
    box.take()
    assert box.pending_refs == []


# -- a snapshot and what waits behind it -----------------------------------------------------------


def test_a_snapshot_stands_for_all_that_was_given_out() -> None:
    box = filled(3)
    (told,) = box.with_snapshot(snapshot(3, "xxx"))
    assert told.seq == 2


def test_a_rewinding_that_the_snapshot_knows_of_already_takes_nothing_back() -> None:
    """Two rewindings wait; the text that stands is that behind both."""
    box = filled(4)
    for index in (3, 1):
        box.drop_from(index)
        box.put(Rewound(request_id="a", index=index, text_length=index))
    box.with_snapshot(snapshot(1, "x"))
    first, second = box.take()
    assert isinstance(first, Rewound)
    assert isinstance(second, Rewound)
    assert (first.index, first.text_length) == (1, 1)
    assert (second.index, second.text_length) == (1, 1)


def test_a_rewinding_behind_what_the_snapshot_tells_is_told_as_it_is() -> None:
    box = filled(4)
    box.with_snapshot(snapshot(4, "xxxx"))
    box.drop_from(2)
    box.put(Rewound(request_id="a", index=2, text_length=2))
    (rewound,) = box.take()
    assert isinstance(rewound, Rewound)
    assert (rewound.index, rewound.text_length) == (2, 2)


def test_a_pause_behind_a_snapshot_says_what_its_reader_has() -> None:
    box = filled(4)
    box.put(Paused(request_id="a", index=4, reason="memory"))
    box.drop_from(2)
    box.put(Rewound(request_id="a", index=2, text_length=2))
    box.with_snapshot(snapshot(2, "xx"))
    paused, _ = box.take()
    assert isinstance(paused, Paused)
    assert paused.index == 2
