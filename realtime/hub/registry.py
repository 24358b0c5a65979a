"""The registry of streams: those that live, by key and by number, and those that have ended.

With each live stream it holds what ends with it: its share of its tenant's quota, and its timers. It knows
when a stream begins and ends, and nothing of what happens in between.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, KeysView
from typing import Protocol

from msgspec import Struct

from engine import api
from realtime.hub.detached_streams import DetachedStreams
from realtime.hub.ended_streams import NAME_LIMIT, EndedStreams
from realtime.hub.fair_cache import FairCache
from realtime.hub.listener import Payer
from realtime.hub.serving_engine import ServingEngine
from realtime.hub.stream_key import StreamKey
from realtime.hub.told import Told, encode_told
from realtime.refusal import Refusal
from realtime.stream.pending_commands import Owe
from realtime.stream.stream import Stream
from realtime.tenants.quota import StreamQuota

REFUSED = 16  # commands that the end of a stream refuses, and that weigh as a stream more


def weight_of_end(stream: Stream, refused: int = REFUSED) -> int:
    """Of one that ends in a turn with others: so many commands that its end refuses weigh as one more."""
    return 1 + stream.num_waiting // refused


class Timer(Protocol):
    def cancel(self) -> None: ...


class LiveStream(Struct, eq=False):
    """A stream that lives."""

    key: StreamKey
    stream: Stream
    start_digest: bytes  # what its start said, digested
    quota: StreamQuota
    engine: ServingEngine | None  # that computes it, or is about to; None while there is none for it
    payer: Payer | None = None  # of who reads it, or did last
    timeout: Timer | None = None
    grace: Timer | None = None  # until nobody need come back to it
    hold: Timer | None = None  # until its memory is released, while it waits for results of calls
    # Who asked for what has it read what stands, and pays for that; what they asked for may be much.
    reads_for: list[Owe | None] = []
    once_read: list[Callable[[], None]] = []  # to be called when it has read what was injected

    @property
    def may_be_adopted(self) -> bool:
        """By another gateway: not where its engine is gone, and the stream is not told so yet."""
        return self.engine is not None and not self.engine.is_lost and self.stream.outlives_us

    @property
    def step(self) -> int:
        """The last one of its engine."""
        return 0 if self.engine is None else self.engine.step

    def note(self, told: Told) -> None:
        """For whoever adopts it: what the stream was told, and took, now."""
        keeping = self.stream.keeping
        if keeping is None:
            return
        heard, said, is_there = keeping.heard, encode_told(told), keeping.is_there
        keeping.note(said)
        if self.engine is not None and is_there:
            self.engine.say(api.Note(self.stream.number, heard, said))

    def count_waiting(self) -> None:
        """Its prompt, for the engine or for its client."""
        if self.stream.needs_compute:
            self.quota.prefill_waits()
        else:
            self.quota.prefill_rests()

    def count_in_vain(self) -> None:
        """Texts that were made tokens and are not put in."""
        if tokens := self.stream.take_in_vain():
            self.quota.count(tokens)

    def tell_read(self) -> None:
        """It has read what was injected, or is no more."""
        waiting, self.once_read = self.once_read, []
        for call in waiting:
            call()

    def end_hold(self) -> None:
        if self.hold is not None:
            self.hold.cancel()
            self.hold = None


class StreamRegistry:
    def __init__(self, detached_limit: int) -> None:
        """`detached_limit`: how many streams of a tenant may live that nobody listens to."""
        self._by_key: dict[StreamKey, LiveStream] = {}
        self._by_number: dict[int, LiveStream] = {}
        self.by_number = self._by_number.get  # asked with every token
        self._payers = Counter[Payer]()  # of so many streams
        self._detached = DetachedStreams(detached_limit)
        self._ended_streams = EndedStreams()
        self._names_elsewhere = FairCache[str, StreamKey, None](NAME_LIMIT)

    def __len__(self) -> int:
        return len(self._by_key)

    @property
    def keys(self) -> KeysView[StreamKey]:
        return self._by_key.keys()

    @property
    def entries(self) -> list[LiveStream]:
        return list(self._by_key.values())

    def add(self, entry: LiveStream) -> None:
        self._ended_streams.forget(entry.key)
        self._names_elsewhere.pop(entry.key)
        self._by_key[entry.key] = self._by_number[entry.stream.number] = entry

    def by_key(self, key: StreamKey) -> LiveStream | None:
        return self._by_key.get(key)

    @property
    def several_pay(self) -> bool:
        return len(self._payers) > 1

    def pays(self, entry: LiveStream, payer: Payer | None) -> None:
        """From now on, for that stream."""
        if payer is not None:
            self._payers[payer] += 1
        if entry.payer is not None:
            self._payers[entry.payer] -= 1
            if not self._payers[entry.payer]:
                del self._payers[entry.payer]
        entry.payer = payer

    def detach(self, entry: LiveStream, left_by: int) -> list[LiveStream]:
        """A listener is gone, of this number, and its stream waits for another; returns those for which there
        is no room."""
        gone = self._detached.add(entry.key.tenant, left_by, entry.stream.number)
        return [self._by_number[number] for number in gone]

    def attach(self, entry: LiveStream) -> None:
        """It waits for nobody, or no longer."""
        self._detached.remove(entry.key.tenant, entry.stream.number)
        if entry.grace is not None:
            entry.grace.cancel()
            entry.grace = None

    def end(self, entry: LiveStream, now: float) -> None:
        """Its stream has ended."""
        self._remove(entry)
        entry.stream.keeping = None  # what its engine has is enough for whoever missed the end
        self._ended_streams.add(entry.key, entry.stream, entry.start_digest, now)

    def let_go(self, entry: LiveStream) -> None:
        """Its stream is another gateway's, or will be."""
        self._remove(entry)
        self._names_elsewhere.put(entry.key.tenant, entry.key, None)

    def is_elsewhere(self, key: StreamKey) -> bool:
        """Whether there was such a stream here, and it went to another gateway, as far as is known."""
        return key in self._names_elsewhere

    def _remove(self, entry: LiveStream) -> None:
        del self._by_key[entry.key], self._by_number[entry.stream.number]
        self.pays(entry, None)
        if entry.timeout is not None:
            entry.timeout.cancel()
        entry.end_hold()
        entry.tell_read()
        self.attach(entry)
        entry.quota.end()

    # -- those that have ended -------------------------------------------------------------------

    def start_digest(self, key: StreamKey, now: float) -> bytes | None:
        """What the start of a stream of this name said, if all of the stream is still there."""
        entry = self._by_key.get(key) or self._ended_streams.find(key, now)
        return None if entry is None else entry.start_digest

    def known(self, key: StreamKey, now: float) -> Stream | None:
        """A stream of this name, whether it lives or has ended, if all of it is still there."""
        entry = self._by_key.get(key) or self._ended_streams.find(key, now)
        return None if entry is None else entry.stream

    def find(self, key: StreamKey, now: float) -> Stream:
        """The same; raises Refusal."""
        stream = self.known(key, now)
        if stream is not None:
            return stream
        if self.has_ended(key):
            raise Refusal(
                "request_expired", f'Request "{key.request_id}" ended too long ago: its output is forgotten.'
            )
        raise Refusal("unknown_request", f'There is no request "{key.request_id}": start it first.')

    def has_ended(self, key: StreamKey) -> bool:
        """Whether there was one that has ended."""
        return self._ended_streams.remembers(key)
