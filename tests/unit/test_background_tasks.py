"""Tasks for as long as the server runs: one that dies says so, and is started anew."""

from __future__ import annotations

import asyncio

import pytest

from realtime.background_tasks import BackgroundTasks
from realtime.backoff import Backoff


class Work:
    """It ends as it is told to, as often as it is begun."""

    def __init__(self) -> None:
        self.begun: asyncio.Queue[asyncio.Future[None]] = asyncio.Queue()

    async def __call__(self) -> None:
        end: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.begun.put_nowait(end)
        await end


async def heard() -> None:
    """In a few turns of the loop everybody has heard of what has just happened."""
    for _ in range(5):
        await asyncio.sleep(0)


def die(end: asyncio.Future[None]) -> None:
    end.set_exception(OSError(24, "Too many open files"))


def end(end: asyncio.Future[None]) -> None:
    end.set_result(None)


def cancel_what_is_awaited(end: asyncio.Future[None]) -> None:
    end.cancel()


@pytest.mark.parametrize("how", [die, end, cancel_what_is_awaited])
async def test_what_dies_says_so_and_is_begun_anew(how: object, caplog: pytest.LogCaptureFixture) -> None:
    assert callable(how)
    tasks, work = BackgroundTasks(first_wait_s=0.01), Work()
    tasks.start("the watch", work)
    for _ in range(2):
        caplog.clear()
        how(await work.begun.get())
        await heard()
        assert tasks.dead == ["the watch"]
        assert "the watch has" in caplog.text
        assert "started anew" in caplog.text
    await work.begun.get()
    assert tasks.dead == []
    await tasks.stop()


async def test_the_stack_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    tasks, work = BackgroundTasks(first_wait_s=0.01), Work()
    tasks.start("the watch", work)
    die(await work.begun.get())
    await heard()
    assert "await end" in caplog.text
    await tasks.stop()


async def test_what_is_stopped_is_not_begun_anew(caplog: pytest.LogCaptureFixture) -> None:
    tasks, work = BackgroundTasks(first_wait_s=0.0), Work()
    started = tasks.start("the watch", work)
    await work.begun.get()
    await tasks.stop()
    assert started.cancelled()
    assert (tasks.dead, work.begun.qsize(), caplog.text) == ([], 0, "")


async def test_what_is_wanted_no_more_while_it_is_dead_is_not_told_of_for_ever() -> None:
    """As an engine's, whose address is taken out of the file: nobody starts that anew."""
    tasks, work = BackgroundTasks(first_wait_s=1000.0), Work()
    started = tasks.start("the watch", work)
    die(await work.begun.get())
    await heard()
    assert tasks.dead == ["the watch"]
    started.cancel()
    await heard()
    assert tasks.dead == []


def test_a_backoff_doubles_up_to_its_longest_and_begins_anew() -> None:
    backoff = Backoff(first_s=0.25, longest_s=1.5)
    assert [backoff.next_s() for _ in range(5)] == [0.25, 0.5, 1.0, 1.5, 1.5]
    backoff.reset()
    assert backoff.next_s() == 0.25
