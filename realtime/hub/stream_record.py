"""The record of a stream, by which another gateway builds it: what its engine is not told, and keeps for it
in bytes that it need not understand."""

from __future__ import annotations

from hashlib import blake2b

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from engine import api
from engine.history import MOST_BYTES
from engine.int32 import int32
from engine.packed import packed
from midstream import protocol
from midstream.protocol import Params, Past, PastAdjust, PastInject
from realtime.hub.frame_tokenizing import Opening, start_digest
from realtime.hub.keeping import Keeping
from realtime.hub.stream_key import StreamKey
from realtime.hub.told import is_by_the_clock
from realtime.stream.context import Context
from realtime.stream.stream import Stream

# Of forks: to build one, all that it comes from are built, one within the other, each with its record.
MOST_GENERATIONS = 64

# In place of a conversation: its tokens are known.
NO_TEXT = [protocol.Message(role="user", content="")]


class Origin(Struct, array_like=True, frozen=True):
    """What a fork begins with: the stream that it forks, as that was then, before output token `index`."""

    record: memoryview  # of that in which it is read: one stands within the other, and each would be copied
    history: api.History
    prompt: bytes  # as engine.int32 has tokens
    credit: int
    index: int


class StreamRecord(Struct, array_like=True, frozen=True):
    """What an engine is not told of a stream, and need not understand."""

    start: protocol.Start  # without its text
    digest: bytes  # of the whole start
    params: Params  # complete
    deadline: float  # by the wall's clock
    grace_s: float
    fingerprint: str | None  # of the engine that it began with, or of its model, as far as one was known
    waits: bool  # it began without an engine
    origin: Origin | None = None
    generation: int = 0  # of forks


_decode = msgspec.msgpack.Decoder(StreamRecord).decode


def engine_key(key: StreamKey) -> bytes:
    """By which engines know the stream."""
    return blake2b(msgspec.msgpack.encode(key), digest_size=16).digest()


def keep(
    key: StreamKey,
    frame: protocol.Start,
    opening: Opening,
    *,
    grace_s: float,
    deadline: float,
    fingerprint: str | None,
    waits: bool,
    parent: Stream | None = None,
) -> api.Keep | None:
    """For an engine that keeps streams; None where nobody may come back to this one, or it cannot be built
    from a record: a fork of one that is not kept, or of too many generations, and a budget of seconds, which
    is spent by one clock."""
    params, by_the_clock = opening.params, is_by_the_clock(opening.params)
    origin = None if parent is None else _origin(parent, opening.context.inherited)
    if frame.on_disconnect == "cancel" or by_the_clock or (frame.fork is not None and origin is None):
        return None
    generation = 0 if origin is None else 1 + _decode(origin.record).generation
    if generation > MOST_GENERATIONS:
        return None
    start = replace(
        frame,
        prompt=None,
        messages=NO_TEXT if frame.messages is not None else None,
        past=None if frame.past is None else _in_tokens(frame.past, opening.context),
    )
    record = StreamRecord(
        start, start_digest(frame), params, deadline, grace_s, fingerprint, waits, origin, generation
    )
    try:
        encoded = packed(record)
    except OverflowError:  # a schema may have a number beyond 64 bits
        return None
    kept = api.Keep(engine_key(key), encoded, grace_s, start=record.digest)
    return kept if len(encoded) <= MOST_BYTES else None


def _origin(parent: Stream, index: int) -> Origin | None:
    kept = parent.keeping.so_far() if isinstance(parent.keeping, Keeping) else None
    if kept is None:
        return None
    record, history = kept
    prompt = int32(parent.context.prompt)
    return Origin(memoryview(record), history, prompt, parent.credit.granted, index)


def _in_tokens(past: Past, context: Context) -> Past:
    put_in = iter(context.output.injections)
    steering: list[PastAdjust | PastInject] = []
    for step in past.steering:
        if isinstance(step, PastInject):
            of_calls = [replace(told, content="") for told in step.messages or ()]
            tokens = list(next(put_in)[1])
            steering.append(replace(step, text=None, messages=of_calls or None, tokens=tokens))
        else:
            steering.append(step)
    return replace(past, steering=steering)
