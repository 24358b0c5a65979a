"""What is said and heard: the streams, and the frames that wait for answers. It outlives connections.

Events come in and go to the stream and to the frame that they are about; when another connection takes the
place of a lost one, it says there what must be said again (docs/protocol.md, section 6). Knows no socket, and
not when or whether there will be another connection.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import random
import secrets
from collections.abc import Callable, Collection, Iterable
from typing import TypeVar, cast

from midstream.backoff import Backoff
from midstream.channel import Channel
from midstream.connection import Connection
from midstream.errors import MidstreamError, forgotten, from_code, from_event
from midstream.pending_frames import Asked, repeatable, unknown_outcome
from midstream.protocol import (
    Attach,
    Attached,
    Cancel,
    Error,
    Event,
    Final,
    Frame,
    GoingAway,
    Grant,
    Pong,
    Replace,
    ServerEvent,
    Snapshot,
    Start,
    Started,
    StreamEvent,
)

E = TypeVar("E", bound=Event)
Failure = Callable[[], MidstreamError]  # each who waits is given an exception, and a traceback, of his own
log = logging.getLogger("midstream")


class Exchange:
    """Sending never blocks: only `request` waits for something."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.draining = False
        self._connection: Connection | None = None
        self._channels: dict[str, Channel] = {}
        self._asked: dict[str, Asked] = {}  # in the order of asking
        self._name = secrets.token_hex(3)  # so that no other client's refs, on the same stream, are ours
        self._refs = itertools.count()
        self._deadline = 0.0  # of trying to bring the streams to this connection
        self._lost: Failure | None = None

    @property
    def connected(self) -> bool:
        return self._connection is not None

    # -- asking ----------------------------------------------------------------------------------------

    def add(self, channel: Channel) -> None:
        """Make a place for a stream's events, before it is asked for."""
        self._check()
        if channel.request_id in self._channels:
            message = f"{channel.request_id!r} is running on this connection already"
            raise from_code("request_conflict", message, channel.request_id)
        self._channels[channel.request_id] = channel

    def send(self, frame: Grant | Cancel) -> None:
        """Say what is not answered. Where nobody hears it now, `_resume` says it: the stream remembers."""
        self._check()
        if self._connection is not None and not self._is_away(frame.request_id):
            self._connection.send(frame)

    def ask(self, frame: Frame, answer: type[Event]) -> asyncio.Future[Event]:
        """Say what is answered, at once or as soon as it can be heard."""
        self._check()
        ref = frame.ref = self._ref()
        asked = Asked(frame, answer, self.loop.create_future())
        self._asked[ref] = asked
        asked.future.add_done_callback(lambda _: self._asked.pop(ref))
        if not self._is_away(asked.request_id):
            self._say(asked)
        return asked.future

    async def request(self, frame: Frame, answer: type[E]) -> E:
        """Send a frame and wait for its answer. Raises what went wrong, if it did."""
        return cast(E, await self.ask(frame, answer))

    def _ref(self) -> str:
        return f"{self._name}.{next(self._refs)}"

    def _say(self, asked: Asked) -> None:
        if self._connection is not None:
            asked.said_on = self._connection
            self._connection.send(asked.frame)

    def _is_away(self, request_id: str | None) -> bool:
        """Whether the stream is on its way to this connection: frames for it wait until it is here."""
        channel = self._channels.get(request_id) if request_id is not None else None
        return channel is not None and channel.away is not None

    def _waiting(self, request_id: str | None) -> list[Asked]:
        """The frames about this stream, or about none, that have no answer yet."""
        asked = self._asked.values()
        return [one for one in asked if one.request_id == request_id and not one.future.done()]

    def _check(self) -> None:
        if self._lost is not None:
            raise self._lost()

    # -- connections -----------------------------------------------------------------------------------

    def connect(self, connection: Connection, replaced: Iterable[str] = (), deadline: float = 0.0) -> None:
        """Go on here: bring the streams, in the place of the sessions that may still seem to have them."""
        self._connection, self.draining, self._deadline = connection, False, deadline
        for session_id in replaced:
            connection.send(Replace(session_id=session_id))
        for channel in self._channels.values():
            channel.backoff = Backoff(deadline)
            self._bring(channel)
        for asked in self._waiting(None):
            self._say(asked)

    def disconnect(self) -> None:
        """The connection is lost. There may be another."""
        self._connection = None

    def part(self) -> None:
        """Before the client closes: streams that nobody asked to keep end with it."""
        if self._connection is not None:
            for channel in self._channels.values():
                if not channel.kept:
                    self._connection.send(Cancel(request_id=channel.request_id))

    def lose(self, lost: Failure) -> None:
        """There will be no other connection: everybody who waits is told."""
        self._lost, self._connection = lost, None
        for asked in self._asked.values():
            asked.fail(lost())
        for channel in self._channels.values():
            channel.fail(lost)
        self._channels.clear()

    # -- streams that come to a new connection ---------------------------------------------------------

    def _bring(self, channel: Channel) -> None:
        if self._connection is not None:
            frame = self._opening(channel)
            channel.away, channel.retold = frame.ref, False
            self._connection.send(frame)

    def _opening(self, channel: Channel) -> Start | Attach:
        """The frame that gives the stream to the connection. To start twice is to start once."""
        if channel.start is not None and not channel.core.started and not channel.unwanted:
            return channel.start
        asked = next((one for one in self._waiting(channel.request_id) if one.answer is Attached), None)
        ref = asked.frame.ref if asked is not None else self._ref()
        return Attach(request_id=channel.request_id, after=channel.core.seq, ref=ref)

    def _on_attached(self, event: Attached) -> None:
        for asked in self._waiting(event.request_id):
            if asked.answer in (Started, Attached):
                asked.future.set_result(event)
        if channel := self._channels.get(event.request_id):
            self._resume(channel, event.pending)

    def _resume(self, channel: Channel, pending: Collection[str]) -> None:
        """It is here: say its state again, then what was asked and never heard, in the order of asking."""
        channel.away = None
        if channel.core.limit:
            self.send(Grant(request_id=channel.request_id, limit=channel.core.limit))
        for asked in self._waiting(channel.request_id):
            fate = asked.fate(self._connection, pending, retold=channel.retold)
            if fate == "again":
                self._say(asked)
            elif fate == "unknown":
                asked.fail(unknown_outcome(asked))
        channel.retold = False
        if channel.unwanted:
            self.send(Cancel(request_id=channel.request_id))

    def _try_later(self, channel: Channel, event: Error) -> bool:
        """Whether there is reason, and time, to bring it once more."""
        chance, after_s = random.random(), (event.retry_after_ms or 0) / 1000
        wait_s = channel.backoff.wait_s(self.loop.time(), chance, after_s) if event.retryable else None
        if wait_s is not None:
            self.loop.call_later(wait_s, self._bring_on, channel, self._connection)
        return wait_s is not None

    def _bring_on(self, channel: Channel, connection: Connection | None) -> None:
        if connection is self._connection:  # on another one it has been tried meanwhile
            self._bring(channel)

    # -- where events go -------------------------------------------------------------------------------

    def take(self, event: ServerEvent) -> None:
        """Take the next event. Raises ProtocolError for one that cannot come."""
        match event:
            case StreamEvent():
                self._on_stream_event(event)
            case Attached():
                self._on_attached(event)
            case Error():
                self._refuse(event)
            case Pong():
                self._answer(event.ref, event)
            case GoingAway():
                self.draining = True

    def _on_stream_event(self, event: StreamEvent) -> None:
        channel = self._channels.get(event.request_id)
        if channel is not None:
            channel.feed(event)
            channel.retold |= isinstance(event, Snapshot)
        self._answer(event.ref, event)
        if channel is not None and isinstance(event, Started) and channel.away is not None:
            self._resume(channel, ())
        if isinstance(event, Final):
            self._end(event, retold=channel is not None and channel.retold)

    def _answer(self, ref: str | None, event: Event) -> None:
        asked = self._asked.get(ref) if ref is not None else None
        # A frame with `at` is answered twice: the `rewound` that it caused is not yet what it waits for.
        if asked is not None and isinstance(event, asked.answer) and not asked.future.done():
            asked.future.set_result(event)

    def _refuse(self, event: Error) -> None:
        asked = self._asked.get(event.ref) if event.ref is not None else None
        name = (asked and asked.request_id) or event.request_id
        channel = self._channels.get(name) if name is not None else None
        if channel is not None and event.ref is not None and event.ref == channel.away:
            self._refuse_return(channel, asked, event)
        elif channel is not None and (not channel.core.started or event.code == "request_taken"):
            self._drop(channel, lambda: from_event(event))
        elif asked is not None:
            asked.fail(from_event(event))
        else:  # a grant that crossed the stream's end, or a word about the connection before it closes
            log.debug("the server reports %s: %s", event.code, event.message)

    def _refuse_return(self, channel: Channel, asked: Asked | None, event: Error) -> None:
        """The stream cannot come to this connection: not now, or not at all."""
        if self._try_later(channel, event):
            return
        self._drop(channel, (lambda: from_event(event)) if asked is not None else (lambda: forgotten(event)))

    def _drop(self, channel: Channel, failure: Failure) -> None:
        del self._channels[channel.request_id]
        channel.fail(failure)
        for asked in self._waiting(channel.request_id):
            asked.fail(failure())

    def _end(self, final: Final, *, retold: bool) -> None:
        """Nothing follows a final: whoever still waits for the stream has his answer now."""
        self._channels.pop(final.request_id, None)
        for asked in self._waiting(final.request_id):
            if asked.answer in (Final, Attached):
                asked.future.set_result(final)
            elif retold and asked.said_on is not None and not repeatable(asked.frame):
                asked.fail(unknown_outcome(asked))
            else:
                message = "the stream ended before the frame took effect"
                asked.fail(from_code("request_finished", message, final.request_id))
