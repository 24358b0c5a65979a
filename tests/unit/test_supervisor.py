"""An engine's keeper, with links that lead nowhere: what hangs at its start is ended for another."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from engine import api, toy_model
from realtime.engines.supervisor import EngineFailed, Supervisor
from realtime.hub.observers import Observer
from tests.fakes.simulated_client import SIZE
from tests.fakes.simulated_server import SimulatedServer

HELLO = api.Hello(
    model="toy",
    folder=str(toy_model.FOLDER),
    vocab=toy_model.VOCAB,
    context=4096,
    eos=[toy_model.EOS],
    kv_tokens=4096,
    block=16,
    device="cpu",
    dtype="float32",
    attention="none",
)


class Link:
    """To an engine that says hello as soon as it is opened, and answers what it is sent; or nothing."""

    def __init__(
        self, hear: Callable[[api.AnyMessage], None], closed: Callable[[], None], *, hangs: bool
    ) -> None:
        self.hear = hear
        self.closed = closed
        self.hangs = hangs
        self.killed = False
        self.gone = asyncio.Event()
        self.gone.set()

    async def prepare(self) -> None: ...

    async def open(self) -> None:
        if not self.hangs:
            asyncio.get_running_loop().call_soon(self.hear, HELLO)

    def send(self, commands: list[api.AnyCommand]) -> None:
        if not self.hangs:
            asyncio.get_running_loop().call_soon(self.hear, api.StepOutput(1, [], api.Stats()))

    def kill(self) -> None:
        self.killed = True
        self.closed()

    async def close(self) -> None:
        await self.gone.wait()


class Begun(Observer):
    def __init__(self) -> None:
        self.engines: asyncio.Queue[api.Hello] = asyncio.Queue()

    def engine_ready(self, hello: api.Hello) -> None:
        self.engines.put_nowait(hello)


class Kept:
    """A supervisor whose engines hang at their start, or do not, one after the other."""

    def __init__(self, *hangs: bool) -> None:
        self.links: list[Link] = []
        self.begun = Begun()
        self._hangs = iter(hangs)
        self.supervisor = Supervisor(self._connect, self.begun, silence_s=0.5, start_silence_s=0.02)
        self.supervisor.hub = SimulatedServer(SIZE).hub
        self.supervisor.hub.engine_lost()  # the server's own

    def _connect(self, hear: Callable[[api.AnyMessage], None], closed: Callable[[], None]) -> Link:
        self.links.append(Link(hear, closed, hangs=next(self._hangs)))
        return self.links[-1]


async def test_an_engine_that_hangs_while_it_takes_over_is_ended_for_another() -> None:
    kept = Kept(False, True, False)
    await kept.supervisor.start()
    await kept.begun.engines.get()
    kept.links[0].closed()
    await kept.begun.engines.get()
    assert [link.killed for link in kept.links] == [False, True, False]
    assert kept.supervisor.ready
    await kept.supervisor.stop()


async def test_the_next_engine_is_opened_when_the_last_one_is_gone_and_its_memory_with_it() -> None:
    kept = Kept(False, False)
    await kept.supervisor.start()
    await kept.begun.engines.get()
    kept.links[0].gone.clear()
    kept.links[0].closed()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert len(kept.links) == 1
    kept.links[0].gone.set()
    await kept.begun.engines.get()
    assert len(kept.links) == 2
    await kept.supervisor.stop()


async def test_whoever_starts_a_server_hears_that_its_engine_does_not_start() -> None:
    kept = Kept(True)
    with pytest.raises(EngineFailed, match="its process ended before it was ready"):
        await kept.supervisor.start()
    await kept.supervisor.stop()
