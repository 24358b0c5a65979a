"""A house with a reader in it, for tests of the hub: what they all begin with, and wait for."""

from __future__ import annotations

import asyncio
from typing import Any

from midstream import protocol
from midstream.protocol import Credit, Error, Params
from realtime.hub.hub import LONG_TEXT
from tests.fakes.checking_client import Account, Reader
from tests.fakes.simulated_server import SimulatedServer, EngineSize

ROOM = EngineSize(kv_tokens=4096, block=16, step_tokens=4096, slots=3)
LONG = "long " * LONG_TEXT
TENANT = "tenant"  # that readers are of, if nothing else is said


def start(request_id: str = "a", **fields: Any) -> protocol.Start:
    defaults: dict[str, Any] = {"prompt": "Once", "return_tokens": True}
    return protocol.Start(request_id=request_id, **(defaults | fields))


def endless(request_id: str = "a", **fields: Any) -> protocol.Start:
    """A stream that does not end by itself, always the same."""
    return start(request_id, params=Params(ignore_eos=True, temperature=0), **fields)


def refused(reader: Reader) -> Error:
    """The one thing that was said no to since the last time."""
    (error,) = reader.errors
    reader.errors.clear()
    return error


def opened(room: EngineSize = ROOM) -> tuple[SimulatedServer, Reader]:
    house = SimulatedServer(room)
    return house, Reader(house)


def run_out(house: SimulatedServer, account: Account) -> protocol.Final:
    while account.final is None:
        assert not house.at_rest, "it still has something to do"
        house.tick()
    return account.final


def rest(house: SimulatedServer) -> None:
    """Until nothing moves by itself."""
    while not house.at_rest:
        house.tick()


def due() -> tuple[SimulatedServer, Reader]:
    """A stream that has come to its end ahead of its reader's credit; the engine knows it no more."""
    house, reader = opened()
    params = Params(max_tokens=4, ignore_eos=True)
    reader.send(start(credit=Credit(limit=1, prefetch=9), params=params))
    rest(house)
    assert not house.engine.scheduler.sequences
    assert len(house.hub.streams) == 1
    return house, reader


async def settled(*others: asyncio.Task[None]) -> None:
    """Wait until no text is being tokenized; `others` are tasks of the test's own."""
    while tasks := asyncio.all_tasks() - {asyncio.current_task(), *others}:
        await asyncio.wait(tasks)
