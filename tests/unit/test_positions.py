"""When a reader is asked how far it has come, and what its answer acknowledges."""

from __future__ import annotations

from realtime.outbox import Piece
from realtime.positions import Positions
from realtime.stream import Stream
from tests.unit.test_stream import Life


def send(positions: Positions, stream: Stream, tokens: int) -> None:
    """The stream gives out so many tokens more."""
    before = stream.outbox.sent
    for index in range(before, before + tokens):
        stream.outbox.put(Piece(index, "x", 65))
    stream.outbox.take()
    positions.sent(stream, tokens)


def asked(positions: Positions) -> bytes:
    payload = positions.due()
    assert payload is not None
    return payload


def roomy() -> Stream:
    stream = Life().stream
    stream.outbox.limit = 1000
    return stream


def test_a_ping_is_due_after_so_many_tokens_of_one_stream() -> None:
    positions, one, other = Positions(4), roomy(), roomy()
    send(positions, one, 3)
    send(positions, other, 3)
    assert positions.due() is None
    send(positions, one, 1)
    assert positions.due() is not None
    assert positions.due() is None


def test_a_pong_acknowledges_every_stream_as_far_as_it_was_sent_before_the_ping() -> None:
    positions, one, other = Positions(4), roomy(), roomy()
    send(positions, one, 5)
    send(positions, other, 2)
    payload = asked(positions)
    send(positions, one, 3)
    assert positions.answered(payload) == [(one, 5), (other, 2)]


def test_a_later_pong_stands_for_earlier_ones() -> None:
    """RFC 6455, 5.5.3: a peer may answer only the latest of several pings."""
    positions, one, other = Positions(4), roomy(), roomy()
    send(positions, one, 4)
    send(positions, other, 1)
    first = asked(positions)
    send(positions, one, 4)
    second = asked(positions)
    assert sorted(index for _, index in positions.answered(second)) == [1, 8]
    assert positions.answered(first) == []
    assert positions.answered(second) == [], "and is counted once"


def test_an_early_pong_acknowledges_nothing_of_a_later_ping() -> None:
    positions, one = Positions(4), roomy()
    send(positions, one, 4)
    first = asked(positions)
    send(positions, one, 4)
    second = asked(positions)
    assert positions.answered(first) == [(one, 4)]
    assert positions.answered(second) == [(one, 8)]


def test_pongs_that_answer_no_ping_of_ours_are_nothing() -> None:
    positions, one = Positions(4), roomy()
    send(positions, one, 4)
    payload = asked(positions)
    for unsolicited in (b"", b"hello", b"\xff" * 8, (2).to_bytes(8, "big"), bytes(8), payload + b"\0"):
        assert positions.answered(unsolicited) == []
    assert positions.answered(payload) == [(one, 4)]
