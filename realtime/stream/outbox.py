"""The outbox of one stream: tokens and events that wait for its listener, in order, and those sent again.

Tokens are no events until somebody takes them: what has piled up while the listener was busy goes out as one
event, so the outbox never holds more than credit allows, and a slow reader gets fewer, larger events. The
outbox knows how far the listener is ready to read (its credit), and that nothing follows `paused` but what is
no token. It numbers the events as it gives them out, and keeps them until they are known to have been read:
whoever comes back gets again what was lost. It knows no socket, and neither text nor token beyond what it
carries.
"""

from __future__ import annotations

from collections import deque

from msgspec import Struct

from midstream.protocol import (
    Attached,
    Error,
    Final,
    Paused,
    PauseReason,
    Resumed,
    Rewound,
    Snapshot,
    StreamEvent,
    Token,
    TokenLogprob,
)
from realtime.stream.credit import Credit

EVENT_BYTES, LOGPROB_BYTES = 300, 130  # what one costs, as measured
HISTORY_LIMIT = 512  # events that nobody is known to have read; whoever needs older ones gets a snapshot


class PendingToken(Struct):
    """One output token on its way out; `token` is None for text that was held back and has no token to go
    with."""

    index: int
    delta: str
    token: int | None
    logprob: TokenLogprob | None = None


Item = PendingToken | StreamEvent | Error
OutgoingEvent = StreamEvent | Error | Attached


