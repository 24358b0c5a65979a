"""The held blocks of one engine, as it tells of them: how much of a context it need not compute.

Pure: digests in, counts out. What it believes may be a step old, and decides where a stream goes, never what
it says.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import takewhile

from engine import api
from engine.block_digests import SHORT


class HeldBlocks:
    def __init__(self) -> None:
        self._held = set[bytes]()
        self._number: int | None = None  # of the last news; None where one is missing

    def receive(self, news: api.BlockNews) -> bool:
        """Whether something is missing: all of it is to be asked for."""
        if not news.whole and news.number - 1 != self._number:
            missed, self._number = self._number is not None, None
            return missed
        self._number = news.number
        if news.whole:
            self._held.clear()
        self._held.difference_update(_parts(news.removed))
        self._held.update(_parts(news.added))
        return False

    def count(self, digests: Iterable[bytes]) -> int:
        """How many blocks of a chain are there, from its beginning on."""
        return sum(1 for _ in takewhile(self._held.__contains__, digests))

    def __len__(self) -> int:
        return len(self._held)


def _parts(joined: bytes) -> Iterable[bytes]:
    return (joined[at : at + SHORT] for at in range(0, len(joined), SHORT))
