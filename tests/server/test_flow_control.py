"""What waits, and for how long: the bounds that no test over a socket can see exactly."""

from __future__ import annotations

import asyncio

import pytest
from websockets.frames import Frame, Opcode

from realtime.transport.flow_control import ReceiveQueue
from realtime.transport.websocket_framing import DataMessage, MessageAssembly, ProtocolViolation


class Reading(asyncio.Transport):
    """A transport of which only this is known: whether it reads."""

    def __init__(self) -> None:
        super().__init__()
        self._reads = True

    def pause_reading(self) -> None:
        self._reads = False

    def resume_reading(self) -> None:
        self._reads = True

    def is_reading(self) -> bool:
        return self._reads

    def is_closing(self) -> bool:
        return False


async def test_the_socket_is_read_while_fewer_messages_wait_than_allowed() -> None:
    transport = Reading()
    inbox = ReceiveQueue(transport, max_messages=2, max_bytes=100)
    inbox.put({"n": 1}, 1)
    assert transport.is_reading()
    inbox.put({"n": 2}, 1)
    assert not transport.is_reading()
    assert await inbox.get() == {"n": 1}
    assert transport.is_reading()


async def test_the_socket_is_read_while_fewer_bytes_wait_than_allowed() -> None:
    transport = Reading()
    inbox = ReceiveQueue(transport, max_messages=100, max_bytes=10)
    inbox.put({"n": 1}, 9)
    assert transport.is_reading()
    inbox.put({"n": 2}, 1)
    assert not transport.is_reading()
    await inbox.get()
    assert transport.is_reading()


async def test_after_the_end_what_waits_is_still_delivered_and_the_socket_read_to_its_end() -> None:
    transport = Reading()
    inbox = ReceiveQueue(transport, max_messages=1, max_bytes=10)
    inbox.put({"n": 1}, 1)
    inbox.end(1000, "first", by_peer=True)
    inbox.end(1006)
    assert transport.is_reading()
    assert await inbox.get() == {"n": 1}
    assert [await inbox.get(), await inbox.get()] == [
        {"type": "websocket.disconnect", "code": 1000, "reason": "first", "by_peer": True}
    ] * 2


async def test_a_reader_that_waits_gets_what_comes() -> None:
    inbox = ReceiveQueue(Reading(), max_messages=1, max_bytes=10)
    reader = asyncio.create_task(inbox.get())
    await asyncio.sleep(0)
    inbox.put({"n": 1}, 1)
    assert await reader == {"n": 1}


def test_text_waits_as_it_came_and_not_as_characters() -> None:
    """A single emoji makes each of a string's letters take four bytes."""
    text = "a" * 1000 + "\N{GRINNING FACE}"
    assembly = MessageAssembly(max_fragments=3)
    assert assembly.add(Frame(Opcode.TEXT, text.encode()[:1001], fin=False)) is None
    message = assembly.add(Frame(Opcode.CONT, text.encode()[1001:], fin=True))
    assert message == DataMessage(text.encode(), text=True)


def test_broken_text_is_told_at_the_first_fragment_that_shows_it() -> None:
    assembly = MessageAssembly(max_fragments=3)
    with pytest.raises(ProtocolViolation, match="UTF-8"):
        assembly.add(Frame(Opcode.TEXT, b"\xff", fin=False))
