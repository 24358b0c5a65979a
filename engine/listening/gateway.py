"""A gateway as an engine that listens sees it, by whichever door it came: what it may say, and what it hears.

It knows messages, and no bytes on their way: those are its connection's.
"""

from __future__ import annotations

import hmac
import logging
import threading
from typing import TYPE_CHECKING, Protocol

import msgspec

from engine import api

if TYPE_CHECKING:
    from engine.listening.listener import Listener

log = logging.getLogger("engine")

QUEUE = 16  # steps' news on their way between the threads
NO_MESSAGE = "what was sent is no message of a gateway"


class Connection(Protocol):
    """It calls its gateway's `take`, `pause_writing` and `resume_writing`, and `gone` at its end."""

    def write(self, message: bytes) -> None:
        """Nothing, where it is closing."""

    def close(self) -> None:
        """Behind what was written. Nothing more is taken."""


class Gateway:
    def __init__(self, listener: Listener, connection: Connection) -> None:
        self.joined = False  # it has heard Hello
        self.writable = threading.Event()
        self.writable.set()
        self.queue = threading.Semaphore(QUEUE)
        self._listener = listener
        self._connection = connection
        self._commands = msgspec.msgpack.Decoder(list[api.AnyCommand])

    def join(self, token: str) -> bool:
        """Whether it may."""
        right = self._listener.token
        if right and not hmac.compare_digest(token.encode(), right.encode()):
            self.refuse("its token is not this engine's")
            return False
        if not self._listener.admit(self):
            self.refuse("this engine computes for another gateway")
            return False
        return True

    def take(self, message: bytes) -> None:
        """From one that may join."""
        if not self.joined:
            self.refuse("it speaks before it has heard what is served")
            return
        try:
            commands = self._commands.decode(message)
        except (msgspec.MsgspecError, ValueError, RecursionError):
            self.refuse(NO_MESSAGE)
        else:
            self._listener.take(commands)

    def pause_writing(self) -> None:
        self.writable.clear()

    def resume_writing(self) -> None:
        self.writable.set()

    def gone(self) -> None:
        self.joined = False
        self.writable.set()
        self._listener.dismiss(self)

    def welcome(self) -> None:
        self._connection.write(self._listener.hello)
        self.joined = True

    def tell(self, message: bytes) -> None:
        """From the queue."""
        self._connection.write(message)
        self.queue.release()

    def leave(self) -> None:
        self._connection.write(msgspec.msgpack.encode(api.Leaving()))
        self._connection.close()

    def refuse(self, why: str) -> None:
        log.warning("a connection is refused: %s", why)
        self._connection.write(msgspec.msgpack.encode(api.Failed(why)))
        self._connection.close()
