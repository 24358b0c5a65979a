"""Patience: others wait a part of their time for those who take long, however many steps that goes on."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import Future

import pytest

from engine.step.patience import MOST_S, SHARE, STREAM_S, Patience

STEP_S = 0.02


class Waits:
    """Whoever waits does so to the end of their patience, or as long as `takes_s` says."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.takes_s = 60.0
        self.late_s = 0.0
        self.waited: list[float] = []
        self.patience = Patience(self.wait, lambda: self.now_s)

    def wait(self, jobs: Iterable[Future[None]], seconds: float) -> None:
        self.waited.append(min(seconds, self.takes_s) + self.late_s)
        self.now_s += self.waited[-1]


def test_beside_others_it_waits_long_once_and_then_a_part_of_their_time() -> None:
    waits = Waits()
    for _ in range(100):
        waits.patience.wait_beside_others([])
        waits.now_s += STEP_S
    assert waits.waited[0] == MOST_S
    assert waits.waited[1:] == pytest.approx([SHARE * STEP_S] * 99)


def test_who_is_quick_is_always_waited_for() -> None:
    waits = Waits()
    waits.takes_s = SHARE * STEP_S
    for _ in range(100):
        waits.patience.wait_beside_others([])
        waits.now_s += STEP_S
    assert waits.waited == [waits.takes_s] * 100


def test_whoever_is_woken_too_late_waits_the_less_for_it_next() -> None:
    waits = Waits()
    waits.late_s = MOST_S / 2
    for _ in range(100):
        waits.patience.wait_beside_others([])
        waits.now_s += STEP_S
    assert sum(waits.waited) <= MOST_S + waits.late_s + SHARE * waits.now_s


def test_where_nobody_else_is_they_wait_for_each_stream() -> None:
    waits = Waits()
    for streams in (1, 1, 100, 100):
        waits.patience.wait([], streams)
    assert waits.waited == [MOST_S, MOST_S, 100 * STREAM_S, 100 * STREAM_S]
