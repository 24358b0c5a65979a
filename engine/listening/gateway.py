"""A gateway as an engine that listens sees it, by whichever door it came: what it may say, and what it hears.

It knows messages, and no bytes on their way: those are its connection's.
"""

from __future__ import annotations

import hmac
import logging
import threading
from typing import TYPE_CHECKING, Protocol
from weakref import WeakValueDictionary

import msgspec

from engine import api
from engine.listening import limits
from engine.listening.kept_streams import KeptStream

if TYPE_CHECKING:
    from engine.listening.listener import Listener

log = logging.getLogger("engine")

QUEUE = 16  # steps' news on their way between the threads
NO_MESSAGE = "what was sent is no message of a gateway"


class Connection(Protocol):
    """It calls its gateway's `take`, and `gone` at its end."""

    @property
    def whence(self) -> str:
        """As the log is to say it, behind "a connection"; nothing, where all come from this machine."""

    @property
    def unsent(self) -> int:
        """Bytes that were written, and that nobody has taken."""

    def write(self, message: bytes) -> None:
        """Nothing, where it is closing."""

    def close(self) -> None:
        """Behind what was written. Nothing more is taken."""

    def abort(self) -> None:
        """Now."""


class Gateway:
    def __init__(self, listener: Listener, connection: Connection) -> None:
        self.joined = False
        self.streams = dict[int, int]()  # the engine's number of each, by its own
        # Those of its streams that have ended, and are kept: as long as they are.
        self.ended = WeakValueDictionary[int, KeptStream[Gateway]]()
        self.queue = threading.Semaphore(QUEUE)
        self._listener = listener
        self._connection = connection
        self._is_hung_up_on = False
        self._commands = msgspec.msgpack.Decoder(list[api.AnyCommand])

    def join(self, token: str) -> bool:
        """Whether it may."""
        right = self._listener.token
        if right and not hmac.compare_digest(token.encode(), right.encode()):
            self.refuse("its token is not this engine's")
            return False
        self._listener.admit(self)
        return True

    def take(self, message: bytes) -> None:
        """From one that may join."""
        try:
            commands = self._commands.decode(message)
        except (msgspec.MsgspecError, ValueError, RecursionError):
            self.refuse(NO_MESSAGE)
        else:
            self._listener.take(self, commands)

    def gone(self) -> None:
        self._listener.dismiss(self)

    def welcome(self) -> None:
        self._connection.write(self._listener.hello)
        self.joined = True

    def tell(self, message: bytes) -> None:
        """From the queue. Who takes nothing of it may come again: how far its streams have come it knows."""
        self._write(message)
        self.queue.release()

    def answer(self, message: api.Answer) -> None:
        """Behind all that was told before."""
        self._write(msgspec.msgpack.encode(message))

    def leave(self) -> None:
        self._connection.write(msgspec.msgpack.encode(api.Leaving()))
        self._connection.close()

    def refuse(self, why: str) -> None:
        self._listener.note_refusal(self._connection.whence, why)
        self._connection.write(msgspec.msgpack.encode(api.Failed(why)))
        self._connection.close()

    def refuse_number(self, stream: int) -> None:
        self.refuse(f"two of its streams have the number {stream}")

    def _write(self, message: bytes) -> None:
        if self._is_hung_up_on:
            return
        self._connection.write(message)
        if self._connection.unsent > limits.MOST_UNSENT:
            whence, mib = self._connection.whence, limits.MOST_UNSENT >> 20
            log.warning("a gateway%s has not taken %d MiB, and is hung up on", whence, mib)
            self._is_hung_up_on = True
            self._connection.abort()
