"""Work in pieces: a generator that yields wherever others may have their turn, and returns what came of it.

It is whoever asked for the work who has it go on, and pays for each piece. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator
from itertools import islice
from typing import TypeVar

T = TypeVar("T")
Pieces = Generator[None, None, T]


def at_once(work: Pieces[T]) -> T:
    """Nobody else waits for a turn."""
    while True:
        try:
            next(work)
        except StopIteration as done:
            result: T = done.value
            return result


def in_one(make: Callable[[], T]) -> Pieces[T]:
    yield from ()
    return make()


def batches(things: Iterable[T], size: int) -> Iterator[list[T]]:
    rest = iter(things)
    while some := list(islice(rest, size)):
        yield some
