"""A listener over HTTP: it collects what streams have to say, for one response to take when that has room.

HTTP tells nothing of what a client has read. What counts as taken is what the socket accepted, whose buffers
are small.
"""

from __future__ import annotations

import asyncio

from realtime.hub.hub import Hub
from realtime.hub.observers import Cause, Route
from realtime.refusal import Refusal
from realtime.stream.outbox import Told
from realtime.stream.pending_commands import Answer
from realtime.stream.stream import Stream


class Ear:
    def __init__(self, hub: Hub, *, keeps: bool) -> None:
        """`keeps`: no event counts as read, so that whoever comes again gets as many of them as are kept."""
        self.gone = False
        self.route: Route = "http"
        self.failure: Refusal | None = None  # the first
        self.answered: Answer | None = None
        self._hub = hub
        self._keeps = keeps
        self._woken: dict[Stream, None] = {}
        self._taken: dict[Stream, tuple[int, int]] = {}  # output and events up to there are on their way
        self._news = asyncio.Event()

    # -- told by the hub -------------------------------------------------------------------------

    def wake(self, stream: Stream) -> None:
        self._woken[stream] = None

    def flush(self) -> None:
        self._news.set()

    def lose(self, stream: Stream) -> None:
        self._woken.pop(stream, None)
        self._taken.pop(stream, None)
        self.fail(Refusal("request_taken", f'Request "{stream.request_id}" is another connection\'s now.'))

    def refuse(self, refusal: Refusal, request_id: str, ref: str | None) -> None:
        self.fail(refusal)

    def answer(self, event: Answer) -> None:
        self.answered = event
        self._news.set()

    # -- for the response ------------------------------------------------------------------------

    def fail(self, refusal: Refusal) -> None:
        self.failure = self.failure or refusal
        self._news.set()

    @property
    def waiting(self) -> int:
        """How many streams have something to say."""
        return len(self._woken)

    async def news(self) -> None:
        """Wait until something has changed since this or `take` was called last."""
        await self._news.wait()
        self._news.clear()

    def take(self) -> list[tuple[Stream, list[Told]]]:
        self._news.clear()
        woken, self._woken = self._woken, {}
        told = [(stream, self._hub.take(stream)) for stream in woken]
        self._taken |= {
            stream: (stream.outbox.sent, -1 if self._keeps else stream.outbox.seq - 1) for stream in woken
        }
        return told

    def accepted(self) -> None:
        """The socket has room for more than all that was taken."""
        taken, self._taken = self._taken, {}
        for stream, (index, seq) in taken.items():
            self._hub.taken(stream, index, seq)
        self._hub.settle()

    def leave(self, cause: Cause = "closed") -> None:
        """Nobody reads on. Saying so again changes nothing."""
        if not self.gone:
            self.gone = True
            self._hub.detach(self, cause)
            self._news.set()


class Hearing:
    """A source of server-sent events over an ear, but for what it makes of what it hears."""

    def __init__(self, ear: Ear) -> None:
        self._ear = ear
        self._ended = False  # whether all is said

    @property
    def over(self) -> bool:
        return self._ended or self._ear.gone

    async def news(self) -> None:
        await self._ear.news()

    def accepted(self) -> None:
        self._ear.accepted()

    def leave(self, cause: Cause = "closed") -> None:
        self._ear.leave(cause)
