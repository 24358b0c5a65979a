"""The supervisor of an engine, with links that lead nowhere: whatever dies, hangs or cannot be started, an
engine comes back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from engine import api
from realtime.background_tasks import BackgroundTasks
from realtime.fleet import long_start
from realtime.fleet.fleet import Fleet
from realtime.fleet.place import EnginePlace
from realtime.fleet.supervisor import Patience
from realtime.fleet.watched_engine import EngineFailed, Hear
from tests.fakes.engine_links import HELLO, Begun, Link
from tests.fakes.recording_listener import RecordingListener
from tests.fakes.simulated_client import SIZE, endless
from tests.fakes.simulated_server import SimulatedServer


class Kept:
    """A supervisor whose engines, and spares, have these faults, one after the other, and later none."""

    def __init__(self, *faults: str, start_silence_s: float = 0.02, spare: bool = False) -> None:
        self.links: list[Link] = []
        self.spares: asyncio.Queue[Link] = asyncio.Queue()  # each when it is being prepared
        self.begun = Begun()
        self._faults = iter(faults)
        self.fleet = Fleet(
            [EnginePlace("the engine", self._connect)],
            self.begun,
            BackgroundTasks(),
            patience=Patience(silence_s=0.5, start_s=start_silence_s, answer_s=0.02),
            spare=spare,
        )
        self.server = SimulatedServer(SIZE)
        self.fleet.hub = self.server.hub
        self.fleet.hub.engine_lost(0)  # the server's own

    @property
    def ready(self) -> bool:
        assert self.fleet.hub is not None
        return self.fleet.hub.serving.takes_starts

    def _connect(self, hear: Hear, closed: Callable[[], None]) -> Link:
        self.links.append(Link(hear, closed, self.spares.put_nowait, next(self._faults, "")))
        return self.links[-1]


@asynccontextmanager
async def started(kept: Kept) -> AsyncIterator[Kept]:
    """With its first engine."""
    try:
        async with asyncio.timeout(10):
            await kept.fleet.start()
            await kept.begun.engines.get()
            yield kept
    finally:
        await kept.fleet.stop()


async def test_an_engine_that_hangs_while_it_takes_over_is_ended_for_another() -> None:
    async with started(Kept("", "hangs")) as kept:
        kept.links[0].closed()
        await kept.begun.engines.get()
        assert [link.killed for link in kept.links] == [False, True, False]
        assert kept.ready


async def test_an_engine_that_hangs_as_it_loads_its_model_is_named_in_the_log_until_it_serves(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It goes on saying that it is loading, and nobody else would say anything."""
    said = asyncio.Queue[str]()
    monkeypatch.setattr(long_start, "STILL_S", 0.0)
    monkeypatch.setattr(long_start.log, "warning", lambda line, *values: said.put_nowait(line % values))
    kept = Kept("hangs", start_silence_s=1000)
    starting = asyncio.create_task(kept.fleet.start())
    async with asyncio.timeout(10):
        for _ in range(2):
            assert await said.get() == "the engine does not serve yet, 0 s after it was started"
        kept.links[0].hear(HELLO)
        await starting
    while not said.empty():
        said.get_nowait()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert said.empty()
    await kept.fleet.stop()


