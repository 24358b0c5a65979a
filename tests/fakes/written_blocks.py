"""Written blocks: what a model would have left in each block, on the device and on the host, for steps that
no model computes.

A place holds for which group of layers, and behind which tokens, it was written. Whatever a row reads, the
windows of its groups, is checked: it must lie in its tables, and be the row's own beginning.
"""

from __future__ import annotations

from engine.schedule.batch import Batch, Row
from engine.schedule.host_cache import BlockCopy, Load
from engine.schedule.sequence import Sequence

Content = dict[int, object]  # by place in the block


class WrittenBlocks:
    def __init__(self, block_size: int, windows: tuple[int | None, ...]) -> None:
        self._size = block_size
        self._windows = windows
        self._device: dict[int, Content] = {}
        self._host: dict[int, Content] = {}
        self._loading: dict[int, list[tuple[Content, int]]] = {}

    def run(self, batch: Batch) -> None:
        for load in batch.loads:
            self._loading[id(load)] = [(dict(self._host[here]), number) for here, number in load.copies]
        for source, target in batch.copies:
            self._device[target] = dict(self._device.get(source, {}))
        for row in batch.rows:
            self._compute(row)

    def _compute(self, row: Row) -> None:
        size, marks = self._size, _marks(row.sequence, row.end)
        for group, table in enumerate(row.sequence.tables):
            for at in range(row.start, row.end):
                self._device.setdefault(table[at // size], {})[at % size] = (group, marks[at])
            window = self._windows[group]
            for at in range(0 if window is None else max(0, row.start + 1 - window), row.end):
                assert table[at // size] >= 0, "it is there"
                found = self._device[table[at // size]].get(at % size)
                assert found == (group, marks[at]), "and what was written for it"

    def save(self, copies: list[BlockCopy]) -> None:
        self._host |= {here: dict(self._device[number]) for number, here in copies}

    def load(self, load: Load) -> None:
        needed = {number for _, number in load.still_needed()}
        for content, number in self._loading.pop(id(load)):
            if number in needed:
                self._device[number] = content


def _marks(sequence: Sequence, end: int) -> list[int]:
    """What stands for each of its first tokens together with all before it. Those in flight are what
    `InstantSteps` will say."""
    known = sequence.tokens[:end]
    more = range(sequence.num_outputs, sequence.num_outputs + end - len(known))
    marks: list[int] = []
    for token in [*known, *(1000 + index for index in more)]:
        marks.append(hash((marks[-1] if marks else sequence.cache_of, token)))
    return marks
