"""The pipe: messages over a connected socket, each behind its length. Blocking: who reads has a thread."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator

import msgspec

from engine import api


class Pipe:
    def __init__(self, connected: socket.socket) -> None:
        self._file = connected.makefile("rb")
        self._socket = connected
        self._encoder = msgspec.msgpack.Encoder()

    def send(self, message: msgspec.Struct | list[api.AnyCommand]) -> None:
        self._socket.sendall(api.framed(self._encoder.encode(message)))

    def receive(self, begun: bytes = b"") -> bytes | None:
        """None once the other end is closed, in whatever manner. `begun` is what was read of it already."""
        try:
            head = begun + self._file.read(api.LENGTH_BYTES - len(begun))
            length = int.from_bytes(head, "big")
            message = self._file.read(length)
        except ConnectionResetError:  # it was, with something of ours unread
            return None
        return message if len(head) == api.LENGTH_BYTES and len(message) == length else None

    def receive_first(self) -> tuple[bytes | None, int | None]:
        """The first message, and the descriptor that came with it, if one did."""
        try:
            head, descriptors, _, _ = socket.recv_fds(self._socket, 1, 1, socket.MSG_CMSG_CLOEXEC)
        except ConnectionResetError:
            return None, None
        return self.receive(head), descriptors[0] if descriptors else None

    def commands(self) -> Iterator[list[api.AnyCommand]]:
        """One list after the other, until the other end is closed."""
        decoder = msgspec.msgpack.Decoder(list[api.AnyCommand])
        while (message := self.receive()) is not None:
            yield decoder.decode(message)

    def abandon(self) -> None:
        """It is another process's now."""
        self._file.close()
        self._socket.close()

    def close(self) -> None:
        """The other end receives nothing more."""
        with contextlib.suppress(OSError):  # it may be gone
            self._socket.shutdown(socket.SHUT_RDWR)
        self.abandon()
