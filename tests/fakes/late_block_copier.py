"""A block copier as slow as it may be: loads complete only when they are waited for, or asked for thrice."""

from __future__ import annotations

from collections import deque
from typing import Protocol

from engine.forward.toy_runner import ToyRunner
from engine.schedule.host_cache import BlockCopy


class Pool(Protocol):
    max_blocks: int

    @property
    def total_blocks(self) -> int: ...
    def save(self, copies: list[BlockCopy]) -> None: ...
    def load(self, copies: list[BlockCopy]) -> object: ...


class ToyHostPool:
    """The host's memory for the blocks of a toy's streams."""

    max_blocks = 3

    def __init__(self, runner: ToyRunner, total_blocks: int) -> None:
        self.total_blocks = total_blocks
        self._runner = runner
        self._held: dict[int, list[int]] = {}

    def save(self, copies: list[BlockCopy]) -> None:
        for number, here in copies:
            self._held[here] = self._runner.pool[self._tokens(number)]

    def load(self, copies: list[BlockCopy]) -> None:
        for here, number in copies:
            self._runner.pool[self._tokens(number)] = self._held[here]

    def _tokens(self, number: int) -> slice:
        return slice(number * self._runner.block_size, (number + 1) * self._runner.block_size)


class LateCompletion:
    """A completion that is done at the third time of asking, and not a moment before."""

    def __init__(self, copier: LateBlockCopier, copies: list[BlockCopy]) -> None:
        self._copier = copier
        self.copies = copies
        self._asked = 0

    def done(self) -> bool:
        self._asked += 1
        if self._asked > 2 and self in self._copier.loading:
            self.wait()
        return self not in self._copier.loading

    def wait(self) -> None:
        self._copier.finish(self)


class LateBlockCopier:
    """Carries loads out when they are waited for. `saved` and `loaded` count blocks."""

    def __init__(self, inner: Pool) -> None:
        self.max_blocks = inner.max_blocks
        self.total_blocks = inner.total_blocks
        self.saved = 0
        self.loaded = 0
        self.fences = 0
        self.loading: deque[LateCompletion] = deque()
        self._inner = inner

    def may_save(self) -> bool:
        return not self.loading

    def save(self, copies: list[BlockCopy]) -> None:
        self.saved += len(copies)
        if self.loading:  # there and back is one queue
            self.finish(self.loading[-1])
        self._inner.save(copies)

    def load(self, copies: list[BlockCopy]) -> LateCompletion:
        self.loaded += len(copies)
        self.loading.append(LateCompletion(self, copies))
        return self.loading[-1]

    def fence(self) -> None:
        self.fences += 1
        if self.loading:
            self.finish(self.loading[-1])

    def finish(self, last: LateCompletion) -> None:
        """In the order in which they were asked for."""
        while last in self.loading:
            self._inner.load(self.loading.popleft().copies)
