"""WebSocket framing: many messages made into one write, fragments put together as messages.

Server frames are not masked and no extension is negotiated, so that a frame is a header of 2, 4 or 10 bytes
and the payload (RFC 6455, 5.2). This knows no connection and no state but that of one unfinished message.
"""

from __future__ import annotations

import codecs
import struct
from collections.abc import Iterable
from typing import NamedTuple

from websockets.frames import CloseCode, Frame, Opcode

_FIN = 0x80
_TEXT, _BINARY, _PING = (  # headers of short frames, by their length
    [bytes((_FIN | opcode, length)) for length in range(126)]
    for opcode in (Opcode.TEXT, Opcode.BINARY, Opcode.PING)
)


def data_frames(messages: Iterable[bytes], *, text: bool, ping: bytes | None = None) -> bytes:
    """Each message as one frame, then perhaps a ping. Text must be UTF-8 already: it is not looked into."""
    short = _TEXT if text else _BINARY
    parts: list[bytes] = []
    for message in messages:
        length = len(message)
        parts += short[length] if length < 126 else _long_header(text, length), message
    if ping is not None:
        parts.append(ping_frame(ping))
    return b"".join(parts)


def ping_frame(payload: bytes) -> bytes:
    if len(payload) > 125:
        raise ValueError("a ping carries 125 bytes at most")
    return _PING[len(payload)] + payload


def is_pong(frame: bytes) -> bool:
    return frame[:1] == b"\x8a"


def _long_header(text: bool, length: int) -> bytes:
    opcode = Opcode.TEXT if text else Opcode.BINARY
    if length < 1 << 16:
        return struct.pack("!BBH", _FIN | opcode, 126, length)
    return struct.pack("!BBQ", _FIN | opcode, 127, length)


_utf8 = codecs.getincrementaldecoder("utf-8")


class ProtocolViolation(Exception):
    """The peer sent what must close the connection with this code."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason


class DataMessage(NamedTuple):
    """A whole message, as it came. Text is known to be UTF-8, and stays that for as long as it waits: as
    characters it may take four times as much."""

    data: bytes
    text: bool


class MessageAssembly:
    """The message whose fragments are coming in. Their order and total size the core has checked."""

    def __init__(self, max_fragments: int) -> None:
        self._max_fragments = max_fragments
        self._fragments: list[bytes] = []
        self.bytes = 0  # of what is not whole
        self._decoder: codecs.IncrementalDecoder | None = None  # where it is text

    def add(self, frame: Frame) -> DataMessage | None:
        """Take a data frame; the last of a message makes the message."""
        if frame.opcode is not Opcode.CONT:
            self._decoder = _utf8() if frame.opcode is Opcode.TEXT else None
        if len(self._fragments) == self._max_fragments:
            raise ProtocolViolation(CloseCode.POLICY_VIOLATION, "too many fragments in one message")
        self._check_text(frame)
        self._fragments.append(bytes(frame.data))
        self.bytes += len(frame.data)
        return self._whole() if frame.fin else None

    def forget(self) -> None:
        """What has come of it: no more will."""
        self._fragments, self.bytes = [], 0

    def _check_text(self, frame: Frame) -> None:
        try:
            if self._decoder is not None:
                self._decoder.decode(frame.data, final=frame.fin)
        except UnicodeDecodeError:  # told at the first fragment that shows it
            raise ProtocolViolation(CloseCode.INVALID_DATA, "text is not valid UTF-8") from None

    def _whole(self) -> DataMessage:
        fragments, self._fragments, self.bytes = self._fragments, [], 0
        return DataMessage(b"".join(fragments), text=self._decoder is not None)
