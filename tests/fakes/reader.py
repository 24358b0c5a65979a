"""Clients that believe nothing: every event is checked against the protocol as it is read.

A `Reader` is a listener of the hub's, as a connection is: it takes events when it is ready to read, or
stalls, or is gone. An `Account` is what it knows of one stream, from the events and from its own frames
alone.
"""

from __future__ import annotations

from collections import deque

from midstream import protocol
from midstream.protocol import Event, Frame, Params, StreamFrame
from realtime.refusal import Refusal
from realtime.stream import Stream
from tests.fakes.house import House, toy_tokenizer

AHEAD = 7  # tokens that a plain client grants at a time
ANSWERS: dict[type[Frame], type[Event]] = {
    protocol.Start: protocol.Started,
    protocol.Pause: protocol.Paused,
    protocol.Resume: protocol.Resumed,
    protocol.Adjust: protocol.Adjusted,
    protocol.Inject: protocol.Injected,
    protocol.Rewind: protocol.Rewound,
    protocol.Cancel: protocol.Final,
}


def spelled(tokens: list[int]) -> str:
    """The text of all tokens at once, broken characters replaced."""
    return b"".join(map(toy_tokenizer().token_bytes, tokens)).decode(errors="replace")


class Account:
    """One stream, as told by its events."""

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
        self.voided = 0  # tokens that were received and rewound
        self._window = window
        self._seq = 0
        self._ending = False  # text without a token came: `final` is next

    @property
    def live(self) -> bool:
        return not self.refused and self.final is None

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
        assert event.seq == self._seq, "seq counts without a gap"
        assert self.final is None, "nothing follows final"
        assert isinstance(event, protocol.Started) == (self._seq == 0), "started is first, and only first"
        assert not self._ending or isinstance(event, protocol.Final)
        self._seq += 1
        match event:
            case protocol.Started():
                assert event.prompt_tokens == len(self.prompt)
                self.started = True
                self.params.append((0, event.params))
            case protocol.Token():
                self._token(event)
            case protocol.Paused():
                assert event.index == len(self.tokens)
                self.paused = True
            case protocol.Resumed():
                assert event.index == len(self.tokens)
                self.paused = False
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
            case protocol.Final():
                self._finish(event)
            case _:
                raise AssertionError(f"{event} is no event of a stream's life")

    def _token(self, event: protocol.Token) -> None:
        assert event.index == len(self.tokens)
        assert event.tokens is not None
        assert len(event.tokens) == event.count
        assert not self.paused or not event.count, "no token event follows paused"
        assert event.count or event.delta, "an event says something"
        self._ending = not event.count
        self.tokens += event.tokens
        self.text += event.delta
        assert len(self.tokens) <= self.most, "no token is sent past the credit"
        assert spelled(self.tokens).startswith(self.text)

    def _rewound(self, event: protocol.Rewound) -> None:
        assert event.index <= len(self.tokens), "what was never received is not taken back"
        assert event.text_length <= len(self.text)
        self.voided += len(self.tokens) - event.index
        del self.tokens[event.index :]
        self.text = self.text[: event.text_length]
        assert spelled(self.tokens).startswith(self.text)
        self.params = [(min(index, event.index), params) for index, params in self.params]
        self.injections = [entry for entry in self.injections if entry[0] <= event.index]

    # -- the end ---------------------------------------------------------------------------------

    def _finish(self, event: protocol.Final) -> None:
        self.final = event
        usage = event.usage
        assert event.index == len(self.tokens) == usage.completion_tokens
        assert usage.prompt_tokens == len(self.prompt)
        assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
        assert usage.cached_tokens <= usage.prompt_tokens, "not what was injected behind it"
        assert usage.discarded_tokens >= self.voided
        standing = [tokens for index, tokens in self.injections if index <= event.index]
        assert usage.injected_tokens == sum(map(len, standing))
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
        if len(self.params) == 1 and not self.params[0][1].min_tokens:
            assert not any(stop in self.text for stop in self.stops), "a stop string is never in the text"

    def check_length(self, context: int) -> None:
        """`length` means that it was reached."""
        if self.final and (self.final.finish_reason, self.final.stop_reason) == ("length", None):
            known = len(self.prompt) + len(self.tokens) + sum(len(tokens) for _, tokens in self.injections)
            most = self.params[-1][1].max_tokens
            assert isinstance(most, int)
            assert len(self.tokens) >= most or known >= context or self.paused


