"""Checking clients of a simulated server: every event is checked against the protocol as it is read.

A `Reader` is a listener of the hub's, as a connection is: it takes events when it is ready to read, or
stalls, or is gone, with what was on its way to it. An `Account` is what a client knows of one stream, from
the events and from its own frames alone; another reader may go on with it.
"""

from __future__ import annotations

from collections import deque

from msgspec.structs import replace

from midstream import protocol
from midstream.protocol import Event, Frame, Guard, Params, StreamFrame
from realtime.guards.acts import Act, Acts
from realtime.hub.listener import Payer
from realtime.hub.observers import Caller
from realtime.hub.starting import tenant_number
from realtime.refusal import Refusal
from realtime.stream.outbox import OutgoingEvent
from realtime.stream.pending_commands import Reply
from realtime.stream.stream import Stream
from tests.fakes.simulated_server import SimulatedServer, toy_tokenizer

AHEAD = 7  # tokens that a plain client grants at a time
ANSWERS: dict[type[Frame], type[Event]] = {
    protocol.Start: protocol.Started,
    protocol.Pause: protocol.Paused,
    protocol.Resume: protocol.Resumed,
    protocol.Adjust: protocol.Adjusted,
    protocol.Inject: protocol.Injected,
    protocol.Rewind: protocol.Rewound,
    protocol.Cancel: protocol.Final,
    protocol.Attach: protocol.Attached,
}


def spelled(tokens: list[int]) -> str:
    """The text of all tokens at once, broken characters replaced."""
    return b"".join(map(toy_tokenizer().token_bytes, tokens)).decode(errors="replace")


# Grants are answered by tokens, and a cancel that came too late or twice by nothing. `attached` is no part of
# a stream's history: it may be lost, and is not told again.
SILENT = protocol.Grant | protocol.Cancel | protocol.Attach | protocol.Start


