"""What the readers of calls have in common: each reads one call, a character at a time."""

from __future__ import annotations

from enum import IntEnum
from typing import Protocol

LONGEST_NAME = 512  # characters, with all that stands around it, of what may become a call's name
LONGEST_UNTOLD = 16 << 10  # characters that may be read of a call before its name
LONGEST_VALUE = 64 << 10  # of an argument that is told once it is whole


class Step(IntEnum):
    """What a character made of a call."""

    MORE = 0
    WHOLE = 1  # it was the last
    BROKEN = 2  # it belongs to no call
    REASONING = 3  # what follows is no call, but this
    CONTENT = 4


class CallReader(Protocol):
    """`told` are its arguments as JSON, as far as they are known and were not taken."""

    name: str | None
    told: str

    @property
    def in_arguments(self) -> int | None:
        """How many characters of its arguments were read when the last one told that they have begun. Asked
        behind each character, until they have."""

    def step(self, char: str) -> Step: ...
    def take_plain(self, text: str, at: int) -> int:
        """Take what stands from `at` on, as far as it is plain text of an argument; returns how far that
        is."""

    def copy(self) -> CallReader: ...
