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

PR_SET_CHILD_SUBREAPER = 36


class AdoptedProcess:
    """A process whose parent has ended, and that is ours since."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._descriptor: int | None = os.pidfd_open(pid)

    def kill(self) -> None:
        if self._descriptor is not None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._descriptor, signal.SIGKILL)

    async def wait(self) -> None:
        """Until it has ended, and nothing is left of it."""
        if self._descriptor is None:
            return
        loop, ended = asyncio.get_running_loop(), asyncio.Event()
        loop.add_reader(self._descriptor, ended.set)
        try:
            await ended.wait()
        finally:
            loop.remove_reader(self._descriptor)
        with contextlib.suppress(ChildProcessError):
            os.waitid(os.P_PIDFD, self._descriptor, os.WEXITED)  # noqa: ASYNC222 - it has
        os.close(self._descriptor)
        self._descriptor = None


class ForkedSpares:
    """At most one at a time."""

    def __init__(self) -> None:
        self._connection: socket.socket | None = None

    def expect(self) -> socket.socket | None:
        """The end of a connection that a process may leave to its copy; None where no descriptors are left.
        Of one that was expected before, nothing is expected any more."""
        try:
            ours, theirs = socket.socketpair()
        except OSError:
            return None
        self._close()
        self._connection = ours
        return theirs

    def take(self) -> socket.socket | None:
        """Our end, if there is somebody at the other who has spoken."""
        if self._connection is None or not _has_spoken(self._connection):
            self._close()
        connection, self._connection = self._connection, None
        return connection

    def _close(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._connection = None


def _has_spoken(connection: socket.socket) -> bool:
    try:
        return bool(connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT))
    except OSError:
        return False


def forked_spares() -> ForkedSpares | None:
    """None where a copy could not be watched. From now on this process is the parent of whoever among its
    descendants loses theirs."""
    if sys.platform != "linux" or not hasattr(os, "pidfd_open"):
        return None
    try:
        os.close(os.pidfd_open(os.getpid()))
    except OSError:  # an old kernel, or one that lets nobody
        return None
    refused = ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    return None if refused else ForkedSpares()