async def test_an_engine_to_which_streams_are_not_given_since_a_mistake_shows_is_lost_to_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is given up, and those that it had by then were its own for ever, though another served."""
    async with started(Kept()) as kept:
        RecordingListener(kept.server).send(endless())
        monkeypatch.setattr("realtime.hub.submission._give_work", fails_once(monkeypatch))
        kept.links[0].closed()
        await kept.begun.engines.get()
        await kept.begun.engines.get()
        (entry,) = kept.server.hub.serving.entries
        assert entry.engine is not None
        assert list(kept.server.hub.serving.engines.values()) == [entry.engine]


async def test_an_engines_end_is_heard_where_a_mistake_shows_as_it_is_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with started(Kept()) as kept:
        RecordingListener(kept.server).send(endless())
        (entry,) = kept.server.hub.serving.entries
        lost = entry.engine
        with monkeypatch.context() as patch:
            patch.setattr(kept.begun, "engine_lost", lambda engine, dismissed: 1 // 0)
            with pytest.raises(ZeroDivisionError):
                kept.links[0].closed()
        assert entry.engine is None
        await kept.begun.engines.get()
        assert entry.engine not in (None, lost)


def fails_once(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    def fail(*_: object) -> None:
        monkeypatch.undo()
        raise ValueError("what nobody expects")

    return fail


async def test_what_an_engine_had_does_not_wait_until_it_is_dead_that_hangs_in_the_system() -> None:
    async with started(Kept()) as kept:
        kept.links[0].fault = "does not die"
        await kept.begun.engines.get()
        assert kept.links[0].killed
        assert kept.ready


async def test_the_next_engine_is_opened_when_the_last_one_is_gone_and_its_memory_with_it() -> None:
    async with started(Kept()) as kept:
        kept.links[0].gone.clear()
        kept.links[0].closed()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert len(kept.links) == 1
        kept.links[0].gone.set()
        await kept.begun.engines.get()
        assert len(kept.links) == 2


async def test_whoever_starts_a_server_hears_that_its_engine_does_not_start() -> None:
    kept = Kept("hangs")
    with pytest.raises(EngineFailed, match=r"it has said nothing for 0.02 s while it started"):
        await kept.fleet.start()
    assert kept.links[0].killed
    await kept.fleet.stop()


async def test_why_an_engine_fails_that_served_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """As where it has no number for a stream of ours, and hangs up."""
    async with started(Kept()) as kept:
        kept.links[0].hear(api.Failed("what was sent is no message of a gateway"))
        kept.links[0].closed()
        await kept.begun.engines.get()
        kept.links[1].closed()
        await kept.begun.engines.get()
    first, second = [record.getMessage() for record in caplog.records if "another is" in record.getMessage()]
    why = "has failed: what was sent is no message of a gateway"
    assert first == f"the engine {why}; another is to take its place"
    assert second == "the engine has died; another is to take its place"


async def test_what_an_engine_says_that_was_given_up_is_not_heard() -> None:
    async with started(Kept()) as kept:
        kept.links[0].closed()
        await kept.begun.engines.get()
        kept.links[0].closed()
        kept.links[0].hear(api.Failed("of long ago"))
        assert kept.ready


# -- the spare -------------------------------------------------------------------------------------


async def test_a_spare_takes_over_and_another_stands_behind_it() -> None:
    async with started(Kept(spare=True)) as kept:
        await kept.spares.get()
        kept.links[0].closed()
        await kept.begun.engines.get()
        await kept.spares.get()
        assert kept.ready
        assert [link.killed for link in kept.links] == [False, False, False]


async def test_an_engine_comes_back_where_no_spare_can_be_prepared(caplog: pytest.LogCaptureFixture) -> None:
    """As where the file descriptors are used up."""
    async with started(Kept("", "cannot be prepared", spare=True)) as kept:
        await kept.spares.get()
        kept.links[0].closed()
        await kept.begun.engines.get()
        assert kept.ready
        assert "no spare engine can be prepared: [Errno 24] Too many open files; trying again" in caplog.text
        assert await kept.spares.get() is not kept.links[1]


async def test_a_spare_that_dies_alone_is_replaced() -> None:
    async with started(Kept(spare=True)) as kept:
        (await kept.spares.get()).closed()
        another = await kept.spares.get()
        assert kept.ready, "and the engine does not feel it"
        kept.links[0].closed()
        await kept.begun.engines.get()
        assert await kept.spares.get() is not another, "which has taken over"
        assert len(kept.links) == 4


async def test_a_spare_that_does_not_answer_is_given_up_long_before_one_that_loads_libraries() -> None:
    async with started(Kept("", "hangs", start_silence_s=1000, spare=True)) as kept:
        await kept.spares.get()
        kept.links[0].closed()
        await kept.begun.engines.get()
        assert [link.killed for link in kept.links[:3]] == [False, True, False]
