"""Moves between device and host as a device may carry them out at worst: as late as it is allowed to."""

from __future__ import annotations

from collections import deque
from typing import Protocol

from engine.forward.toy_runner import ToyRunner
from engine.schedule.host_cache import Move


class Host(Protocol):
    most: int

    @property
    def total(self) -> int: ...
    def save(self, moves: list[Move]) -> None: ...
    def load(self, moves: list[Move]) -> object: ...


class ToyHost:
    """What a toy's streams leave in the host's memory."""

    most = 3

    def __init__(self, runner: ToyRunner, total: int) -> None:
        self.total = total
        self._runner = runner
        self._held: dict[int, list[int]] = {}

    def save(self, moves: list[Move]) -> None:
        for number, here in moves:
            self._held[here] = self._runner.pool[self._tokens(number)]

    def load(self, moves: list[Move]) -> None:
        for here, number in moves:
            self._runner.pool[self._tokens(number)] = self._held[here]

    def _tokens(self, number: int) -> slice:
        return slice(number * self._runner.block, (number + 1) * self._runner.block)


class Late:
    """An arrival that is there at the third time of asking, and not a moment before."""

    def __init__(self, mover: LateMover, moves: list[Move]) -> None:
        self._mover = mover
        self.moves = moves
        self._asked = 0

    def done(self) -> bool:
        self._asked += 1
        if self._asked > 2 and self in self._mover.under_way:
            self.wait()
        return self not in self._mover.under_way

    def wait(self) -> None:
        self._mover.finish(self)


class LateMover:
    """Carries loads out when they are waited for. `saved` and `brought` count blocks."""

    def __init__(self, inner: Host) -> None:
        self.most = inner.most
        self.total = inner.total
        self.saved = 0
        self.brought = 0
        self.fences = 0
        self.under_way: deque[Late] = deque()
        self._inner = inner

    def may_save(self) -> bool:
        return not self.under_way

    def save(self, moves: list[Move]) -> None:
        self.saved += len(moves)
        if self.under_way:  # there and back is one queue
            self.finish(self.under_way[-1])
        self._inner.save(moves)

    def load(self, moves: list[Move]) -> Late:
        self.brought += len(moves)
        self.under_way.append(Late(self, moves))
        return self.under_way[-1]

    def fence(self) -> None:
        self.fences += 1
        if self.under_way:
            self.finish(self.under_way[-1])

    def finish(self, last: Late) -> None:
        """In the order in which they were asked for."""
        while last in self.under_way:
            self._inner.load(self.under_way.popleft().moves)