class Reader:
    """`ready`: whether it takes events as they come; `prompt`: whether it acknowledges them at once."""

    def __init__(self, house: House, tenant: str = "tenant") -> None:
        self.house = house
        self.tenant = tenant
        self.gone = False
        self.ready = True
        self.prompt = False
        self.accounts: list[Account] = []
        self.errors: list[protocol.Error] = []
        self.open: dict[str, StreamFrame] = {}  # frames that have no answer yet, by ref
        self._starts: dict[str, Account] = {}
        self._streams: dict[Stream, Account] = {}
        self._woken: dict[Stream, None] = {}
        self._refusals: list[protocol.Error] = []
        self._unacknowledged: deque[tuple[Stream, int]] = deque()

    # -- towards the server ----------------------------------------------------------------------

    def send(self, frame: StreamFrame) -> None:
        assert not self.gone
        frame.ref = next(self.house.refs)
        self.open[frame.ref] = frame
        if isinstance(frame, protocol.Start):
            account = Account(frame, _prompt(frame), self.house.window)
            self._starts[frame.ref] = account
            self.accounts.append(account)
        if isinstance(frame, protocol.Grant):
            for account in self.accounts:
                if account.live and account.request_id == frame.request_id:
                    account.limit = max(account.limit, frame.limit)
        self.house.hub.receive(self.tenant, frame, self)

    def read(self) -> None:
        self.ready = True
        self.flush()

    def acknowledge(self) -> None:
        while self._unacknowledged:
            stream, index = self._unacknowledged.popleft()
            account = self._streams[stream]
            account.acknowledged = max(account.acknowledged, index)
            self.house.hub.taken(stream, index)
        self.house.hub.settle()

    def grant_all(self) -> None:
        """As a plain client does: where all that was granted has been read, grant a little more."""
        for account in self.accounts:
            if account.live and not account.automatic and len(account.tokens) == account.limit:
                self.send(protocol.Grant(request_id=account.request_id, limit=account.limit + AHEAD))

    def leave(self) -> None:
        self.gone = True
        self.house.hub.detach(self)

    # -- as the hub's listener -------------------------------------------------------------------

    def wake(self, stream: Stream) -> None:
        self._woken[stream] = None

    def refuse(self, refusal: Refusal, request_id: str, ref: str | None) -> None:
        self._refusals.append(refusal.event(request_id, ref))
        self.flush()

    def flush(self) -> None:
        if self.gone or not self.ready:
            return
        refusals, self._refusals = self._refusals, []
        for error in refusals:
            self._error(error)
        woken, self._woken = self._woken, {}
        for stream in woken:
            self._take(stream)
        if self.prompt and self._unacknowledged:
            self.acknowledge()

    def _take(self, stream: Stream) -> None:
        before = stream.outbox.sent
        for event in stream.outbox.take():
            if isinstance(event, protocol.StreamEvent):
                self._event(stream, event)
            else:
                assert isinstance(event, protocol.Error)
                assert self._streams[stream].live, "no error about a stream follows its final"
                self._error(event)
        if stream.automatic and stream.outbox.sent > before:
            self._unacknowledged.append((stream, stream.outbox.sent))

    def _event(self, stream: Stream, event: protocol.StreamEvent) -> None:
        if isinstance(event, protocol.Started):
            assert event.ref is not None
            self._streams[stream] = self._starts[event.ref]
        frame = self._answered(event.ref)
        assert frame is None or ANSWERS[type(frame)] is type(event)
        assert frame is None or frame.request_id == event.request_id
        injected = _injected(frame) if isinstance(frame, protocol.Inject) else None
        self._streams[stream].on(event, injected)
        self._streams[stream].check_length(self.house.engine.runner.context)
        if isinstance(event, protocol.Final):
            decoded = self.house.tally.decoded_when_ended[stream.number]
            assert event.usage.completion_tokens + event.usage.discarded_tokens == decoded

    def _error(self, error: protocol.Error) -> None:
        self.errors.append(error)
        frame = self._answered(error.ref)
        assert frame is not None, "an error answers a frame"
        assert frame.request_id == error.request_id
        if isinstance(frame, protocol.Start):
            assert frame.ref is not None
            self._starts[frame.ref].refused = True

    def _answered(self, ref: str | None) -> StreamFrame | None:
        if ref is None:
            return None
        assert ref in self.open, "a frame is answered once"
        return self.open.pop(ref)

    # -- afterwards ------------------------------------------------------------------------------

    def check_answers(self) -> None:
        """A grant is answered by tokens, a cancel that came too late or twice by nothing; all others were."""
        silent = protocol.Grant | protocol.Cancel
        assert all(isinstance(frame, silent) for frame in self.open.values()), self.open


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