class Outbox:
    def __init__(self, request_id: str, credit: Credit, *, interval: int = 1, tokens: bool = False) -> None:
        self.request_id = request_id
        self.credit = credit
        self.sent = 0  # output tokens given out, that still stand
        self._listener_index = 0  # the same as the listener knows it: what is void it hears later
        self._listener_length = 0  # of the last snapshot's text, in code points
        self.seq = 0  # of the next event
        self._history: deque[StreamEvent] = deque(maxlen=HISTORY_LIMIT)  # not known to have been read
        self._replay: list[OutgoingEvent] = []  # to be given out before anything else
        self._interval = interval
        self.shows_tokens = tokens
        self.paused: PauseReason | None = None  # as the listener knows it
        self._waiting: deque[Item] = deque()

    @property
    def waiting(self) -> bool:
        return bool(self._waiting or self._replay)

    @property
    def unsent(self) -> list[PendingToken]:
        return [item for item in self._waiting if isinstance(item, PendingToken)]

    @property
    def beyond_credit(self) -> list[PendingToken]:
        """Tokens decoded ahead of the listener's credit."""
        return [pending for pending in self.unsent if pending.index >= self.credit.limit]

    @property
    def undeliverable(self) -> list[PendingToken]:
        """Tokens that cannot go out as things stand: ahead of credit, or behind `paused`."""
        stuck: list[PendingToken] = []
        held = self.paused is not None
        for item in self._waiting:
            if isinstance(item, PendingToken):
                if held or stuck or item.index >= self.credit.limit:
                    stuck.append(item)
            elif isinstance(item, Paused):
                held = True
            elif isinstance(item, Resumed):
                held, stuck = False, [pending for pending in stuck if pending.index >= self.credit.limit]
        return stuck

    def put(self, item: Item) -> None:
        self._waiting.append(item)

    def drop_from(self, index: int) -> None:
        """Tokens from `index` on are void."""
        kept = (
            item for item in self._waiting if not (isinstance(item, PendingToken) and item.index >= index)
        )
        self._waiting = deque(kept)
        self.sent = min(self.sent, index)

    @property
    def history_bytes(self) -> int:
        """About how much memory the events take that may have to be told again."""
        logprobs = (
            one for event in self._history if isinstance(event, Token) for one in event.logprobs or ()
        )
        return EVENT_BYTES * len(self._history) + LOGPROB_BYTES * sum(1 + len(one.top) for one in logprobs)

    # -- again -----------------------------------------------------------------------------------

    def acknowledge(self, seq: int) -> None:
        """The listener has read all events up to `seq`. How it ended may be asked for again all the same."""
        while self._history and self._seq_of(0) <= seq and not isinstance(self._history[0], Final):
            self._history.popleft()

    def since(self, after: int) -> list[StreamEvent] | None:
        """The events given out after event `after`; None where some of them are forgotten."""
        missed = self.seq - 1 - after
        return list(self._history)[len(self._history) - missed :] if missed <= len(self._history) else None

    def with_snapshot(self, snapshot: Snapshot) -> list[StreamEvent]:
        """A snapshot for all that was given out, and the final behind it if that was, too."""
        self._listener_index, self._listener_length = snapshot.index, len(snapshot.text)
        final = [event for event in self._history if isinstance(event, Final)]
        snapshot.seq = self.seq - 1 - len(final)
        return [snapshot, *final]

    @property
    def pending_refs(self) -> list[str]:
        """Of frames whose answers wait here."""
        events = (item for item in self._waiting if not isinstance(item, PendingToken))
        return [event.ref for event in events if event.ref is not None]

    @property
    def final_sent(self) -> bool:
        """Whether the final was given out."""
        return bool(self._history) and isinstance(self._history[-1], Final)

    def replay(self, events: list[OutgoingEvent]) -> None:
        """Give these out next, as they are."""
        self._replay += events

    def drop_replay(self) -> None:
        """Whoever asked for them is gone."""
        self._replay.clear()

    def _seq_of(self, at: int) -> int:
        seq = self._history[at].seq
        assert isinstance(seq, int)
        return seq

    # -- out -------------------------------------------------------------------------------------

    def take(self) -> list[OutgoingEvent]:
        """Everything that may go out now. What is no token passes those that wait for credit."""
        events, self._replay = self._replay, []
        kept: deque[PendingToken] = deque()
        ready: list[PendingToken] = []
        for item in self._waiting:
            if isinstance(item, PendingToken):
                (ready if self._may_be_sent(item) and not kept else kept).append(item)
            else:
                self._send_tokens(events, ready)
                ready = []
                self._send_event(events, item)
                while kept and self._may_be_sent(kept[0]):  # it has just been resumed
                    ready.append(kept.popleft())
        whole = self._whole_intervals(ready)
        self._send_tokens(events, ready[:whole])
        kept.extendleft(reversed(ready[whole:]))
        self._waiting = deque(kept)
        return events

    def _may_be_sent(self, pending: PendingToken) -> bool:
        return pending.token is None or (self.paused is None and pending.index < self.credit.limit)

    def _whole_intervals(self, ready: list[PendingToken]) -> int:
        """How many of the tokens go out now: whole intervals; all, where no more may come before a grant."""
        if ready and ready[-1].index + 1 >= self.credit.limit:
            return len(ready)
        return len(ready) - len(ready) % self._interval

    def _send_tokens(self, events: list[OutgoingEvent], batch: list[PendingToken]) -> None:
        if not batch:
            return
        count = sum(pending.token is not None for pending in batch)
        event = Token(
            request_id=self.request_id,
            index=batch[0].index,
            count=count,
            delta="".join(pending.delta for pending in batch),
        )
        if self.shows_tokens:
            event.tokens = [pending.token for pending in batch if pending.token is not None]
        logprobs = [pending.logprob for pending in batch if pending.logprob is not None]
        if logprobs:
            event.logprobs = logprobs
        self.sent = self._listener_index = batch[0].index + count
        self._send(events, event)

    def _send_event(self, events: list[OutgoingEvent], event: StreamEvent | Error) -> None:
        if isinstance(event, Paused | Resumed):
            self.paused = event.reason if isinstance(event, Paused) else None
            # What was decoded ahead of credit comes later, or was rewound since.
            event.index = self._listener_index
        elif isinstance(event, Rewound):
            if event.index > self._listener_index:  # a snapshot has told of a later rewinding already
                event.index, event.text_length = self._listener_index, self._listener_length
            self._listener_index = event.index
        self._send(events, event)

    def _send(self, events: list[OutgoingEvent], event: StreamEvent | Error) -> None:
        if isinstance(event, StreamEvent):  # an error answers a frame: it is no part of the stream's history
            event.seq = self.seq
            self.seq += 1
            self._history.append(event)
        events.append(event)
