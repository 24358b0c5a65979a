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

    def put(self, item: Item) -> None:
        self._waiting.append(item)

    def drop_from(self, index: int) -> int:
        """Tokens from `index` on are void: returns how many of them the listener never saw."""
        void = [piece for piece in self.unsent if piece.index >= index]
        kept = (item for item in self._waiting if not (isinstance(item, Piece) and item.index >= index))
        self._waiting = deque(kept)
        self.sent = min(self.sent, index)
        return sum(piece.token is not None for piece in void)

    def take(self) -> list[StreamEvent | Error]:
        """Everything that may go out now. What is no token passes those that wait for credit."""
        events: list[StreamEvent | Error] = []
        kept: deque[Item] = deque()
        ready: list[Piece] = []
        for item in self._waiting:
            if isinstance(item, Piece):
                may_go = item.token is None or (not self._held and item.index < self.limit and not kept)
                (ready if may_go else kept).append(item)
            else:
                self._give(events, ready)
                ready = []
                self._give_event(events, item, kept)
        whole = len(ready) - len(ready) % self._interval
        self._give(events, ready[:whole])
        kept.extendleft(reversed(ready[whole:]))
        self._waiting = kept
        return events

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
        self.sent = pieces[0].index + count
        self._number(events, event)

    def _give_event(
        self, events: list[StreamEvent | Error], event: StreamEvent | Error, behind: deque[Item]
    ) -> None:
        if isinstance(event, Paused | Resumed):
            self._held = isinstance(event, Paused)
            if behind:
                event.index = self.sent  # what was decoded ahead of credit is still to come
        elif isinstance(event, Rewound):
            self.sent = min(self.sent, event.index)
        self._number(events, event)

    def _number(self, events: list[StreamEvent | Error], event: StreamEvent | Error) -> None:
        if isinstance(event, StreamEvent):  # an error answers a frame: it is no part of the stream's history
            event.seq = self.seq
            self.seq += 1
        events.append(event)
