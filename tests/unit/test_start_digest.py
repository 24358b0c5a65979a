"""What tells two starts of one name apart."""

from __future__ import annotations

from typing import Any

from midstream.protocol import Function, Start, Tool
from realtime.hub.frame_tokenizing import start_digest


def test_under_another_ref_it_is_the_same_content() -> None:
    start = Start(request_id="a", prompt=[1, 2], ref="1")
    assert start_digest(start) == start_digest(Start(request_id="a", prompt=[1, 2], ref="2"))
    assert start_digest(start) != start_digest(Start(request_id="a", prompt=[1, 3], ref="1"))


def test_a_number_that_nothing_can_hold_is_other_content() -> None:
    assert start_digest(Start(request_id="a", prompt=[10**30])) != start_digest(
        Start(request_id="a", prompt=[1])
    )


def test_numbers_that_tools_alone_can_hold_tell_starts_apart() -> None:
    first, second = (
        Start(
            request_id="a",
            prompt=[1],
            tools=[Tool(function=Function(name="f", parameters={"maximum": number}))],
        )
        for number in (2**70, 2**71)
    )
    assert start_digest(first) == start_digest(first) != start_digest(second)
    assert start_digest(first), "it is content that is accepted"


def test_nor_is_what_is_nested_too_deeply_content_that_was_accepted() -> None:
    deep: dict[str, Any] = {}
    for _ in range(5000):
        deep = {"a": deep}
    start = Start(request_id="a", prompt=[1], tools=[Tool(function=Function(name="f", parameters=deep))])
    assert start_digest(start) not in (start_digest(Start(request_id="a", prompt=[1])), None)
