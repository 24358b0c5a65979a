"""What a simulated server's engine computes, whoever is told of it."""

from __future__ import annotations

from collections import defaultdict

from engine.forward.toy_runner import ToyRunner
from engine.schedule.batch import Row
from tests.fakes.simulated_server import SimulatedServer


class ComputedTokens:
    def __init__(self, server: SimulatedServer) -> None:
        self.total = 0
        self.again = 0  # of those, that were computed for their stream before
        self._states = defaultdict[int, set[int]](set)  # that each stream has been in
        runner = server.engine.runner
        assert isinstance(runner, ToyRunner)
        self._read, runner._read = runner._read, self._count  # type: ignore[method-assign]

    def _count(self, row: Row) -> list[tuple[int, int]]:
        read = self._read(row)
        states = [state for state, _ in read]
        before = self._states[row.sequence.stream]
        self.total += len(states)
        self.again += sum(state in before for state in states)
        before.update(states)
        return read
