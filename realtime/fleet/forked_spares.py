"""Forked spares: the copies that engine processes leave behind before they load a model, which share what
both have loaded with them.

It knows descriptors and processes of Linux; elsewhere there are none, and each engine is a process that loads
everything anew. It does not know what is said to a spare.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import signal
import socket
import sys
import threading

PR_SET_CHILD_SUBREAPER = 36


class AdoptedProcess:
    """A process whose parent has ended, and that is ours since: its number is nobody else's until it was
    waited for."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._end: asyncio.Future[int] | None = None

    def kill(self) -> None:
        if self._end is None or not self._end.done():
            os.kill(self.pid, signal.SIGKILL)

    async def wait(self) -> int:
        """Its status, when it has ended, and nothing is left of it. It may never: the thread goes with the
        server."""
        if self._end is None:
            loop = asyncio.get_running_loop()
            end: asyncio.Future[int] = loop.create_future()
            threading.Thread(target=self._wait, args=(loop, end), name="reaper", daemon=True).start()
            self._end = end  # where no thread can be started, who asks again tries again
        return await asyncio.shield(self._end)

    def _wait(self, loop: asyncio.AbstractEventLoop, end: asyncio.Future[int]) -> None:
        status = 0
        with contextlib.suppress(ChildProcessError):
            status = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        with contextlib.suppress(RuntimeError):  # the loop is over
            loop.call_soon_threadsafe(end.set_result, status)


class ForkedSpares:
    """At most one waits to be taken: nobody would hear of the end of one that was let go
    before it said who it is."""

    def __init__(self) -> None:
        self._connection: socket.socket | None = None

    def expect(self) -> socket.socket | None:
        """The end of a connection that a process may leave to its copy; None where a copy waits already,
        or no descriptors are left."""
        self._close_if_vain()
        if self._connection is not None:
            return None
        try:
            self._connection, theirs = socket.socketpair()
        except OSError:
            return None
        return theirs

    def take(self) -> socket.socket | None:
        """Our end, if the other is open: a copy has it. One that was not to be is closed at once."""
        self._close_if_vain()
        connection, self._connection = self._connection, None
        return connection

    def _close_if_vain(self) -> None:
        if self._connection is not None and _is_closed(self._connection):
            self._connection.close()
            self._connection = None


def _is_closed(connection: socket.socket) -> bool:
    """Whether nothing more can come."""
    try:
        return not connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    except BlockingIOError:
        return False
    except OSError:
        return True


def forked_spares() -> ForkedSpares | None:
    """From now on this process is the parent of whoever among its descendants loses theirs; None where it
    cannot be."""
    if sys.platform != "linux":
        return None
    refused = ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    return None if refused else ForkedSpares()
