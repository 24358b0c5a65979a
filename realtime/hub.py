"""All streams of this server: it starts them, finds them, steers them, and passes on the engine's news.

The hub knows streams by tenant and request_id, and by the number under which the engine knows them. It
knows whom to wake when a stream has something to say, but not what a listener is: a WebSocket connection,
an HTTP response, a test.

It never blocks the event loop and never waits in it: long texts are tokenized in a thread, and meanwhile
the frames for that stream, and for no other, queue up behind it.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

from msgspec.structs import replace

from engine import api
from midstream import protocol
from midstream.protocol import StreamFrame
from realtime.prompts import Model, checked_params, text_length, tokenize
from realtime.refusal import Refusal
from realtime.stream import Stream

log = logging.getLogger(__name__)

Key = tuple[str, str]  # tenant, request_id
LONG_TEXT = 2_000  # characters; fewer are tokenized in a millisecond or so, more in a thread
REMEMBERED = 4_096  # finished requests of which it is still known that they were


class Listener(Protocol):
    """Whoever hears of streams. All of these must be quick."""

    gone: bool

    def wake(self, stream: Stream) -> None:
        """The stream has something to say; `flush` will follow, once for all that were woken together."""

    def flush(self) -> None: ...
    def refuse(self, refusal: Refusal, request_id: str, ref: str | None) -> None: ...


class Watcher(Protocol):
    """Whoever counts."""

    def stepped(self, output: api.StepOutput) -> None: ...
    def acted(self, kind: str, steps: int) -> None: ...
    def finished(self, stream: Stream) -> None: ...
    def discarded(self, tokens: int) -> None: ...


class Timer(Protocol):
    def cancel(self) -> None: ...


class Hub:
    def __init__(
        self,
        send: Callable[[list[api.AnyCommand]], None],
        watcher: Watcher,
        *,
        window: int,
        max_streams: int,
        clock: Callable[[], float] = time.monotonic,
        call_later: Callable[[float, Callable[[], None]], Timer] | None = None,
    ) -> None:
        self.model: Model | None = None  # while there is no engine, there is none
        self.draining = False
        self.steps = 0
        self._send = send
        self._watcher = watcher
        self._window = window
        self._max_streams = max_streams
        self._clock = clock
        self._call_later = call_later or (
            lambda delay, call: asyncio.get_running_loop().call_later(delay, call)
        )
        self._numbers = itertools.count()
        self._tenants: dict[str, int] = {}
        self._streams: dict[Key, Stream] = {}
        self._by_number: dict[int, tuple[Key, Stream]] = {}
        self._listeners: dict[int, Listener] = {}
        self._lanes: dict[
            Key, deque[tuple[StreamFrame, Listener]]
        ] = {}  # frames behind one that takes its time
        self._tasks: set[asyncio.Task[None]] = set()
        self._finished: OrderedDict[Key, None] = OrderedDict()
        self._timers: dict[int, Timer] = {}
        self._outgoing: list[api.AnyCommand] = []
        self._quiet = asyncio.Event()
        self._quiet.set()

    # -- what may be seen ------------------------------------------------------------------------

    @property
    def streams(self) -> list[Stream]:
        return list(self._streams.values())

    async def quiet(self) -> None:
        """Wait until no stream is left."""
        await self._quiet.wait()

    # -- from listeners --------------------------------------------------------------------------

    def receive(self, tenant: str, frame: StreamFrame, listener: Listener) -> None:
        """Act on a frame, behind those for the same stream that came before it. A refused one changes
        nothing."""
        key = (tenant, frame.request_id)
        if key in self._lanes:
            self._lanes[key].append((frame, listener))
        elif text_length(frame) > LONG_TEXT:
            self._lanes[key] = deque([(frame, listener)])
            self._quiet.clear()
            task = asyncio.get_running_loop().create_task(self._work_off(key))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        else:
            self._act(key, frame, listener)
        self._flush_commands()

    def taken(self, stream: Stream, index: int) -> None:
        """A peer has taken a stream's output up to `index`."""
        stream.taken(index)

    def settle(self) -> None:
        """After any number of `taken`."""
        self._flush_commands()

    def detach(self, listener: Listener) -> None:
        """The listener is gone, and its streams with it."""
        with self._turn() as wake:
            for number in [number for number, other in self._listeners.items() if other is listener]:
                del self._listeners[number]
                stream = self._by_number[number][1]
                stream.forsake(self._clock(), self.steps)
                wake(stream)

    # -- from the engine -------------------------------------------------------------------------

    def hear(self, output: api.StepOutput) -> None:
        """One step's news, to everybody whom it concerns, in one go."""
        self.steps = output.step
        now = self._clock()
        with self._turn() as wake:
            for news in output.news:
                known = self._by_number.get(news.stream)
                if known is None:
                    self._watcher.discarded(len(news.tokens))
                    continue
                stream = known[1]
                for asked in stream.hear(news, now):
                    self._watcher.acted(asked.kind, output.step - asked.step)
                wake(stream)
        self._watcher.stepped(output)

    def cancel_all(self) -> None:
        with self._turn() as wake:
            for stream in self.streams:
                stream.cancel(self._clock(), self.steps)
                wake(stream)

    def lose_engine(self) -> None:
        """Every stream's engine is gone: until streams can be rebuilt, they end here."""
        self.model = None
        with self._turn() as wake:
            for stream in self.streams:
                stream.lost(self._clock())
                wake(stream)
            self._outgoing.clear()  # there is nobody to send it to

    # -- a frame ---------------------------------------------------------------------------------

    def _act(self, key: Key, frame: StreamFrame, listener: Listener, tokens: list[int] | None = None) -> None:
        """`tokens` are the frame's text, where that was tokenized before."""
        try:
            if isinstance(frame, protocol.Start):
                stream: Stream | None = self._start(key, frame, listener, tokens)
            else:
                stream = self._steer(key, frame, tokens)
        except Refusal as refusal:
            listener.refuse(refusal, frame.request_id, frame.ref)
            return
        if stream is not None:
            with self._turn() as wake:
                wake(stream)

    async def _work_off(self, key: Key) -> None:
        """A lane: one frame after the other, text that is long in a thread."""
        lane = self._lanes[key]
        while lane:
            frame, listener = lane[0]
            try:
                if isinstance(frame, protocol.Start):
                    self._check_start(key, frame)
                tokens = await asyncio.to_thread(tokenize, frame, self._ready_model())
            except Refusal as refusal:
                listener.refuse(refusal, frame.request_id, frame.ref)
            except Exception:
                log.exception("a frame could not be tokenized")
                failure = Refusal("engine_error", "The server failed to tokenize this frame's text.")
                listener.refuse(failure, frame.request_id, frame.ref)
            else:
                if not listener.gone:
                    self._act(key, frame, listener, tokens)
            lane.popleft()
        del self._lanes[key]
        self._set_quiet()

    def _start(self, key: Key, frame: protocol.Start, listener: Listener, tokens: list[int] | None) -> Stream:
        self._check_start(key, frame)
        model = self._ready_model()
        prompt = tokens if tokens is not None else tokenize(frame, model) or []
        params = checked_params(frame, prompt, model)
        number = next(self._numbers)
        tenant = self._tenants.setdefault(key[0], len(self._tenants))
        stream = Stream(
            number,
            frame,
            prompt,
            params,
            model=model,
            tenant=tenant,
            window=self._window,
            send=self._outgoing.append,
            now=self._clock(),
        )
        self._streams[key] = stream
        self._by_number[number] = (key, stream)
        self._listeners[number] = listener
        self._finished.pop(key, None)
        self._quiet.clear()
        if frame.timeout_ms is not None:
            self._timers[number] = self._call_later(frame.timeout_ms / 1000, lambda: self._time_out(stream))
        return stream

    def _steer(self, key: Key, frame: StreamFrame, tokens: list[int] | None) -> Stream | None:
        stream = self._streams.get(key)
        if stream is None:
            self._steer_nothing(key, frame)
            return None
        match frame:
            case protocol.Grant(limit=limit):
                stream.credit(limit, self._clock())
            case protocol.Cancel(ref=ref):
                stream.cancel(self._clock(), self.steps, ref)
            case protocol.Inject():
                made = tokens if tokens is not None else tokenize(frame, self._ready_model())
                stream.steer(replace(frame, tokens=made), self.steps)
            case protocol.Attach():
                raise Refusal("unsupported", "`attach` is not known here: a stream ends with its connection.")
            case protocol.Pause() | protocol.Resume() | protocol.Adjust() | protocol.Rewind():
                stream.steer(frame, self.steps)
        return stream

    def _steer_nothing(self, key: Key, frame: StreamFrame) -> None:
        if key not in self._finished:
            raise Refusal("unknown_request", f'There is no request "{frame.request_id}": start it first.')
        if isinstance(frame, protocol.Grant | protocol.Cancel):
            return  # it crossed the final on its way; there is nothing left to grant or to end
        raise Refusal(
            "request_finished", f'Request "{frame.request_id}" has ended: there is nothing to steer.'
        )

    def _check_start(self, key: Key, frame: protocol.Start) -> None:
        if self.draining:
            raise Refusal("draining", "The server is going away and starts nothing new.", retry_after_ms=1000)
        model = self._ready_model()
        if frame.model not in (None, model.name):
            raise Refusal(
                "unknown_model", f'There is no model "{frame.model}"; this server has "{model.name}".'
            )
        if (frame.messages is None) == (frame.prompt is None):
            raise Refusal(
                "invalid_frame", "A start has either `messages` or `prompt`, not both and not neither."
            )
        if frame.on_disconnect != "cancel":
            raise Refusal(
                "unsupported", '`on_disconnect` can only be "cancel": a stream ends with its connection.'
            )
        if key in self._streams:
            raise Refusal(
                "request_conflict", f'Request "{frame.request_id}" is running already: take another id.'
            )
        beginning = self._lanes.keys() - self._streams.keys() - {key}
        if len(self._streams) + len(beginning) >= self._max_streams:
            raise Refusal(
                "overloaded", f"The server has its most of {self._max_streams} streams.", retry_after_ms=1000
            )

    def _ready_model(self) -> Model:
        if self.model is None:
            raise Refusal("overloaded", "The engine is not ready; it is being started.", retry_after_ms=1000)
        return self.model

    # -- afterwards ------------------------------------------------------------------------------

    @contextmanager
    def _turn(self) -> Iterator[Callable[[Stream], None]]:
        """Streams that moved are woken; in the end each listener is flushed once, and commands are sent."""
        woken: dict[Listener, None] = {}
        yield lambda stream: self._wake(stream, woken)
        for listener in woken:
            listener.flush()
        self._flush_commands()

    def _wake(self, stream: Stream, woken: dict[Listener, None]) -> None:
        listener = self._listeners.get(stream.number)
        if listener is None:
            stream.outbox.take()  # nobody is left to hear it
        elif stream.outbox.waiting:
            listener.wake(stream)
            woken[listener] = None
        if stream.ended:
            self._retire(stream)

    def _retire(self, stream: Stream) -> None:
        known = self._by_number.pop(stream.number, None)
        if known is None:
            return
        key = known[0]
        del self._streams[key]
        self._listeners.pop(stream.number, None)
        timer = self._timers.pop(stream.number, None)
        if timer is not None:
            timer.cancel()
        self._finished[key] = None
        if len(self._finished) > REMEMBERED:
            self._finished.popitem(last=False)
        self._watcher.finished(stream)
        self._set_quiet()

    def _set_quiet(self) -> None:
        if not self._streams and not self._lanes:
            self._quiet.set()

    def _time_out(self, stream: Stream) -> None:
        with self._turn() as wake:
            stream.time_out(self._clock(), self.steps)
            wake(stream)

    def _flush_commands(self) -> None:
        if self._outgoing:
            commands, self._outgoing[:] = self._outgoing[:], []
            self._send(commands)
