"""What an engine keeps of streams that may outlive their gateways: journals, their bounds, and who has which
stream."""

from __future__ import annotations

import tracemalloc
from weakref import WeakValueDictionary

import msgspec
import pytest
from msgspec.structs import replace

from engine import api
from engine.int32 import of_int32
from engine.listening import kept_streams, limits
from engine.listening.journal import Journal
from engine.listening.kept_streams import STREAM_BYTES, KeptStream, KeptStreams

KEEP = api.Keep(b"key", b"record", grace_s=5)
SUBMIT = api.Submit(7, [1, 2, 3], api.Sampling(), credit=8, keep=KEEP)


def token(index: int) -> api.News:
    return api.News(7, index=index, tokens=[100 + index])


def end(stream: int = 7) -> api.News:
    return api.News(stream, finish=api.Finish("eos"))


def begun(streams: KeptStreams[str], key: bytes = b"key", tenant: int = 0, **keep: object) -> KeptStream[str]:
    return streams.begin(replace(SUBMIT, tenant=tenant), replace(KEEP, key=key, **keep), "gateway", 0, 0.0)


def test_tokens_are_kept_as_runs_that_other_news_and_other_places_end() -> None:
    journal = Journal(SUBMIT, KEEP, 1.0)
    for at, index in enumerate([0, 1, 2]):
        journal.tell(token(index), 2.0 + at)
    journal.tell(api.News(7, changes=[api.Truncated(1)]), 5.0)
    journal.tell(token(1), 6.0)
    journal.tell(token(3), 7.0)
    journal.tell(api.News(7, index=4, tokens=[1, 2]), 8.0)
    told = journal.told()
    runs = [one for one in told.history.news if isinstance(one, api.TokensTold)]
    assert [(one.at, one.index, of_int32(one.tokens).tolist()) for one in runs] == [
        (2.0, 0, [100, 101, 102]),
        (6.0, 1, [101]),
        (7.0, 3, [103]),
    ]
    others = [one.news for one in told.history.news if isinstance(one, api.NewsTold)]
    assert [msgspec.msgpack.decode(one, type=api.News) for one in others] == [
        api.News(0, changes=[api.Truncated(1)]),
        api.News(0, index=4, tokens=[1, 2]),
    ]
    assert of_int32(told.prompt).tolist() == [1, 2, 3]


def test_adoptions_are_counted_on_from_where_another_engine_was() -> None:
    """By their number a listener knows which events its own count is of."""
    streams = KeptStreams[str](lambda: 0.0)
    assert begun(streams, adoptions=2).journal.told().adoptions == 2


def test_commands_are_counted_but_those_that_hang_on_who_reads() -> None:
    one, other = Journal(SUBMIT, KEEP, 1.0), Journal(SUBMIT, KEEP, 1.0)
    for number, journal in ((7, one), (99, other)):
        for command in (api.Pause(number), api.Grant(number, 30), api.Truncate(number, 4)):
            journal.take(command)
    assert one.told().digest == other.told().digest
    assert (one.told().commands, one.told().credit) == (2, 30)
    other.take(api.Resume(99))
    assert one.told().digest != other.told().digest


def test_a_journal_that_is_too_long_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "JOURNAL_BYTES", 2_000)
    journal = Journal(SUBMIT, KEEP, 1.0)
    for index in range(1_000):
        journal.tell(token(index), 2.0)
        journal.note(api.Note(7, index, b"told"), 2.0)
    assert not journal.whole
    assert (journal.told().record, journal.told().history.news, journal.told().history.notes) == (b"", [], [])
    assert journal.bytes < 300


def test_of_too_many_those_go_first_that_have_ended_and_then_whoever_grows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    streams = KeptStreams[str](lambda: 0.0)
    first, second, third = (begun(streams, key) for key in (b"1", b"2", b"3"))
    streams.tell(first, end(), 1.0)
    streams.tell(second, end(), 2.0)
    monkeypatch.setattr(limits, "JOURNALS_BYTES", 2 * third.bytes + 400)
    streams.note(third, api.Note(7, 0, b"x"), 3.0)
    assert streams.find(b"1") is None
    assert streams.find(b"2") is second
    for _ in range(10):
        streams.note(third, api.Note(7, 0, b"x" * 100), 3.0)
    assert streams.find(b"2") is None
    assert streams.find(b"3") is third
    assert not third.journal.whole


