"""The state machine of one stream: events in, chunks or events out, and how much credit to grant for them.

Pure: no socket, no clock, no waiting. It keeps the text right through `rewound` and `snapshot`, leaves out
events that it has seen before, and refuses a sequence of events that the protocol does not allow. It does not
know who waits for a chunk, nor how a grant is sent.
"""

from __future__ import annotations

from collections import deque
from typing import Literal, NamedTuple

from msgspec import UNSET, Struct
from msgspec.structs import replace

from midstream.errors import ProtocolError
from midstream.guard_acts import GuardActs
from midstream.protocol import (
    MAX_INDEX,
    Adjusted,
    AnyPauseReason,
    Beside,
    Credit,
    Event,
    Final,
    Guarded,
    Injected,
    Params,
    Paused,
    Resumed,
    Rewound,
    Snapshot,
    Started,
    StreamEvent,
    Token,
    TokenLogprob,
)
from midstream.spans import Spans
from midstream.told import Told

State = Literal["running", "paused", "finished"]


class Chunk(Struct, frozen=True):
    """A piece of output: `count` tokens, the first of them at `index`, and the text that became whole with
    them.

    `text` may be empty: a token may end within a character. Chunks join without a gap; where one begins
    before the last one's `end`, the output from its `index` on was rewound, and this chunk stands in its
    place.
    """

    index: int
    count: int
    text: str
    tokens: list[int] | None = None
    logprobs: list[TokenLogprob] | None = None

    @property
    def end(self) -> int:
        """The index after its last token: what `rewind` and `at` take to go on right behind this chunk."""
        return self.index + self.count


class Noted(Event):
    """What the client itself says among a stream's events."""


class Restarted(Noted):
    """Nobody knew the stream any more, and it was started again, from what had come of it: the output before
    token `index` stands, and goes on there. `exact`: as it would have."""

    index: int
    exact: bool


class _Unread(NamedTuple):
    """A chunk that nobody has taken: which event brought it, and the length of the text before it."""

    number: int
    start: int
    chunk: Chunk


