"""What comes from a socket is parsed when whoever sends has paid for what came before, and read when more is
wanted: only then."""

from __future__ import annotations

import asyncio
import gc
import weakref
from typing import Any

import pytest

from realtime.transport.http_reading import HttpReading
from realtime.transport.small_reads import SmallReads, new_buffer
from realtime.work_ledger import PayerWork


class Transport:
    def __init__(self) -> None:
        self.reads = True
        self.aborted = False

    def is_closing(self) -> bool:
        return self.aborted

    def abort(self) -> None:
        self.aborted = True

    def pause_reading(self) -> None:
        self.reads = False

    def resume_reading(self) -> None:
        self.reads = True


class Connection(SmallReads):
    buffer = new_buffer()

    def __init__(self, work: PayerWork) -> None:
        socket: Any = Transport()
        self.transport: Any = socket
        self.reading = HttpReading(socket)
        self.work = work
        self.received: asyncio.Queue[bytes] = asyncio.Queue()

    def data_received(self, data: bytes) -> None:
        self.received.put_nowait(data)

    def read(self, data: bytes) -> None:
        self.buffer[: len(data)] = data
        self.buffer_updated(len(data))


async def test_who_has_much_parsed_is_parsed_and_read_again_when_that_is_paid_for_on_any_connection() -> None:
    work = PayerWork(share=1e6)
    connection, other, stranger = Connection(work), Connection(work), Connection(PayerWork())
    connection.read(b"at once")
    assert connection.received.get_nowait() == b"at once"
    work.owe(1000)
    for one in (connection, other, stranger):
        one.read(b"later")
    assert stranger.received.get_nowait() == b"later", "not for somebody else"
    for one in (connection, other):
        assert one.received.empty()
        assert not one.transport.reads
    async with asyncio.timeout(10):
        assert await connection.received.get() == b"later"
        assert await other.received.get() == b"later"
    await asyncio.sleep(0)
    assert connection.transport.reads


async def test_what_was_read_all_the_same_waits_behind_it() -> None:
    """uvicorn reads on by itself where a body has ended that nobody awaited."""
    work = PayerWork(share=1e6)
    connection = Connection(work)
    work.owe(1000)
    connection.read(b"first")
    connection.transport.resume_reading()
    connection.read(b"second")
    assert not connection.transport.reads
    async with asyncio.timeout(10):
        assert await connection.received.get() == b"first"
        assert await connection.received.get() == b"second"
    await asyncio.sleep(0)
    assert connection.transport.reads


async def test_for_nobody_nothing_is_parsed() -> None:
    work = PayerWork()
    connection = Connection(work)
    work.owe(0.081)
    connection.read(b"and gone")
    connection.forget_reads()
    work = connection.work = PayerWork()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert connection.received.empty()


async def test_nobody_who_is_gone_is_kept_by_what_they_sent() -> None:
    """Until the collector sees it, which may be minutes: a flood would take gigabytes meanwhile."""
    work = PayerWork()
    connection = Connection(work)
    gone = weakref.ref(connection)
    work.owe(0.081)
    connection.read(b"and gone")
    gc.disable()
    try:
        await asyncio.sleep(0)
        connection.forget_reads()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        del connection
        assert gone() is None
    finally:
        gc.enable()


async def test_nor_for_one_that_is_being_closed() -> None:
    work = PayerWork(share=1e6)
    connection = Connection(work)
    work.owe(1000)
    connection.read(b"too late")
    connection.transport.aborted = True
    assert connection._late is not None
    await asyncio.wait([connection._late], timeout=10)
    assert connection.received.empty()


async def test_a_mistake_of_ours_in_what_waited_is_told_and_ends_the_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told = list[dict[str, Any]]()
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: told.append(context))
    work = PayerWork(share=1e6)
    connection = Connection(work)
    monkeypatch.setattr(connection, "data_received", lambda data: 1 // 0)
    work.owe(1000)
    connection.read(b"later")
    assert connection._late is not None
    await asyncio.wait([connection._late], timeout=10)
    assert connection.transport.aborted
    assert isinstance(told[0]["exception"], ZeroDivisionError)


async def test_neither_reason_to_wait_ends_the_other() -> None:
    transport: Any = Transport()
    reading = HttpReading(transport)
    reading.hold()
    reading.pause_reading()
    reading.resume_reading()
    assert not transport.reads
    reading.pause_reading()
    reading.release()
    assert not transport.reads
    reading.resume_reading()
    assert transport.reads


async def test_whoever_reads_on_in_its_place_is_not_kept_from_it() -> None:
    transport: Any = Transport()
    reading = HttpReading(transport)
    reading.hold()
    reading.release()
    assert transport.reads
