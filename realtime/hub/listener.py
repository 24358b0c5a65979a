"""The interface of a listener, to whom streams' events go: a WebSocket connection, an HTTP response, a
test."""

from __future__ import annotations

from typing import Protocol

from midstream.protocol import StreamFrame
from realtime.hub.observers import Caller
from realtime.refusal import Refusal
from realtime.stream.memory import MemoryAccount
from realtime.stream.pending_commands import Reply
from realtime.stream.stream import Stream


class Payer(Protocol):
    """Whoever pays for work that is done here, and shares engines with others who do."""

    @property
    def number(self) -> int:
        """By which engines know it."""

    @property
    def debt_s(self) -> float:
        """How long until all that was done for it is paid for."""

    def owe(self, work_s: float) -> object:
        """So much more was done."""


class Listener(Protocol):
    """Whoever hears of streams. All of these must be quick."""

    gone: bool
    memory: MemoryAccount  # of the streams that it listens to
    takes_over: bool  # whether it may have a stream that another listens to

    @property
    def payer(self) -> Payer:
        """Of what is done for it."""

    @property
    def caller(self) -> Caller:
        """Who it is."""

    async def pay(self, work_s: float) -> None:
        """So much work was done for it behind a text that took long."""

    def owe(self, work_s: float) -> object:
        """So much work was done for it, when its frame took effect: it pays before it asks for more."""

    def wake(self, stream: Stream) -> None:
        """The stream has something to say, which may be taken at once; `flush` will follow, once for all that
        were woken together."""

    def flush(self) -> None:
        """Take from the hub what those that were woken have to say, if there is room for it now."""

    def forget(self, stream: Stream) -> None:
        """The stream is nobody's here any more: this server goes away, and leaves it to others."""

    def lose(self, stream: Stream) -> None:
        """The stream has another listener now."""

    def send_refusal(self, refusal: Refusal, frame: StreamFrame) -> None: ...

    def send_reply(self, event: Reply) -> None:
        """The reply to a frame of this listener's, about a stream that another listens to."""