class StreamCore:
    """The output of one stream so far, and what of it has been taken.

    `window` is how many tokens may be decoded beyond those taken; None leaves credit to the server. A
    window no larger than one chunk is pure pull: what is asked for is granted, and nothing ahead.
    """

    def __init__(self, window: int | None = None, interval: int = 1, credit: Credit | None = None) -> None:
        self.model: str | None = None
        self.prompt_tokens: int | None = None
        self.fingerprint: str | None = None
        self.params = Params()
        self.final: Final | None = None
        self.pause_reason: AnyPauseReason | None = None
        self.index = 0  # the output tokens that have come and still stand
        self.consumed = 0  # those of them that were taken
        self._newest = 0  # where those begin that came last
        self.tokens: list[int] = []
        self.spans = Spans()  # what it has beside its text
        self.told = Told()  # by the client, among what it says
        self.acts: list[Guarded] = []  # of guards, that have taken effect
        self._guard_acts = GuardActs()
        self._window = window
        self._interval = interval
        self.seq = -1  # of the last event that has come
        self.epoch = 0  # in which it is counted
        self.restarts: list[Restarted] = []
        self._restarting: Started | bool = False  # once it has, what was said of it
        self._granted = credit.limit if credit else 0
        self._text: list[str] = []
        self._length = 0  # of the text, in code points
        self._consumed_length = 0
        self._heard = 0  # events, each of which has its number here: started again, `seq` counts anew
        self._chunks: deque[_Unread] = deque()
        self._events: deque[tuple[int, Event]] = deque()  # that are not taken, with their numbers

    @property
    def text(self) -> str:
        """All text that has come and still stands, taken or not."""
        # Joined anew each time: a reader in another thread must never see it half replaced.
        return "".join(self._text)

    @property
    def started(self) -> bool:
        return self.model is not None

    @property
    def limit(self) -> int | None:
        """The credit granted so far, or None where it is the server's."""
        return None if self._window is None else self._granted

    @property
    def state(self) -> State:
        if self.final is not None:
            return "finished"
        return "running" if self.pause_reason is None else "paused"

    # -- out -------------------------------------------------------------------------------------------

    def extend_credit(self) -> int | None:
        """One more chunk is asked for: the limit to grant for it, or None where enough was granted before."""
        if self._window is None or self.final is not None:
            return None
        # Half a window at a time, so that a grant is not sent for every token; but never less than one chunk.
        if self._granted - self.consumed > max(self._window // 2, self._interval - 1):
            return None
        self._granted = min(self.consumed + max(self._window, self._interval), MAX_INDEX)
        return self._granted

    def take(self) -> Chunk | None:
        """The next chunk, if one has come."""
        if not self._chunks:
            return None
        number, chunk = self._chunks[0].number, self._chunks[0].chunk
        self._consume(number)
        while self._events and self._events[0][0] <= number:
            self._events.popleft()
        return chunk

    def take_event(self) -> Event | None:
        """The next event, if one has come: whatever it is, and also what was rewound meanwhile. The chunks up
        to it are taken with it."""
        if not self._events:
            return None
        number, event = self._events.popleft()
        self._consume(number)
        return event

    def _consume(self, number: int) -> None:
        """What came up to and with this event is taken."""
        while self._chunks and self._chunks[0].number <= number:
            unread = self._chunks.popleft()
            self.consumed = unread.chunk.end
            self._consumed_length = unread.start + len(unread.chunk.text)

    def grant(self, limit: int) -> None:
        """Tokens up to `limit` are asked for, whatever is taken of them."""
        self._granted = max(self._granted, min(limit, MAX_INDEX))

    # -- started again ---------------------------------------------------------------------------------

    @property
    def restarting(self) -> bool:
        """Whether it is to go on as another stream, that begins as it stands."""
        return self._restarting is not False

    def restart(self) -> None:
        """Events are counted anew."""
        self.seq, self.epoch, self._restarting = -1, 0, True

    def goes_on_with(self, event: StreamEvent) -> bool:
        """Whether what is told of the other stream is what has come of this one."""
        match event:
            case Started():
                self.seq, self._restarting = 0, event
                return True
            case Snapshot():
                stands = event.index >= self.index and event.text.startswith(self.text)
                return stands and self.spans.missing(event, self._newest) is not None
        return False

    def go_on(self, begun: Snapshot) -> list[Beside]:
        """It does, as that says, which is what had come. Returns what is to come behind that: what was lost
        on its way, of what lies beside the last tokens, as the last of the events for which that stands."""
        started, self._restarting = self._restarting, False
        exact = isinstance(started, Started) and started.exact  # else the server has forgotten
        same = (begun.fingerprint, begun.prompt_tokens) == (self.fingerprint, self.prompt_tokens)
        restarted = Restarted(index=self.index, exact=exact and same)
        self.restarts.append(restarted)
        self.note(restarted)
        self.seq, self.epoch, self.pause_reason = _seq(begun), begun.epoch, begun.paused
        self.fingerprint, self.params = begun.fingerprint, begun.params
        if begun.index > self.index or len(begun.text) > self._length:  # it has gone on since
            self._hear(begun)
            self._receive_snapshot(begun)
            return []
        missing = self.spans.missing(begun, self._newest) or []
        self.seq -= len(missing)
        for seq, event in enumerate(missing, self.seq + 1):
            event.seq = seq
        return missing

    # -- in --------------------------------------------------------------------------------------------

    def note(self, event: Noted) -> None:
        """It is taken behind the events that have come."""
        self._events.append((self._heard, event))

    def _hear(self, event: StreamEvent) -> None:
        self._heard += 1
        self._events.append((self._heard, event))

    def receive(self, event: StreamEvent) -> bool:
        """Take the stream's next event, and say whether it is new. Raises ProtocolError for one that cannot
        come here."""
        if not self._is_new(event):
            return False
        self._hear(event)
        match event:
            case Token():
                self._receive_token(event)
            case Rewound():
                self._receive_rewound(event)
            case Snapshot():
                self._receive_snapshot(event)
            case Started():
                self._receive_started(event)
            case Adjusted():
                _update(self.params, event.params)
            case Paused():
                self.pause_reason = event.reason
            case Resumed():
                self.pause_reason = None
                self.fingerprint = event.fingerprint or self.fingerprint
            case Final():
                self.final, self.pause_reason = event, None
            case _:
                self._receive_beside(event)
        act = self._guard_acts.receive(event)
        self.acts += [] if act is None else [act]
        return True

    def adjusted(self, change: Params) -> Params:
        """It took effect."""
        _update(self.params, change)
        return replace(self.params)

    def receive_told(self, event: Injected) -> None:
        """What the client has said stands there."""
        self.told.receive(event, self._length)

    def rewind_told(self, index: int) -> None:
        """Of what the client has said nothing stands behind there."""
        calls = [call.call_id for call in self.spans.calls if call.end is not None and call.end <= index]
        self.told.rewind(index, calls)

    def _receive_beside(self, event: StreamEvent) -> None:
        if isinstance(event, Injected) and event.reason is None:
            self.receive_told(event)
        else:
            self.spans.receive(event)

    def _is_new(self, event: StreamEvent) -> bool:
        """Events count from 0 without a gap; a replay repeats some, and a snapshot stands for many."""
        seq = _seq(event)
        ends = isinstance(event, Final) and self.final is None
        if seq <= self.seq and ends:  # nothing would follow it, and nobody hear of an end
            raise ProtocolError(f"the end, event {seq}, followed event {self.seq}")
        if seq <= self.seq:
            return False
        if seq != self.seq + 1 and not isinstance(event, Snapshot):
            raise ProtocolError(f"event {self.seq + 1} is missing: event {seq} followed {self.seq}")
        self.seq = seq
        return True

    def _receive_started(self, event: Started | Snapshot) -> None:
        self.model, self.prompt_tokens, self.params = event.model, event.prompt_tokens, event.params
        self.fingerprint = event.fingerprint

    def _receive_token(self, event: Token) -> None:
        if event.index != self.index:
            raise ProtocolError(f"token {event.index} came where token {self.index} was due")
        if not 0 <= event.count <= MAX_INDEX - event.index:
            raise ProtocolError(f"{event.count} tokens came at token {event.index}")
        for told in (event.tokens, event.logprobs):
            if told is not None and len(told) != event.count:
                raise ProtocolError(
                    f"{event.count} tokens came at token {event.index}, and {len(told)} are told"
                )
        chunk = Chunk(event.index, event.count, event.delta, event.tokens, event.logprobs)
        self._chunks.append(_Unread(self._heard, self._length, chunk))
        self._newest, self.index = chunk.index, chunk.end
        self._text.append(chunk.text)
        self._length += len(chunk.text)
        self.tokens.extend(chunk.tokens or ())

    def _receive_rewound(self, event: Rewound) -> None:
        if not (0 <= event.index <= self.index and 0 <= event.text_length <= self._length):
            place = (
                f"token {event.index} of {self.index} and {event.text_length} of {self._length} characters"
            )
            raise ProtocolError(f"rewound to {place}, where it never stood")
        self.spans.rewind(event)
        self.rewind_told(event.index)
        self._text = [self.text[: event.text_length]]
        self._length = event.text_length
        self.index = event.index
        self._newest = min(self._newest, event.index)
        self.tokens = self.tokens[: event.index]
        self.consumed = min(self.consumed, event.index)
        self._consumed_length = min(self._consumed_length, event.text_length)
        cut = (
            unread._replace(chunk=_cut(unread.chunk, event.index, event.text_length - unread.start))
            for unread in self._chunks
        )
        self._chunks = deque(unread for unread in cut if unread.chunk.count or unread.chunk.text)

    def _receive_snapshot(self, event: Snapshot) -> None:
        """The whole output anew. What was taken of it before is not given out again, if it still stands."""
        if not 0 <= event.index <= MAX_INDEX:
            raise ProtocolError(f"it is said to stand at token {event.index}")
        if event.tokens is not None and len(event.tokens) != event.index:
            raise ProtocolError(f"it stands at token {event.index}, and {len(event.tokens)} tokens are told")
        self._receive_started(event)
        self.spans.receive_snapshot(event)
        self.rewind_told(event.index)
        self.pause_reason, self.epoch = event.paused, event.epoch
        taken = self.text[: self._consumed_length]
        if event.index < self.consumed or not event.text.startswith(taken):
            self.consumed = self._consumed_length = 0
        self._text, self._length, self.index = [event.text], len(event.text), event.index
        self.tokens = list(event.tokens or ())
        rest = Chunk(
            self.consumed,
            event.index - self.consumed,
            event.text[self._consumed_length :],
            None if event.tokens is None else event.tokens[self.consumed :],
        )
        unread = _Unread(self._heard, self._consumed_length, rest)
        self._chunks = deque([unread] if rest.count or rest.text else [])


def _cut(chunk: Chunk, end: int, length: int) -> Chunk:
    """What stands of a chunk before token `end`. Its text may outlive it: it was held back before."""
    count = min(max(end - chunk.index, 0), chunk.count)
    return Chunk(
        chunk.index if count else end,
        count,
        chunk.text[: max(length, 0)],
        chunk.tokens and chunk.tokens[:count],
        chunk.logprobs and chunk.logprobs[:count],
    )


def _seq(event: StreamEvent) -> int:
    if event.seq is UNSET:
        raise ProtocolError(f"an event without a seq: {event}")
    return event.seq


def _update(params: Params, change: Params) -> None:
    for name in change.__struct_fields__:
        value = getattr(change, name)
        if value is not UNSET:
            setattr(params, name, value)