def test_of_what_is_given_up_or_gone_no_record_is_held(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be a megabyte, and an engine has thousands of streams."""
    monkeypatch.setattr(limits, "JOURNALS_BYTES", 50_000)
    streams = KeptStreams[str](lambda: 0.0)
    all_kept = [begun(streams, key=bytes([at]), record=bytes(10_000)) for at in range(20)]
    held = [len(kept.journal.keep.record) for kept in all_kept]
    assert sum(held) <= 50_000
    assert [kept.journal.whole for kept in all_kept] == [bool(length) for length in held]
    (first, *_) = [kept for kept in all_kept if kept.journal.whole]
    streams.drop(first)
    assert first.journal.keep.record == b""


def test_the_tenant_pays_whose_journals_take_most(monkeypatch: pytest.MonkeyPatch) -> None:
    streams = KeptStreams[str](lambda: 0.0)
    ended, lives = begun(streams, b"ended", tenant=1), begun(streams, b"lives", tenant=1)
    streams.tell(ended, end(), 1.0)
    first, second = begun(streams, b"first", tenant=2), begun(streams, b"second", tenant=2)
    monkeypatch.setattr(limits, "JOURNALS_BYTES", 10_000 + 4 * STREAM_BYTES)
    for _ in range(40):
        streams.note(first, api.Note(7, 0, b"x" * 100), 3.0)
        streams.note(second, api.Note(7, 0, b"x" * 100), 3.0)
    assert streams.find(b"ended") is ended
    assert lives.journal.whole
    assert not (first.journal.whole and second.journal.whole)
    third = begun(streams, b"third", tenant=2)
    while third.journal.bytes < 6_000:
        streams.note(third, api.Note(7, 0, b"x" * 100), 3.0)
    for _ in range(20):
        streams.note(lives, api.Note(7, 0, b"x" * 100), 3.0)
    assert streams.find(b"lives") is lives
    assert lives.journal.whole, "what others take is not for the one to pay that has little"
    assert not third.journal.whole


def test_what_streams_take_is_counted_also_where_they_are_short() -> None:
    """With what their gateway remembers of them."""
    streams, theirs = KeptStreams[str](lambda: 0.0), WeakValueDictionary[int, KeptStream[str]]()
    tracemalloc.start()
    for number in range(2_000):
        kept = theirs[number] = begun(streams, key=b"%016d" % number, record=bytes(300))
        streams.tell(kept, end(), 1.0)
    takes, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert takes <= 1.1 * streams._bytes


def test_what_is_given_up_while_it_lives_is_said_once(monkeypatch: pytest.MonkeyPatch) -> None:
    streams = KeptStreams[str](lambda: 0.0)
    ended, lives = begun(streams, b"ended", record=bytes(500)), begun(streams, b"lives", record=bytes(500))
    streams.tell(ended, end(), 1.0)
    monkeypatch.setattr(limits, "JOURNALS_BYTES", 1_000 + STREAM_BYTES)
    streams.note(lives, api.Note(7, 0, b"told"), 2.0)
    assert streams.find(b"ended") is None
    assert streams.take_given_up() == []
    streams.note(lives, api.Note(7, 0, bytes(500)), 2.0)
    assert streams.take_given_up() == [lives]
    assert streams.take_given_up() == []
    again = begun(streams, b"ended", record=b"")
    assert streams.take_given_up() == [again], "it goes on, and its record is here no more"


def test_one_that_has_ended_is_kept_for_a_while() -> None:
    """Whatever the time is that machines agree on: that may be set, and leap."""
    now = 10.0
    streams = KeptStreams[str](lambda: now)
    streams.tell(begun(streams), end(), 1e9)
    now = 9.9 + limits.ENDED_S
    other = begun(streams, b"other")
    streams.tell(other, end(), 1e9 + 10 * limits.ENDED_S)
    assert streams.find(b"key") is not None
    now = 10.0 + limits.ENDED_S
    assert streams.find(b"key") is None
    assert streams.find(b"other") is other


def test_of_very_many_that_are_old_a_few_are_dropped_at_once_and_none_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(kept_streams, "OLD_AT_ONCE", 2)
    now = 0.0
    streams, dropped = KeptStreams[str](lambda: now), list[bytes]()
    for key in (b"a", b"b", b"c", b"d", b"e"):
        streams.tell(begun(streams, key), end(), 0.0)
    drop = streams.drop

    def count(kept: KeptStream[str]) -> None:
        dropped.append(kept.journal.keep.key)
        drop(kept)

    monkeypatch.setattr(streams, "drop", count)
    now = limits.ENDED_S
    assert streams.find(b"e") is None
    assert dropped == [b"a", b"b", b"e"]
    assert streams.find(b"other") is None
    assert dropped == [b"a", b"b", b"e", b"c", b"d"]


def test_a_stream_that_is_submitted_again_goes_on_and_one_that_was_elsewhere_cannot_be_built() -> None:
    streams = KeptStreams[str](lambda: 0.0)
    kept = begun(streams)
    streams.tell(kept, end(), 1.0)
    assert begun(streams, record=b"") is kept, "a guard has taken its end back"
    assert kept.number == 0
    moved = begun(streams, record=b"", moves=1)
    assert moved is not kept
    assert not moved.journal.whole
    streams.tell(kept, end(), 2.0)
    assert streams.find(b"key") is moved
