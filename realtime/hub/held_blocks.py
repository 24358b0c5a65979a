"""The held blocks of one engine, as it tells of them: how much of a context it need not compute.

Pure: digests in, counts out. What it believes may be a step old, and decides where a stream goes, never what
it says.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterable
from itertools import takewhile

from engine import api
from engine.block_digests import SHORT


class HeldBlocks:
    def __init__(self) -> None:
        self._held = set[int]()  # the first bytes of digests, as numbers: they come by the thousand
        self._number: int | None = None  # of the last news; None where one is missing

    def receive(self, news: api.BlockNews) -> bool:
        """Whether something is missing: all of it is to be asked for."""
        if not news.whole and news.number - 1 != self._number:
            missed, self._number = self._number is not None, None
            return missed
        self._number = news.number
        if news.whole:
            self._held.clear()
        if news.removed:
            self._held.difference_update(_numbers(news.removed))
        if news.added:
            self._held.update(_numbers(news.added))
        return False

    def count(self, digests: Iterable[bytes]) -> int:
        """How many blocks of a chain are there, from its beginning on."""
        first = (int.from_bytes(digest[:SHORT], sys.byteorder) for digest in digests)
        return sum(1 for _ in takewhile(self._held.__contains__, first))

    def __len__(self) -> int:
        return len(self._held)


def _numbers(joined: bytes) -> array[int]:
    numbers = array("Q")
    numbers.frombytes(joined)
    return numbers