class Account:
    """One stream, as its events tell it."""

    def __init__(self, start: protocol.Start, prompt: list[int], window: int) -> None:
        self.start = start
        self.prompt = prompt
        self.request_id = start.request_id
        self.automatic = start.credit is None
        self.limit = 0 if start.credit is None else start.credit.limit
        self.acknowledged = 0
        self.refused = False
        self.started = False
        self.final: protocol.Final | None = None
        self.tokens: list[int] = []
        self.text = ""
        self.params: list[tuple[int, Params]] = []  # each with the index of the first token chosen by it
        self.injections: list[tuple[int, list[int]]] = []
        self.paused = False
        self.guarded = False  # whether a guard has paused it
        self.acts = Acts()  # of guards
        self._acting: protocol.Guarded | None = None  # one that goes back, and has not yet
        self._taken_back = False  # before anything was told of it: what a guard acted on
        self.voided = 0  # tokens that were received and rewound
        self.began_with = 0  # tokens, as another's fork, or by its past
        self.inherited: list[int] = []  # those of them that still stand
        self.forgetful = False  # whether it was begun anew by a client that knew no more than its name
        self.whole = True  # whether it knows the stream from its start, event by event
        self.seq = 0  # of the next event
        self._window = window
        self._history: dict[int, protocol.StreamEvent] = {}
        self._ending = False  # text without a token came: `final` is next

    @property
    def live(self) -> bool:
        return not self.refused and self.final is None

    def is_of(self, start: protocol.Start) -> bool:
        return replace(start, ref=None) == replace(self.start, ref=None)

    @property
    def most(self) -> int:
        """Output tokens that the server may have sent."""
        return max(self.limit, self.acknowledged + self._window if self.automatic else 0)

    @property
    def stops(self) -> list[str]:
        stops = self.params[-1][1].stop
        assert isinstance(stops, list), "resolved parameters show stop strings as a list"
        return stops

    def on(self, event: protocol.StreamEvent, injected: list[int] | None) -> None:
        assert event.request_id == self.request_id
        assert isinstance(event.seq, int)
        if event.seq < self.seq:
            self._again(event)
        elif isinstance(event, protocol.Snapshot) and not self._begins_with(event):
            self._snapshot(event)
        else:
            self._next(event)
            self._take_in(event, injected)

    def _take_in(self, event: protocol.StreamEvent, injected: list[int] | None) -> None:
        match event:
            case protocol.Started():
                assert event.prompt_tokens == len(self.prompt)
                self.started = True
                self.params.append((0, event.params))
            case protocol.Snapshot():
                self._inherit(event)
            case protocol.Token():
                self._token(event)
            case protocol.Paused() | protocol.Resumed():
                assert event.index == len(self.tokens)
                self.paused = isinstance(event, protocol.Paused)
                self._taken_back = False
                self.guarded = isinstance(event, protocol.Paused) and event.reason == "guard"
            case protocol.Adjusted():
                assert event.index >= len(self.tokens), "an acknowledgement speaks of tokens to come"
                self.params.append((event.index, event.params))
            case protocol.Injected():
                assert event.index >= len(self.tokens)
                assert injected is not None
                assert event.count == len(injected)
                self.injections.append((event.index, injected))
            case protocol.Rewound():
                self._rewound(event)
            case protocol.Guarded():
                self._guarded(event)
            case protocol.Final():
                self._finish(event)
            case _:
                raise AssertionError(f"{event} is no event of a stream's life")

    def _next(self, event: protocol.StreamEvent) -> None:
        assert event.seq == self.seq, "seq counts without a gap"
        assert self.final is None, "nothing follows final"
        assert isinstance(event, protocol.Started) == (self.seq == 0), "started is first, and only first"
        assert not self._ending or isinstance(event, protocol.Final)
        self._history[self.seq] = event
        self.seq += 1

    def _again(self, event: protocol.StreamEvent) -> None:
        if isinstance(event, protocol.Snapshot):
            if event.seq == self.seq - 1:
                assert (event.text, event.index) == (self.text, len(self.tokens))
                assert event.tokens == self.tokens
        elif event.seq in self._history:
            assert event == self._history[event.seq], "what is told again is told as it was"

    def _begins_with(self, event: protocol.Snapshot) -> bool:
        """Whether it is not for events that were missed, but for those of the stream that this one forks, or
        has as its past."""
        begun = self.start.fork is not None or self.start.past is not None
        return begun and event.seq == self.seq == 1

    def _inherit(self, event: protocol.Snapshot) -> None:
        assert event.tokens is not None
        assert len(event.tokens) == event.index
        if self.start.past is not None:
            assert event.tokens == self.start.past.tokens
            self.whole = not self.start.past.steering  # else it is not sure what stands there
        else:
            assert self.start.fork is not None
            assert self.start.fork.at in (None, event.index)
        assert spelled(event.tokens).startswith(event.text)
        self.text, self.tokens = event.text, event.tokens[:]
        self.inherited, self.began_with = event.tokens[:], event.index
        self.params = [(event.index, event.params)]
        self.acknowledged = max(self.acknowledged, event.index)

    def _snapshot(self, event: protocol.Snapshot) -> None:
        assert isinstance(event.seq, int)
        assert event.prompt_tokens == len(self.prompt)
        assert event.tokens is not None
        assert len(event.tokens) == event.index <= self.most
        assert spelled(event.tokens).startswith(event.text)
        self.seq, self.whole, self.started = event.seq + 1, False, True
        self.text, self.tokens = event.text, event.tokens
        self.params = [(0, event.params)]
        self.paused = event.paused is not None

    def forgotten(self) -> Account:
        """The same stream, of which nothing is known any more but what was granted."""
        fresh = Account(self.start, self.prompt, self._window)
        fresh.forgetful, fresh.limit, fresh.acknowledged = True, self.limit, self.acknowledged
        return fresh

    def _token(self, event: protocol.Token) -> None:
        assert event.index == len(self.tokens)
        assert event.tokens is not None
        assert len(event.tokens) == event.count
        assert not self.paused or not event.count, "no token event follows paused"
        assert not self._taken_back, "what a guard acts on is told before, or never"
        assert event.count or event.delta, "an event says something"
        self._ending = not event.count
        self.tokens += event.tokens
        self.text += event.delta
        assert len(self.tokens) <= self.most, "no token is sent past the credit"
        assert spelled(self.tokens).startswith(self.text)

    def _rewound(self, event: protocol.Rewound) -> None:
        assert event.index <= len(self.tokens), "what was never received is not taken back"
        assert event.text_length <= len(self.text)
        self._taken_back = False
        told = len(self.tokens)
        self.voided += told - event.index
        del self.tokens[event.index :], self.inherited[event.index :]
        self.text = self.text[: event.text_length]
        assert spelled(self.tokens).startswith(self.text)
        self.params = [(min(index, event.index), params) for index, params in self.params]
        self.injections = [entry for entry in self.injections if entry[0] <= event.index]

        act = self._acting
        if act is not None and event.ref is None and event.index == min(act.index, told):
            self.acts.add(Act(self._guard(act.name), act.index, act.token))
            self._acting = None
        else:
            self.acts.cut(event.index)

    def _guarded(self, event: protocol.Guarded) -> None:
        assert self._guard(event.name).do in (event.do, "rewind")
        ahead = self.start.credit.prefetch if self.start.credit else 0
        told = len(self.tokens) if not ahead else max(len(self.tokens), self.limit + ahead)
        self._taken_back |= event.do != "tell" and event.index > told
        assert (event.token is None) == (event.times is None) == (event.do != "rewind")
        if event.do == "rewind":
            self._acting = event

    def _guard(self, name: str) -> Guard:
        """Which has this name, now or since its last word was asked for."""
        asked = [guard for _, params in reversed(self.params) for guard in params.guards or ()]
        return next(guard for guard in asked if guard.name == name)

    # -- the end ---------------------------------------------------------------------------------

    def _finish(self, event: protocol.Final) -> None:
        self.final = event
        usage = event.usage
        assert event.index == len(self.tokens) == usage.completion_tokens
        assert usage.prompt_tokens == len(self.prompt)
        assert self.forgetful or usage.inherited_tokens == self.began_with
        assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
        assert usage.cached_tokens <= usage.prompt_tokens, "not what was injected behind it"
        assert usage.discarded_tokens >= self.voided
        standing = [tokens for index, tokens in self.injections if index <= event.index]
        assert not self.whole or usage.injected_tokens == sum(map(len, standing))
        assert event.timing.total_ms >= event.timing.paused_ms >= 0
        self._check_end(event)

    def _check_end(self, event: protocol.Final) -> None:
        whole = spelled(self.tokens)
        why = event.stop_reason
        if event.finish_reason == "stop" and why != "eos":
            assert why in self.stops
            assert whole.startswith(self.text + why), "the text ends where the stop string begins"
        else:
            assert self.text == whole, "the deltas are the text of the tokens, no more, no less"
        own = self.whole and not self.began_with
        if own and len(self.params) == 1 and not self.params[0][1].min_tokens:
            assert not any(stop in self.text for stop in self.stops), "a stop string is never in the text"

    def check_length(self, context: int) -> None:
        """`length` means that it was reached."""
        if (
            self.whole
            and self.final
            and (self.final.finish_reason, self.final.stop_reason) == ("length", None)
        ):
            known = len(self.prompt) + len(self.tokens) + sum(len(tokens) for _, tokens in self.injections)
            most = self.params[-1][1].max_tokens
            assert isinstance(most, int)
            assert len(self.tokens) >= most or known >= context or self.paused


