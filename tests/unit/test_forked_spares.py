"""Forked spares: a process copies itself when it gets its options, and the copy is ours to use and to end."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec
import pytest

from engine import api
from engine.pipe import Pipe
from engine.spare import wait_for_options
from realtime.fleet.forked_spares import AdoptedProcess, ForkedSpares

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a spare is no copy")
OPTIONS = api.EngineOptions(model="toy")


def prepared(connection: socket.socket) -> api.Prepared:
    length = int.from_bytes(connection.recv(api.LENGTH_BYTES), "big")
    return msgspec.msgpack.decode(connection.recv(length), type=api.Prepared)


def framed_options() -> bytes:
    return api.framed(msgspec.msgpack.encode(OPTIONS))


@contextmanager
def waiting(*, may_copy: bool) -> Iterator[tuple[socket.socket, list[api.EngineOptions | None]]]:
    """A spare in a thread; and with what it began, or that it did not."""
    ours, theirs = socket.socketpair()
    begun: list[api.EngineOptions | None] = []
    pipe = Pipe(theirs)

    def wait() -> None:
        found = wait_for_options(pipe, lambda: may_copy)
        begun.append(found[1] if found else None)

    thread = threading.Thread(target=wait)
    thread.start()
    with ours:
        assert prepared(ours).pid == os.getpid()
        yield ours, begun
    thread.join()
    pipe.close()


# -- the engine's side -----------------------------------------------------------------------------


def test_without_a_connection_for_a_copy_there_is_none() -> None:
    with waiting(may_copy=True) as (ours, begun):
        ours.sendall(framed_options())
    assert begun == [OPTIONS]


def test_where_it_must_not_be_copied_nobody_speaks_at_the_other_end() -> None:
    spares = ForkedSpares()
    theirs = spares.expect()
    assert theirs is not None
    with waiting(may_copy=False) as (ours, begun), theirs:
        socket.send_fds(ours, [framed_options()], [theirs.fileno()])
    assert begun == [OPTIONS]
    assert spares.take() is None


def test_it_ends_when_the_gateway_is_gone() -> None:
    with waiting(may_copy=True) as (_, begun):
        pass
    assert begun == [None]


# -- the gateway's side ----------------------------------------------------------------------------


@pytest.mark.parametrize("before", ["it is taken", "it has spoken"])
def test_a_spare_is_taken_once(before: str) -> None:
    spares = ForkedSpares()
    assert spares.take() is None
    theirs = spares.expect()
    assert theirs is not None
    ours = spares.take() if before == "it has spoken" else None
    with theirs:
        theirs.sendall(api.framed(msgspec.msgpack.encode(api.Prepared(7))))
    ours = ours or spares.take()
    assert ours is not None
    with ours:
        assert prepared(ours).pid == 7
    assert spares.take() is None


def test_one_that_nobody_took_yet_is_not_let_go_for_another() -> None:
    spares = ForkedSpares()
    first = spares.expect()
    assert first is not None
    with first:
        first.sendall(api.framed(msgspec.msgpack.encode(api.Prepared(7))))
        assert spares.expect() is None
    ours = spares.take()
    assert ours is not None
    with ours:
        assert prepared(ours).pid == 7, "who took it can wait for its end"


def test_another_is_expected_where_none_came() -> None:
    spares = ForkedSpares()
    for _ in range(2):
        theirs = spares.expect()
        assert theirs is not None
        theirs.close()
    assert spares.take() is None


def asleep() -> int:
    return os.posix_spawnp("sleep", ["sleep", "600"], os.environ)


async def test_a_process_that_was_adopted_is_ended_and_waited_for() -> None:
    pid = asleep()
    process = AdoptedProcess(pid)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(process.wait(), 0.01)
    os.kill(pid, signal.SIGSTOP)
    process.kill()
    assert await process.wait() == -signal.SIGKILL
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    process.kill()
    await process.wait()


async def test_a_process_that_was_adopted_is_waited_for_again_where_no_thread_could_be_started(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def no_more(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    process = AdoptedProcess(asleep())
    process.kill()
    with monkeypatch.context() as full:
        full.setattr(threading.Thread, "start", no_more)
        with pytest.raises(RuntimeError):
            await process.wait()
    async with asyncio.timeout(10):
        assert await process.wait() == -signal.SIGKILL
