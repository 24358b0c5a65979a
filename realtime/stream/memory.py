"""The memory that streams take in the gateway, in bytes: accounts with a limit, and what is put on them.

A stream is on the account of whoever reads it: its connection's, or its tenant's for streams that nobody
reads. An account that is full stops what would add to it; nothing that was accepted is dropped. What is to
come is counted before it is there, so that many who may have much do not get more together than there is room
for. Pure: bytes are estimates, as measured once, and counted as they come and go.
"""

from __future__ import annotations

from typing import Generic, TypeVar

from midstream.protocol import Attached, Error, Params, StreamEvent, Token
from realtime.refusal import Refusal
from realtime.stream.weights import TOKEN_ID_BYTES, grammar_length, weight

EVENT_BYTES, LOGPROB_BYTES = 300, 140  # what one costs, as measured
WIDE_BYTES = 8  # a character that is not ASCII, at most, once it was told
TOKEN_BYTES, CHARACTER_BYTES, REFERENCE_BYTES = 150, 2, 8
STOP_BYTES = 40  # a character of a stop string, with its state in a matcher
TOLD_BYTES = 8  # a character of a grammar, as the engine is told of it
ELSEWHERE_BYTES = 400  # of what whoever does not listen waits for, beside the frame or its ref
MIB = 1 << 20

T = TypeVar("T")


class MemoryAccount:
    """`whole` is the account of which this is a part, and `whose` says in words whose streams it is for."""

    def __init__(self, limit: int, whole: MemoryAccount | None = None, whose: str = "all") -> None:
        self.limit = limit
        self.held = 0
        self.promised = 0  # what is to come without being asked for again
        self._whole = whole
        self._whose = whose

    @property
    def full(self) -> bool:
        account: MemoryAccount | None = self
        while account is not None:
            if account.held >= account.limit:
                return True
            account = account._whole
        return False

    @property
    def over_limit(self) -> bool:
        """By itself, whatever the whole holds."""
        return self.held >= self.limit

    @property
    def room(self) -> int:
        """What is neither held nor promised; below 0 where too much is."""
        own = self.limit - self.held - self.promised
        return own if self._whole is None else min(own, self._whole.room)

    def add(self, size: int, promised: int = 0) -> None:
        account: MemoryAccount | None = self
        while account is not None:
            account.held += size
            account.promised += promised
            account = account._whole

    def close(self) -> None:
        """Whoever read its streams is gone: what is still on it has ended, and is kept elsewhere."""
        if self._whole is not None:
            self._whole.add(-self.held, -self.promised)
            self._whole = None

    def check(self) -> None:
        """Raises Refusal where nothing more may be held."""
        if self.over_limit:
            raise Refusal(
                "overloaded" if self._whole is None else "rate_limited",
                f"The limit of {self.limit // MIB} MiB that is held for the streams of {self._whose} is "
                "reached: read what waits, or end some.",
                retry_after_ms=1000,
            )
        if self._whole is not None:
            self._whole.check()


class Holding:
    """What one stream holds, on whatever account it is."""

    def __init__(self, account: MemoryAccount) -> None:
        self.account = account
        self.bytes = 0
        self._promised = 0
        self._closed = False

    def update(self, size: int, promised: int = 0) -> None:
        if not self._closed:
            self.account.add(size - self.bytes, promised - self._promised)
            self.bytes, self._promised = size, promised

    def move(self, account: MemoryAccount) -> None:
        self.account.add(-self.bytes, -self._promised)
        self.account = account
        self._closed = False
        account.add(self.bytes, self._promised)

    def close(self) -> None:
        """It is on no account, until it is moved to one."""
        self.update(0)
        self._closed = True


class Weighed(Generic[T]):
    """Things in their order, each with what it weighed when it came."""

    def __init__(self) -> None:
        self.things: list[T] = []
        self._weights: list[int] = []
        self.bytes = 0

    def append(self, thing: T, size: int) -> None:
        self.things.append(thing)
        self._weights.append(size)
        self.bytes += size

    def drop(self, count: int) -> int:
        """So many of the first; returns what they weighed."""
        gone = sum(self._weights[:count])
        del self.things[:count], self._weights[:count]
        self.bytes -= gone
        return gone


def params_bytes(params: Params) -> int:
    """Of those that stand, or are to, with what is made of them."""
    stops = [params.stop] if isinstance(params.stop, str) else params.stop or []
    told = TOLD_BYTES * grammar_length(params.grammar) if params.grammar else 0
    return weight(params) + STOP_BYTES * sum(map(len, stops)) + told


def event_bytes(event: StreamEvent | Error | Attached) -> int:
    if not isinstance(event, Token):
        return weight(event)
    size, delta = EVENT_BYTES, event.delta  # nearly all are these: quicker than by the type
    size += len(delta) if delta.isascii() else WIDE_BYTES * len(delta)
    if event.tokens:
        size += TOKEN_ID_BYTES * len(event.tokens)
    if event.logprobs:
        size += LOGPROB_BYTES * sum(1 + len(one.top) for one in event.logprobs)
    return size
