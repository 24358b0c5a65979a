"""What already stands in a stream's context, and what that costs a token: the three penalties.

Kept as rows of counts, as many as streams are sampled at once: a row belongs to a slot until others need it
more, catches up with its sequence's tokens when it is next used, and is counted anew where it was lost. It
knows sequences, and nothing of temperatures, seeds or draws.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from engine.sampling.readback import Next
from engine.transfer import upload


@dataclass(frozen=True, slots=True)
class Due:
    """What a row has yet to count."""

    row: int
    slot: int
    context: list[int]
    output: list[int]
    anew: bool  # whether what it counted before is void
    coming: bool  # whether there is one token more, which the host does not know yet


class History:
    """Rows of counts over the vocabulary: is a token in the context, and how often was it output.

    `latest` is the token that was chosen last for each slot. It is all of a sequence that the host may not
    know: nobody is sampled while two tokens are on their way.
    """

    def __init__(self, rows: int, vocab: int, latest: Tensor) -> None:
        self._latest = latest
        # Left as they are: a row is emptied when a slot gets it.
        self._context = torch.empty(rows, vocab, dtype=torch.bool, device=latest.device)
        self._output = torch.empty(rows, vocab, dtype=torch.int32, device=latest.device)
        self._free = list(range(rows))
        self._rows: dict[int, int] = {}  # of a slot, in the order of their last use
        self._counted: dict[int, tuple[int, int]] = {}  # of a slot: tokens counted, and `edits` by then

    def release(self, slot: int) -> None:
        if slot in self._rows:
            self._free.append(self._rows.pop(slot))
            self._counted.pop(slot, None)

    def penalise(
        self, scores: Tensor, asked: list[Next], repetition: Tensor, presence: Tensor, frequency: Tensor
    ) -> Tensor:
        """The scores less the penalties: one row a sequence, and one penalty of each kind a row."""
        rows = self._held([ask.seq.slot for ask in asked])
        self._catch_up(asked, rows)
        places = upload(rows, scores.device)
        repetition, presence, frequency = (
            penalty.to(scores.dtype)[:, None] for penalty in (repetition, presence, frequency)
        )
        repeated = torch.where(scores < 0, scores * repetition, scores / repetition)
        scores = torch.where(self._context[places], repeated, scores)
        output = self._output[places]
        return scores.sub_(frequency * output).sub_(presence * (output > 0))

    def _held(self, slots: list[int]) -> list[int]:
        """A row for each: its own, or a free one, or that of the slot which used its own longest ago."""
        assert len(slots) <= len(self._context), "more streams are sampled at once than were announced"
        for slot in sorted(slots, key=lambda slot: slot not in self._rows):  # who has one is not robbed
            if slot not in self._rows and not self._free:
                self.release(next(iter(self._rows)))
            self._rows[slot] = self._rows.pop(slot) if slot in self._rows else self._free.pop()
        return [self._rows[slot] for slot in slots]

    # -- counting ----------------------------------------------------------------------------------

    def _catch_up(self, asked: list[Next], rows: list[int]) -> None:
        """Count all that stands before the tokens asked for. A row where that fails is counted anew."""
        dues = [self._due(ask, row) for ask, row in zip(asked, rows, strict=True)]
        void = [due.row for due in dues if due.anew]
        if void:
            places = upload(void, self._context.device)
            self._context.index_fill_(0, places, 0)
            self._output.index_fill_(0, places, 0)
        coming = [due for due in dues if due.coming]
        context = self._places([(due.row, due.context) for due in dues], coming)
        output = self._places([(due.row, due.output) for due in dues], coming)
        self._context.index_put_(context, self._context.new_ones(()))
        self._output.index_put_(output, self._output.new_ones(()), accumulate=True)
        for ask in asked:
            self._counted[ask.seq.slot] = _before(ask), ask.seq.edits

    def _due(self, ask: Next, row: int) -> Due:
        seq, upto = ask.seq, _before(ask)
        assert upto - seq.known in (0, 1), "two tokens are on their way, or one is chosen again"
        counted, edits = self._counted.pop(seq.slot, (0, -1))
        anew = edits != seq.edits or counted > upto
        if anew:
            context, output, counted = seq.tokens, seq.output(), 0
        else:  # whatever is new was sampled
            context = output = seq.tokens[counted:]
        return Due(row, seq.slot, context, output, anew, coming=max(counted, seq.known) < upto)

    def _places(self, runs: list[tuple[int, list[int]]], coming: list[Due]) -> tuple[Tensor, Tensor]:
        """Where tokens are counted: those of each row, and then those that are coming."""
        device = self._context.device
        columns = [token for _, tokens in runs for token in tokens]
        rows = upload([row for row, _ in runs], device)
        lengths = upload([len(tokens) for _, tokens in runs], device)
        known = rows.repeat_interleave(lengths, output_size=len(columns))  # told, so that nobody waits
        late = upload([due.row for due in coming], device)
        latest = self._latest[upload([due.slot for due in coming], device)]
        return torch.cat([known, late]), torch.cat([upload(columns, device), latest])


def _before(ask: Next) -> int:
    """How many tokens stand before the one that is asked for, with what is on its way."""
    return ask.seq.known + ask.index - ask.seq.outputs
