"""What waits for a stream's listener, in order.

Tokens are no events until somebody takes them: what has piled up while the listener was busy goes out as
one event, so the outbox never holds more than credit allows, and a slow reader gets fewer, larger events.
The outbox knows how far the listener is ready to read (`limit`), and that nothing follows `paused` but what
is no token. It numbers the events as it gives them out. It knows no socket, and neither text nor token
beyond what it carries.
"""

from __future__ import annotations

from collections import deque

from msgspec import Struct

from midstream.protocol import Error, Paused, Resumed, Rewound, StreamEvent, Token, TokenLogprob


class Piece(Struct):
    """One output token on its way out; `token` is None for text that was held back and has no token to go
    with."""

    index: int
    delta: str
    token: int | None
    logprob: TokenLogprob | None = None


Item = Piece | StreamEvent | Error


class Outbox:
    def __init__(self, request_id: str, *, limit: int, interval: int = 1, tokens: bool = False) -> None:
        self.request_id = request_id
        self.limit = limit
        self.sent = 0  # output tokens given out, that still stand
        self._told = 0  # the same as the listener knows it: what is void it hears later
        self.seq = 0
        self._interval = interval
        self._tokens = tokens
        self._held = False  # the last thing that the listener heard was that it is paused
        self._waiting: deque[Item] = deque()

    @property
    def waiting(self) -> bool:
        return bool(self._waiting)

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
        held = self._held
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

    def take(self) -> list[StreamEvent | Error]:
        """Everything that may go out now. What is no token passes those that wait for credit."""
        events: list[StreamEvent | Error] = []
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
        return piece.token is None or (not self._held and piece.index < self.limit)

    def _whole(self, ready: list[Piece]) -> int:
        """How many of the tokens go out now: whole intervals; all, where no more may come before a grant."""
        if ready and ready[-1].index + 1 >= self.limit:
            return len(ready)
        return len(ready) - len(ready) % self._interval

    def _give(self, events: list[StreamEvent | Error], pieces: list[Piece]) -> None:
        if not pieces:
            return
        count = sum(piece.token is not None for piece in pieces)
        event = Token(
            request_id=self.request_id,
            index=pieces[0].index,
            count=count,
            delta="".join(piece.delta for piece in pieces),
        )
        if self._tokens:
            event.tokens = [piece.token for piece in pieces if piece.token is not None]
        logprobs = [piece.logprob for piece in pieces if piece.logprob is not None]
        if logprobs:
            event.logprobs = logprobs
        self.sent = self._told = pieces[0].index + count
        self._number(events, event)

    def _give_event(self, events: list[StreamEvent | Error], event: StreamEvent | Error) -> None:
        if isinstance(event, Paused | Resumed):
            self._held = isinstance(event, Paused)
            event.index = self._told  # what was decoded ahead of credit comes later, or was rewound since
        elif isinstance(event, Rewound):
            self._told = event.index
        self._number(events, event)

    def _number(self, events: list[StreamEvent | Error], event: StreamEvent | Error) -> None:
        if isinstance(event, StreamEvent):  # an error answers a frame: it is no part of the stream's history
            event.seq = self.seq
            self.seq += 1
        events.append(event)
