"""The server under test: one for each experiment, gone when that is over, and what they complained of."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tests.server.server_process import Served


@asynccontextmanager
async def serving(*options: str, scripted: bool = False, loaded: bool = True) -> AsyncIterator[Served]:
    """A server with the toy model and a log to be read, which is told if the experiment itself fails.
    `scripted`: whether the model says what it is told to. One of which memory or pace is measured starts as a
    user's, and is not `loaded`."""
    served = await asyncio.to_thread(Served, *options, scripted=scripted, loaded=loaded)
    try:
        yield served
    except BaseException:
        print(served.log()[-4000:], file=sys.stderr)
        raise
    finally:
        served.end()


def complaints(served: Served) -> list[str]:
    """What no client may bring about."""
    return [line for line in served.log().splitlines() if line.startswith(("Traceback", "ERROR asyncio"))]
