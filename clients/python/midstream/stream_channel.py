"""A stream's channel in the session: gives its events to the stream's core, and wakes who waits for them.

The session holds channels, and a channel does not know the object that the user holds: when that is
dropped, it goes, and the stream is cancelled.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar

from msgspec.structs import replace

from midstream.backoff import Backoff
from midstream.errors import MidstreamError, from_code
from midstream.past import Past
from midstream.protocol import (
    MAX_ANSWERED,
    Adjust,
    Adjusted,
    Cancel,
    Event,
    Frame,
    Grant,
    Inject,
    Injected,
    Rewind,
    Snapshot,
    Start,
    StreamEvent,
    ToolResult,
)
from midstream.recording import StreamRecorder
from midstream.stream_core import Noted, StreamCore

if TYPE_CHECKING:
    from midstream.session import Session

E = TypeVar("E", bound=Event)
_numbers = itertools.count()


class Channel:
    """What the session knows of a stream, and the stream of the session.

    `start` is the frame that started it, if it was started here; `kept` says that the user has named what
    becomes of it when its connection ends, `recorder` writes down what becomes of it.
    """

    def __init__(
        self,
        session: Session,
        request_id: str,
        core: StreamCore,
        start: Start | None,
        *,
        kept: bool,
        recorder: StreamRecorder | None = None,
    ) -> None:
        self.number = next(_numbers)  # later ones were asked for later
        self.request_id = request_id
        self.core = core
        self.start = start
        self.kept = kept
        self.abandoned = False
        self.ours = start is not None  # what is attached to is somebody else's, until it is here
        self.left = False  # as it was: the attach was given up
        self.said = 0  # servers that may have heard of it, and have not refused it
        self.attach_ref: str | None = None  # of the frame that attaches it to a new connection, until it has
        self.answers_lost = False  # whether some may have been given, and not told since
        self.backoff = Backoff(0)
        self.forks: dict[str, Channel] = {}  # that are asked for once it is attached, or is none
        self.refused_until: float | None = None  # its start, by servers that go away
        self.past = Past()
        self.restart: Start | None = None  # what starts it again, while that is under way
        self._recorder = recorder
        self._session = session
        self._failure: Callable[[], MidstreamError] | None = None
        self._changed = asyncio.Event()

    @property
    def attached(self) -> bool:
        """Whether what is sent about it reaches the server now, and is about this stream of ours."""
        return self._session.connected and self.attach_ref is None and not self.failed

    @property
    def wanted(self) -> bool:
        """Whether a server is to hear of it. Of what was given up only one that may have it: anywhere else
        whoever has its name is somebody else."""
        return bool(self.said) or not self.abandoned

    def send(self, frame: Grant) -> None:
        self.check()
        self._session.send(frame)

    async def request(self, frame: Frame, answer: type[E]) -> E:
        """Send a frame about this stream and wait for its answer."""
        if self.core.final is not None:
            raise from_code("request_finished", "the stream has ended", self.request_id)
        self.check()  # whoever has taken it over has it now
        if self._recorder is not None:
            self._recorder.sent(frame)
        self.past.sent(frame)
        self.said = self.said or int(self._session.connected)
        if isinstance(frame, ToolResult) or (isinstance(frame, Inject) and frame.messages):
            self.core.told.sent(frame)
        try:
            return await self._session.request(frame, answer)
        except MidstreamError:
            self._refused(frame)
            raise

    def _refused(self, frame: Frame) -> None:
        """Nothing more is heard of it."""
        self.past.refused(frame)
        self.core.told.refused(frame)
        if self._recorder is not None:
            self._recorder.refused(frame)

    def sent_again(self, results: list[ToolResult]) -> None:
        """Those that waited, where the stream goes on elsewhere."""
        for result in results:
            self._refused(result)  # where it was
            self.core.told.sent(result)
            self.past.sent(result)
        if self._recorder is not None:
            self._recorder.sent_again(results)

    def receive(self, event: StreamEvent) -> None:
        missed = event.seq != self.core.seq + 1
        if self.core.receive(event):
            # Of what a fork begins with nothing is told that was answered. Another server's snapshot may be
            # counted right behind what has come.
            if isinstance(event, Snapshot) and (missed or event.answered is not None):
                self.answers_lost = event.answered is None or len(event.answered) >= MAX_ANSWERED
                self.past.miss(event)
                self.core.told.miss(self.core.spans.stood_until)
            self.past.receive(event, self.core.spans)
            if self._recorder is not None:
                self._recorder.receive(event)
        self._changed.set()

    def receive_answer(self, frame: Frame, answer: Event) -> None:
        """Which a snapshot stands for that is about to come."""
        core = self.core
        match frame:
            case Adjust(at=int() as at) | Inject(at=int() as at) | Rewind(to=at):
                self.past.rewind(at, core.spans)
                core.rewind_told(at)
        if isinstance(answer, Adjusted) and isinstance(frame, Adjust):
            answer = replace(answer, params=core.adjusted(frame.params))
        if isinstance(answer, StreamEvent):
            self.past.receive(answer, core.spans)
        if isinstance(answer, Injected):
            core.receive_told(answer)

    def start_again(self) -> Start | None:
        """What starts it again, where nobody knows it any more; None where that cannot be said exactly."""
        if self.start is None or self.abandoned or self.core.acts:
            return None
        core = self.core
        self.restart = self.past.start(self.start, core.tokens, core.index, len(core.text), core.spans)
        if self.restart is not None:
            self.core.restart()
        return self.restart

    def receive_restarted(self, event: StreamEvent) -> bool:
        """The first events of the stream that it goes on as; False where that is another."""
        if not self.core.goes_on_with(event):
            return False
        if isinstance(event, Snapshot):
            self.restart, before, stood = None, self.core.fingerprint, self.core.index
            missing = self.core.go_on(event)
            self.past.begin(event)
            if self._recorder is not None and event.fingerprint != before:
                self._recorder.moved(event.index, event.fingerprint)
            if self._recorder is not None and event.index > stood:  # how it came so far nobody has told
                self._recorder.receive(event)
            for lost in missing:
                self.receive(lost)
            self._changed.set()
        return True

    def note(self, event: Noted) -> None:
        """Tell whoever reads events, behind those that have come."""
        self.core.note(event)
        self.wake()

    def wake(self) -> None:
        """Whoever waits looks anew."""
        self._changed.set()

    def fail(self, failure: Callable[[], MidstreamError]) -> None:
        """No more events will come."""
        self._failure = failure
        self._changed.set()

    @property
    def failed(self) -> bool:
        """Whether no more events will come, though the stream had not ended."""
        return self._failure is not None

    @property
    def ended(self) -> bool:
        """Whether the stream has ended, or nobody will ever know."""
        return self.failed or self.core.final is not None

    def check(self) -> None:
        """Raise why no more events will come, if none will."""
        if self._failure is not None:
            raise self._failure()

    def check_loop(self) -> None:
        """Raise where this is another event loop than the client's."""
        self._session.check_loop()

    async def wait(self) -> None:
        """Wait for the next event, or the end of events."""
        self.check_loop()
        self._changed.clear()
        await self._changed.wait()

    def abandon(self) -> None:
        """Nobody wants this stream any more: cancel it. From any thread: finalizers run anywhere."""
        with suppress(RuntimeError):  # the loop is closed, and the connection with it
            self._session.loop.call_soon_threadsafe(self._cancel)

    def _cancel(self) -> None:
        if self.said and not self.ours:
            self.left = True
        elif self.core.final is None and not self.failed and not self.abandoned:
            self.abandoned = True
            if self.said:
                self._session.send(Cancel(request_id=self.request_id))
            else:  # whoever has a stream of this name is somebody else
                self._session.forget(self)
