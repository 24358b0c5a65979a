"""The hub of all streams of this server: it starts them, finds them, steers them, and hands them over.

The hub knows streams by tenant and request_id, and whose turn it is to listen, but not what a listener is: a
WebSocket connection, an HTTP response, a test. Listeners come and go (`departures`), and so do models and
engines (`serving`), whose news it passes on (`incoming_news`); streams stay.

It never blocks the event loop and never waits in it: long texts are tokenized in threads, each client in its
turn, and meanwhile the frames for that stream, and for no other, queue up behind it.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from functools import partial

from msgspec.structs import replace

from engine import api
from midstream import protocol
from midstream.protocol import MAX_MILLISECONDS, StreamFrame
from realtime.hub import free_values
from realtime.hub.adoptions import Adoptions, another_content
from realtime.hub.awaited_starts import AwaitedStarts
from realtime.hub.deadlines import Deadlines
from realtime.hub.decoded_turns import DecodedTurns
from realtime.hub.departures import Departures
from realtime.hub.deposits import Deposits
from realtime.hub.frame_tokenizing import (
    Opening,
    Tokenized,
    brings_text,
    start_digest,
    text_length,
    tokenize,
)
from realtime.hub.handing_over import HandingOver
from realtime.hub.incoming_news import IncomingNews
from realtime.hub.keepers import Keepers
from realtime.hub.listener import Listener
from realtime.hub.long_texts import LongTexts
from realtime.hub.mistakes import MistakesEnd
from realtime.hub.models import Models
from realtime.hub.observers import DisconnectCause, Observer, RetryReason, StreamOrigin
from realtime.hub.registry import LiveStream, StreamRegistry, Timer, weight_of_end
from realtime.hub.serving import Serving
from realtime.hub.shares import Shares
from realtime.hub.slices import Slices
from realtime.hub.starting import StreamStarter
from realtime.hub.stream_accounts import StreamAccounts
from realtime.hub.stream_key import StreamKey, forked_by
from realtime.hub.subscriptions import Subscriptions
from realtime.hub.tokenizing_pool import TokenizingPool
from realtime.hub.told import TimedOut, in_tokens
from realtime.hub.waking import Waking
from realtime.refusal import Refusal
from realtime.stream.outbox import OutgoingEvent
from realtime.stream.pending_commands import Owe, Reply, SendReply
from realtime.stream.stream import Stream
from realtime.stream.tool_loop import ResultInject
from realtime.tenants.quota import Quotas
from realtime.text.chat_template import NotBriefError
from realtime.text.decoded_turn import Turns
from realtime.text.served_model import ServedModel

TOKEN_S = 150e-9  # what a token costs the engine that it is told of, and may have computed already
KEPT_BYTE_S = 10e-9  # one of what an engine is to keep of a stream, on its way there
RESTORED_S = 60e-9  # a token whose memory was given up, is looked for again, and given back
CANCELLED_A_TURN = 64  # streams
LONG_TEXT = 2_000  # characters; fewer are tokenized in a millisecond or so, more in a thread


def _nothing() -> None:
    pass


def _weight(entry: LiveStream) -> int:
    return weight_of_end(entry.stream)


def _goes_on(frame: StreamFrame) -> bool:
    """Whether it has a paused stream go on."""
    return isinstance(frame, protocol.Resume) or (isinstance(frame, protocol.Inject) and frame.resume)


def _check_rate(entry: LiveStream, frame: StreamFrame) -> None:
    """Of what has tokens computed. A result that waits was taken, and so is another in its place."""
    match frame:
        case ResultInject(result=result) if entry.stream.has_result(result.call_id):
            return
        case protocol.Resume() if not entry.stream.released:
            return
        case protocol.Inject() | protocol.Amend() | protocol.Resume():
            entry.quota.check_rate()


class Hub:
    def __init__(
        self,
        send: Callable[[int, list[api.AnyCommand]], None],
        observer: Observer,
        *,
        models: Models | None = None,
        quotas: Quotas | None = None,
        window: int,
        max_streams: int,
        max_detached: int | None = None,
        max_grace_ms: int = MAX_MILLISECONDS,
        max_timeout_ms: int = MAX_MILLISECONDS,
        stream_memory: int = 28 << 20,
        total_stream_memory: int = 2 << 30,
        clock: Callable[[], float] = time.monotonic,
        call_later: Callable[[float, Callable[[], None]], Timer] | None = None,
    ) -> None:
        """`send`: commands to the engine of that number."""
        self.models = models or Models()
        self.draining = False
        self.max_grace_ms = max_grace_ms
        self._observer = observer
        self._clock = clock
        self._call_later = call_later or (
            lambda delay, call: asyncio.get_running_loop().call_later(delay, call)
        )
        self._registry = StreamRegistry(max_streams if max_detached is None else max_detached)
        self._subscriptions = Subscriptions[Stream, Listener]()
        self._quotas = quotas or Quotas()
        pool = TokenizingPool()
        self._long_texts = LongTexts(self, self._quotas, pool, partial(self._call_later, 0))
        self.accounts = StreamAccounts(each=stream_memory, total=total_stream_memory)
        self._turns = DecodedTurns()
        waking = self._waking = Waking(self._subscriptions, retire=self._retire, flush=self.flush)
        timing = (self._clock, self._call_later)
        self._deadlines = Deadlines(self._call_later)
        self.serving = Serving(self.models, self._registry, observer, send, waking, self._quotas, *timing)
        next_number = partial(next, itertools.count())
        self._keepers = Keepers(self.serving, self._clock)
        self.deposits = Deposits(self.serving, next_number, self._clock)
        self._shares = Shares(self.serving, self._quotas, self._call_later)
        self._adoptions = Adoptions(
            self._registry,
            self.serving,
            self._quotas,
            observer,
            self._clock,
            time.time,
            next_number,
            self._take_in,
            self._keepers,
            pool,
            window=window,
        )
        take_news = self._keepers.take_news
        self._incoming = IncomingNews(
            self._registry,
            self.serving,
            self._quotas,
            self._turns,
            observer,
            waking,
            take_news,
            self._tell_left,
            self._deadlines,
            *timing,
        )
        self._departures = Departures(
            self._registry,
            self._subscriptions,
            self.accounts,
            observer,
            waking,
            self._deadlines,
            *timing,
            max_grace_ms=max_grace_ms,
        )
        self._handing_over = HandingOver(
            self._registry,
            self._subscriptions,
            self.serving,
            self._departures,
            observer,
            self.note_if_empty,
            waking,
            *timing,
        )
        self._starter = StreamStarter(
            self._quotas,
            self.serving.choose,
            window=window,
            max_streams=max_streams,
            max_grace_ms=max_grace_ms,
            max_timeout_ms=max_timeout_ms,
            next_number=next_number,
            wall=time.time,
        )
        self._awaited = AwaitedStarts()
        self._cancelling = Slices(
            self._cancel, most=CANCELLED_A_TURN, next_turn=partial(self._call_later, 0), weight=_weight
        )
        self._empty = asyncio.Event()
        self._empty.set()

    # -- what may be seen ------------------------------------------------------------------------

    @property
    def streams(self) -> list[Stream]:
        return [entry.stream for entry in self._registry.entries]

    @property
    def full(self) -> bool:
        """Whether there are as many streams as there may be."""
        return self._starter.is_full(self._taken_places())

    def is_live(self, tenant: str, request_id: str) -> bool:
        """Whether there is such a stream, and it has not ended."""
        return StreamKey(tenant, request_id) in self._registry.keys

    def is_known(self, tenant: str, request_id: str) -> bool:
        """Or all of one that has ended is still there."""
        return self._registry.known(StreamKey(tenant, request_id), self._clock()) is not None

    @property
    def is_empty(self) -> bool:
        """Whether there is no stream."""
        return self._empty.is_set()

    async def wait_until_empty(self) -> None:
        """Wait until no stream is left."""
        await self._empty.wait()

    # -- from listeners --------------------------------------------------------------------------

    def receive_frame(
        self, tenant: str, frame: StreamFrame, listener: Listener, acted: Callable[[], None] = _nothing
    ) -> None:
        """Act on a frame, behind those for the same stream that came before it. A refused one changes
        nothing, and whoever is gone asks for nothing. `acted` is called when its turn is over, if it is not
        refused before."""
        if listener.gone:
            return
        key = StreamKey(tenant, frame.request_id)
        waits = (
            key in self._long_texts.keys
            or self.awaits_forked(key, frame)
            or self._adoptions.may_be_found(key, frame, listener)
            or any(entry.stream.reads_injected for entry in self._found_by(key, frame))
        )
        try:
            free_values.check(frame)
            if not waits:
                frame = self.due(key, frame)
        except Refusal as refusal:
            self.refuse(listener, frame, refusal)
            return
        if waits:
            self._enqueue(key, frame, listener, acted)
        elif text_length(frame) > LONG_TEXT:
            self._tokenize(key, frame, listener, acted)
        else:
            try:
                self._act(key, frame, listener)
            except NotBriefError:
                self._tokenize(key, frame, listener, acted)
            else:
                acted()
        self.flush()

    def take_events(self, stream: Stream) -> list[OutgoingEvent]:
        """What a stream has to say to its listener, who is ready for it. `flush` follows, once for all."""
        told = stream.take_events()
        for event in told:
            if type(event) is protocol.Error:  # of a struct, a quarter of what `isinstance` takes to say no
                self._note_error(event, self._subscriptions.listener_of(stream))
        if stream.final is not None:
            self._unsubscribe_if_done(stream)
        return told

    def listener_of(self, stream: Stream) -> Listener | None:
        return self._subscriptions.listener_of(stream)

    def acknowledge(self, stream: Stream, index: int, seq: int) -> None:
        """A peer has taken a stream's output up to `index`, and its events up to `seq`."""
        if stream.out_of_credit:
            self._observer.granted(stream)
        stream.acknowledge(index, seq)

    def flush(self) -> None:
        """After any number of `acknowledge` and `take_events`."""
        self.serving.flush()

    def detach(self, listener: Listener, cause: DisconnectCause = "closed") -> None:
        """The listener is gone; each of its streams does what its start said."""
        self._departures.leave(listener, cause)

    # -- from engines ----------------------------------------------------------------------------

    def receive_steps(self, number: int, outputs: list[api.StepOutput]) -> None:
        """The news of steps that came together, to everybody whom they concern."""
        self._incoming.receive(number, outputs)

    def receive_answer(self, number: int, answer: api.Answer) -> None:
        """What the engine of this number says of what it keeps, or was asked for."""
        engine = self.serving.engines[number]
        match answer:
            case api.Announced():
                self._shares.receive(engine, answer)
            case api.Deposited() | api.Collected():
                self.deposits.receive(engine, answer)
            case _:
                self._keepers.receive(engine, answer)
                self._handing_over.receive(engine, answer)

    def engine_ready(self, number: int, model: ServedModel, block: int, *, keeper: bytes = b"") -> None:
        """There is an engine, and it knows no stream yet. `keeper`: by which all gateways know it, where
        streams may outlive us there."""
        self.serving.engine_ready(number, model, block, keeper=keeper)
        engine = self.serving.engines[number]
        self._keepers.engine_ready(engine)
        self._shares.engine_ready(engine)

    def engine_lost(self, number: int, *, blameless: bool = False) -> None:
        """An engine is gone. `blameless`: it was told to end."""
        lost = self.serving.engines[number]
        untaken = partial(self._incoming.untaken, lost)
        with ExitStack() as steps:  # the last comes first: a mistake in one skips none of the others
            steps.callback(self.serving.engine_lost, number, untaken, blameless=blameless)
            for room in (self._shares, self.deposits, self._keepers):
                steps.callback(room.engine_lost, lost)

    def take_nothing_over(self) -> None:
        """It would come behind what is handed over, or cancelled."""
        self._adoptions.closed = True

    async def hand_over(self, *, also_read: bool) -> None:
        """What engines keep, and nobody reads here, is for whoever comes for it elsewhere. `also_read`: so is
        what somebody does, who hears of it. Of many each turn some."""
        self._shares.withdraw()
        leaving = self._handing_over.leave_all(also_read=also_read)
        while any(leaving):  # noqa: ASYNC110 - each turn hands some over
            await asyncio.sleep(0)

    def cancel_all(self, of: Callable[[LiveStream], bool] = lambda entry: True) -> None:
        """All such streams; of many each turn some."""
        self._cancelling.add(entry for entry in self._registry.entries if of(entry))

    def _cancel(self, some: Iterable[LiveStream]) -> None:
        with self._waking() as wake:
            for entry in some:
                if self._registry.by_number(entry.stream.number) is entry:  # else it is no more, or another's
                    now = self._clock()
                    with MistakesEnd(entry, "cancel it", now):
                        entry.stream.cancel(now, entry.step)
                        entry.note(protocol.Cancel(request_id=entry.key.request_id))
                    wake(entry.stream)

    # -- a frame ---------------------------------------------------------------------------------

    def _act(
        self, key: StreamKey, frame: StreamFrame, listener: Listener, tokens: Tokenized | None = None
    ) -> None:
        """`tokens` are the frame's text, where that was tokenized before."""
        try:
            match frame:
                case protocol.Attach(after=after, epoch=epoch):
                    self._attach(key, after, frame.ref, listener, epoch=epoch)
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
            self.refuse(listener, frame, refusal)
            return
        if stream is not None:
            with self._waking() as wake:
                wake(stream)

    def _tokenize(
        self, key: StreamKey, frame: StreamFrame, listener: Listener, acted: Callable[[], None]
    ) -> None:
        """A start has its place from now on, or is refused."""
        try:
            if isinstance(frame, protocol.Start):
                self.needs_tokens(key, frame, listener)
        except Refusal as refusal:
            self.refuse(listener, frame, refusal)
        else:
            self._enqueue(key, frame, listener, acted)

    def _enqueue(
        self, key: StreamKey, frame: StreamFrame, listener: Listener, acted: Callable[[], None]
    ) -> None:
        if self._long_texts.enqueue(key, frame, listener, acted):
            self._empty.clear()
        elif key not in self._long_texts.keys:
            self._awaited.discard(key)

    # -- asked by long texts ---------------------------------------------------------------------

    def receive(
        self, key: StreamKey, frame: StreamFrame, listener: Listener, tokens: Tokenized | None
    ) -> None:
        self._act(key, frame, listener, tokens)
        self.settle(key)  # before an engine says that it keeps what has begun
        self.flush()

    def awaits_forked(self, key: StreamKey, frame: StreamFrame) -> bool:
        forked = forked_by(key, frame)
        if forked is None or forked not in self._long_texts.keys:
            return False
        return self._registry.known(forked, self._clock()) is None

    async def find(self, key: StreamKey, frame: StreamFrame, listener: Listener) -> None:
        if self._adoptions.may_be_found(key, frame, listener):
            await self._adoptions.find(key, frame, listener)

    def _found_by(self, key: StreamKey, frame: StreamFrame) -> list[LiveStream]:
        """The stream of a frame, and the one that it forks."""
        entries = (self._registry.by_key(one) for one in (key, forked_by(key, frame)) if one is not None)
        return [entry for entry in entries if entry is not None]

    async def read(self, key: StreamKey, frame: StreamFrame) -> None:
        for entry in self._found_by(key, frame):
            while entry.stream.reads_injected:
                read = asyncio.Event()
                entry.once_read.append(partial(self._long_texts.wake, [read]))
                await read.wait()

    def settle(self, key: StreamKey) -> None:
        self._adoptions.settle(key)
        self._awaited.discard(key)

    def due(self, key: StreamKey, frame: StreamFrame) -> StreamFrame:
        return self._injection(key, frame) if isinstance(frame, protocol.ToolResult) else frame

    def needs_tokens(self, key: StreamKey, frame: StreamFrame, listener: Listener) -> bool:
        """Or the refusal of what need not be tokenized to be refused."""
        if not brings_text(frame):
            return False
        if isinstance(frame, protocol.Inject | protocol.Adjust):
            entry = self._registry.by_key(key)
            if entry is None:
                return False  # it will be refused for that
            _check_rate(entry, frame)
        elif isinstance(frame, protocol.Start):
            if self._registry.start_digest(key, self._clock()) is not None:
                return False  # it was started before
            self._check_start(key, frame, listener)
            self._awaited.add(key)
        return True

    # -- starting and attaching ------------------------------------------------------------------

    def _start(
        self, key: StreamKey, frame: protocol.Start, listener: Listener, tokens: Tokenized | None
    ) -> Stream:
        try:
            model = self._check_start(key, frame, listener)
        except Refusal:
            self._quotas.count(key.tenant, len(tokens or ()))
            raise
        now, caller = self._clock(), listener.caller
        parent = (
            self._registry.find(StreamKey(key.tenant, frame.fork.request_id), now) if frame.fork else None
        )
        turns = self.known_turns(key, frame) if tokens is None else {}
        known = self.models.named(model.name)
        eta_ms = known.keeper.eta_ms if known is not None and known.keeper is not None else None
        entry = self._starter.make(key, frame, tokens, model, listener, now, parent, turns, eta_ms)
        stream = entry.stream
        entry.timeout = self._deadlines.after(self._starter.timeout_s(frame), entry, self._time_out)
        self._registry.add(entry)
        self._incoming.time_hold(entry)
        entry.count_waiting()
        self.serving.of_model(model.name).started(entry)
        self.serving.await_model(entry)
        self._subscriptions.subscribe(stream, listener)
        self._registry.pays(entry, listener.payer)
        self._empty.clear()
        kept = (
            0 if stream.keeping is None else stream.keeping.history_bytes
        )  # a fork's is all of its parent's
        listener.owe(TOKEN_S * len(stream.context) + stream.context.counting_s + KEPT_BYTE_S * kept)
        self._observer.started(
            stream,
            StreamOrigin(key.tenant, model.name, caller.route, frame.traceparent, caller.key),
            now,
        )
        return stream

    def _start_again(self, key: StreamKey, frame: protocol.Start, started: bytes, listener: Listener) -> None:
        if start_digest(frame) != started:
            raise another_content(key)
        self._attach(key, -1, frame.ref, listener, "start")

    def _attach(
        self,
        key: StreamKey,
        after: int,
        ref: str | None,
        listener: Listener,
        reason: RetryReason = "attach",
        epoch: int = 0,
    ) -> None:
        stream = self._registry.find(key, self._clock())
        self._departures.bring_in_order(stream)
        before = self._subscriptions.listener_of(stream)
        anew = before is not listener
        listener.memory.check()
        if anew and before is not None and not listener.takes_over:
            raise Refusal("request_taken", f'Request "{stream.request_id}" has another listener.')
        entry = self._registry.by_number(stream.number)
        stream.attach(after, entry.step if entry else 0, ref, anew=anew, epoch=epoch)
        if entry is not None:
            entry.note(protocol.Attach(request_id=stream.request_id, after=after))
        self._observer.retried(stream, reason)
        self._hand_over(stream, listener)
        if entry is not None:
            self.serving.await_model(entry)
            self._tell_left(entry)
        listener.wake(stream)
        listener.flush()

    def _hand_over(self, stream: Stream, listener: Listener) -> None:
        stream.use_account(listener.memory)
        before = self._subscriptions.subscribe(stream, listener)
        if before is not None:
            before.lose(stream)
            self._observer.refused("request_taken", before.caller)
        entry = self._registry.by_number(stream.number)
        if entry is not None:
            self._registry.attach(entry)
            self._registry.pays(entry, listener.payer)

    # -- steering --------------------------------------------------------------------------------

    def _steer(
        self, key: StreamKey, frame: StreamFrame, listener: Listener, tokens: Tokenized | None
    ) -> Stream | None:
        entry = self._registry.by_key(key)
        if entry is None:
            self._refuse_steering(key, frame)
            return None
        if tokens is None:  # else it was checked before these were made
            _check_rate(entry, frame)
        stream, step, now = entry.stream, entry.step, self._clock()
        elsewhere = self._subscriptions.listener_of(stream) is not listener
        send_reply = partial(self._send_reply, listener) if elsewhere and frame.ref is not None else None
        if stream.released and _goes_on(frame):
            listener.owe(RESTORED_S * len(stream.context))
        match frame:
            case protocol.Grant(limit=limit):
                if stream.out_of_credit:
                    self._observer.granted(stream)
                stream.grant(limit, now)
                entry.count_waiting()
            case protocol.Cancel(ref=ref):
                stream.cancel(now, step, ref, send_reply)
                entry.note(replace(frame, ref=None) if send_reply else frame)  # `final` has a listener's
            case protocol.Inject():
                self._inject(entry, frame, tokens, send_reply, listener.owe)
            case protocol.Approve() | protocol.Amend():
                stream.steer_call(frame, step, now, send_reply, listener.owe)
                entry.note(frame)
            case protocol.Pause() | protocol.Resume() | protocol.Adjust() | protocol.Rewind():
                stream.steer(frame, step, now, send_reply, listener.owe)
                entry.note(frame)
        self.serving.await_model(entry)
        return stream

    def _inject(
        self,
        entry: LiveStream,
        frame: protocol.Inject,
        tokens: Tokenized | None,
        send_reply: SendReply | None,
        owe: Owe,
    ) -> None:
        """What takes effect is counted then; what was tokenized in vain, now."""
        if tokens is None:
            tokens = tokenize(frame, entry.stream.model, brief=True) or []
        assert not isinstance(tokens, Opening), "that is a start's"
        again = isinstance(frame, ResultInject) and entry.stream.has_result(frame.result.call_id)
        try:
            put_in = in_tokens(replace(frame, tokens=tokens))
            entry.stream.steer(put_in, entry.step, self._clock(), send_reply, owe)
            entry.note(put_in)
            if again:  # those of the one in whose place it is
                entry.quota.count(len(tokens))
        except Refusal:
            if text_length(frame):
                entry.quota.count(len(tokens))
            raise

    def _injection(self, key: StreamKey, frame: protocol.ToolResult) -> protocol.Inject:
        """What a call's result puts into its stream, as that stands now."""
        entry = self._registry.by_key(key)
        if entry is None:
            self._refuse_steering(key, frame)
        assert entry is not None
        return entry.stream.inject_of(frame)

    def _tell_left(self, entry: LiveStream) -> None:
        """Results that waited for others which will not come: as if whoever listens told the last again, who
        pays for that."""
        listener = self._subscriptions.listener_of(entry.stream)
        left = None if listener is None else entry.stream.take_result_to_tell()
        if listener is not None and left is not None:
            self.receive_frame(entry.key.tenant, replace(left, ref=None), listener)

    def refuse(self, listener: Listener, frame: StreamFrame, refusal: Refusal) -> None:
        self.note_refused(listener, refusal)
        listener.send_refusal(refusal, frame)

    def note_refused(self, listener: Listener, refusal: Refusal) -> None:
        """For a frame, or by the listener itself, for what came of those."""
        self._observer.refused(refusal.code, listener.caller)

    def _send_reply(self, listener: Listener, event: Reply) -> None:
        if isinstance(event, protocol.Error):
            self._note_error(event, listener)
        listener.send_reply(event)

    def _note_error(self, error: protocol.Error, listener: Listener | None) -> None:
        """What could be refused only when its turn came is told among the stream's own events."""
        if listener is not None:
            self._observer.refused(error.code, listener.caller)

    def _refuse_steering(self, key: StreamKey, frame: StreamFrame) -> None:
        if self._registry.is_elsewhere(key):
            raise Refusal(
                "request_taken", f'Request "{frame.request_id}" is another server\'s now: steer it there.'
            )
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
        model = self._model_for(key, frame)
        known = self.models.find(model.name)
        if not self.serving.of_model_takes_starts(known):
            raise Refusal("overloaded", "The engine is being started.", retry_after_ms=1000)
        listener.memory.check()
        awaited = self._awaited.of_tenant(key)
        self._starter.check(key.tenant, frame, others=self._taken_places(besides=key), awaited=awaited)
        keeper = known.keeper if known.awaited else None
        if keeper is not None and not keeper.is_wanted:
            self._quotas.check_loads(key.tenant)
        if frame.on_cold == "refuse" and keeper is not None:
            self.serving.want(keeper, key.tenant)
            eta_ms = keeper.eta_ms
            raise Refusal(
                "model_loading",
                f'The model "{known.name}" is not loaded; it is now.',
                retry_after_ms=1000 if eta_ms is None else eta_ms,
            )
        return model

    def _taken_places(self, besides: StreamKey | None = None) -> int:
        """By the streams that live, and by those whose start is being tokenized."""
        return len(self._registry) + self._awaited.count(besides)

    def known_turns(self, key: StreamKey, frame: StreamFrame) -> Turns:
        """Those of a start's conversation that were decoded here, for this tenant."""
        model = self.model_of(key, frame)
        return {} if model is None else self._turns.told_in(key.tenant, model.name, frame, self._clock())

    def model_of(self, key: StreamKey, frame: StreamFrame) -> ServedModel | None:
        """The model of a frame's stream; None where that, or what it forks, is not there yet."""
        entry = self._registry.by_key(key)
        if entry is not None:
            return entry.stream.model
        forked = forked_by(key, frame)
        is_there = forked is None or self._registry.known(forked, self._clock()) is not None
        return self._model_for(key, frame) if isinstance(frame, protocol.Start) and is_there else None

    def _model_for(self, key: StreamKey, frame: protocol.Start) -> ServedModel:
        """That a start asks for. A fork has the one of the stream that it forks."""
        if frame.fork is not None:
            forked = self._registry.find(StreamKey(key.tenant, frame.fork.request_id), self._clock())
            if frame.model is not None and self.models.find(frame.model).name != forked.model.name:
                raise Refusal(
                    "invalid_params",
                    f'`model` is "{frame.model}", and the stream that is forked has "{forked.model.name}":'
                    " a fork has no other.",
                )
            return forked.model
        known = self.models.find(frame.model)
        if known.served is None:
            raise Refusal("overloaded", f'The model "{known.name}" is being loaded.', retry_after_ms=1000)
        return known.served

    def _take_in(self, entry: LiveStream, start: protocol.Start, left_s: float) -> None:
        """A stream that was adopted. By a clock that was put back, or is behind that of the machine where it
        began, more would be left to it than it may have in all."""
        timeout_s = min(max(0.0, left_s), self._starter.timeout_s(start))
        entry.timeout = self._deadlines.after(timeout_s, entry, self._time_out)
        self._empty.clear()
        self._incoming.time_hold(entry)
        self._departures.await_somebody(entry)

    # -- afterwards ------------------------------------------------------------------------------

    def _retire(self, stream: Stream) -> None:
        entry = self._registry.by_number(stream.number)
        if entry is None:
            return
        entry.count_in_vain()
        self._registry.end(entry, self._clock())
        self._unsubscribe_if_done(stream)
        if self._subscriptions.listener_of(stream) is None:
            stream.release_memory()
        self.serving.of_model(stream.model.name).ended(entry)
        self._observer.finished(stream, self._clock())
        self.note_if_empty()

    def _unsubscribe_if_done(self, stream: Stream) -> None:
        """Whoever listened to a stream that has ended is its listener until all of it is taken."""
        if stream.all_delivered:
            self._subscriptions.unsubscribe(stream)
            stream.release_memory()

    def note_if_empty(self) -> None:
        if not len(self._registry) and not self._long_texts.keys:
            self._empty.set()

    def _time_out(self, entry: LiveStream) -> None:
        now = self._clock()
        with self._waking() as wake:
            with MistakesEnd(entry, "end it in time", now):
                entry.stream.time_out(now, entry.step)
                entry.note(TimedOut())
            wake(entry.stream)
