"""The service manager: whoever started this process and asked to be told how it fares, as systemd does
(sd_notify(3)): that it serves, that it ends, and again and again that its event loop turns. Where nobody has
asked, nobody is told; and whoever does not listen is not waited for.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Mapping
from contextlib import suppress

from realtime.background_tasks import BackgroundTasks

ADDRESS, PERIOD, WHOSE = "NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"
SERVES, ENDS, LIVES = "READY=1", "STOPPING=1", "WATCHDOG=1"


def asking(address: str, silence_s: float) -> dict[str, str]:
    """What a process finds in its environment that is to tell it there, and lives if it is never silent for
    so long."""
    return {ADDRESS: address, PERIOD: str(round(1e6 * silence_s))}


def not_asking(environ: Mapping[str, str]) -> dict[str, str]:
    """For a process of ours: it was us who were asked."""
    return {name: value for name, value in environ.items() if name not in (ADDRESS, PERIOD, WHOSE)}


class ServiceManager:
    def __init__(self, environ: Mapping[str, str]) -> None:
        address = environ.get(ADDRESS, "")
        self._address = f"\0{address[1:]}" if address.startswith("@") else address
        period = environ.get(PERIOD, "") if environ.get(WHOSE, str(os.getpid())) == str(os.getpid()) else ""
        self._silence_s = int(period) / 1e6 if period.isdigit() else 0.0

    @property
    def watches(self) -> bool:
        return bool(self._address and self._silence_s)

    def tell(self, state: str) -> None:
        if not self._address:
            return
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as telling:
            telling.setblocking(False)
            telling.sendto(state.encode(), self._address)

    def serves(self, background: BackgroundTasks) -> None:
        """From now on; and lives, for as long as that is to be told."""
        self.tell(SERVES)
        if self.watches:
            background.start("the word to the service manager", self.keep_telling)

    async def keep_telling(self) -> None:
        """That the event loop turns, twice in the time in which it has to be told."""
        while True:
            self.tell(LIVES)
            await asyncio.sleep(self._silence_s / 2)
