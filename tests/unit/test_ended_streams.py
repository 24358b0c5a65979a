"""Streams that have ended: how long they are kept, how many, and what is known of them after that."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from engine import api
from realtime.hub import ended_streams
from realtime.hub.ended_streams import KEPT_S, NAME_LIMIT, STREAM_LIMIT, EndedStreams
from realtime.hub.fair_cache import FairCache
from realtime.hub.stream_key import StreamKey
from realtime.stream.stream import Stream
from tests.fakes.lone_stream import RUN_OUT, LoneStream

NOW = 1000.0
A = StreamKey("tenant", "a")
B = StreamKey("tenant", "b")


def ended(letters: str = "") -> Stream:
    lone = LoneStream()
    lone.write(letters, finish=RUN_OUT)
    return lone.stream


def named(count: int) -> list[StreamKey]:
    return [StreamKey("tenant", str(number)) for number in range(count)]


def kept(there: EndedStreams, keys: list[StreamKey], now: float = NOW) -> int:
    return sum(there.find(key, now) is not None for key in keys)


def test_what_was_buried_is_found_with_its_content() -> None:
    there, stream = EndedStreams(), ended()
    assert there.find(A, NOW) is None
    assert not there.remembers(A)
    there.add(A, stream, b"what it said", NOW)
    grave = there.find(A, NOW)
    assert grave is not None
    assert (grave.stream, grave.start_digest) == (stream, b"what it said")
    assert there.remembers(A)
    assert there.find(StreamKey("another", "a"), NOW) is None
    assert not there.remembers(StreamKey("another", "a"))


def test_it_is_kept_for_so_long_and_its_name_for_longer() -> None:
    there = EndedStreams()
    there.add(A, ended(), b"", NOW)
    assert there.find(A, NOW + KEPT_S - 0.1) is not None, "being found does not keep it longer"
    assert there.find(A, NOW + KEPT_S) is None
    assert there.remembers(A)
    assert there.find(A, NOW) is None, "what is gone is gone"


def test_of_thousands_that_are_old_a_few_are_forgotten_at_once_and_none_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ended_streams, "OLD_AT_ONCE", 2)
    there, keys, forgotten = EndedStreams(), named(5), list[object]()
    for key in keys:
        there.add(key, ended(), b"", NOW)
    pop = FairCache.pop

    def count(cache: FairCache[Any, Any, Any], key: object) -> None:
        forgotten.append(key)
        pop(cache, key)

    monkeypatch.setattr(there._kept, "pop", partial(count, there._kept))
    assert there.find(keys[4], NOW + KEPT_S) is None
    assert forgotten == [keys[0], keys[1], keys[4]]
    assert there.find(keys[3], NOW + KEPT_S) is None
    assert len(there._kept) == 0
    assert all(map(there.remembers, keys))


def test_who_is_asked_for_again_and_again_stays_where_there_are_too_many() -> None:
    there = EndedStreams(stream_limit=3)
    there.add(A, ended(), b"", NOW)
    for key in named(9):
        there.add(key, ended(), b"", NOW)
        assert there.find(A, NOW) is not None
    assert kept(there, named(9)) == 2


def test_the_oldest_goes_when_there_are_too_many() -> None:
    there, stream = EndedStreams(byte_limit=1 << 30), ended()
    keys = named(STREAM_LIMIT + 2)
    for key in keys:
        there.add(key, stream, b"", NOW)
    assert [there.find(key, NOW) is None for key in keys[:3]] == [True, True, False]
    assert kept(there, keys) == STREAM_LIMIT
    assert all(map(there.remembers, keys))


def test_the_oldest_go_when_they_take_too_much_memory() -> None:
    there = EndedStreams(byte_limit=3 * ended("ab").bytes)
    keys = named(4)
    for key in keys[:3]:
        there.add(key, ended("ab"), b"", NOW)
    assert kept(there, keys) == 3
    there.add(keys[3], ended("abcdef"), b"", NOW)
    assert [there.find(key, NOW) is not None for key in keys] == [False, False, True, True], (
        "the longer weighs more, and one grave was too little"
    )


def test_what_may_be_told_again_weighs_too() -> None:
    plain, told, explained = ended("abc"), ended("abc"), LoneStream(logprobs=2)
    explained.write("abc", finish=RUN_OUT, logprob=api.Logprob(-0.1, [(1, -0.2), (2, -0.3)]))
    for stream in (told, explained.stream):
        stream.outbox.take()
    assert told.bytes < explained.stream.bytes
    assert told.bytes < plain.bytes, "what was never taken weighs as well"


def test_one_that_is_too_large_alone_is_only_a_name() -> None:
    there = EndedStreams(byte_limit=ended().bytes)
    there.add(A, ended("a"), b"", NOW)
    assert there.find(A, NOW) is None
    assert there.remembers(A)
    there.add(B, ended(), b"", NOW)
    assert there.find(B, NOW) is not None, "and it weighs no more"


def test_names_are_forgotten_too_the_oldest_first() -> None:
    there, stream = EndedStreams(), ended()
    keys = named(NAME_LIMIT + 2)
    for key in keys:
        there.add(key, stream, b"", NOW)
    assert kept(there, keys, NOW + KEPT_S) == 0
    assert [there.remembers(key) for key in keys[:3]] == [False, False, True]
    assert there.remembers(keys[-1])


def test_one_tenants_many_push_out_nothing_of_anothers() -> None:
    there, stream = EndedStreams(byte_limit=1 << 30), ended()
    there.add(A, stream, b"", NOW)
    flood = [StreamKey("another", str(number)) for number in range(STREAM_LIMIT + 50)]
    for key in flood:
        there.add(key, stream, b"", NOW)
    assert there.find(A, NOW) is not None
    assert kept(there, flood) == STREAM_LIMIT - 1
    assert kept(there, [A, *flood], NOW + KEPT_S) == 0
    for key in [StreamKey("another", f"later {number}") for number in range(NAME_LIMIT)]:
        there.add(key, stream, b"", NOW + KEPT_S)
    assert kept(there, flood, NOW + 2 * KEPT_S) == 0
    assert there.remembers(A), "nor does its name go for theirs"


def test_one_tenants_long_streams_push_out_nothing_of_anothers() -> None:
    there = EndedStreams(byte_limit=3 * ended("ab").bytes)
    there.add(A, ended("ab"), b"", NOW)
    flood = [StreamKey("another", str(number)) for number in range(9)]
    for key in flood:
        there.add(key, ended("ab"), b"", NOW)
    assert there.find(A, NOW) is not None
    assert kept(there, flood) == 2


def test_a_name_that_is_taken_anew_stands_for_the_new_one() -> None:
    there, second = EndedStreams(), ended("b")
    there.add(A, ended("a"), b"1", NOW)
    there.add(B, ended(), b"", NOW)
    there.add(A, second, b"2", NOW + 1)
    grave = there.find(A, NOW + KEPT_S)
    assert grave is not None
    assert (grave.stream, grave.start_digest) == (second, b"2")
    assert there.find(B, NOW + KEPT_S) is None, "what was buried before it went before it"


def test_what_is_forgotten_leaves_nothing() -> None:
    there = EndedStreams(byte_limit=ended("ab").bytes)
    there.add(A, ended("ab"), b"", NOW)
    there.forget(A)
    there.forget(A)
    assert not there.remembers(A)
    there.add(B, ended("ab"), b"", NOW)
    assert there.find(B, NOW) is not None, "it weighs no more"
    assert there.find(B, NOW + KEPT_S) is None
    there.forget(B)
    assert not there.remembers(B), "nor does its name stand any more"
