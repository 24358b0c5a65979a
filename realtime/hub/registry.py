"""Every stream that is known: those that live, by name and by number, and those that have ended.

What hangs on a stream's life hangs here: its share of what its tenant may take, and its timers. It knows when
a stream begins and ends, and nothing of what happens in between.
"""

from __future__ import annotations

from collections.abc import KeysView
from typing import Protocol

from msgspec import Struct

from realtime.hub.ended_streams import Graves
from realtime.hub.stream_key import StreamKey
from realtime.refusal import Refusal
from realtime.stream.stream import Stream
from realtime.tenants.quota import Share


class Timer(Protocol):
    def cancel(self) -> None: ...


class Entry(Struct, eq=False):
    """A stream that lives."""

    key: StreamKey
    stream: Stream
    content: bytes  # what its start said, digested
    share: Share
    timeout: Timer | None = None
    grace: Timer | None = None  # until nobody need come back to it

    def stop_grace(self) -> None:
        if self.grace is not None:
            self.grace.cancel()
            self.grace = None


class Roll:
    def __init__(self) -> None:
        self._by_key: dict[StreamKey, Entry] = {}
        self._by_number: dict[int, Entry] = {}
        self._graves = Graves()

    def __len__(self) -> int:
        return len(self._by_key)

    @property
    def keys(self) -> KeysView[StreamKey]:
        return self._by_key.keys()

    @property
    def entries(self) -> list[Entry]:
        return list(self._by_key.values())

    def enter(self, entry: Entry) -> None:
        self._graves.forget(entry.key)
        self._by_key[entry.key] = self._by_number[entry.stream.number] = entry

    def named(self, key: StreamKey) -> Entry | None:
        return self._by_key.get(key)

    def numbered(self, number: int) -> Entry | None:
        return self._by_number.get(number)

    def close(self, entry: Entry, now: float) -> None:
        """Its stream has ended."""
        del self._by_key[entry.key], self._by_number[entry.stream.number]
        if entry.timeout is not None:
            entry.timeout.cancel()
        entry.stop_grace()
        entry.share.ended()
        self._graves.bury(entry.key, entry.stream, entry.content, now)

    # -- those that have ended -------------------------------------------------------------------

    def content(self, key: StreamKey, now: float) -> bytes | None:
        """What the start of a stream of this name said, if all of the stream is still there."""
        entry = self._by_key.get(key) or self._graves.find(key, now)
        return None if entry is None else entry.content

    def find(self, key: StreamKey, now: float) -> Stream:
        """A stream of this name, whether it lives or has ended."""
        entry = self._by_key.get(key) or self._graves.find(key, now)
        if entry is not None:
            return entry.stream
        if self.remembers(key):
            raise Refusal(
                "request_expired", f'Request "{key.request_id}" ended too long ago: its output is forgotten.'
            )
        raise Refusal("unknown_request", f'There is no request "{key.request_id}": start it first.')

    def remembers(self, key: StreamKey) -> bool:
        """Whether there was one that has ended."""
        return self._graves.remembers(key)
