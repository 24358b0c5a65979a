"""The memory that streams take in the gateway, in bytes: what an event weighs, and accounts with a limit.

A stream is on the account of whoever reads it: its connection's, or its tenant's for streams that nobody
reads. An account that is full stops what would add to it; nothing that was accepted is dropped. What is to
come is counted before it is there, so that many who may have much do not get more together than there is room
for. Pure: bytes are estimates, as measured once, and counted as they come and go.
"""

from __future__ import annotations

from sys import getsizeof
from typing import NamedTuple

import msgspec

from engine import api
from midstream.protocol import (
    Adjusted,
    Attached,
    Error,
    Frame,
    Grammar,
    Guard,
    Params,
    Reasoning,
    Snapshot,
    Started,
    StreamEvent,
    Token,
    ToolArguments,
)
from realtime.refusal import Refusal

EVENT_BYTES, LOGPROB_BYTES = 300, 130  # what one costs, as measured
TOKEN_BYTES, BIAS_BYTES, CHARACTER_BYTES, TOKEN_ID_BYTES, REFERENCE_BYTES = 150, 120, 2, 36, 8
STOP_BYTES = 40  # a character of a stop string, with its state in a matcher
GUARD_BYTES = 400
GRAMMAR_BYTES = 12  # a character of a grammar, as an object and as the engine is told of it
WRITTEN_BYTES = (
    8  # a character of what is JSON, as objects; and beside that one of these, however little is in it
)
OBJECT_BYTES, LIST_BYTES = 128, 64
LONGEST_GRAMMAR = 64 << 10  # characters
COMMAND_BYTES, ADJUST_BYTES = 300, 700  # beside its names; and what it has more that has parameters
PARAMS_BYTES = 200  # of complete ones that are told of
CANCEL_REPLY_BYTES = 380  # of what one from elsewhere waits for
MIB = 1 << 20


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


def params_bytes(params: Params) -> int:
    stops = [params.stop] if isinstance(params.stop, str) else params.stop or []
    bias = params.logit_bias or {}
    grammar = _measured(params.grammar).bytes if params.grammar else 0
    guards = sum(map(_guard_bytes, params.guards or ()))
    return guards + BIAS_BYTES * len(bias) + STOP_BYTES * sum(map(len, stops)) + grammar


def _guard_bytes(guard: Guard) -> int:
    texts = (guard.name, guard.regex, guard.path, guard.forbid, guard.require)
    return GUARD_BYTES + CHARACTER_BYTES * sum(len(text) for text in texts if isinstance(text, str))


def grammar_length(grammar: Grammar) -> int:
    """About how many characters it has, as it would be written."""
    return _measured(grammar).length


class Measured(NamedTuple):
    length: int
    bytes: int


def _measured(grammar: Grammar) -> Measured:
    """Looked at once, and kept with it: what a stream weighs is asked with every token."""
    known: Measured | None = vars(grammar).get("measured")
    if known is None:
        known = vars(grammar)["measured"] = _measure(grammar)
    return known


def _measure(grammar: Grammar) -> Measured:
    """What cannot be written is as long as what is too long."""
    try:
        written = msgspec.json.encode(grammar)
    except (TypeError, ValueError, OverflowError, RecursionError):
        return Measured(LONGEST_GRAMMAR + 1, GRAMMAR_BYTES * LONGEST_GRAMMAR)
    objects = brackets_bytes(written) if isinstance(grammar.json_schema, dict) else 0
    return Measured(len(written), GRAMMAR_BYTES * len(written) + objects)


def brackets_bytes(written: bytes) -> int:
    """What the objects and lists of JSON take, beside what is in them."""
    return OBJECT_BYTES * written.count(b"{") + LIST_BYTES * written.count(b"[")


def value_bytes(value: object) -> int:
    """Of what JSON can say. What it cannot is refused, perhaps only when its turn comes: until then it is as
    much as what fills a long frame."""
    try:
        written = msgspec.json.encode(value)
    except (TypeError, ValueError, OverflowError, RecursionError):
        return WRITTEN_BYTES * MIB
    return WRITTEN_BYTES * len(written) + brackets_bytes(written)


def event_bytes(event: StreamEvent | Error | Attached) -> int:
    size = EVENT_BYTES
    if isinstance(event, Token):  # nearly all are
        size += CHARACTER_BYTES * len(event.delta)
        if event.tokens:
            size += TOKEN_ID_BYTES * len(event.tokens)
        if event.logprobs:
            size += LOGPROB_BYTES * sum(1 + len(one.top) for one in event.logprobs)
        return size
    match event:
        case Reasoning(delta=delta) | ToolArguments(delta=delta):
            size += CHARACTER_BYTES * len(delta)
        case Started(params=params) | Adjusted(params=params):
            size += PARAMS_BYTES + params_bytes(params)
        case Snapshot(params=params, text=text, tokens=tokens):
            size += (
                PARAMS_BYTES
                + params_bytes(params)
                + CHARACTER_BYTES * len(text)
                + TOKEN_ID_BYTES * len(tokens or ())
            )
            size += CHARACTER_BYTES * len(event.reasoning)
            size += sum(EVENT_BYTES + CHARACTER_BYTES * len(call.arguments) for call in event.tool_calls)
        case Attached(pending=pending):
            size += REFERENCE_BYTES * len(pending) + sum(map(len, pending))
    return size


def command_bytes(command: api.AnyCommand | None, params: Params | None) -> int:
    """Of one that waits for the engine."""
    tokens = command.tokens if isinstance(command, api.Append) else ()
    adjusts = 0 if params is None else ADJUST_BYTES + params_bytes(params)
    return COMMAND_BYTES + TOKEN_ID_BYTES * len(tokens) + adjusts


def names_bytes(frame: Frame) -> int:
    """Of what a frame calls itself, its stream and a call."""
    names = [frame.ref, getattr(frame, "request_id", None), getattr(frame, "call_id", None)]
    return sum(map(getsizeof, names))
