"""Several gateways over the same engines that listen, each a server of its own, with the toy model."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from tests.server.listening_engine import ListeningEngine, listening
from tests.server.server_process import Served

Serve = Callable[..., Served]
STEP = ("--toy-step-ms", "15")


def static(engines: list[ListeningEngine]) -> tuple[str, ...]:
    """A gateway's options, to have these."""
    return ("--fleet", "static", "--engine-addresses", " ".join(engine.address for engine in engines))


@asynccontextmanager
async def gateways(
    folder: Path, serve: Serve, *options: str, count: int = 2, engines: int = 1
) -> AsyncIterator[list[Served]]:
    """`options` are the gateways'."""
    fleet = [ListeningEngine(*STEP, listen=f"unix:{folder}/engine{number}") for number in range(engines)]
    async with listening(fleet):
        yield [await asyncio.to_thread(serve, *static(fleet), *options) for _ in range(count)]
        for engine in fleet:
            engine.tell()
            assert engine.ended() == 0, engine.said
            assert "Traceback" not in "".join(engine.said)
