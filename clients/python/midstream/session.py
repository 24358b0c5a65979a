"""The client's session: its streams and its pending frames, which outlive connections.

Events come in and go to the stream and to the pending frame that they are about. When another connection
takes the place of a lost one, the streams are attached there, and what the server has not received is sent
again (docs/protocol.md, section 6). Knows no socket, and not when or whether there will be another
connection.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import math
import random
import secrets
from collections.abc import Callable, Collection, Iterable
from functools import partial
from typing import TypeVar, cast

from midstream.backoff import Backoff
from midstream.connection import Connection
from midstream.errors import (
    ConnectionLost,
    MidstreamError,
    RequestError,
    TooLarge,
    from_code,
    from_event,
    not_the_same,
    stream_lost,
)
from midstream.pending_frames import PendingFrame, idempotent, unknown_outcome
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
    Injected,
    Pause,
    Pong,
    Replace,
    Snapshot,
    Start,
    Started,
    StreamEvent,
    ToolResult,
)
from midstream.stream_channel import Channel

E = TypeVar("E", bound=Event)
Failure = Callable[[], MidstreamError]  # each who waits is given an exception, and a traceback, of his own
log = logging.getLogger("midstream")


class Session:
    """Sending never blocks: only `request` waits for something."""

    def __init__(self, reconnect_s: float, leave: Callable[[], None]) -> None:
        """`leave`: this connection, for another."""
        self.loop = asyncio.get_running_loop()
        self._reconnect_s = reconnect_s
        self._leave = leave
        self.draining = False
        self._connection: Connection | None = None
        self._channels: dict[str, Channel] = {}
        self._pending: dict[str, PendingFrame] = {}  # by ref, in the order of asking
        self._ref_prefix = secrets.token_hex(
            3
        )  # so that no other client's refs, on the same stream, are ours
        self._refs = itertools.count()
        self._failure: Failure | None = None

    @property
    def connected(self) -> bool:
        return self._connection is not None

    # -- sending ---------------------------------------------------------------------------------------

    def add(self, channel: Channel) -> Channel:
        """Register a stream's channel, before the stream is asked for. What an attach that was given up has
        brought here is in the channel of that."""
        self._check()
        known = self._channels.get(channel.request_id)
        if known is not None and known.left and not channel.ours:
            known.left = False
            return known
        if known is not None:
            message = f"{channel.request_id!r} is running on this connection already"
            raise from_code("request_conflict", message, channel.request_id)
        self._channels[channel.request_id] = channel
        return channel

    def forget(self, channel: Channel) -> None:
        """It was given up before any server heard of it."""
        del self._channels[channel.request_id]
        self._send_forks(channel)

    def send(self, frame: Grant | Cancel) -> None:
        """Send a frame that has no answer. Where the stream is not attached, `_resend` does it later."""
        self._check()
        if self._connection is not None and not self._is_attaching(frame.request_id):
            self._connection.send(frame)

    def send_request(self, frame: Frame, answer: type[Event]) -> asyncio.Future[Event]:
        """Send a frame that has an answer, at once or as soon as its stream is attached."""
        self._check()
        ref = frame.ref = self._next_ref()
        pending = PendingFrame(frame, answer, self.loop.create_future())
        self._pending[ref] = pending
        pending.future.add_done_callback(lambda _: self._pending.pop(ref))
        channel = self._channels[frame.request_id] if isinstance(frame, Start) else None
        if channel is not None and self._waits_for_its_stream(channel):
            channel.attach_ref, channel.said = ref, 0
        elif not self._is_attaching(pending.request_id):
            self._send_pending(pending)
        return pending.future

    async def request(self, frame: Frame, answer: type[E]) -> E:
        """Send a frame and wait for its answer. Raises what went wrong, if it did."""
        return cast(E, await self.send_request(frame, answer))

    def _next_ref(self) -> str:
        return f"{self._ref_prefix}.{next(self._refs)}"

    def _send_pending(self, pending: PendingFrame) -> None:
        if self._connection is not None:
            pending.sent_on = self._connection
            self._say(self._connection, pending.frame)

    def _say(self, connection: Connection, frame: Frame) -> None:
        """What the server would not take fails alone, as if the server had said so."""
        try:
            connection.send(frame)
        except TooLarge as why:
            said = Error(
                status=why.status,
                code=why.code,
                message=why.message,
                retryable=False,
                request_id=why.request_id,
                ref=frame.ref,
            )
            self.loop.call_soon(self._receive_error, said)

    def _is_attaching(self, request_id: str | None) -> bool:
        """Whether the stream is not attached to this connection yet: frames for it wait until it is."""
        channel = self._channels.get(request_id) if request_id is not None else None
        return channel is not None and channel.attach_ref is not None

    def _waits_for_its_stream(self, channel: Channel) -> bool:
        """Whether it is to fork one that may have to be started first, perhaps again, where nobody knows it
        any more; which then has it among its `forks`. None waits for itself, nor for one that does for it."""
        fork = None if channel.start is None or channel.core.started else channel.start.fork
        forked = None if fork is None else self._channels.get(fork.request_id)
        if forked is None or forked.attach_ref is None or forked.number >= channel.number:
            return False
        forked.forks[channel.request_id] = channel
        return True

    def _pending_for(self, request_id: str | None) -> list[PendingFrame]:
        """The frames about this stream, or about none, that have no answer yet."""
        frames = self._pending.values()
        return [one for one in frames if one.request_id == request_id and not one.future.done()]

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure()
        self.check_loop()

    def check_loop(self) -> None:
        """Raises where this is another event loop than the client's: what waits there is never woken."""
        try:
            here = asyncio.get_running_loop() is self.loop
        except RuntimeError:
            here = False
        if not here:
            raise RuntimeError(
                "a client lives in the event loop in which it was made; midstream.sync has one for any thread"
            )

    # -- connections -----------------------------------------------------------------------------------

    def connect(self, connection: Connection, replaced: Iterable[str] = (), deadline: float = 0.0) -> None:
        """Go on here: attach the streams, in place of the sessions that the server may still hold open."""
        self._connection, self.draining = connection, False
        for session_id in replaced:
            connection.send(Replace(session_id=session_id))
        for channel in self._channels.values():
            channel.backoff = Backoff(deadline)
            self._send_attach(channel)
        for pending in self._pending_for(None):
            self._send_pending(pending)

    def disconnect(self) -> None:
        """The connection is lost. There may be another."""
        self._connection = None

    def cancel_streams(self) -> None:
        """Before the client closes: streams that nobody asked to keep end with it. Of one that no server has
        heard of from here, whoever has its name is somebody else."""
        if self._connection is not None:
            for channel in self._channels.values():
                if channel.said and not channel.kept:
                    self._connection.send(Cancel(request_id=channel.request_id))

    def fail(self, failure: Failure) -> None:
        """There will be no other connection: everybody who waits is told."""
        self._failure, self._connection = failure, None
        for pending in self._pending.values():
            pending.fail(failure())
        for channel in self._channels.values():
            channel.fail(failure)
        self._channels.clear()

    # -- attaching streams to a new connection ---------------------------------------------------------

    def _send_attach(self, channel: Channel) -> None:
        if self._connection is not None:
            frame = self._attach_frame(channel)
            channel.attach_ref, channel.answers_lost = frame.ref, False
            if not self._waits_for_its_stream(channel):
                channel.said += 1
                self._say(self._connection, frame)

    def _send_forks(self, channel: Channel) -> None:
        """Those that waited for this stream, which is attached, or is none."""
        forks, channel.forks = channel.forks, {}
        for fork in forks.values():
            if self._channels.get(fork.request_id) is fork:
                self._send_attach(fork)

    def _attach_frame(self, channel: Channel) -> Start | Attach:
        """The frame that attaches the stream to the connection. To start twice is to start once."""
        if channel.start is not None and not channel.core.started and not channel.abandoned:
            return channel.start
        if channel.restart is not None and not channel.abandoned:
            return channel.restart
        frames = self._pending_for(channel.request_id)
        pending = next((one for one in frames if one.answer is Attached), None)
        ref = pending.frame.ref if pending is not None else self._next_ref()
        core = channel.core
        return Attach(request_id=channel.request_id, after=core.seq, ref=ref, epoch=core.epoch)

    def _resend(self, channel: Channel, pending_refs: Collection[str]) -> None:
        """It is attached: send its state again, then the frames that were never received, in their order."""
        channel.attach_ref = None
        if channel.core.limit:
            self.send(Grant(request_id=channel.request_id, limit=channel.core.limit))
        for pending in self._pending_for(channel.request_id):
            action = pending.reconnect_action(
                self._connection, pending_refs, answers_lost=channel.answers_lost
            )
            if action == "resend":
                self._send_pending(pending)
            elif action == "fail":
                pending.fail(unknown_outcome(pending))
        channel.answers_lost = False
        if channel.abandoned:
            self.send(Cancel(request_id=channel.request_id))
        self._send_forks(channel)

    def _retry_later(self, channel: Channel, event: Error) -> bool:
        """Whether there is reason, and time, to attach it once more."""
        jitter, after_s = random.random(), (event.retry_after_ms or 0) / 1000
        wait_s = channel.backoff.wait_s(self.loop.time(), jitter, after_s) if event.retryable else None
        if wait_s is not None:
            self.loop.call_later(wait_s, self._retry, channel, self._connection)
        return wait_s is not None

    def _retry(self, channel: Channel, connection: Connection | None) -> None:
        known = self._channels.get(channel.request_id) is channel
        if known and connection is self._connection:  # on another one it has been tried meanwhile
            self._send_attach(channel)

    # -- receiving -------------------------------------------------------------------------------------

    def receive(self, event: Event) -> None:
        """Take the next event. Raises ProtocolError for one that cannot come."""
        match event:
            case StreamEvent():
                self._receive_stream_event(event)
            case Attached():
                self._receive_attached(event)
            case Error():
                self._receive_error(event)
            case Pong():
                self._resolve(event.ref, event)
            case GoingAway():
                self.draining = True

    def _receive_stream_event(self, event: StreamEvent) -> None:
        channel = self._channels.get(event.request_id)
        if channel is not None and channel.core.restarting:
            self._receive_restarted(channel, event)
            return
        if channel is not None:
            if isinstance(event, Snapshot) and event.answered:
                self._receive_answers(channel, event.answered)
            channel.receive(event)
        self._resolve(event.ref, event)
        if channel is not None and isinstance(event, Started):
            channel.refused_until = None
            if channel.attach_ref is not None:
                self._resend(channel, ())
        if isinstance(event, Final):
            self._receive_final(event, answers_lost=channel is not None and channel.answers_lost)

    def _receive_answers(self, channel: Channel, answers: Iterable[StreamEvent | Error]) -> None:
        """That were given while nobody listened here."""
        for answer in answers:
            pending = self._pending.get(answer.ref) if answer.ref is not None else None
            if pending is None or pending.future.done():
                continue
            if isinstance(answer, Error):
                pending.fail(from_event(answer))
            elif isinstance(answer, pending.answer):
                channel.receive_answer(pending.frame, answer)
                pending.future.set_result(answer)

    def _receive_attached(self, event: Attached) -> None:
        for pending in self._pending_for(event.request_id):
            if pending.answer in (Started, Attached):
                pending.future.set_result(event)
        if channel := self._channels.get(event.request_id):
            channel.core.epoch, channel.refused_until = event.epoch, None
            self._resend(channel, event.pending)

    def _resolve(self, ref: str | None, event: Event) -> None:
        pending = self._pending.get(ref) if ref is not None else None
        # A frame with `at` is answered twice: the `rewound` that it caused is not yet what it waits for.
        if pending is not None and isinstance(event, pending.answer) and not pending.future.done():
            pending.future.set_result(event)

    def _receive_error(self, event: Error) -> None:
        pending = self._pending.get(event.ref) if event.ref is not None else None
        request_id = (pending and pending.request_id) or event.request_id
        channel = self._channels.get(request_id) if request_id is not None else None
        if channel is not None and event.code == "draining" and self._reconnect_s > 0:
            self._hold(channel, event)
        elif channel is not None and event.ref is not None and event.ref == channel.attach_ref:
            self._receive_attach_error(channel, event)
        elif channel is not None and (not channel.core.started or event.code == "request_taken"):
            self._fail_stream(channel, lambda: from_event(event))
        elif pending is not None:
            pending.fail(from_event(event))
        else:  # a grant that crossed the stream's end, or an error of the connection before it closes
            log.debug("the server reports %s: %s", event.code, event.message)

    def _receive_attach_error(self, channel: Channel, event: Error) -> None:
        """The stream cannot be attached to this connection: not now, or not at all."""
        channel.said -= 1
        unknown = event.code == "unknown_request" and channel.restart is None
        goes_on = channel.wanted and self._retry_later(channel, event)
        if not goes_on and not (unknown and self._start_again(channel)):
            self._refuse(channel, event)

    def _refuse(self, channel: Channel, event: Error) -> None:
        """Whoever asked for it is told why; and where it had begun, it is lost."""
        pending = self._pending_for(channel.request_id)
        asked = any(one.answer in (Started, Attached) for one in pending)
        failure = from_event if asked else stream_lost
        self._fail_stream(channel, lambda: failure(event))

    def _start_again(self, channel: Channel) -> bool:
        """Nobody knows the stream any more; whether it can go on from what has come of it."""
        start = channel.start_again()
        if start is None or self._connection is None:
            return False
        channel.attach_ref = start.ref = self._next_ref()
        channel.said += 1
        self._say(self._connection, start)
        return True

    def _receive_restarted(self, channel: Channel, event: StreamEvent) -> None:
        if not channel.receive_restarted(event):
            self._fail_stream(channel, lambda: not_the_same(event.request_id))
            self.send(Cancel(request_id=event.request_id))
        elif not channel.core.restarting:
            channel.refused_until = None
            self._go_on(channel)

    def _go_on(self, channel: Channel) -> None:
        """It was started again. What has no answer had no effect on what it began with."""
        assert self._connection is not None, "it has just said so"
        if channel.past.paused:
            self._connection.send(Pause(request_id=channel.request_id))
        waiting = [result for result in channel.past.waiting if result.ref not in self._pending]
        channel.sent_again(waiting)
        again = [self._again(channel, result, Backoff(math.inf)) for result in waiting]
        self._pending = {str(one.frame.ref): one for one in again} | self._pending
        channel.answers_lost = False
        self._resend(channel, ())

    def _again(self, channel: Channel, result: ToolResult, backoff: Backoff) -> PendingFrame:
        """A result that waited elsewhere. Whoever gave it has had his answer, and says it no more."""
        pending = PendingFrame(result, Injected, self.loop.create_future())
        pending.future.add_done_callback(partial(self._answered_again, channel, result, backoff))
        return pending

    def _answered_again(
        self, channel: Channel, result: ToolResult, backoff: Backoff, answered: asyncio.Future[Event]
    ) -> None:
        """Where it is refused for now, or nobody knows whether it was heard, it is said once more."""
        del self._pending[str(result.ref)]
        error = answered.exception()
        refused = isinstance(error, RequestError) and error.retryable
        if channel.ended or not (refused or isinstance(error, ConnectionLost)):
            return
        after_s = (error.retry_after_ms or 0) / 1000 if isinstance(error, RequestError) else 0.0
        wait_s = backoff.wait_s(self.loop.time(), random.random(), after_s)
        assert wait_s is not None, "it never gives up"
        self.loop.call_later(wait_s, self._say_again, channel, result, backoff)

    def _say_again(self, channel: Channel, result: ToolResult, backoff: Backoff) -> None:
        if channel.ended or result.ref in self._pending or result not in channel.past.waiting:
            return
        channel.sent_again([result])
        pending = self._pending[str(result.ref)] = self._again(channel, result, backoff)
        if not self._is_attaching(channel.request_id):
            self._send_pending(pending)

    # -- a server that goes away -----------------------------------------------------------------------

    def _hold(self, channel: Channel, event: Error) -> None:
        """It starts nothing new: the start waits for the next connection, as long as one would be sought."""
        self.draining = True
        channel.said -= 1
        channel.attach_ref = event.ref
        if not channel.wanted:
            self._refuse(channel, event)
        elif channel.refused_until is None:
            channel.refused_until = self.loop.time() + self._reconnect_s
            self.loop.call_at(channel.refused_until, self._give_up, channel, channel.refused_until, event)
        self._leave_if_idle()

    def _give_up(self, channel: Channel, until: float, event: Error) -> None:
        """Nobody has taken it until then; where somebody had, it may be held anew."""
        known = self._channels.get(channel.request_id) is channel
        if known and channel.refused_until == until:
            self._refuse(channel, event)

    def _leave_if_idle(self) -> None:
        """Where nothing but starts that wait for another connection would miss this one."""
        channels = self._channels.values()
        held = all(
            channel.attach_ref and (channel.refused_until is not None or self._waits_for_its_stream(channel))
            for channel in channels
        )
        if self.draining and channels and held and self._connection is not None:
            self._leave()

    def _fail_stream(self, channel: Channel, failure: Failure) -> None:
        del self._channels[channel.request_id]
        channel.fail(failure)
        for pending in self._pending_for(channel.request_id):
            pending.fail(failure())
        self._send_forks(channel)

    def _receive_final(self, final: Final, *, answers_lost: bool) -> None:
        """Nothing follows a final: whoever still waits for the stream has his answer now."""
        channel = self._channels.pop(final.request_id, None)
        if channel is not None:
            self._send_forks(channel)
        self._leave_if_idle()
        for pending in self._pending_for(final.request_id):
            if pending.answer in (Final, Started, Attached):
                pending.future.set_result(final)
            elif answers_lost and pending.sent_on is not None and not idempotent(pending.frame):
                pending.fail(unknown_outcome(pending))
            else:
                message = "the stream ended before the frame took effect"
                pending.fail(from_code("request_finished", message, final.request_id))
