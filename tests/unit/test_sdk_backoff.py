"""Backoff and pending frames: when to try again, and what becomes of a frame that was not answered."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from midstream.backoff import BASE_S, CAP_S, Backoff
from midstream.pending_frames import PendingFrame, ReconnectAction, idempotent
from midstream.protocol import (
    Adjust,
    Adjusted,
    Cancel,
    Frame,
    Inject,
    Params,
    Pause,
    Resume,
    Rewind,
    Start,
)

WARM = Params(temperature=1.5)


def test_the_span_doubles_up_to_the_cap() -> None:
    backoff = Backoff(1000)
    waits = [backoff.wait_s(0, 1.0) for _ in range(8)]
    assert waits == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.6, 3.2, CAP_S, CAP_S])


@given(st.lists(st.floats(0, 1), min_size=1, max_size=2000), st.floats(0, 30))
def test_jitter_says_which_part_of_it_and_the_server_what_comes_before(
    jitters: list[float], after_s: float
) -> None:
    backoff = Backoff(100.0)
    for tries, jitter in enumerate(jitters):
        wait_s = backoff.wait_s(0, jitter, after_s)
        assert wait_s == after_s + jitter * min(CAP_S, BASE_S * 2.0 ** min(tries, 16))


@pytest.mark.parametrize(
    ("now", "after_s", "wait_s"), [(9.95, 0, 0.05), (10, 0, None), (11, 0, None), (5, 5.1, None), (5, 4.9, 5)]
)
def test_no_wait_goes_beyond_the_deadline(now: float, after_s: float, wait_s: float | None) -> None:
    expected = None if wait_s is None else pytest.approx(wait_s)
    assert Backoff(10).wait_s(now, 1.0, after_s) == expected


def test_a_time_that_is_past_is_none() -> None:
    backoff = Backoff(10)
    assert [backoff.wait_s(0, 1.0, -1000), backoff.wait_s(0, 1.0, -1e-3)] == [0.1, 0.2]


@pytest.mark.parametrize(("lasted_s", "wait_s"), [(0.2, BASE_S), (5, BASE_S), (0.19, 0.4), (0, 0.4)])
def test_what_lasted_less_than_was_waited_for_it_is_waited_for_longer(lasted_s: float, wait_s: float) -> None:
    backoff = Backoff(10)
    assert [backoff.wait_s(0, 1.0), backoff.wait_s(0, 1.0)] == [0.1, 0.2]
    backoff.begin_anew(20, lasted_s)
    assert (backoff.deadline, backoff.wait_s(11, 1.0)) == (20, wait_s)


@pytest.mark.parametrize(
    ("frame", "twice"),
    [
        (Pause(request_id="r"), True),
        (Resume(request_id="r"), True),
        (Cancel(request_id="r"), True),
        (Adjust(request_id="r", params=WARM), True),
        (Adjust(request_id="r", params=WARM, at=0), False),
        (Inject(request_id="r", text="x"), False),
        (Rewind(request_id="r", to=0), False),
        (Start(request_id="r", prompt="x"), False),
    ],
)
def test_what_does_no_harm_twice(frame: Frame, twice: bool) -> None:
    assert idempotent(frame) == twice


def cases() -> Iterator[tuple[bool, str | None, bool, bool, ReconnectAction]]:
    """idempotent, sent on, pending at the server, after a snapshot: what is done."""
    for twice, sent_on, pending, answers_lost in itertools.product(
        (True, False), (None, "old", "new"), (True, False), (True, False)
    ):
        action: ReconnectAction = "resend"
        if pending or sent_on == "new":
            action = "wait"
        elif answers_lost and sent_on == "old" and not twice:
            action = "fail"
        yield twice, sent_on, pending, answers_lost, action


@pytest.mark.parametrize(("twice", "sent_on", "pending", "answers_lost", "action"), list(cases()))
async def test_what_is_done_with_a_frame_after_a_reconnect(
    twice: bool, sent_on: str | None, pending: bool, answers_lost: bool, action: ReconnectAction
) -> None:
    frame = Adjust(request_id="r", params=WARM, ref="7", at=None if twice else 3)
    waiting = PendingFrame(frame, Adjusted, asyncio.get_running_loop().create_future(), sent_on)
    refs = ["6", "7"] if pending else ["6"]
    assert waiting.reconnect_action("new", refs, answers_lost=answers_lost) == action
