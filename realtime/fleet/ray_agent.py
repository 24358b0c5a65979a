"""The process beside the gateway that asks Ray where engines are, and writes it into the file of addresses.
It is told what streams need, and tells how the fleet is.

The gateway is no driver of Ray's, which would end with it: it knows that process, and not Ray.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec

from engine.model.with_parent import with_this_process
from realtime.backoff import Backoff
from realtime.config import Options
from realtime.fleet.place import NEEDS_RAY, PlaceError
from realtime.hub.demand import Demand
from realtime.hub.placement import Placement
from realtime.pieces import Pieces

log = logging.getLogger(__name__)

AGENT = "keeper.agent"
FIRST_WAIT_S, LONGEST_WAIT_S = 0.5, 10.0
SAY_EVERY_S = 0.5
SILENCE_S = 120.0  # of one that has hung: twice as long as Ray's library may look for a GCS that is gone
LOOKS = 10  # in that time: whoever was stopped itself for as long is late in one of them alone
MOST_OF_A_LINE = 16 << 20  # bytes: of a thousand machines it has some hundred thousand


class RayAgent:
    def __init__(self, ray: str, file: Path) -> None:
        """Raises PlaceError."""
        if find_spec("ray") is None:
            raise PlaceError(f"--fleet ray {NEEDS_RAY}")
        try:
            file.touch()  # engines that were in it are tried, whether or not Ray can be asked
        except OSError as error:
            raise PlaceError(f"the file {file} cannot be written: {error.strerror}") from None
        self._command = with_this_process(AGENT, ray, str(file), secrets.token_hex(8))

    async def keep_running(
        self, look: Callable[[], Pieces[dict[str, Demand]]], receive: Callable[[Placement], None]
    ) -> None:
        """`look`: at what streams need."""
        backoff = Backoff(first_s=FIRST_WAIT_S, longest_s=LONGEST_WAIT_S)
        while True:
            process = await asyncio.create_subprocess_exec(
                *self._command, stdin=PIPE, stdout=PIPE, stderr=DEVNULL, limit=MOST_OF_A_LINE
            )
            assert process.stdin is not None
            try:
                async with asyncio.TaskGroup() as both:
                    saying = both.create_task(_say(look, process.stdin))
                    while line := await _next_line(process):
                        if _hear(line, receive):
                            backoff.reset()
                    status = await process.wait()
                    saying.cancel()
            finally:
                if process.returncode is None:
                    process.kill()
                    await process.wait()
            log.error(
                "the process that asks Ray for engines has ended with status %d; it is started anew", status
            )
            await asyncio.sleep(backoff.next_s())


async def _next_line(process: Process) -> bytes:
    """Nothing at its end, which comes by us where it has hung: engines that are new nobody would hear of."""
    assert process.stdout is not None
    reading = asyncio.ensure_future(process.stdout.readline())
    try:
        for _ in range(LOOKS):
            await asyncio.wait([reading], timeout=SILENCE_S / LOOKS)
            if reading.done():
                return reading.result()
    finally:
        reading.cancel()
    log.error("the process that asks Ray for engines has said nothing for %g s: it is ended", SILENCE_S)
    process.kill()
    return b""


async def _say(look: Callable[[], Pieces[dict[str, Demand]]], lines: asyncio.StreamWriter) -> None:
    with suppress(ConnectionError):  # it has ended, and is started anew
        while True:
            lines.write(msgspec.json.encode(await _in_turns(look())) + b"\n")
            await lines.drain()
            await asyncio.sleep(SAY_EVERY_S)


def _hear(line: bytes, receive: Callable[[Placement], None]) -> bool:
    """Whether it tells how the fleet is: other lines may be all that one says before it ends. An empty one
    says that it lives."""
    if not line.strip():
        return False
    try:
        placement = msgspec.json.decode(line, type=Placement)
    except msgspec.DecodeError:
        log.warning("%s", line.decode(errors="replace").strip())
        return False
    receive(placement)
    return True


async def _in_turns(work: Pieces[dict[str, Demand]]) -> dict[str, Demand]:
    """Others have theirs in between."""
    while True:
        try:
            next(work)
        except StopIteration as done:
            found: dict[str, Demand] = done.value
            return found
        await asyncio.sleep(0)


@contextmanager
def with_a_file(options: Options) -> Iterator[Options]:
    """Where none is named for addresses of Ray's engines, one for as long as the server runs. Raises
    PlaceError."""
    if options.fleet != "ray" or options.engine_addresses_file:
        yield options
        return
    try:
        made = TemporaryDirectory(prefix="midstream-")
    except OSError as error:  # a full disk
        raise PlaceError(f"no folder can be made for engines' addresses: {error.strerror}") from None
    with made as folder:
        yield replace(options, engine_addresses_file=str(Path(folder, "engines")))
