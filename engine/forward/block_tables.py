"""Block tables on the device: a row a slot, written where a sequence's blocks have changed.

So that a step that reads through the tables needs nothing from the host but slots and positions. It knows
sequences' blocks and slots, and no attention.
"""

from __future__ import annotations

from collections.abc import Sequence as Rows

import torch
from torch import Tensor

from engine.schedule.batch import Row
from engine.transfer import upload


class Tables:
    """The last row belongs to nobody: rows that only fill a batch up read and write `spare`, a block that
    no sequence is ever given."""

    def __init__(self, slots: int, blocks: int, block: int, spare: int, device: torch.device) -> None:
        self.block = block
        self.numbers = torch.zeros(slots + 1, blocks, dtype=torch.int32, device=device)
        self.numbers[slots] = spare
        self.nobody = slots
        self._device = device
        self._written: dict[int, tuple[int, int, int]] = {}  # of a slot: stream, layout, blocks written

    def write(self, rows: Rows[Row]) -> None:
        """Bring the tables of the rows' sequences up to date: mostly nothing, or a block behind the last."""
        width = self.numbers.shape[1]
        places: list[int] = []
        numbers: list[int] = []
        for row in rows:
            sequence = row.sequence
            blocks = sequence.blocks
            known = self._written.get(sequence.slot)
            new = (sequence.stream, sequence.layout, len(blocks))
            if known == new:
                continue
            begin = known[2] if known and known[:2] == new[:2] else 0
            places += range(sequence.slot * width + begin, sequence.slot * width + len(blocks))
            numbers += blocks[begin:]
            self._written[sequence.slot] = new
        if places:
            at, what = upload([places, numbers], self._device)
            self.numbers.view(-1).index_copy_(0, at, what.int())

    def places(self, slots: Tensor, positions: Tensor) -> Tensor:
        """Where in the pool the tokens at these positions of these slots' sequences lie."""
        blocks = self.numbers[slots, positions // self.block].long()
        return blocks * self.block + positions % self.block
