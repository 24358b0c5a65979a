"""Matcher threads that are none: what they are given is done when they have been given it, so that nothing
hangs on how quick anything is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

from engine.schedule.sequence import Sequence
from engine.step.matcher_threads import MatcherThreads
from engine.structure.worker import Worker


class AtOnceThreads(MatcherThreads):
    def __init__(self, *asked: Any) -> None:
        super().__init__(*asked)
        self._quick = self._slow = self._compiling = AtOnce("grammars")

    def before_plan(self) -> Iterator[Sequence]:
        """All that there are, however long that takes."""
        return iter([*super().before_plan()])


class AtOnce(Worker):
    def submit(self, work: Callable[[], Any], owner: object = None) -> Future[Any]:
        done = Future[Any]()
        try:
            done.set_result(work())
        except BaseException as error:  # noqa: BLE001 - whoever waits for it is told, as by a thread
            done.set_exception(error)
        return done
