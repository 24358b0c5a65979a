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
import itertools
import logging
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import NamedTuple

from msgspec.structs import replace

from engine import api
from midstream import protocol
from midstream.protocol import MAX_MILLISECONDS, CatalogModel, ModelState, StreamFrame
from realtime.hub.decoded_turns import DecodedTurns
from realtime.hub.frame_tokenizing import brings_text, start_digest, text_length, tokenize
from realtime.hub.listener import Listener
from realtime.hub.long_texts import LongTexts, told
from realtime.hub.models import Keeper, KnownModel, Models
from realtime.hub.news_lines import NewsLines, StepNews, StreamNews
from realtime.hub.observers import DisconnectCause, Observer, RetryReason, StreamOrigin
from realtime.hub.registry import LiveStream, StreamRegistry, Timer
from realtime.hub.serving_engine import ServingEngine
from realtime.hub.slices import Slices
from realtime.hub.starting import StreamStarter
from realtime.hub.stream_key import StreamKey
from realtime.hub.submission import Submission
from realtime.hub.subscriptions import Subscriptions
from realtime.refusal import Refusal
from realtime.stream.context import Context
from realtime.stream.memory import MemoryAccount
from realtime.stream.outbox import OutgoingEvent
from realtime.stream.pending_commands import Owe, PendingCommand, Reply, SendReply
from realtime.stream.stream import Stream
from realtime.tenants.quota import Quotas, StreamQuota
from realtime.text.chat_template import NotBriefError
from realtime.text.decoded_turn import Turns
from realtime.text.served_model import ServedModel

log = logging.getLogger(__name__)

NEWS_A_TURN = 256  # tokens that are taken in before others have their turn
GUARDED_TOKEN = 32  # as how many one counts that guards read
READ_TOKENS = 8  # that were injected, and count as one
FINAL_NEWS = 16  # as how many the news of an end count: it is logged, and much is brought to an end
TOKEN_S = 150e-9  # what a token costs the engine that it is told of, and may have computed already
LEFT_A_TURN = 64  # streams that are left behind by a listener, likewise
LONG_TEXT = 2_000  # characters; fewer are tokenized in a millisecond or so, more in a thread


def _count(quota: StreamQuota, news: api.News) -> None:
    if news.admitted is not None:
        quota.prefill_begun()
    tokens = len(news.tokens)
    if news.changes:
        tokens += sum(map(_computed, news.changes))
    if tokens:
        quota.count(tokens)


def _computed(change: api.AnyChange) -> int:
    """Tokens that a command has the engine compute. What memory takes, unasked, is nobody's doing."""
    match change:
        case api.Appended(count=tokens) | api.Resumed(recomputed=tokens):
            return tokens
    return 0


def _read(change: api.AnyChange) -> int:
    """What it weighs that injected tokens are read, which may be a part of a call."""
    return change.count // READ_TOKENS if isinstance(change, api.Appended) else 0


def _charge(effective: list[PendingCommand], work_s: float) -> None:
    """What frames come to when they take effect, such as to read text again from where it was rewound to."""
    for pending in effective:
        if pending.owe is not None:
            pending.owe(work_s / len(effective))


def _check_rate(entry: LiveStream, frame: StreamFrame) -> None:
    """Of what has tokens computed. An inject's are counted when they are known."""
    if isinstance(frame, protocol.Amend) or (isinstance(frame, protocol.Resume) and entry.released):
        entry.quota.check_rate()


