"""The keepalive of one connection: pings at intervals, and the end of a peer from which nothing is heard.

It knows timers, and no bytes: what a ping is, and how a connection ends, is told to it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable


def _nothing() -> None:
    pass


def _never() -> bool:
    return False


class Keepalive:
    """Pings a peer at intervals; one from which nothing at all is heard for `timeout_s` after a ping is dead.

    Anything that comes from the peer proves that it lives, and a peer to which we do not listen just now
    (`listening` says so) cannot prove it.
    """

    def __init__(
        self,
        *,
        interval_s: float | None,
        timeout_s: float | None,
        ping: Callable[[], None],
        dead: Callable[[], None],
        listening: Callable[[], bool],
    ) -> None:
        self._interval_s = interval_s
        self._timeout_s = timeout_s
        self._send_ping = ping
        self._dead = dead
        self._listening = listening
        self._heard = False
        self._ping_timer: asyncio.TimerHandle | None = None
        self._deadline: asyncio.TimerHandle | None = None

    def start(self) -> None:
        if self._interval_s:
            self._ping_timer = asyncio.get_running_loop().call_later(self._interval_s, self._ping)

    def heard(self) -> None:
        self._heard = True

    def stop(self) -> None:
        """For good, and it knows nobody any more."""
        for timer in (self._ping_timer, self._deadline):
            if timer is not None:
                timer.cancel()
        self._send_ping = self._dead = _nothing
        self._listening = _never

    def _ping(self) -> None:
        self._send_ping()
        self.start()
        if self._timeout_s is not None and self._deadline is None:
            self._heard = False
            self._deadline = asyncio.get_running_loop().call_later(self._timeout_s, self._judge)

    def _judge(self) -> None:
        self._deadline = None
        if not self._heard and self._listening():
            self._dead()
