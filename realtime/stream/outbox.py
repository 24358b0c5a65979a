"""What waits for a stream's listener, in order.

Tokens are no events until somebody takes them: what has piled up while the listener was busy goes out as
one event, so the outbox never holds more than credit allows, and a slow reader gets fewer, larger events.
The outbox knows how far the listener is ready to read (`limit`), and that nothing follows `paused` but what
is no token. It numbers the events as it gives them out, and keeps them until they are known to have been
read: whoever comes back gets again what was lost. It knows no socket, and neither text nor token beyond what
it carries.
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

EVENT_BYTES, LOGPROB_BYTES = 300, 130  # what one costs, as measured
MOST_KEPT = 512  # events that nobody is known to have read; whoever needs older ones gets a snapshot


class Piece(Struct):
    """One output token on its way out; `token` is None for text that was held back and has no token to go
    with."""

    index: int
    delta: str
    token: int | None
    logprob: TokenLogprob | None = None


Item = Piece | StreamEvent | Error
Told = StreamEvent | Error | Attached


class Outbox:
    def __init__(self, request_id: str, *, limit: int, interval: int = 1, tokens: bool = False) -> None:
        self.request_id = request_id
        self.limit = limit
        self.sent = 0  # output tokens given out, that still stand
        self._told = 0  # the same as the listener knows it: what is void it hears later
        self._told_length = 0  # of the last snapshot's text, in code points
        self.seq = 0  # of the next event
        self._given: deque[StreamEvent] = deque(maxlen=MOST_KEPT)  # not known to have been read
        self._repeated: list[Told] = []  # to be given out before anything else
        self._interval = interval
        self.shows_tokens = tokens
        self.paused: PauseReason | None = None  # as the listener knows it
        self._waiting: deque[Item] = deque()

    @property
    def waiting(self) -> bool:
        return bool(self._waiting or self._repeated)

    @property
    def unsent(self) -> list[Piece]:
        return [item for item in self._waiting if isinstance(item, Piece)]

    @property
    def blocked(self) -> list[Piece]:
        """Tokens decoded ahead of the listener's credit."""
        return [piece for piece in self.unsent if piece.index >= self.limit]

    @property
    def stuck(self) -> list[Piece]:
        """Tokens that cannot go out as things stand: ahead of credit, or behind `paused`."""
        stuck: list[Piece] = []
        held = self.paused is not None
        for item in self._waiting:
            if isinstance(item, Piece):
                if held or stuck or item.index >= self.limit:
                    stuck.append(item)
            elif isinstance(item, Paused):
                held = True
            elif isinstance(item, Resumed):
                held, stuck = False, [piece for piece in stuck if piece.index >= self.limit]
        return stuck

    def put(self, item: Item) -> None:
        self._waiting.append(item)

    def drop_from(self, index: int) -> None:
        """Tokens from `index` on are void."""
        kept = (item for item in self._waiting if not (isinstance(item, Piece) and item.index >= index))
        self._waiting = deque(kept)
        self.sent = min(self.sent, index)

    @property
    def bytes(self) -> int:
        """About how much memory the events take that may have to be told again."""
        logprobs = (one for event in self._given if isinstance(event, Token) for one in event.logprobs or ())
        return EVENT_BYTES * len(self._given) + LOGPROB_BYTES * sum(1 + len(one.top) for one in logprobs)

    # -- again -----------------------------------------------------------------------------------

    def read(self, seq: int) -> None:
        """The listener has read all events up to `seq`. How it ended may be asked for again all the same."""
        while self._given and self._seq_of(0) <= seq and not isinstance(self._given[0], Final):
            self._given.popleft()

    def since(self, after: int) -> list[StreamEvent] | None:
        """The events given out after event `after`; None where some of them are forgotten."""
        missed = self.seq - 1 - after
        return list(self._given)[len(self._given) - missed :] if missed <= len(self._given) else None

    def stand_in(self, snapshot: Snapshot) -> list[StreamEvent]:
        """A snapshot for all that was given out, and the final behind it if that was, too."""
        self._told, self._told_length = snapshot.index, len(snapshot.text)
        final = [event for event in self._given if isinstance(event, Final)]
        snapshot.seq = self.seq - 1 - len(final)
        return [snapshot, *final]

    @property
    def refs(self) -> list[str]:
        """Of frames whose answers wait here."""
        events = (item for item in self._waiting if not isinstance(item, Piece))
        return [event.ref for event in events if event.ref is not None]

    @property
    def concluded(self) -> bool:
        """Whether the final was given out."""
        return bool(self._given) and isinstance(self._given[-1], Final)

    def repeat(self, events: list[Told]) -> None:
        """Give these out next, as they are."""
        self._repeated += events

    def forget_repeats(self) -> None:
        """Whoever asked for them is gone."""
        self._repeated.clear()

    def _seq_of(self, at: int) -> int:
        seq = self._given[at].seq
        assert isinstance(seq, int)
        return seq

    # -- out -------------------------------------------------------------------------------------

    def take(self) -> list[Told]:
        """Everything that may go out now. What is no token passes those that wait for credit."""
        events, self._repeated = self._repeated, []
        kept: deque[Piece] = deque()
        ready: list[Piece] = []
        for item in self._waiting:
            if isinstance(item, Piece):
                (ready if self._may_go(item) and not kept else kept).append(item)
            else:
                self._give(events, ready)
                ready = []
                self._give_event(events, item)
                while kept and self._may_go(kept[0]):  # it has just been resumed
                    ready.append(kept.popleft())
        whole = self._whole(ready)
        self._give(events, ready[:whole])
        kept.extendleft(reversed(ready[whole:]))
        self._waiting = deque(kept)
        return events

    def _may_go(self, piece: Piece) -> bool:
        return piece.token is None or (self.paused is None and piece.index < self.limit)

    def _whole(self, ready: list[Piece]) -> int:
        """How many of the tokens go out now: whole intervals; all, where no more may come before a grant."""
        if ready and ready[-1].index + 1 >= self.limit:
            return len(ready)
        return len(ready) - len(ready) % self._interval

    def _give(self, events: list[Told], pieces: list[Piece]) -> None:
        if not pieces:
            return
        count = sum(piece.token is not None for piece in pieces)
        event = Token(
            request_id=self.request_id,
            index=pieces[0].index,
            count=count,
            delta="".join(piece.delta for piece in pieces),
        )
        if self.shows_tokens:
            event.tokens = [piece.token for piece in pieces if piece.token is not None]
        logprobs = [piece.logprob for piece in pieces if piece.logprob is not None]
        if logprobs:
            event.logprobs = logprobs
        self.sent = self._told = pieces[0].index + count
        self._number(events, event)

    def _give_event(self, events: list[Told], event: StreamEvent | Error) -> None:
        if isinstance(event, Paused | Resumed):
            self.paused = event.reason if isinstance(event, Paused) else None
            event.index = self._told  # what was decoded ahead of credit comes later, or was rewound since
        elif isinstance(event, Rewound):
            if event.index > self._told:  # a snapshot has told of a later rewinding already
                event.index, event.text_length = self._told, self._told_length
            self._told = event.index
        self._number(events, event)

    def _number(self, events: list[Told], event: StreamEvent | Error) -> None:
        if isinstance(event, StreamEvent):  # an error answers a frame: it is no part of the stream's history
            event.seq = self.seq
            self.seq += 1
            self._given.append(event)
        events.append(event)
