"""The process beside the gateway that asks Ray where engines are, and writes it into the file of addresses.

The gateway is no driver of Ray's, which would end with it: it knows that process, and not Ray.
"""

from __future__ import annotations

import asyncio
import logging
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

from engine.model.with_parent import with_this_process
from realtime.backoff import Backoff
from realtime.config import Options
from realtime.fleet.fleet import PlaceError
from realtime.fleet.places import NEEDS_RAY

log = logging.getLogger(__name__)

AGENT = "keeper.agent"
FIRST_WAIT_S, LONGEST_WAIT_S = 0.5, 10.0


class RayAgent:
    def __init__(self, ray: str, file: Path) -> None:
        """Raises PlaceError."""
        if find_spec("ray") is None:
            raise PlaceError(f"--fleet ray {NEEDS_RAY}")
        try:
            file.touch()  # engines that were in it are tried, whether or not Ray can be asked
        except OSError as error:
            raise PlaceError(f"the file {file} cannot be written: {error.strerror}") from None
        self._command = with_this_process(AGENT, ray, str(file))

    async def keep_running(self) -> None:
        backoff = Backoff(first_s=FIRST_WAIT_S, longest_s=LONGEST_WAIT_S)
        while True:
            process = await asyncio.create_subprocess_exec(
                *self._command, stdin=DEVNULL, stdout=PIPE, stderr=DEVNULL
            )
            try:
                assert process.stdout is not None
                async for line in process.stdout:
                    log.warning("%s", line.decode().strip())
                    backoff.reset()
                status = await process.wait()
            finally:
                if process.returncode is None:
                    process.kill()
                    await process.wait()
            log.error(
                "the process that asks Ray for engines has ended with status %d; it is started anew", status
            )
            await asyncio.sleep(backoff.next_s())


@contextmanager
def with_a_file(options: Options) -> Iterator[Options]:
    """Where none is named for addresses of Ray's engines, one for as long as the server runs."""
    if options.fleet != "ray" or options.engine_addresses_file:
        yield options
        return
    with TemporaryDirectory(prefix="midstream-") as folder:
        yield replace(options, engine_addresses_file=str(Path(folder, "engines")))
