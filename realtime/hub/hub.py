"""The hub of all streams of this server: it starts them, finds them, steers them, and passes on the engine's
news.

The hub knows streams by tenant and request_id, and by the number under which the engine knows them. It knows
whom to wake when a stream has something to say, but not what a listener is: a WebSocket connection, an HTTP
response, a test. Listeners come and go, and so do engines; streams stay.

It never blocks the event loop and never waits in it: long texts are tokenized in threads, each client in its
turn, and meanwhile the frames for that stream, and for no other, queue up behind it.
"""

from __future__ import annotations

import asyncio
import logging
import time
import traceback
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial

from msgspec.structs import replace

from engine import api
from midstream import protocol
from midstream.protocol import StreamFrame
from realtime.hub.engine_recovery import EngineRecovery
from realtime.hub.frame_queues import SerialQueues
from realtime.hub.listener import Listener
from realtime.hub.observers import DisconnectCause, Observer, RetryReason, StreamOrigin
from realtime.hub.registry import LiveStream, StreamRegistry, Timer
from realtime.hub.starting import StreamStarter
from realtime.hub.stream_key import StreamKey
from realtime.hub.subscriptions import Subscriptions
from realtime.hub.tokenizing import (
    check_length,
    estimated_tokens,
    start_digest,
    text_length,
    tokenize,
    weight,
)
from realtime.hub.tokenizing_pool import TokenizingPool
from realtime.hub.waiting_frames import WaitingFrames
from realtime.refusal import Refusal
from realtime.stream.memory import MemoryAccount
from realtime.stream.outbox import OutgoingEvent
from realtime.stream.pending_commands import SendReply
from realtime.stream.stream import Stream
from realtime.tenants.quota import Quotas, StreamQuota
from realtime.text.chat_template import NotBriefError
from realtime.text.served_model import ServedModel

log = logging.getLogger(__name__)

LONG_TEXT = 2_000  # characters; fewer are tokenized in a millisecond or so, more in a thread


def _count(quota: StreamQuota, news: api.News) -> None:
    if news.admitted is not None:
        quota.prefill_begun()
    tokens = len(news.tokens) + sum(map(_computed, news.changes))
    if tokens:
        quota.count(tokens)


def _computed(change: api.AnyChange) -> int:
    """Tokens that a command has the engine compute. What memory takes, unasked, is nobody's doing."""
    match change:
        case api.Appended(count=tokens) | api.Resumed(recomputed=tokens):
            return tokens
    return 0


def _where(error: Exception) -> str:
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{last.filename}, line {last.lineno}"


