"""The acceptor: takes connections off a listening socket, for as long as there are file descriptors for them.

Some are kept back, for without any nothing could be opened that the server needs to go on: a new engine's
pipe, a file of keys. While no more than those are free, whoever connects waits in the kernel's queue. It
knows sockets and descriptors, and nothing of what is said.
"""

from __future__ import annotations

import asyncio
import logging
import os
import resource
import socket
from collections.abc import Callable

log = logging.getLogger("midstream")

# A crowd that connects holds up those who are connected for some ten milliseconds, and no longer.
ACCEPTED_AT_ONCE = 32
KEPT_DESCRIPTORS = 32  # what starting an engine takes, several times over
PAUSE_S = 0.25
SAID_EVERY_S = 60.0


class Acceptor:
    def __init__(self, listening: socket.socket, new_protocol: Callable[[], asyncio.Protocol]) -> None:
        """Begin. `listening` is its owner's until `close`."""
        self._listening = listening
        self._new_protocol = new_protocol
        self._loop = asyncio.get_running_loop()
        self._pause: asyncio.TimerHandle | None = None
        self._silent_until_s = 0.0
        self._beginning: set[asyncio.Task[object]] = set()
        listening.setblocking(False)
        self._listen()

    def close(self) -> None:
        """Nobody can connect any more: whom the kernel took would wait for as long as this process lives."""
        if self._pause is not None:
            self._pause.cancel()
        self._loop.remove_reader(self._listening)
        self._listening.close()

    def _listen(self) -> None:
        self._pause = None
        self._loop.add_reader(self._listening, self._accept)

    def _accept(self) -> None:
        try:
            if not self._accept_some(most=_usable_descriptors()):
                self._wait_for_room("the file descriptors are used up")
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            pass  # nobody waits, or who waited has gone
        except OSError as error:
            self._wait_for_room(os.strerror(error.errno or 0))

    def _accept_some(self, most: int) -> bool:
        """Whether there is room for more. A new descriptor is always the lowest that is free, so its number
        says whether those below are in use (POSIX.1-2017, 2.14)."""
        probe = os.dup(self._listening.fileno())
        os.close(probe)
        if probe >= most:
            return False
        for _ in range(ACCEPTED_AT_ONCE):
            accepted, _ = self._listening.accept()
            self._begin(accepted)
            if accepted.fileno() >= most - 1:
                return False
        return True

    def _begin(self, accepted: socket.socket) -> None:
        accepted.setblocking(False)
        task = self._loop.create_task(self._loop.connect_accepted_socket(self._new_protocol, accepted))
        self._beginning.add(task)
        task.add_done_callback(self._beginning.discard)

    def _wait_for_room(self, why: str) -> None:
        self._loop.remove_reader(self._listening)
        self._pause = self._loop.call_later(PAUSE_S, self._listen)
        if self._loop.time() >= self._silent_until_s:
            self._silent_until_s = self._loop.time() + SAID_EVERY_S
            log.warning("whoever connects now has to wait: %s (see `ulimit -n`)", why)


def _usable_descriptors() -> int:
    """How many may be in use while connections are accepted. The limit may be changed at any time."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit == resource.RLIM_INFINITY:
        limit = 1 << 30
    return max(limit - KEPT_DESCRIPTORS, limit // 2)