class Reader:
    """`ready`: whether it takes events as they come; `prompt`: whether it acknowledges them at once; `near`:
    whether what it takes arrives at once."""

    def __init__(self, server: SimulatedServer, tenant: str = "tenant") -> None:
        self.server = server
        self.tenant = tenant
        self.gone = False
        self.memory = server.hub.accounts.of_listener(tenant)
        self.number = tenant_number(tenant)
        self.takes_over = True
        self.paid_s = 0.0  # of work behind long texts
        self.ready = True
        self.prompt = False
        self.near = True
        self.accounts: list[Account] = []
        self.errors: list[protocol.Error] = []
        self.open: dict[str, StreamFrame] = {}  # frames that have no answer yet, by ref
        self._before: dict[str, set[str]] = {}  # by ref: what was open of that stream when it was sent
        self._by_name: dict[str, Account] = {}
        self._woken: dict[Stream, None] = {}
        self._refusals: list[protocol.Error] = []
        self._under_way: deque[tuple[Stream, list[OutgoingEvent], int]] = deque()
        self._unacknowledged: deque[tuple[Stream, int, int]] = deque()

    # -- towards the server ----------------------------------------------------------------------

    def send(self, frame: StreamFrame, *, elsewhere: bool = False) -> None:
        assert not self.gone
        frame.ref = next(self.server.refs)
        if elsewhere:
            self.server.foreign.add(frame.ref)
        self._before[frame.ref] = {
            ref for ref, other in self.open.items() if other.request_id == frame.request_id
        }
        self.open[frame.ref] = self.server.frames[frame.ref] = frame
        if isinstance(frame, protocol.Start):
            if frame.request_id not in self._by_name:
                self._adopt(self._new_account(frame))
            self._by_name[frame.request_id].refused = False
        if isinstance(frame, protocol.Grant):
            for account in self.accounts:
                if account.live and account.request_id == frame.request_id:
                    account.limit = max(account.limit, frame.limit)
        self.server.hub.receive_frame(self.tenant, frame, self)
        self.server.look()

    def _new_account(self, start: protocol.Start) -> Account:
        if start.fork is None:
            return Account(start, _prompt(start), self.server.window)
        parent = self._by_name[start.fork.request_id]
        account = Account(start, parent.prompt, self.server.window)
        injected = any(
            isinstance(frame, protocol.Inject) and frame.request_id == parent.request_id
            for frame in self.server.frames.values()
        )
        guarded = any(params.guards for _, params in parent.params)
        account.whole = parent.whole and not injected and not guarded  # else it is not sure what stood there
        return account

    def _adopt(self, account: Account) -> None:
        self.accounts.append(account)
        self._by_name[account.request_id] = account

    def take_over(self, other: Reader, account: Account, *, forgotten: bool = False) -> None:
        """Go on with a stream that another reader had; `forgotten`: by a client that knows no more of it than
        its name."""
        other.accounts.remove(account)
        del other._by_name[account.request_id]
        open_there = {
            ref: frame for ref, frame in other.open.items() if frame.request_id == account.request_id
        }
        for ref in open_there:
            del other.open[ref]
        # What is under way to the other is for nobody any more, also if it has the stream again one day.
        other._under_way = deque(
            item for item in other._under_way if item[0].request_id != account.request_id
        )
        self.open |= {} if forgotten else open_there
        known = account.forgotten() if forgotten else account
        self._adopt(known)
        if known.started or forgotten:
            self.send(protocol.Attach(request_id=account.request_id, after=known.seq - 1))
        else:
            self.send(replace(account.start))

    def steer_elsewhere(self, frame: StreamFrame) -> None:
        """Steer a stream that another reader listens to."""
        self.send(frame, elsewhere=True)

    def read(self) -> None:
        self.ready = self.near = True
        self.flush()

    def acknowledge(self) -> None:
        while self._unacknowledged:
            stream, index, seq = self._unacknowledged.popleft()
            account = self._by_name.get(stream.request_id)
            if account is not None:
                account.acknowledged = max(account.acknowledged, index)
                self.server.hub.acknowledge(stream, index, seq)
        self.server.hub.flush()
        self.server.look()

    def grant_all(self) -> None:
        """As a plain client does: where all that was granted has been read, grant a little more."""
        for account in self.accounts:
            read = len(account.tokens)
            if account.live and not account.automatic and read >= account.limit:
                self.send(protocol.Grant(request_id=account.request_id, limit=read + AHEAD))

    def let_through(self) -> None:
        """What guards have paused for."""
        for account in self.accounts:
            if account.live and account.paused and account.guarded:
                account.guarded = False
                self.send(protocol.Resume(request_id=account.request_id))

    def leave(self) -> None:
        """With all that is under way to it."""
        self.gone = True
        self.server.hub.detach(self)
        self.server.look()

    # -- as the hub's listener -------------------------------------------------------------------

    @property
    def caller(self) -> Caller:
        return Caller("websocket", tenant=self.tenant)

    @property
    def payer(self) -> Payer:
        return self

    @property
    def debt_s(self) -> float:
        return 0.0

    def owe(self, work_s: float) -> None:
        pass

    async def pay(self, work_s: float) -> None:
        self.paid_s += work_s

    def wake(self, stream: Stream) -> None:
        """As a connection does: whoever keeps up is given what there is at once."""
        if self.ready and not self.gone:
            self._take(stream)
        else:
            self._woken[stream] = None

    def _take(self, stream: Stream) -> None:
        events = self.server.hub.take_events(stream)
        self.server.refused |= {event.ref for event in events if isinstance(event, protocol.Error)}
        self._under_way.append((stream, events, stream.outbox.sent))

    def forget(self, stream: Stream) -> None:
        self._woken.pop(stream, None)

    def lose(self, stream: Stream) -> None:
        self._woken.pop(stream, None)
        assert stream.request_id not in self._by_name, "it is taken over by those who know"

    def send_reply(self, event: Reply) -> None:
        frame = self._answered(event.ref, strict=False)  # it may be its own by now, and told as such, too
        assert frame is not None
        assert isinstance(event, protocol.Error | ANSWERS[type(frame)]), "whoever steers is answered"

    def send_refusal(self, refusal: Refusal, frame: protocol.StreamFrame) -> None:
        self.server.refused.add(frame.ref)
        self._refusals.append(refusal.event(frame.request_id, frame.ref))
        self.flush()

    def flush(self) -> None:
        if self.gone or not self.ready:
            return
        refusals, self._refusals = self._refusals, []
        for error in refusals:
            self._error(error, strict=False)  # another may have taken the stream over meanwhile
        woken, self._woken = self._woken, {}
        for stream in woken:
            self._take(stream)
        while self.near and self._under_way:
            self._arrive(*self._under_way.popleft())
        if self.prompt and self._unacknowledged:
            self.acknowledge()

    def _arrive(self, stream: Stream, events: list[OutgoingEvent], sent: int) -> None:
        account = self._by_name.get(stream.request_id)
        if account is None:
            return  # another has it now, and reads for itself
        for event in events:
            match event:
                case protocol.StreamEvent():
                    self._event(stream, account, event)
                case protocol.Attached():
                    self._attached(account, event)
                case error:
                    assert account.live, "no error about a stream follows its final"
                    self._error(error, strict=not account.forgetful)
        if any(isinstance(event, protocol.Token | protocol.Attached) for event in events):
            self._unacknowledged.append((stream, sent, account.seq - 1))

    def _event(self, stream: Stream, account: Account, event: protocol.StreamEvent) -> None:
        news = isinstance(event.seq, int) and event.seq >= account.seq
        frame = self._answered(event.ref, strict=not account.forgetful) if news else None
        assert frame is None or ANSWERS[type(frame)] is type(event)
        assert frame is None or frame.request_id == event.request_id
        injected = _injected(frame) if isinstance(frame, protocol.Inject) else None
        account.on(event, injected)
        account.check_length(self.server.engine.runner.context)
        if isinstance(event, protocol.Final):
            decoded = self.server.counts.decoded_when_ended[stream.number] + event.usage.inherited_tokens
            assert event.usage.completion_tokens + event.usage.discarded_tokens == decoded

    def _attached(self, account: Account, event: protocol.Attached) -> None:
        """All that was missed is here. What is neither answered nor pending was refused, or is silent."""
        frame = self._answered(event.ref)
        assert isinstance(frame, protocol.Attach | protocol.Start)
        assert event.ref is not None
        self._give_up(self._before.pop(event.ref) - set(event.pending))

    def _error(self, error: protocol.Error, *, strict: bool = True) -> None:
        self.errors.append(error)
        frame = self._answered(error.ref, strict=strict)
        assert frame is not None, "an error answers a frame"
        assert frame.request_id == error.request_id
        account = self._by_name.get(frame.request_id)
        never = isinstance(frame, protocol.Attach) and error.code == "unknown_request"
        if account is not None and (never or (isinstance(frame, protocol.Start) and account.is_of(frame))):
            account.refused = True
            self._give_up(self._before.pop(error.ref or "", set()))

    def _give_up(self, refs: set[str]) -> None:
        """Frames that are not answered any more: they were refused while nobody heard it, or are silent."""
        for ref in refs:
            other = self.open.pop(ref, None)
            assert isinstance(other, SILENT | None) or ref in self.server.refused, other

    def _answered(self, ref: str | None, *, strict: bool = True) -> StreamFrame | None:
        if ref is None:
            return None
        assert ref in self.open or ref in self.server.foreign or not strict, "a frame is answered once"
        self.open.pop(ref, None)
        return self.server.frames[ref]

    # -- afterwards ------------------------------------------------------------------------------

    def check_answers(self) -> None:
        """All were answered that are to be."""
        assert all(isinstance(frame, SILENT) for frame in self.open.values()), self.open


def _prompt(start: protocol.Start) -> list[int]:
    tokenizer = toy_tokenizer()
    if isinstance(start.prompt, str):
        return tokenizer.encode(start.prompt)
    return start.prompt if start.prompt is not None else tokenizer.encode_chat(start.messages or [])


def _injected(frame: protocol.Inject) -> list[int]:
    tokenizer = toy_tokenizer()
    if frame.text is not None:
        return tokenizer.encode(frame.text, special=False)
    return frame.tokens if frame.tokens is not None else tokenizer.encode_turns(frame.messages or [])
