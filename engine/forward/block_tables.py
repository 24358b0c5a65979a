"""Block tables on the device: for each group of layers a row for each slot, updated where a sequence's blocks
have changed.

So a step that reads through the tables needs nothing from the host but slots and positions. It knows
sequences' blocks and slots, and no attention.
"""

from __future__ import annotations

from collections.abc import Sequence as Rows
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.nonblocking_transfer import upload
from engine.schedule.batch import Row
from engine.schedule.windows import first_held


@dataclass(frozen=True, slots=True)
class GroupTables:
    """Those of one group: a row for each slot. What is gone from a table is not in it: nobody may read it."""

    tensor: Tensor
    block_size: int

    def pool_indices(self, slots: Tensor, positions: Tensor) -> Tensor:
        """Where in the pool the tokens at these positions of these slots' sequences lie."""
        blocks = self.tensor[slots, positions // self.block_size].long()
        return blocks * self.block_size + positions % self.block_size


class BlockTables:
    """The last row is for padding: rows that only fill a batch up read and write a block that no sequence is
    ever given."""

    def __init__(
        self,
        slots: int,
        blocks: int,
        block_size: int,
        padding_block: int,
        device: torch.device,
        groups: int = 1,
    ) -> None:
        self.block_size = block_size
        self.tokens = blocks * block_size  # of the longest context
        self._tensor = torch.zeros(groups, slots + 1, blocks, dtype=torch.int32, device=device)
        self._tensor[:, slots] = padding_block
        self.groups = [GroupTables(tensor, block_size) for tensor in self._tensor]
        self.padding_row = slots
        self.device = device
        self._written: dict[
            int, tuple[int, int, list[int]]
        ] = {}  # of a slot: stream, version, blocks written

    def update(self, rows: Rows[Row]) -> None:
        """Write what is new in the rows' block tables: mostly nothing, or a block behind the last.

        It counts as written once it is: a step that fails here is tried again.
        """
        _, slots, width = self._tensor.shape
        places: list[int] = []
        numbers: list[int] = []
        written_now: dict[int, tuple[int, int, list[int]]] = {}
        for row in rows:
            sequence = row.sequence
            tables = sequence.tables
            written = self._written.get(sequence.slot)
            new = (sequence.stream, sequence.blocks_version, [len(table) for table in tables])
            if written == new:
                continue
            known = written[2] if written and written[:2] == new[:2] else [0] * len(tables)
            for group, table in enumerate(tables):
                first = (group * slots + sequence.slot) * width
                begin = max(known[group], first_held(table))
                places += range(first + begin, first + len(table))
                numbers += table[begin:]
            written_now[sequence.slot] = new
        if places:
            at, what = upload([places, numbers], self.device)
            self._tensor.view(-1).index_copy_(0, at, what.int())
        self._written |= written_now