class Left(NamedTuple):
    """What a listener that is gone leaves behind."""

    listener: Listener
    stream: Stream | None  # None behind the last
    cause: DisconnectCause
    number: int  # of the listener, among all that went


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
        self._send = send
        self._observer = observer
        self._clock = clock
        self._call_later = call_later or (
            lambda delay, call: asyncio.get_running_loop().call_later(delay, call)
        )
        self._registry = StreamRegistry(max_streams if max_detached is None else max_detached)
        self._subscriptions = Subscriptions[Stream, Listener]()
        self._quotas = quotas or Quotas()
        self._long_texts = LongTexts(self, self._quotas)
        next_turn = partial(self._call_later, 0)
        self._engines: dict[int, ServingEngine] = {}  # that are there now
        self._submissions: dict[str, Submission] = {}  # by model
        self._submission_to: dict[int, Submission] = {}  # by engine, also those that are gone
        self._losing = Slices(self._lose_engine, most=NEWS_A_TURN, next_turn=next_turn)
        self._news = NewsLines(
            self._receive_slice,
            self._step_told,
            self._is_dear,
            self._news_weight,
            most=NEWS_A_TURN,
            next_turn=next_turn,
        )
        self._leaving = Slices(self._leave, most=LEFT_A_TURN, next_turn=next_turn)
        self._left: dict[Stream, Left] = {}  # and not brought in order yet
        self._leavings = itertools.count()
        self._stream_memory = stream_memory
        self._total_memory = MemoryAccount(total_stream_memory)
        self._tenant_memory = defaultdict[str, MemoryAccount](
            lambda: MemoryAccount(total_stream_memory // 2, self._total_memory, "your key's tenant")
        )
        self._detached_memory: dict[str, MemoryAccount] = {}  # of each tenant
        self._starter = StreamStarter(
            self._quotas,
            self._choose,
            window=window,
            max_streams=max_streams,
            max_grace_ms=max_grace_ms,
            max_timeout_ms=max_timeout_ms,
        )
        self._turns = DecodedTurns()
        self._empty = asyncio.Event()
        self._empty.set()

    # -- what may be seen ------------------------------------------------------------------------

    @property
    def streams(self) -> list[Stream]:
        return [entry.stream for entry in self._registry.entries]

    def is_serving(self, engine: int) -> bool:
        """Whether there is an engine of this number."""
        return engine in self._engines

    def is_proven(self, engine: int) -> bool:
        """Whether everybody whom the last engine of this number was given moved on in it."""
        return self._submission_to[engine].proven(engine)

    @property
    def takes_starts(self) -> bool:
        """Whether there is a model that does."""
        return any(self._takes_starts(known) for known in self.models)

    def _takes_starts(self, known: KnownModel) -> bool:
        """Whether it has an engine, and there is no doubt about which stream killed the last; or whether it
        will be loaded."""
        return known.served is not None and (known.awaited or self._submission(known.name).takes_starts)

    @property
    def catalog(self) -> list[CatalogModel]:
        """The models, as they are told of."""
        return [self._told(known) for known in self.models]

    def _told(self, known: KnownModel) -> CatalogModel:
        served, keeper = known.served, known.keeper
        state: ModelState = "ready" if self._submission(known.name).serves else "loading"
        return CatalogModel(
            name=known.name,
            state=keeper.state if keeper is not None and known.awaited else state,
            aliases=list(known.aliases),
            parent=known.parent,
            pinned=keeper is None or keeper.pinned,
            context=None if served is None else served.context,
            fingerprint=None if served is None else served.fingerprint,
        )

    @property
    def full(self) -> bool:
        """Whether there are as many streams as there may be."""
        return self._starter.is_full(self._taken_places())

    def memory_account(self, tenant: str, whose: str = "this connection") -> MemoryAccount:
        """For the streams of one listener: a part of its tenant's, which may have half of what the server
        has."""
        return MemoryAccount(self._stream_memory, self._tenant_memory[tenant], whose)

    def is_live(self, tenant: str, request_id: str) -> bool:
        """Whether there is such a stream, and it has not ended."""
        return StreamKey(tenant, request_id) in self._registry.keys

    async def wait_until_empty(self) -> None:
        """Wait until no stream is left."""
        await self._empty.wait()

    # -- from listeners --------------------------------------------------------------------------

    def receive_frame(self, tenant: str, frame: StreamFrame, listener: Listener) -> None:
        """Act on a frame, behind those for the same stream that came before it. A refused one changes
        nothing, and whoever is gone asks for nothing."""
        if listener.gone:
            return
        key = StreamKey(tenant, frame.request_id)
        if isinstance(frame, protocol.ToolResult):
            try:
                frame = self._injection(key, frame)
            except Refusal as refusal:
                self.refuse(listener, frame, refusal)
                return
        if key in self._long_texts.keys or text_length(frame) > LONG_TEXT:
            self._enqueue(key, frame, listener)
        else:
            try:
                self._act(key, frame, listener)
            except NotBriefError:
                self._enqueue(key, frame, listener)
        self._flush_commands()

    def take_events(self, stream: Stream) -> list[OutgoingEvent]:
        """What a stream has to say to its listener, who is ready for it. `flush` follows, once for all."""
        told = stream.take_events()
        self._note_errors(told, self._subscriptions.listener_of(stream))
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
        """The listener is gone; each of its streams does what its start said. Of a thousand each turn some
        do, or when somebody attaches."""
        number = next(self._leavings)
        left = [Left(listener, stream, cause, number) for stream in self._subscriptions.remove(listener)]
        self._left |= {one.stream: one for one in left if one.stream is not None}
        self._leaving.add([*left, Left(listener, None, cause, number)])

    def _leave(self, some: list[Left]) -> None:
        with self._waking() as wake:
            for one in some:
                if one.stream is None:
                    one.listener.memory.close()
                elif self._left.get(one.stream) is one:
                    del self._left[one.stream]
                    self._let_wait(one.stream, one, wake)

    def _let_wait(self, stream: Stream, left: Left, wake: Callable[[Stream], None]) -> None:
        """Nobody reads it: it waits at its tenant's expense, and where that has reached its limit it ends."""
        entry = self._registry.by_number(stream.number)
        if entry is None:  # it has ended: what was to be told again is kept for nobody
            stream.detach(self._clock(), 0)
            return
        self._observer.detached(stream, left.cause)
        account = self._detached_account(entry.key.tenant)
        stream.use_account(account)
        if account.over_limit:
            stream.abandon(self._clock(), entry.step)
        else:
            stream.detach(self._clock(), entry.step)
        if stream.on_disconnect != "cancel":
            self._begin_grace(entry, left.number, wake)
        wake(stream)

    # -- from engines ----------------------------------------------------------------------------

    def receive_step(self, number: int, output: api.StepOutput) -> None:
        """One step's news, to everybody whom it concerns. Of thousands each turn has some; what they are in
        the middle of is then as if their news were still on the way."""
        engine = self._engines[number]
        engine.stepped(output)
        now = self._clock()
        self._observer.stepped(number, output, now)
        self._news.add(StepNews(engine, output, now))

    def _is_dear(self, stream: int) -> bool:
        """Whether its news take long: guards read what comes, or what was injected is still being read."""
        entry = self._registry.by_number(stream)
        return entry is not None and (entry.stream.context.guards is not None or entry.stream.reading)

    def _news_weight(self, one: StreamNews) -> int:
        news, entry = one.news, self._registry.by_number(one.news.stream)
        if entry is not None and entry.stream.reading:
            return NEWS_A_TURN
        guarded = entry is not None and entry.stream.context.guards is not None
        tokens = len(news.tokens) * (GUARDED_TOKEN if guarded else 1) + sum(map(_read, news.changes))
        return max(1, tokens, FINAL_NEWS if news.finish is not None else 0)

    def _receive_slice(self, some: list[StreamNews]) -> None:
        with self._waking() as wake:
            for one in some:
                self._receive_stream_news(one, one.news, wake)

    def _step_told(self, step: StepNews) -> None:
        if not (step.output.stats.prefill_rows and step.output.stats.ready):
            self._submission_to[step.engine.number].prepared(step.engine)
            self._flush_commands()
        self._observer.delivered(step.engine.number, step.output)

    def _receive_stream_news(self, one: StreamNews, news: api.News, wake: Callable[[Stream], None]) -> None:
        engine, output, now = one.step.engine, one.step.output, one.step.at
        entry = self._registry.by_number(news.stream)
        if entry is None or entry.engine is not engine:
            self._observer.discarded(len(news.tokens))
            return
        stream = entry.stream
        _count(entry.quota, news)
        asked = stream.to_make
        began_s = time.thread_time() if news.changes or asked is not None else None
        effective = self._receive_news(entry, news, now)
        if began_s is not None and (paying := effective or ([asked] if asked else [])):
            _charge(paying, time.thread_time() - began_s)
        for pending in effective:
            steps = max(0, output.step - pending.step)  # an end that was on its way answers a later cancel
            self._observer.steered(stream, pending.kind, steps, now - pending.received_s)
        for turn in stream.take_decoded_turns():
            self._turns.add(entry.key.tenant, stream.model.name, turn, now)
        for action in stream.take_acted():
            self._observer.guarded(stream, action)
        self._time_hold(entry)
        if stream.reading:
            self._news.more(one._replace(news=api.News(stream.number)))
        wake(stream)
        submission = self._submission_to[engine.number]
        if news.tokens or news.changes:
            submission.progressed(engine, stream)
        elif news.admitted is not None and stream.out_of_credit:
            submission.preparing(engine, stream.number)

    def _receive_news(self, entry: LiveStream, news: api.News, now: float) -> list[PendingCommand]:
        """A mistake of ours ends the stream that it shows in, and no other."""
        stream = entry.stream
        try:
            return stream.receive_news(news, now)
        except Exception as error:  # noqa: BLE001 - what it says may quote the text: only its kind is logged
            log.error("stream %d failed in the gateway: %s in %s", stream.number, *told(error))
            stream.fail("the server failed to take in what was decoded", now)
            if entry.engine is not None:
                entry.engine.say(api.Cancel(stream.number))
            return []

    def _time_hold(self, entry: LiveStream) -> None:
        """Memory is held for a stream that waits for results as long as its start said."""
        stream = entry.stream
        if stream.paused != "tool_call":
            entry.end_hold()
        elif entry.hold is None and stream.tool_hold_s is not None:
            entry.hold = self._call_later(stream.tool_hold_s, partial(self._release_kv, entry))

    def _release_kv(self, entry: LiveStream) -> None:
        entry.stream.release_kv(entry.step)
        entry.released = True
        self._flush_commands()

    def cancel_all(self, of: Callable[[str], bool] = lambda tenant: True) -> None:
        """All streams of such tenants."""
        with self._waking() as wake:
            for entry in [entry for entry in self._registry.entries if of(entry.key.tenant)]:
                entry.stream.cancel(self._clock(), entry.step)
                wake(entry.stream)

    def engine_lost(self, number: int, *, blameless: bool = False) -> None:
        """An engine is gone. Its streams go on where another runs, or wait for one; but one that has killed
        too many. Of thousands each turn some are told. `blameless`: it was told to end."""
        self._news.finish()  # what it said before it went
        lost = self._engines.pop(number)
        lost.lose()
        culprit = self._submission_to[number].engine_lost(lost, blameless=blameless)
        entry = None if culprit is None else self._registry.by_number(culprit)
        if entry is not None:
            with self._waking() as wake:
                why = "the engine failed again and again while it computed this stream"
                entry.stream.fail(why, self._clock())
                wake(entry.stream)
        self._losing.add(entry for entry in self._registry.entries if entry.engine is lost)

    def _lose_engine(self, some: list[LiveStream]) -> None:
        with self._waking() as wake:
            for entry in some:
                entry.engine = None
                entry.stream.lose_engine(self._clock())
                wake(entry.stream)
        for name in {entry.stream.model.name: None for entry in some}:
            self._submissions[name].place(entry for entry in some if entry.stream.model.name == name)
        for entry in some:
            self._await_model(entry)

    def engine_ready(self, number: int, model: ServedModel, block: int) -> None:
        """There is an engine, and it knows no stream yet."""
        self._losing.finish()  # of those before
        self.models.serve(model)
        self._engines[number] = engine = ServingEngine(number, model, block, self._send)
        self._submission_to[number] = submission = self._submission(model.name)
        submission.engine_ready(engine)

    # -- models that come and go -----------------------------------------------------------------

    def wants(self, model: str) -> bool:
        """Whether some stream needs an engine of it."""
        return self._submission(model).wanted

    def computes(self, model: str) -> bool:
        """Whether some stream needs the engine that it has."""
        return self._submission(model).computes

    def drain(self, model: str, *, drains: bool) -> None:
        """Whether nobody is to come to its engines any more."""
        self._submission(model).drains = drains

    def fail_waiting(self, model: str) -> None:
        """It could not be loaded."""
        with self._waking() as wake:
            for stream in self._submission(model).waiting:
                stream.fail("the model could not be loaded", self._clock())
                wake(stream)

    def _await_model(self, entry: LiveStream) -> None:
        """A stream that needs an engine has none: if its model is not loaded, it is wanted now."""
        known = self.models.named(entry.stream.model.name)
        waits = entry.engine is None and entry.stream.needs_engine
        if waits and known is not None and known.keeper is not None and known.awaited:
            self._want(known.keeper, entry.key.tenant)
            entry.stream.tell_loading(known.keeper.eta_ms)

    def _want(self, keeper: Keeper, tenant: str) -> None:
        """For a tenant, who pays for it if nobody else wanted it before."""
        if not keeper.is_wanted:
            self._quotas.count_load(tenant)
        keeper.want()

    def _submission(self, model: str) -> Submission:
        found = self._submissions.get(model)
        if found is None:
            found = self._submissions[model] = Submission(
                model, self._registry, self._observer, self._call_later, self._submit, self._flush_commands
            )
        return found

    def _choose(self, model: str, context: Context, tenant: int) -> ServingEngine | None:
        return self._submission(model).choose(context, tenant)

    def _submit(self, stream: Stream, engine: ServingEngine) -> None:
        stream.submit(engine, self._clock())

    # -- a frame ---------------------------------------------------------------------------------

    def _act(
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
            self.refuse(listener, frame, refusal)
            return
        if stream is not None:
            with self._waking() as wake:
                wake(stream)

    def _enqueue(self, key: StreamKey, frame: StreamFrame, listener: Listener) -> None:
        if self._long_texts.enqueue(key, frame, listener):
            self._empty.clear()

    # -- asked by long texts ---------------------------------------------------------------------

    def receive(
        self, key: StreamKey, frame: StreamFrame, listener: Listener, tokens: list[int] | None
    ) -> None:
        self._act(key, frame, listener, tokens)
        self._flush_commands()

    def needs_tokens(self, key: StreamKey, frame: StreamFrame, listener: Listener) -> bool:
        """Or the refusal of what need not be tokenized to be refused."""
        if not brings_text(frame):
            return False
        if isinstance(frame, protocol.Inject | protocol.Adjust):
            if self._registry.by_key(key) is None:
                return False  # it will be refused for that
            if isinstance(frame, protocol.Inject):
                self._quotas.check_rate(key.tenant)
        elif isinstance(frame, protocol.Start):
            if self._registry.start_digest(key, self._clock()) is not None:
                return False  # it was started before
            self._check_start(key, frame, listener)
        return True

    # -- starting and attaching ------------------------------------------------------------------

    def _start(
        self, key: StreamKey, frame: protocol.Start, listener: Listener, tokens: list[int] | None
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
        entry = self._starter.make(key, frame, tokens, model, listener.memory, now, parent, turns, eta_ms)
        stream = entry.stream
        entry.timeout = self._call_later(self._starter.timeout_s(frame), partial(self._time_out, entry))
        self._registry.add(entry)
        self._submission(model.name).started(entry)
        self._await_model(entry)
        self._subscriptions.subscribe(stream, listener)
        self._empty.clear()
        listener.owe(TOKEN_S * len(stream.context))
        self._observer.started(
            stream,
            StreamOrigin(key.tenant, model.name, caller.route, frame.traceparent, caller.key),
            now,
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
        if (left := self._left.get(stream)) is not None:
            self._leave([left])
        before = self._subscriptions.listener_of(stream)
        anew = before is not listener
        if anew:
            listener.memory.check()
        if anew and before is not None and not listener.takes_over:
            raise Refusal("request_taken", f'Request "{stream.request_id}" has another listener.')
        entry = self._registry.by_number(stream.number)
        stream.attach(after, entry.step if entry else 0, ref, anew=anew)
        self._observer.retried(stream, reason)
        self._hand_over(stream, listener)
        if entry is not None:
            self._await_model(entry)
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

    def _detached_account(self, tenant: str) -> MemoryAccount:
        account = self._detached_memory.get(tenant)
        if account is None:
            account = self.memory_account(tenant, "your tenant that nobody reads")
            self._detached_memory[tenant] = account
        return account

    def _begin_grace(self, entry: LiveStream, left_by: int, wake: Callable[[Stream], None]) -> None:
        """It waits for somebody who comes back; those that must not end, since too many do."""
        grace_s = min(entry.stream.grace_s, self.max_grace_ms / 1000)
        entry.grace = self._call_later(grace_s, partial(self._abandon, entry))
        for crowded_out in self._registry.detach(entry, left_by):
            crowded_out.stream.abandon(self._clock(), crowded_out.step)
            wake(crowded_out.stream)

    def _abandon(self, entry: LiveStream) -> None:
        """Nobody came back."""
        with self._waking() as wake:
            entry.stream.abandon(self._clock(), entry.step)
            wake(entry.stream)

    # -- steering --------------------------------------------------------------------------------

    def _steer(
        self, key: StreamKey, frame: StreamFrame, listener: Listener, tokens: list[int] | None
    ) -> Stream | None:
        entry = self._registry.by_key(key)
        if entry is None:
            self._refuse_steering(key, frame)
            return None
        _check_rate(entry, frame)
        stream, step, now = entry.stream, entry.step, self._clock()
        elsewhere = self._subscriptions.listener_of(stream) is not listener
        send_reply = partial(self._send_reply, listener) if elsewhere and frame.ref is not None else None
        match frame:
            case protocol.Grant(limit=limit):
                if stream.out_of_credit:
                    self._observer.granted(stream)
                stream.grant(limit, now)
            case protocol.Cancel(ref=ref):
                stream.cancel(now, step, ref, send_reply)
            case protocol.Inject():
                self._inject(entry, frame, tokens, send_reply, listener.owe)
            case protocol.Pause(kv=kv):
                stream.steer(frame, step, now, send_reply, listener.owe)
                entry.released = entry.released or kv == "release"
            case protocol.Resume():
                stream.steer(frame, step, now, send_reply, listener.owe)
                entry.released = False
            case protocol.Approve() | protocol.Amend():
                stream.steer_call(frame, step, now, send_reply, listener.owe)
            case protocol.Adjust() | protocol.Rewind():
                stream.steer(frame, step, now, send_reply, listener.owe)
        self._await_model(entry)
        return stream

    def _inject(
        self,
        entry: LiveStream,
        frame: protocol.Inject,
        tokens: list[int] | None,
        send_reply: SendReply | None,
        owe: Owe,
    ) -> None:
        """What takes effect is counted then; what was tokenized in vain, now."""
        if tokens is None:
            entry.quota.check_rate()
            tokens = tokenize(frame, entry.stream.model, brief=True) or []
        try:
            entry.stream.steer(replace(frame, tokens=tokens), entry.step, self._clock(), send_reply, owe)
        except Refusal:
            if text_length(frame):
                entry.quota.count(len(tokens))
            raise

    def _injection(self, key: StreamKey, frame: protocol.ToolResult) -> protocol.Inject:
        """What a call's result puts into its stream."""
        entry = self._registry.by_key(key)
        if entry is None:
            self._refuse_steering(key, frame)
        assert entry is not None
        return entry.stream.take_result(frame)

    def refuse(self, listener: Listener, frame: StreamFrame, refusal: Refusal) -> None:
        self._observer.refused(refusal.code, listener.caller)
        listener.send_refusal(refusal, frame.request_id, frame.ref)

    def _send_reply(self, listener: Listener, event: Reply) -> None:
        self._note_errors([event], listener)
        listener.send_reply(event)

    def _note_errors(self, told: Sequence[OutgoingEvent], listener: Listener | None) -> None:
        """What could be refused only when its turn came is told among the stream's own events."""
        for event in told:
            if isinstance(event, protocol.Error) and listener is not None:
                self._observer.refused(event.code, listener.caller)

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
        model = self._model_for(key, frame)
        known = self.models.find(model.name)
        if not self._takes_starts(known):
            raise Refusal("overloaded", "The engine is being started.", retry_after_ms=1000)
        listener.memory.check()
        self._starter.check(key.tenant, frame, others=self._taken_places(besides=key))
        keeper = known.keeper if known.awaited else None
        if keeper is not None and not keeper.is_wanted:
            self._quotas.check_loads(key.tenant)
        if frame.on_cold == "refuse" and keeper is not None:
            self._want(keeper, key.tenant)
            eta_ms = keeper.eta_ms
            raise Refusal(
                "model_loading",
                f'The model "{known.name}" is not loaded; it is now.',
                retry_after_ms=1000 if eta_ms is None else eta_ms,
            )
        return model

    def _taken_places(self, besides: StreamKey | None = None) -> int:
        """By the streams that live, and by those whose start waits to be tokenized."""
        live = self._registry.keys
        return len(live) + sum(key not in live and key != besides for key in self._long_texts.keys)

    def known_turns(self, key: StreamKey, frame: StreamFrame) -> Turns:
        """Those of a start's conversation that were decoded here, for this tenant."""
        model = self.model_of(key, frame)
        return {} if model is None else self._turns.told_in(key.tenant, model.name, frame, self._clock())

    def model_of(self, key: StreamKey, frame: StreamFrame) -> ServedModel | None:
        """The model of a frame's stream; None where the stream is not there yet."""
        entry = self._registry.by_key(key)
        if entry is not None:
            return entry.stream.model
        return self._model_for(key, frame) if isinstance(frame, protocol.Start) else None

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
        listener = self._subscriptions.listener_of(stream)
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
        if self._subscriptions.listener_of(stream) is None:
            stream.release_memory()
        self._submission(stream.model.name).ended(entry)
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
        with self._waking() as wake:
            entry.stream.time_out(self._clock(), entry.step)
            wake(entry.stream)

    def _flush_commands(self) -> None:
        for engine in self._engines.values():
            engine.flush()
