"""The listener behind an HTTP response: it collects what streams have to say, for one response to take when
that has room.

HTTP tells nothing of what a client has read. What counts as taken is what the socket accepted, whose buffers
are small.
"""

from __future__ import annotations

import asyncio
from itertools import islice

from midstream.protocol import StreamFrame
from realtime.hub.hub import Hub
from realtime.hub.observers import Caller, DisconnectCause
from realtime.refusal import Refusal
from realtime.stream.outbox import OutgoingEvent
from realtime.stream.pending_commands import Reply
from realtime.stream.stream import Stream
from realtime.work_ledger import PayerWork

GOING_AWAY = Refusal("draining", "The server is going away.", retry_after_ms=1000)


class HttpListener:
    def __init__(
        self, hub: Hub, caller: Caller, work: PayerWork, *, keeps_events: bool, takes_over: bool = True
    ) -> None:
        """`keeps_events`: no event counts as read, so that whoever comes again gets as many of them as are
        kept."""
        self.gone = False
        self.memory = hub.accounts.of_listener(caller.tenant)
        self.takes_over = takes_over
        self.caller = caller
        self.pay = work.pay
        self.owe = work.owe
        self.payer = work
        self.failure: Refusal | None = None  # the first
        self.refused: str | None = None  # the stream whose frame was refused first
        self.reply: Reply | None = None
        self._hub = hub
        self._keeps_events = keeps_events
        self._cause: DisconnectCause = "closed"  # of its end, if nobody says another
        self._woken: dict[Stream, None] = {}
        self._taken: dict[Stream, tuple[int, int]] = {}  # output and events up to there are on their way
        self._news = asyncio.Event()

    # -- told by the hub ---------------------------------------------------------------------------

    def wake(self, stream: Stream) -> None:
        self._woken[stream] = None

    def flush(self) -> None:
        self._news.set()

    def forget(self, stream: Stream) -> None:
        self._woken.pop(stream, None)
        self._taken.pop(stream, None)
        self.fail(GOING_AWAY)

    def lose(self, stream: Stream) -> None:
        self._woken.pop(stream, None)
        self._taken.pop(stream, None)
        self.fail(Refusal("request_taken", f'Request "{stream.request_id}" is another connection\'s now.'))

    def send_refusal(self, refusal: Refusal, frame: StreamFrame) -> None:
        self.refused = self.refused or frame.request_id
        self.fail(refusal)

    def send_reply(self, event: Reply) -> None:
        self.reply = event
        self._news.set()

    # -- for the response ------------------------------------------------------------------------

    def refuse(self, refusal: Refusal) -> None:
        """What the answer may not be. Others have told the observer of what they refused."""
        if self.failure is None:
            self._hub.note_refused(self, refusal)
        self.fail(refusal)

    def fail(self, refusal: Refusal) -> None:
        self.failure = self.failure or refusal.without_frames()
        self._news.set()

    @property
    def waiting(self) -> int:
        """How many streams have something to say."""
        return len(self._woken)

    async def wait_for_news(self) -> None:
        """Wait until something has changed since this or `take` was called last."""
        await self._news.wait()
        self._news.clear()

    def take(self, most: int | None = None) -> list[tuple[Stream, list[OutgoingEvent]]]:
        """Of `most` streams at most; that others have something to say stays news."""
        woken = list(islice(self._woken, most))
        for stream in woken:
            del self._woken[stream]
        if not self._woken:
            self._news.clear()
        events = [(stream, self._hub.take_events(stream)) for stream in woken]
        self._taken |= {
            stream: (stream.outbox.sent, -1 if self._keeps_events else stream.outbox.seq - 1)
            for stream in woken
        }
        return events

    def accepted(self) -> None:
        """The socket has room for more than all that was taken."""
        taken, self._taken = self._taken, {}
        for stream, (index, seq) in taken.items():
            self._hub.acknowledge(stream, index, seq)
        self._hub.flush()

    async def revoke(self) -> None:
        """Nobody holds the key any more with which this was asked for."""
        self._cause = "revoked"
        self.fail(Refusal("unauthenticated", "Your key was revoked."))

    def leave(self, cause: DisconnectCause | None = None) -> None:
        """Nobody reads on. Saying so again changes nothing."""
        if not self.gone:
            self.gone = True
            self._woken.clear()  # they may be another's soon
            self._taken.clear()
            self._hub.detach(self, cause or self._cause)
            self._news.set()


class ListenerSource:
    """A source of server-sent events over a listener, but for what is made of its events."""

    def __init__(self, listener: HttpListener) -> None:
        self._listener = listener
        self._ended = False  # whether all is said

    @property
    def over(self) -> bool:
        return self._ended or self._listener.gone

    async def wait_for_news(self) -> None:
        await self._listener.wait_for_news()

    def accepted(self) -> None:
        self._listener.accepted()

    async def revoke(self) -> None:
        await self._listener.revoke()

    def leave(self, cause: DisconnectCause | None = None) -> None:
        self._listener.leave(cause)
