"""Whether a peer takes anything of what is sent: by what it has, and not by what our own kernel has."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, cast

import pytest

from realtime.transport import flow_control
from realtime.transport.flow_control import SendBuffer

MUCH = 8 << 20  # bytes: more than any kernel takes


class Full:
    """A transport whose buffer is as full as the kernel behind it, whatever the peer takes."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self.aborted = False
        with suppress(BlockingIOError):
            while True:
                sock.send(bytes(65536))

    def set_write_buffer_limits(self, high: int) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return 1000

    def get_extra_info(self, name: str) -> socket.socket:
        return self._sock

    def abort(self) -> None:
        self.aborted = True


class Deadlines:
    """As they are set; each is passed by hand."""

    def __init__(self) -> None:
        self._then: list[Callable[[], None]] = []

    def later(self, delay_s: float, then: Callable[[], None]) -> Any:
        self._then.append(then)
        return self

    def cancel(self) -> None:
        pass

    def pass_next(self) -> None:
        self._then.pop(0)()


class Paused(asyncio.Protocol):
    """What its transport says goes to a send buffer."""

    def __init__(self) -> None:
        self.resumed = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.buffer = SendBuffer(transport, high_water_bytes=MUCH, timeout_s=600)

    def pause_writing(self) -> None:
        self.buffer.pause()

    def resume_writing(self) -> None:
        self.buffer.resume()
        self.resumed.set()


@pytest.fixture
def connected() -> Iterator[tuple[socket.socket, socket.socket]]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        peer = socket.create_connection(listening.getsockname())
        ours, _ = listening.accept()
    with peer, ours:
        ours.setblocking(False)
        yield ours, peer


def test_whoever_takes_what_the_kernel_has_is_not_cut_off(
    connected: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, peer = connected
    deadlines = Deadlines()
    monkeypatch.setattr(flow_control, "_later", deadlines.later)
    transport = Full(ours)
    buffer = SendBuffer(cast(asyncio.Transport, transport), high_water_bytes=1, timeout_s=1)
    buffer.pause()
    for _ in range(3):
        before = flow_control.unacknowledged(cast(asyncio.Transport, transport))
        while flow_control.unacknowledged(cast(asyncio.Transport, transport)) == before:
            assert peer.recv(4096)
        deadlines.pass_next()
        assert not buffer.gave_up
    while not buffer.gave_up:  # what was taken last may be known late
        deadlines.pass_next()
    assert transport.aborted


async def test_one_that_holds_nothing_has_room_when_all_has_left(
    connected: tuple[socket.socket, socket.socket],
) -> None:
    ours, peer = connected
    loop = asyncio.get_running_loop()
    transport, protocol = await loop.create_connection(Paused, sock=ours)
    protocol.buffer.write(bytes(MUCH))
    has_room = [protocol.buffer.writable]
    protocol.buffer.hold_nothing()
    has_room.append(protocol.buffer.writable)
    peer.setblocking(False)
    read = 0
    while read < MUCH:
        read += len(await loop.sock_recv(peer, MUCH))
    await asyncio.wait_for(protocol.resumed.wait(), 30)
    assert [*has_room, protocol.buffer.writable] == [True, False, True]
    assert not transport.get_write_buffer_size()
    transport.close()
    protocol.buffer.hold_nothing()  # nobody waits for it
    protocol.buffer.end()


async def test_what_is_written_to_a_peer_that_has_gone_floods_no_log(
    connected: tuple[socket.socket, socket.socket], caplog: pytest.LogCaptureFixture
) -> None:
    """In the turn in which that is found out: one that sends and hangs up has hundreds of answers."""
    ours, peer = connected
    loop = asyncio.get_running_loop()
    transport, protocol = await loop.create_connection(Paused, sock=ours)
    transport.pause_reading()  # else it may be read before it is written
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    peer.close()
    for _ in range(100):
        protocol.buffer.write(b"x")
    assert transport.is_closing()
    assert not caplog.records
    protocol.buffer.end()
