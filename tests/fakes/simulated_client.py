"""A server with a reader in it, for tests of the hub: what they all begin with, and wait for."""

from __future__ import annotations

import asyncio
from typing import Any

from midstream import protocol
from midstream.protocol import Credit, Error, Params
from realtime.hub.hub import LONG_TEXT
from tests.fakes.checking_client import Account, Reader
from tests.fakes.simulated_server import EngineSize, SimulatedServer

SIZE = EngineSize(kv_tokens=4096, block=16, step_tokens=4096, slots=3)
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


def opened(size: EngineSize = SIZE) -> tuple[SimulatedServer, Reader]:
    server = SimulatedServer(size)
    return server, Reader(server)


def run_out(server: SimulatedServer, account: Account) -> protocol.Final:
    while account.final is None:
        assert not server.at_rest, "it still has something to do"
        server.tick()
    return account.final


def rest(server: SimulatedServer) -> None:
    """Until nothing moves by itself."""
    while not server.at_rest:
        server.tick()


def due() -> tuple[SimulatedServer, Reader]:
    """A stream that has come to its end ahead of its reader's credit; the engine knows it no more."""
    server, reader = opened()
    params = Params(max_tokens=4, ignore_eos=True)
    reader.send(start(credit=Credit(limit=1, prefetch=9), params=params))
    rest(server)
    assert not server.engine.scheduler.sequences
    assert len(server.hub.streams) == 1
    return server, reader


async def settled(*others: asyncio.Task[None]) -> None:
    """Wait until no text is being tokenized; `others` are tasks of the test's own."""
    while tasks := asyncio.all_tasks() - {asyncio.current_task(), *others}:
        await asyncio.wait(tasks)