class Hub:
    def __init__(
        self,
        send: Callable[[list[api.AnyCommand]], None],
        observer: Observer,
        *,
        quotas: Quotas | None = None,
        window: int,
        max_streams: int,
        stream_memory: int = 28 << 20,
        clock: Callable[[], float] = time.monotonic,
        call_later: Callable[[float, Callable[[], None]], Timer] | None = None,
    ) -> None:
        self.model: ServedModel | None = None  # until the first engine is there
        self.engine_up = False  # whether there is an engine now
        self.draining = False
        self.step = 0
        self._send = send
        self._observer = observer
        self._clock = clock
        self._call_later = call_later or (
            lambda delay, call: asyncio.get_running_loop().call_later(delay, call)
        )
        self._registry = StreamRegistry()
        self._subscriptions = Subscriptions[Listener]()
        self._queues = SerialQueues[StreamKey, tuple[StreamFrame, Listener]](
            self._tokenize, self._note_if_empty
        )
        self._waiting_frames = WaitingFrames()
        self._pool = TokenizingPool()
        self._quotas = quotas or Quotas()
        self._recovery = EngineRecovery()
        self._outgoing: list[api.AnyCommand] = []
        self._stream_memory = stream_memory
        self._detached = defaultdict[str, MemoryAccount](self.memory_account)  # of each tenant
        self._starter = StreamStarter(
            self._quotas, self._outgoing.append, window=window, max_streams=max_streams
        )
        self._empty = asyncio.Event()
        self._empty.set()

    # -- what may be seen ------------------------------------------------------------------------

    @property
    def streams(self) -> list[Stream]:
        return [entry.stream for entry in self._registry.entries]

    @property
    def engine_proven(self) -> bool:
        """Whether everybody whom the last engine was given moved on in it."""
        return self._recovery.proven

    def memory_account(self) -> MemoryAccount:
        """For the streams of one listener."""
        return MemoryAccount(self._stream_memory)

    def is_live(self, tenant: str, request_id: str) -> bool:
        """Whether there is such a stream, and it has not ended."""
        return StreamKey(tenant, request_id) in self._registry.keys

    async def wait_until_empty(self) -> None:
        """Wait until no stream is left."""
        await self._empty.wait()

    # -- from listeners --------------------------------------------------------------------------

    def receive_frame(self, tenant: str, frame: StreamFrame, listener: Listener) -> None:
        """Act on a frame, behind those for the same stream that came before it. A refused one changes
        nothing."""
        key = StreamKey(tenant, frame.request_id)
        try:
            if key in self._queues.keys or text_length(frame) > LONG_TEXT:
                self._enqueue(key, frame, listener)
            else:
                self._receive_frame(key, frame, listener)
        except NotBriefError:
            self._enqueue(key, frame, listener)
        self._flush_commands()

    def take_events(self, stream: Stream) -> list[OutgoingEvent]:
        """What a stream has to say to its listener, who is ready for it. `flush` follows, once for all."""
        told = stream.take_events()
        self._unsubscribe_if_done(stream)
        return told

    def acknowledge(self, stream: Stream, index: int, seq: int) -> None:
        """A peer has taken a stream's output up to `index`, and its events up to `seq`."""
        if stream.out_of_credit:
            self._observer.granted(stream)
        stream.acknowledge(index, seq)

    def flush(self) -> None:
        """After any number of `acknowledge` and `take_events`."""
        self._flush_commands()

    def detach(self, listener: Listener, cause: DisconnectCause = "closed") -> None:
        """The listener is gone; each of its streams does what its start said."""
        with self._waking() as wake:
            for number in self._subscriptions.remove(listener):
                entry = self._registry.by_number(number)
                if entry is None:
                    continue  # it has ended
                stream = entry.stream
                self._observer.detached(stream, cause)
                self._let_wait(entry.key.tenant, stream)
                if stream.on_disconnect != "cancel":
                    entry.grace = self._call_later(stream.grace_s, partial(self._abandon, stream))
                wake(stream)

    # -- from the engine -------------------------------------------------------------------------

    def receive_step(self, output: api.StepOutput) -> None:
        """One step's news, to everybody whom it concerns, in one go."""
        self.step = output.step
        now = self._clock()
        self._observer.stepped(output, now)
        with self._waking() as wake:
            for news in output.news:
                entry = self._registry.by_number(news.stream)
                if entry is None:
                    self._observer.discarded(len(news.tokens))
                    continue
                stream = entry.stream
                _count(entry.quota, news)
                for pending in stream.receive_news(news, now):
                    self._observer.steered(
                        stream, pending.kind, output.step - pending.step, now - pending.received_s
                    )
                wake(stream)
                if news.tokens or news.changes:
                    self._progressed(stream)
                elif news.admitted is not None and stream.out_of_credit:
                    self._recovery.preparing(stream.number)
            if not (output.stats.prefill_rows and output.stats.ready):
                self._submit(self._recovery.prepared())
        self._observer.delivered(output)

    def cancel_all(self, of: Callable[[str], bool] = lambda tenant: True) -> None:
        """All streams of such tenants."""
        with self._waking() as wake:
            for stream in [entry.stream for entry in self._registry.entries if of(entry.key.tenant)]:
                stream.cancel(self._clock(), self.step)
                wake(stream)

    def engine_lost(self) -> None:
        """The engine is gone. Its streams wait for another, but one that has killed too many."""
        self.engine_up = False
        culprit = self._recovery.engine_died()
        with self._waking() as wake:
            for stream in self.streams:
                if stream.number == culprit:
                    stream.fail(
                        "the engine failed again and again while it computed this stream", self._clock()
                    )
                else:
                    stream.lose_engine(self._clock())
                wake(stream)
            self._outgoing.clear()  # there is nobody to send it to

    def engine_ready(self, model: ServedModel) -> None:
        """There is an engine, and it knows no stream yet."""
        self.model, self.engine_up, self.step = model, True, 0
        waiting = [stream for stream in self.streams if not stream.concluded]
        self._submit(stream.number for stream in waiting if not stream.needs_compute)
        self._submit(self._recovery.engine_ready(stream.number for stream in waiting if stream.needs_compute))
        self._flush_commands()

    def _submit(self, numbers: Iterable[int]) -> None:
        for number in numbers:
            entry = self._registry.by_number(number)
            if entry is not None:  # else it ended while it was held back
                entry.stream.submit()
                self._observer.retried(entry.stream, "engine")

    def _progressed(self, stream: Stream) -> None:
        if self.engine_up and not self._recovery.proven:
            self._submit(self._recovery.progressed(stream.number))

    # -- a frame ---------------------------------------------------------------------------------

    def _receive_frame(
        self, key: StreamKey, frame: StreamFrame, listener: Listener, tokens: list[int] | None = None
    ) -> None:
        """`tokens` are the frame's text, where that was tokenized before."""
        try:
            match frame:
                case protocol.Attach(after=after):
                    self._attach(key, after, frame.ref, listener)
                    return
                case protocol.Start() if (
                    started := self._registry.start_digest(key, self._clock())
                ) is not None:
                    self._start_again(key, frame, started, listener)
                    return
                case protocol.Start():
                    stream: Stream | None = self._start(key, frame, listener, tokens)
                case _:
                    stream = self._steer(key, frame, listener, tokens)
        except Refusal as refusal:
            listener.send_refusal(refusal, frame.request_id, frame.ref)
            return
        if stream is not None:
            with self._waking() as wake:
                wake(stream)

    def _enqueue(self, key: StreamKey, frame: StreamFrame, listener: Listener) -> None:
        """A frame whose text may take long, or that is behind one."""
        try:
            check_length(frame, self._known_model())
            self._waiting_frames.add(key.tenant, listener, weight(frame))
        except Refusal as refusal:
            listener.send_refusal(refusal, frame.request_id, frame.ref)
            return
        self._empty.clear()
        if not self._queues.enqueue(key, (frame, listener)):
            self._queues.start(key, (frame, listener))

    async def _tokenize(self, key: StreamKey, item: tuple[StreamFrame, Listener]) -> None:
        """A frame of a serial queue: its text may be long."""
        frame, listener = item
        try:
            tokens = await self._tokens(key, frame, listener) if text_length(frame) else None
        except Refusal as refusal:
            listener.send_refusal(refusal, frame.request_id, frame.ref)
        except Exception as error:  # noqa: BLE001 - what it says may quote the text: only its kind is logged
            log.error("a frame could not be tokenized: %s in %s", type(error).__name__, _where(error))
            failure = Refusal("engine_error", "The server failed to tokenize this frame's text.")
            listener.send_refusal(failure, frame.request_id, frame.ref)
        else:
            if not listener.gone:
                self._receive_frame(key, frame, listener, tokens)
                self._flush_commands()
        finally:
            self._waiting_frames.remove(key.tenant, listener, weight(frame))

    async def _tokens(self, key: StreamKey, frame: StreamFrame, listener: Listener) -> list[int] | None:
        """Of a frame's text, when it is this client's turn; or the refusal that came to be known by then."""
        self._check_text(key, frame, listener)
        async with self._pool.turn(key.tenant, listener, text_length(frame)):
            if listener.gone:
                return None
            self._check_text(key, frame, listener)
            try:
                return await self._pool.run(tokenize, frame, self._known_model())
            except Refusal:
                self._quotas.count(key.tenant, estimated_tokens(frame))
                raise

    def _check_text(self, key: StreamKey, frame: StreamFrame, listener: Listener) -> None:
        """Refuse what can be refused before the work of tokenizing."""
        if isinstance(frame, protocol.Inject):
            self._quotas.check_rate(key.tenant)
        elif isinstance(frame, protocol.Start) and not self._registry.start_digest(key, self._clock()):
            self._check_start(key, frame, listener)

    # -- starting and attaching ------------------------------------------------------------------

    def _start(
        self, key: StreamKey, frame: protocol.Start, listener: Listener, tokens: list[int] | None
    ) -> Stream:
        model = self._check_start(key, frame, listener)
        now = self._clock()
        entry = self._starter.make(key, frame, tokens, model, listener.memory, now)
        stream = entry.stream
        if frame.timeout_ms is not None:
            entry.timeout = self._call_later(frame.timeout_ms / 1000, partial(self._time_out, stream))
        self._registry.add(entry)
        self._subscriptions.subscribe(stream.number, listener)
        self._empty.clear()
        self._observer.started(
            stream, StreamOrigin(key.tenant, model.name, listener.route, frame.traceparent), now
        )
        return stream

    def _start_again(self, key: StreamKey, frame: protocol.Start, started: bytes, listener: Listener) -> None:
        if start_digest(frame) != started:
            raise Refusal(
                "request_conflict",
                f'Request "{frame.request_id}" was started with other content: take another id.',
            )
        self._attach(key, -1, frame.ref, listener, "start")

    def _attach(
        self, key: StreamKey, after: int, ref: str | None, listener: Listener, reason: RetryReason = "attach"
    ) -> None:
        stream = self._registry.find(key, self._clock())
        before = self._subscriptions.listener_of(stream.number)
        anew = before is not listener
        if anew:
            listener.memory.check()
        if anew and before is not None and not listener.takes_over:
            raise Refusal("request_taken", f'Request "{stream.request_id}" has another listener.')
        stream.attach(after, self.step, ref, anew=anew)
        self._observer.retried(stream, reason)
        self._hand_over(stream, listener)
        listener.wake(stream)
        listener.flush()

    def _hand_over(self, stream: Stream, listener: Listener) -> None:
        stream.use_account(listener.memory)
        before = self._subscriptions.subscribe(stream.number, listener)
        if before is not None:
            before.lose(stream)
        entry = self._registry.by_number(stream.number)
        if entry is not None:
            entry.stop_grace()

    def _let_wait(self, tenant: str, stream: Stream) -> None:
        """Nobody reads it: it waits at its tenant's expense, and where that has reached its limit it ends."""
        account = self._detached[tenant]
        stream.use_account(account)
        if account.full:
            stream.abandon(self._clock(), self.step)
        else:
            stream.detach(self._clock(), self.step)

    def _abandon(self, stream: Stream) -> None:
        """Nobody came back."""
        with self._waking() as wake:
            stream.abandon(self._clock(), self.step)
            wake(stream)

    # -- steering --------------------------------------------------------------------------------

    def _steer(
        self, key: StreamKey, frame: StreamFrame, listener: Listener, tokens: list[int] | None
    ) -> Stream | None:
        entry = self._registry.by_key(key)
        if entry is None:
            self._refuse_steering(key, frame)
            return None
        stream = entry.stream
        elsewhere = self._subscriptions.listener_of(stream.number) is not listener
        send_reply = listener.send_reply if elsewhere and frame.ref is not None else None
        match frame:
            case protocol.Grant(limit=limit):
                if stream.out_of_credit:
                    self._observer.granted(stream)
                stream.grant(limit, self._clock())
            case protocol.Cancel(ref=ref):
                stream.cancel(self._clock(), self.step, ref, send_reply)
            case protocol.Inject():
                self._inject(entry, frame, tokens, send_reply)
            case protocol.Pause(kv=kv):
                stream.steer(frame, self.step, self._clock(), send_reply)
                entry.released = entry.released or kv == "release"
            case protocol.Resume():
                if entry.released:
                    entry.quota.check_rate()
                stream.steer(frame, self.step, self._clock(), send_reply)
                entry.released = False
            case protocol.Adjust() | protocol.Rewind():
                stream.steer(frame, self.step, self._clock(), send_reply)
        return stream

    def _inject(
        self,
        entry: LiveStream,
        frame: protocol.Inject,
        tokens: list[int] | None,
        send_reply: SendReply | None,
    ) -> None:
        """What takes effect is counted then; what was tokenized in vain, now."""
        if tokens is None:
            entry.quota.check_rate()
            tokens = tokenize(frame, self._known_model(), brief=True) or []
        try:
            entry.stream.steer(replace(frame, tokens=tokens), self.step, self._clock(), send_reply)
        except Refusal:
            if text_length(frame):
                entry.quota.count(len(tokens))
            raise

    def _refuse_steering(self, key: StreamKey, frame: StreamFrame) -> None:
        if not self._registry.has_ended(key):
            raise Refusal("unknown_request", f'There is no request "{frame.request_id}": start it first.')
        if isinstance(frame, protocol.Grant | protocol.Cancel):
            return  # it crossed the final on its way; there is nothing left to grant or to end
        raise Refusal(
            "request_finished", f'Request "{frame.request_id}" has ended: there is nothing to steer.'
        )

    def _check_start(self, key: StreamKey, frame: protocol.Start, listener: Listener) -> ServedModel:
        if self.draining:
            raise Refusal("draining", "The server is going away and starts nothing new.", retry_after_ms=1000)
        model = self._known_model()
        if not self.engine_up or self._recovery.suspicious:
            raise Refusal("overloaded", "The engine is being started.", retry_after_ms=1000)
        listener.memory.check()
        beginning = self._queues.keys - self._registry.keys - {key}
        self._starter.check(key.tenant, frame, model, others=len(self._registry) + len(beginning))
        return model

    def _known_model(self) -> ServedModel:
        if self.model is None:
            raise Refusal("overloaded", "The engine is being started.", retry_after_ms=1000)
        return self.model

    # -- afterwards ------------------------------------------------------------------------------

    @contextmanager
    def _waking(self) -> Iterator[Callable[[Stream], None]]:
        """Streams that moved are woken; in the end each listener is flushed once, and commands are sent."""
        woken: dict[Listener, None] = {}
        yield lambda stream: self._wake(stream, woken)
        for listener in woken:
            listener.flush()
        self._flush_commands()

    def _wake(self, stream: Stream, woken: dict[Listener, None]) -> None:
        listener = self._subscriptions.listener_of(stream.number)
        if listener is not None and stream.outbox.waiting:
            listener.wake(stream)
            woken[listener] = None
        if stream.ended:
            self._retire(stream)

    def _retire(self, stream: Stream) -> None:
        entry = self._registry.by_number(stream.number)
        if entry is None:
            return
        self._registry.end(entry, self._clock())
        self._unsubscribe_if_done(stream)
        self._progressed(stream)
        self._observer.finished(stream, self._clock())
        self._note_if_empty()

    def _unsubscribe_if_done(self, stream: Stream) -> None:
        """Whoever listened to a stream that has ended is its listener until all of it is taken."""
        if stream.all_delivered:
            self._subscriptions.unsubscribe(stream.number)
            stream.release_memory()

    def _note_if_empty(self) -> None:
        if not len(self._registry) and not self._queues.keys:
            self._empty.set()

    def _time_out(self, stream: Stream) -> None:
        with self._waking() as wake:
            stream.time_out(self._clock(), self.step)
            wake(stream)

    def _flush_commands(self) -> None:
        if self._outgoing:
            commands, self._outgoing[:] = self._outgoing[:], []
            self._send(commands)
