"""Values that may be anything: what is taken can be told to whoever listens, in either encoding."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from midstream import protocol
from midstream.protocol import Grammar, Params, Past, PastAdjust, PastInject, StreamFrame
from realtime.hub import free_values
from realtime.refusal import Refusal
from tests.fakes.simulated_client import endless, opened, refused, start

LARGE = {"title": 2**70, "type": "string"}  # which JSON can say
EXTENDED = {"title": msgspec.msgpack.Ext(1, b"x"), "type": "string"}  # and this MessagePack


def deep() -> dict[str, Any]:
    """Deeper than what is told can be, from wherever it is."""
    schema: dict[str, Any] = {}
    for _ in range(900):
        schema = {"not": schema}
    return schema


def held_to(schema: Any) -> Params:
    return Params(grammar=Grammar(json_schema=schema))


def frames(schema: Any) -> list[StreamFrame]:
    """In each place where there may be one."""
    earlier: list[PastAdjust | PastInject] = [
        PastAdjust(index=0, params=held_to(schema)),
        PastAdjust(index=1, params=Params(grammar=None)),
    ]
    return [
        start(params=held_to(schema)),
        start(past=Past(tokens=[1, 2], steering=earlier)),
        protocol.Adjust(request_id="a", params=held_to(schema)),
    ]


def check(frame: StreamFrame) -> None:
    """At once, and what is left to be looked at in a thread."""
    free_values.check(frame)
    if isinstance(frame, protocol.Start) and frame.past is not None:
        free_values.check_past(frame.past)


@pytest.mark.parametrize(
    ("schema", "what"),
    [(LARGE, "more than 64 bits"), (EXTENDED, "is not JSON"), (deep(), "nested deeper than 64 levels")],
    ids=["large", "extended", "deep"],
)
@pytest.mark.parametrize("place", range(3))
def test_a_schema_that_one_encoding_cannot_say_is_refused(schema: Any, what: str, place: int) -> None:
    with pytest.raises(Refusal, match=what):
        check(frames(schema)[place])


@pytest.mark.parametrize("place", range(3))
def test_one_that_is_too_long_is_not_looked_into(place: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever sends it has everybody wait for a look at each of its values."""

    def looked_into(*_: Any) -> None:
        raise AssertionError("it was looked into")

    monkeypatch.setattr(free_values, "check_shape", looked_into)
    with pytest.raises(Refusal, match="bytes; it may have 65536"):
        check(frames({"enum": [[]] * 40_000})[place])


def test_so_are_arguments() -> None:
    with pytest.raises(Refusal, match="`arguments` has a number of more than 64 bits"):
        free_values.check(protocol.Amend(request_id="a", call_id="c", arguments={"n": 2**64}))


def test_what_both_can_say_is_taken() -> None:
    for frame in frames({"const": 2**64 - 1}):
        check(frame)
    for params in (Params(), Params(grammar=None), held_to(True), Params(grammar=Grammar(regex="a"))):
        free_values.check(protocol.Adjust(request_id="a", params=params))
    free_values.check(protocol.Amend(request_id="a", call_id="c", arguments={"n": -(2**63)}))
    free_values.check(protocol.Amend(request_id="a", call_id="c", arguments="2" * 70))


def test_a_stream_that_is_told_such_a_thing_goes_on_as_before() -> None:
    server, reader = opened()
    reader.send(endless())
    server.tick()
    before = server.hub.streams[0].context.params
    reader.send(protocol.Adjust(request_id="a", params=held_to(LARGE)))
    assert refused(reader).code == "invalid_params"
    server.tick()
    assert server.hub.streams[0].context.params == before


def test_arguments_that_are_much_too_long_are_not_written_as_text() -> None:
    """In characters of four bytes they may be as many."""
    free_values.check(protocol.Amend(request_id="a", call_id="c", arguments={"n": "\U0001f600" * 16_000}))
    with pytest.raises(Refusal, match="an amend may have 16384 characters"):
        free_values.check(protocol.Amend(request_id="a", call_id="c", arguments={"n": [0] * 40_000}))
