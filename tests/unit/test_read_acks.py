"""When a reader is asked how far it has come, and what its answer acknowledges."""

from __future__ import annotations

import pytest

from midstream.protocol import Credit
from realtime.stream.outbox import PendingToken
from realtime.stream.stream import Stream
from realtime.websocket import read_acks
from realtime.websocket.read_acks import OPEN_LIMIT, RARELY, ReadAcks, ReadPosition
from tests.fakes.lone_stream import LoneStream


def send(positions: ReadAcks, stream: Stream, tokens: int) -> None:
    """The stream gives out so many tokens more."""
    before = stream.outbox.sent
    for index in range(before, before + tokens):
        stream.outbox.put(PendingToken(index, "x", 65))
    stream.outbox.take()
    positions.sent(stream, tokens)


def asked(positions: ReadAcks) -> bytes:
    payload = positions.due()
    assert payload is not None
    return payload


def roomy() -> Stream:
    stream = LoneStream().stream
    stream.outbox.credit.grant(1000)
    return stream


def test_a_ping_is_due_after_so_many_tokens_of_one_stream() -> None:
    positions, one, other = ReadAcks(4), roomy(), roomy()
    send(positions, one, 3)
    send(positions, other, 3)
    assert positions.due() is None
    send(positions, one, 1)
    assert positions.due() is not None
    assert positions.due() is None


def test_whose_credit_does_not_hang_on_it_is_asked_more_rarely() -> None:
    positions, one = ReadAcks(4), LoneStream(credit=Credit(limit=1000)).stream
    send(positions, one, RARELY * 4 - 1)
    assert positions.due() is None
    send(positions, one, 1)
    assert positions.due() is not None


def test_a_pong_acknowledges_every_stream_as_far_as_it_was_sent_before_the_ping() -> None:
    positions, one, other = ReadAcks(4), roomy(), roomy()
    send(positions, one, 5)
    send(positions, other, 2)
    payload = asked(positions)
    send(positions, one, 3)
    assert positions.receive_pong(payload) == [ReadPosition(one, 5, 1), ReadPosition(other, 2, 1)]


def test_a_later_pong_stands_for_earlier_ones() -> None:
    """RFC 6455, 5.5.3: a peer may answer only the latest of several pings."""
    positions, one, other = ReadAcks(4), roomy(), roomy()
    send(positions, one, 4)
    send(positions, other, 1)
    first = asked(positions)
    send(positions, one, 4)
    second = asked(positions)
    assert sorted((read.index, read.seq) for read in positions.receive_pong(second)) == [(1, 1), (8, 2)]
    assert positions.receive_pong(first) == []
    assert positions.receive_pong(second) == [], "and is counted once"


def test_an_early_pong_acknowledges_nothing_of_a_later_ping() -> None:
    positions, one = ReadAcks(4), roomy()
    send(positions, one, 4)
    first = asked(positions)
    send(positions, one, 4)
    second = asked(positions)
    assert positions.receive_pong(first) == [ReadPosition(one, 4, 1)]
    assert positions.receive_pong(second) == [ReadPosition(one, 8, 2)]


def test_pongs_that_answer_no_ping_of_ours_are_nothing() -> None:
    positions, one = ReadAcks(4), roomy()
    send(positions, one, 4)
    payload = asked(positions)
    for unsolicited in (b"", b"hello", b"\xff" * 8, (2).to_bytes(8, "big"), bytes(8), payload + b"\0"):
        assert positions.receive_pong(unsolicited) == []
    assert positions.receive_pong(payload) == [ReadPosition(one, 4, 1)]


def test_whoever_attaches_is_asked_at_once_and_says_what_it_has() -> None:
    positions, stream = ReadAcks(4), roomy()
    stream.outbox.take()
    positions.ask(stream)
    payload = asked(positions)
    send(positions, stream, 2)
    assert positions.receive_pong(payload) == [ReadPosition(stream, 0, 0)], "what was sent before the ping"
    assert positions.due() is None


def test_a_stream_that_is_anothers_now_is_acknowledged_no_more() -> None:
    positions, kept, lost = ReadAcks(4), roomy(), roomy()
    send(positions, kept, 4)
    send(positions, lost, 4)
    first = asked(positions)
    send(positions, lost, 4)
    positions.forget(lost)
    assert positions.due() is None, "nobody is asked about what was sent since, either"
    assert positions.receive_pong(first) == [ReadPosition(kept, 4, 1)]


def test_pings_that_ask_about_nobody_any_more_are_forgotten() -> None:
    positions, one, other = ReadAcks(4), roomy(), roomy()
    send(positions, one, 4)
    first = asked(positions)
    send(positions, other, 4)
    second = asked(positions)
    positions.forget(one)
    assert positions.receive_pong(first) == []
    assert positions.receive_pong(second) == [ReadPosition(other, 4, 1)]


def test_forgetting_a_stream_looks_at_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand may end in one step, with as many in every ping that waits."""
    looked_at: list[Stream] = []

    class Watched:
        def __init__(self, stream: Stream, index: int, seq: int) -> None:
            self._stream = stream

        @property
        def stream(self) -> Stream:
            looked_at.append(self._stream)
            return self._stream

    monkeypatch.setattr(read_acks, "ReadPosition", Watched)
    positions, streams = ReadAcks(1), [roomy() for _ in range(5)]
    for stream in streams:
        send(positions, stream, 1)
    payload = asked(positions)
    positions.forget(streams[0])
    assert looked_at == []
    assert len(positions.receive_pong(payload)) == 4


def test_forgetting_what_was_never_sent_is_nothing() -> None:
    positions, one, other = ReadAcks(4), roomy(), roomy()
    send(positions, one, 4)
    payload = asked(positions)
    positions.forget(other)
    assert positions.receive_pong(payload) == [ReadPosition(one, 4, 1)]


def test_who_answers_no_ping_is_asked_no_more_and_what_it_was_sent_goes_with_the_next() -> None:
    acks, stream = ReadAcks(1), LoneStream().stream
    payloads = []
    while True:
        acks.ask(stream)
        if (payload := acks.due()) is None:
            break
        payloads.append(payload)
    assert len(payloads) == OPEN_LIMIT
    assert acks.receive_pong(payloads[-1])
    assert acks.due() is not None
