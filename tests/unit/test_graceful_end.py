"""The server's graceful end, without a server."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

from realtime.server import let_finish
from tests.fakes.simulated_client import SIZE
from tests.fakes.simulated_server import SimulatedServer


class Open:
    """A connection that closes, but not at once, or fails to."""

    def __init__(self, *, fails: bool) -> None:
        self.closed = False
        self._fails = fails

    def send_event(self, event: object) -> None:
        """It hears of it."""

    async def close_for_good(self) -> None:
        if self._fails:
            raise OSError("of the transport")
        await asyncio.sleep(0)
        self.closed = True


async def test_a_connection_that_fails_to_close_ends_the_wait_for_no_other() -> None:
    failing, slow = Open(fails=True), Open(fails=False)
    endpoints = SimpleNamespace(open={"failing": failing, "slow": slow})
    await let_finish(SimulatedServer(SIZE).hub, None, endpoints, grace_s=1, hands_over=False)  # type: ignore[arg-type]
    assert slow.closed
