"""The tokenizing pool: so many at once, everybody in turn, in threads of its own."""

from __future__ import annotations

import asyncio
import threading

import pytest

from realtime.hub.tokenizing_pool import LONG, Line, TokenizingPool


class Crowd:
    """Those who want turns, which end when the test says so."""

    def __init__(self, threads: int = 1) -> None:
        self.pool = TokenizingPool(threads)
        self.begun: list[str] = []
        self.tasks: dict[str, asyncio.Task[None]] = {}
        self._ends: dict[str, asyncio.Event] = {}
        self._moved = asyncio.Event()

    def ask(
        self, name: str, *, tenant: str = "t", client: str = "c", size: int = 10, at: Line = Line.TEXTS
    ) -> None:
        self._ends[name] = asyncio.Event()
        self.tasks[name] = asyncio.create_task(self._turn(name, tenant, client, size, at))

    async def _turn(self, name: str, tenant: str, client: str, size: int, at: Line) -> None:
        async with self.pool.turn(tenant, client, size, at):
            self.begun.append(name)
            self._moved.set()
            await self._ends[name].wait()

    async def finish(self, *names: str) -> None:
        for name in names:
            self._ends[name].set()
        await asyncio.gather(*(self.tasks[name] for name in names))

    async def until_begun(self, *names: str) -> None:
        async with asyncio.timeout(10):
            while set(names) - set(self.begun):
                self._moved.clear()
                await self._moved.wait()


async def test_there_are_never_more_turns_than_threads_and_the_smaller_crowd_is_next() -> None:
    crowd = Crowd(threads=2)
    for name in "abcde":
        crowd.ask(name)
    crowd.ask("other", client="another")
    await crowd.until_begun("a", "b")
    assert crowd.begun == ["a", "b"]
    await crowd.finish("a")
    await crowd.until_begun("c")
    await crowd.finish("b", "c", "other", "d", "e")
    assert crowd.begun == ["a", "b", "c", "other", "d", "e"]


async def test_who_goes_while_it_waits_is_passed_over_and_who_fails_gives_its_turn_back() -> None:
    crowd = Crowd()
    for name in "abc":
        crowd.ask(name)
    await crowd.until_begun("a")
    crowd.tasks["b"].cancel()
    crowd.tasks["a"].cancel()
    await asyncio.wait([crowd.tasks["a"], crowd.tasks["b"]])
    await crowd.until_begun("c")
    assert crowd.begun == ["a", "c"]
    await crowd.finish("c")
    with pytest.raises(ZeroDivisionError):
        async with crowd.pool.turn("t", "c", 1):
            await crowd.pool.run(lambda: 1 // 0)
    crowd.ask("d")
    await crowd.until_begun("d")
    await crowd.finish("d")


async def test_who_waits_behind_a_long_text_has_its_turn_though_no_thread_can_be_started(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def no_more(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", no_more)
    crowd = Crowd()
    for name in "ab":
        crowd.ask(name, size=LONG + 1)
    await crowd.until_begun("a")
    await crowd.finish("a")
    await crowd.until_begun("b")
    await crowd.finish("b")


async def test_of_long_texts_there_is_one_at_a_time_and_a_short_one_waits_for_none() -> None:
    crowd = Crowd(threads=3)
    crowd.ask("long", size=LONG + 1)
    crowd.ask("long too", client="another", size=LONG + 1)
    crowd.ask("short", tenant="other", size=LONG)
    await crowd.until_begun("long", "short")
    assert "long too" not in crowd.begun
    await crowd.finish("long")
    await crowd.until_begun("long too")
    crowd.tasks["long too"].cancel()
    await asyncio.wait([crowd.tasks["long too"]])
    crowd.ask("the last", size=LONG + 1)
    await crowd.until_begun("the last")
    await crowd.finish("the last", "short")


async def test_no_line_waits_for_another() -> None:
    crowd = Crowd()
    for line in Line:
        for number in range(2):
            crowd.ask(f"{number} of {line.name}", at=line)
    await crowd.until_begun("0 of TEXTS", "0 of RULED", "0 of COMPILED")
    assert len(crowd.begun) == 3
    await crowd.finish("0 of RULED")
    await crowd.until_begun("1 of RULED")
    assert len(crowd.begun) == 4
    await crowd.finish(*(f"{number} of {line.name}" for line in Line for number in range(2)))


async def test_no_crowd_of_long_texts_keeps_one_with_grammars_waiting_nor_those_behind_it() -> None:
    """One at a time is worked at, whatever it has: it is in turn with them."""
    crowd = Crowd(threads=2)
    for number in range(4):
        crowd.ask(f"long {number}", size=LONG + 1)
    crowd.ask("ruled", tenant="other", size=LONG + 1, at=Line.RULED)
    crowd.ask("short", tenant="a third", size=LONG, at=Line.RULED)
    await crowd.until_begun("long 0", "short")
    await crowd.finish("long 0")
    await crowd.until_begun("long 1")
    await crowd.finish("long 1")
    await crowd.until_begun("ruled")
    assert len(crowd.begun) == 4
    await crowd.finish("ruled", "short", "long 2", "long 3")


async def test_who_goes_just_as_its_turn_comes_gives_it_back() -> None:
    crowd = Crowd()
    crowd.ask("a")
    crowd.ask("b")
    await crowd.until_begun("a")
    crowd._ends["a"].set()
    await crowd.tasks["a"]  # and with its end the turn was b's, who has not heard of it
    crowd.tasks["b"].cancel()
    await asyncio.wait([crowd.tasks["b"]])
    crowd.ask("c")
    await crowd.until_begun("c")
    await crowd.finish("c")


async def test_the_server_s_own_work_beside_its_event_loop_waits_for_no_text() -> None:
    """Loading a tokenizer, for one: it is done by `asyncio.to_thread`."""
    pool, released = TokenizingPool(1), threading.Event()

    def name_of_thread() -> str:
        released.wait()
        return threading.current_thread().name

    async def work() -> str:
        async with pool.turn("t", "c", 1):
            return await pool.run(name_of_thread)

    crowd = [asyncio.create_task(work()) for _ in range(50)]
    try:
        theirs = await asyncio.to_thread(lambda: threading.current_thread().name)
        assert not any(task.done() for task in crowd)
    finally:
        released.set()
    assert theirs not in await asyncio.gather(*crowd)
