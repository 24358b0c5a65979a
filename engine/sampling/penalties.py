"""What already stands in a stream's context, and what that costs a token: the three penalties.

Kept for the slots that ask for it, as rows of counts that catch up with their sequence's tokens when they are
next needed. It knows sequences, and nothing of temperatures, seeds or draws.
"""

from __future__ import annotations

import torch
from torch import Tensor

from engine.device import upload
from engine.sampling.draw import Next


class History:
    """Rows of counts over the vocabulary: is a token in the context, and how often was it output."""

    def __init__(self, vocab: int, device: str | torch.device) -> None:
        self._context = torch.zeros(0, vocab, dtype=torch.bool, device=device)
        self._output = torch.zeros(0, vocab, dtype=torch.int32, device=device)
        self._rows: dict[int, int] = {}  # of a slot
        self._free: list[int] = []
        self._counted: dict[int, tuple[int, int]] = {}  # of a slot: tokens counted, and `edits` by then

    def __contains__(self, slot: int) -> bool:
        return slot in self._rows

    def claim(self, slot: int) -> None:
        """Give the slot a row, empty until it catches up; nothing changes for a slot that has one."""
        if slot in self._rows:
            return
        if not self._free:
            self._grow()
        self._rows[slot] = self._free.pop()

    def release(self, slot: int) -> None:
        if slot in self._rows:
            self._free.append(self._rows.pop(slot))
            self._counted.pop(slot, None)

    def penalise(
        self, scores: Tensor, rows: list[Next], repetition: Tensor, presence: Tensor, frequency: Tensor
    ) -> Tensor:
        """The scores less the penalties: one row a sequence, and one penalty of each kind a row."""
        self._catch_up(rows)
        places = upload([self._rows[row.seq.slot] for row in rows], scores.device)
        repetition, presence, frequency = (
            penalty.to(scores.dtype)[:, None] for penalty in (repetition, presence, frequency)
        )
        repeated = torch.where(scores < 0, scores * repetition, scores / repetition)
        scores = torch.where(self._context[places], repeated, scores)
        output = self._output[places]
        return scores.sub_(frequency * output).sub_(presence * (output > 0))

    def _grow(self) -> None:
        size = len(self._context)
        more = max(size, 1)
        self._context = torch.cat([self._context, self._context.new_zeros(more, self._context.shape[1])])
        self._output = torch.cat([self._output, self._output.new_zeros(more, self._output.shape[1])])
        self._free += range(size, size + more)

    def count(self, slots: list[int], tokens: Tensor) -> None:
        """Each slot's sequence has one token more: the host may not know yet which."""
        rows = upload([self._rows[slot] for slot in slots], tokens.device)
        self._context.index_put_((rows, tokens), self._context.new_ones(()))
        self._output.index_put_((rows, tokens), self._output.new_ones(()), accumulate=True)
        for slot in slots:
            counted, edits = self._counted[slot]
            self._counted[slot] = counted + 1, edits

    def _catch_up(self, rows: list[Next]) -> None:
        context: list[tuple[int, list[int]]] = []
        output: list[tuple[int, list[int]]] = []
        for asked in rows:
            seq = asked.seq
            row, (counted, edits) = self._rows[seq.slot], self._counted.get(seq.slot, (0, -1))
            upto = (
                seq.known + asked.index - seq.outputs
            )  # with those that are on their way, and counted already
            if edits == seq.edits and counted <= upto:  # so whatever is new was sampled
                new = seq.tokens[counted:]
                context.append((row, new))
                output.append((row, new))
            else:
                self._context[row] = False
                self._output[row] = 0
                context.append((row, seq.tokens))
                output.append((row, seq.output()))
            self._counted[seq.slot] = upto, seq.edits
        self._context.index_put_(self._places(context), self._context.new_ones(()))
        self._output.index_put_(self._places(output), self._output.new_ones(()), accumulate=True)

    def _places(self, runs: list[tuple[int, list[int]]]) -> tuple[Tensor, Tensor]:
        rows = [row for row, tokens in runs for _ in tokens]
        columns = [token for _, tokens in runs for token in tokens]
        device = self._context.device
        return upload(rows, device), upload(columns, device)
