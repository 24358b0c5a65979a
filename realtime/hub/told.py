"""What a stream may be told, but for what its engine tells it: by clients, by time, by whoever leaves, and by
the loss of an engine and the coming of another. An engine keeps it, in these bytes, for the gateway that
adopts the stream: told all of it again, the stream is what it was.

Only what was accepted is among it; what is put in has its text as tokens.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec
from msgspec import UNSET, Struct
from msgspec.structs import replace

from engine.int32 import int32, of_int32
from engine.packed import packed
from midstream import protocol
from midstream.protocol import Guard, Message, Params
from realtime.stream.engine_commands import SteeringFrame, index_of
from realtime.stream.pending_commands import CallFrame, Computing
from realtime.stream.stream import Stream
from realtime.stream.tool_loop import ResultInject


class Detached(Struct, tag=True, tag_field="type"):
    """Nobody listens any more."""


class Abandoned(Struct, tag=True, tag_field="type"):
    """Nobody will come back."""


class TimedOut(Struct, tag=True, tag_field="type"):
    pass


class Released(Struct, tag=True, tag_field="type"):
    """Its memory, since results of calls are long in coming."""


class Lost(Struct, tag=True, tag_field="type"):
    """Its engine is gone."""

    lacked_credit: bool | None = None  # or one of a version before has told it


class Submitted(Struct, tag=True, tag_field="type"):
    """To an engine that did not know it."""

    fingerprint: str


class PutIn(Struct, tag=True, tag_field="type"):
    """An inject, with what its text has become in the end."""

    frame: protocol.Inject | ResultInject
    tokens: bytes


Told = (
    SteeringFrame
    | CallFrame
    | protocol.Cancel
    | protocol.Attach
    | Detached
    | Abandoned
    | TimedOut
    | Released
    | Lost
    | Submitted
)

_decode = msgspec.msgpack.Decoder(Told | PutIn).decode


def is_by_the_clock(params: Params) -> bool:
    """Whether it has a budget of seconds: these are spent by one clock, and who is told the same at another
    time does not come to the same."""
    return any(guard.budget and guard.budget.seconds is not UNSET for guard in params.guards or ())


def encode_told(told: Told) -> bytes:
    """Nothing, where the stream cannot be built by being told it."""
    if isinstance(told, protocol.Adjust) and is_by_the_clock(told.params):
        return b""
    if isinstance(told, protocol.Inject):  # what it says is in its tokens; whose results they are, is not
        inject = replace(in_tokens(told), text=None, tokens=None)
        return packed(PutIn(inject, int32(told.tokens or ())))
    return packed(told)


def in_tokens(inject: protocol.Inject) -> protocol.Inject:
    """Whose text has become its tokens: of that nothing is left but that there was one, in whose messages,
    for it may be much longer than they are, and wait for an engine."""
    text = inject.text and ""
    messages = inject.messages and [
        Message(role=each.role, tool_call_id=each.tool_call_id) for each in inject.messages
    ]
    return replace(inject, text=text, messages=messages)


def asked_at(told: bytes) -> int:
    """The token, if it was asked at one."""
    frame = _decode(told)
    return index_of(frame.frame if isinstance(frame, PutIn) else frame) or 0


def guards_in(told: bytes) -> list[Guard]:
    """That are put in by this."""
    if b"guards" not in told:  # as nearly always
        return []
    frame = _decode(told)
    return (isinstance(frame, protocol.Adjust) and frame.params.guards) or []


def tell(stream: Stream, told: bytes, now: float, engine: Callable[[str], Computing]) -> None:
    """Again; replies are for nobody. `engine`: of that fingerprint."""
    frame = _decode(told)
    match frame:
        case protocol.Approve() | protocol.Amend():
            stream.steer_call(frame, 0, now)
        case PutIn(frame=inject, tokens=tokens):
            stream.steer(replace(inject, tokens=of_int32(tokens).tolist()), 0, now)
        case protocol.Cancel(ref=ref):
            stream.cancel(now, 0, ref)
        case protocol.Attach():
            stream.attach(-1, 0)
        case Lost(lacked_credit=lacked):
            stream.lose_engine(now, lacked_credit=lacked)
        case Submitted(fingerprint=fingerprint):
            stream.submit(engine(fingerprint), now)
        case Detached() | Abandoned() | TimedOut() | Released():
            _leave_alone(stream, frame, now)
        case _:
            stream.steer(frame, 0, now)


def _leave_alone(stream: Stream, how: Detached | Abandoned | TimedOut | Released, now: float) -> None:
    match how:
        case Detached():
            stream.detach(now, 0)
        case Abandoned():
            stream.abandon(now, 0)
        case TimedOut():
            stream.time_out(now, 0)
        case Released():
            stream.release_kv(0)
