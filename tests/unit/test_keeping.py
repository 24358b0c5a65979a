"""What a gateway keeps of a stream for its next engine, and for whoever adopts it from there."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from engine import api
from engine.int32 import of_int32
from engine.listening import limits
from engine.listening.journal import Journal
from midstream import protocol
from midstream.protocol import Budget, Guard, Params
from realtime.hub import keeping
from realtime.hub.keeping import Keeping
from realtime.hub.told import Lost, Submitted, encode_told

KEEP = api.Keep(b"key", b"record", grace_s=5)
SUBMIT = api.Submit(7, [1], api.Sampling(), credit=8, keep=KEEP)


def token(index: int) -> api.News:
    return api.News(7, index=index, tokens=[100 + index])


def test_the_first_engine_has_nothing_before_it_and_the_next_all_that_was() -> None:
    kept = Keeping(KEEP, lambda: 3.0, prompt_tokens=3)
    assert kept.submitted("fp") == KEEP
    for index in range(3):
        kept.hear(token(index))
    kept.note(b"told")
    assert kept.submitted("fp") == api.Keep(b"key", b"", grace_s=5), "it has it"
    kept.is_found = True
    kept.lost(lacks_credit=True)
    assert (kept.is_there, kept.is_found) == (False, False)
    again = kept.submitted("other")
    assert again is not None
    assert (again.record, again.moves) == (b"record", 1)
    assert again.history is not None
    assert [
        of_int32(one.tokens).tolist() for one in again.history.news if isinstance(one, api.TokensTold)
    ] == [[100, 101, 102]]
    assert [(note.heard, note.told) for note in again.history.notes] == [
        (3, b"told"),
        (3, encode_told(Lost(lacked_credit=True))),
        (3, encode_told(Submitted("other"))),
    ]


def test_what_was_told_an_engine_does_not_grow() -> None:
    """It goes out with all that is said in a turn of the loop."""
    kept = Keeping(KEEP, lambda: 3.0, prompt_tokens=3, waits=True)
    first = kept.submitted("fp")
    kept.note(b"later")
    assert first is not None
    assert first.history is not None
    assert [note.told for note in first.history.notes] == [encode_told(Submitted("fp"))]


def test_who_has_adopted_a_stream_counts_on_from_what_its_engine_kept() -> None:
    history = api.History(1.0, [], [api.TokensTold(1.0, 0, bytes(12)), api.NewsTold(1.0, b"")])
    journal = api.Journal(b"record", 2, 1, history, b"", 0, 0, 0)
    kept = Keeping(
        api.Keep(b"key", b"record", 5.0, 2, adoptions=1), lambda: 3.0, prompt_tokens=3, adopted=journal
    )
    assert (kept.heard, kept.is_there, kept.is_found) == (4, True, True)
    kept.lost(lacks_credit=True)
    moved = kept.submitted("fp")
    assert moved is not None
    assert (moved.moves, moved.adoptions) == (3, 1)
    assert moved.history is not None
    assert moved.history.began == 1.0


def test_a_history_that_is_too_long_is_given_up_when_the_engine_gives_it_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What nobody can adopt is handed over to nobody."""
    monkeypatch.setattr(keeping, "MOST_BYTES", 2_000)
    monkeypatch.setattr(limits, "JOURNAL_BYTES", 2_000)
    submit = replace(SUBMIT, tokens=list(range(100)), prompt=100)
    kept, journal = Keeping(KEEP, lambda: 3.0, prompt_tokens=100), Journal(submit, KEEP, 1.0)
    kept.submitted("fp")
    for index in range(20):
        kept.hear(token(2 * index))
        journal.tell(token(2 * index), 2.0)
        kept.note(b"told")
        journal.note(api.Note(7, kept.heard, b"told"), 2.0)
        assert kept.is_there == journal.whole
    assert not kept.is_there
    assert kept.history_bytes < 1_000
    kept.lost(lacks_credit=True)
    assert kept.submitted("fp") is None


def test_what_cannot_be_told_again_ends_what_is_kept() -> None:
    seconds = Guard(name="long", do="pause", budget=Budget(seconds=9))
    told = encode_told(protocol.Adjust(request_id="a", params=Params(guards=[seconds])))
    kept, journal = Keeping(KEEP, lambda: 3.0, prompt_tokens=1), Journal(SUBMIT, KEEP, 1.0)
    kept.submitted("fp")
    kept.note(told)
    journal.note(api.Note(7, 0, told), 2.0)
    assert (kept.is_there, kept.so_far(), journal.whole) == (False, None, False)
    assert kept.submitted("other") is None


def test_a_record_weighs_too_which_may_have_anothers_history() -> None:
    record = bytes(5_000)
    kept = Keeping(api.Keep(b"key", record), lambda: 3.0, prompt_tokens=3)
    assert kept.history_bytes >= len(record)
    told = kept.so_far()
    assert told is not None
    assert told[0] == record
