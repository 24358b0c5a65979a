"""Block tables on the device: a row for each slot, updated where a sequence's blocks have changed.

So a step that reads through the tables needs nothing from the host but slots and positions. It knows
sequences' blocks and slots, and no attention.
"""

from __future__ import annotations

from collections.abc import Sequence as Rows

import torch
from torch import Tensor

from engine.nonblocking_transfer import upload
from engine.schedule.batch import Row


class BlockTables:
    """The last row is for padding: rows that only fill a batch up read and write a block that no sequence is
    ever given."""

    def __init__(
        self, slots: int, blocks: int, block_size: int, padding_block: int, device: torch.device
    ) -> None:
        self.block_size = block_size
        self.tensor = torch.zeros(slots + 1, blocks, dtype=torch.int32, device=device)
        self.tensor[slots] = padding_block
        self.padding_row = slots
        self._device = device
        self._written: dict[int, tuple[int, int, int]] = {}  # of a slot: stream, version, blocks written

    def update(self, rows: Rows[Row]) -> None:
        """Write what is new in the rows' block tables: mostly nothing, or a block behind the last.

        It counts as written once it is: a step that fails here is tried again.
        """
        width = self.tensor.shape[1]
        places: list[int] = []
        numbers: list[int] = []
        written_now: dict[int, tuple[int, int, int]] = {}
        for row in rows:
            sequence = row.sequence
            blocks = sequence.blocks
            written = self._written.get(sequence.slot)
            new = (sequence.stream, sequence.blocks_version, len(blocks))
            if written == new:
                continue
            begin = written[2] if written and written[:2] == new[:2] else 0
            places += range(sequence.slot * width + begin, sequence.slot * width + len(blocks))
            numbers += blocks[begin:]
            written_now[sequence.slot] = new
        if places:
            at, what = upload([places, numbers], self._device)
            self.tensor.view(-1).index_copy_(0, at, what.int())
        self._written |= written_now

    def pool_indices(self, slots: Tensor, positions: Tensor) -> Tensor:
        """Where in the pool the tokens at these positions of these slots' sequences lie."""
        blocks = self.tensor[slots, positions // self.block_size].long()
        return blocks * self.block_size + positions % self.block_size
