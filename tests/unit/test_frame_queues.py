"""SerialQueues: each works off its own frames in order, and none waits for another."""

from __future__ import annotations

import asyncio

from realtime.hub.frame_queues import SerialQueues


class Works:
    """Work that is done when the test says so."""

    def __init__(self) -> None:
        self.begun: list[tuple[str, int]] = []
        self.emptied = 0
        self.lanes = SerialQueues[str, int](self._work, self._empty)
        self._doors: dict[tuple[str, int], asyncio.Event] = {}
        self._moved = asyncio.Event()

    async def _work(self, key: str, frame: int) -> None:
        door = self._doors[key, frame] = asyncio.Event()
        self.begun.append((key, frame))
        self._moved.set()
        await door.wait()

    def _empty(self) -> None:
        self.emptied += 1
        self._moved.set()

    def finish(self, key: str, frame: int) -> None:
        self._doors[key, frame].set()

    async def until(self, *begun: tuple[str, int]) -> None:
        while set(begun) - set(self.begun):
            await self._next()

    async def until_emptied(self, times: int) -> None:
        while self.emptied < times:
            await self._next()

    async def _next(self) -> None:
        self._moved.clear()
        await asyncio.wait_for(self._moved.wait(), 10)


async def test_nothing_joins_a_lane_that_is_not_open() -> None:
    works = Works()
    assert not works.lanes.enqueue("a", 1)
    assert list(works.lanes.keys) == []
    works.lanes.start("a", 1)
    assert works.lanes.enqueue("a", 2)
    assert not works.lanes.enqueue("b", 1)
    assert list(works.lanes.keys) == ["a"]
    await works.until(("a", 1))
    works.finish("a", 1)
    await works.until(("a", 2))
    works.finish("a", 2)
    await works.until_emptied(1)
    assert not works.lanes.enqueue("a", 3), "it is closed behind its last frame"


async def test_a_lane_works_off_one_after_the_other_and_the_others_do_not_wait() -> None:
    works = Works()
    works.lanes.start("a", 1)
    works.lanes.enqueue("a", 2)
    works.lanes.start("b", 1)
    await works.until(("a", 1), ("b", 1))
    works.finish("b", 1)
    await works.until_emptied(1)
    assert works.begun == [("a", 1), ("b", 1)], "the second waits for the first"
    works.finish("a", 1)
    await works.until(("a", 2))
    works.finish("a", 2)
    await works.until_emptied(2)
    assert list(works.lanes.keys) == []


async def test_what_joins_while_the_last_is_worked_at_is_worked_off_too() -> None:
    works = Works()
    works.lanes.start("a", 1)
    await works.until(("a", 1))
    assert works.lanes.enqueue("a", 2)
    works.finish("a", 1)
    await works.until(("a", 2))
    assert works.emptied == 0
    works.finish("a", 2)
    await works.until_emptied(1)


async def test_a_lane_can_be_opened_again() -> None:
    works = Works()
    for frame in (1, 2):
        works.lanes.start("a", frame)
        await works.until(("a", frame))
        works.finish("a", frame)
        await works.until_emptied(frame)
    assert works.begun == [("a", 1), ("a", 2)]
