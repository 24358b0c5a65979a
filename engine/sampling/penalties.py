"""Sampling penalties: repetition, presence and frequency, and the counts of tokens that they need.

There are as many rows of counts as streams are sampled at once: a row belongs to a slot until others need it
more, catches up with its sequence's tokens when it is next used, and is counted anew where it was lost. It
knows sequences, and nothing of temperatures, seeds or draws.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from engine.nonblocking_transfer import upload
from engine.sampling.readback import SampleRequest

MIN_REPETITION = 1e-30  # a score that is divided by it is still a number in float32


@dataclass(frozen=True, slots=True)
class Uncounted:
    """What a row has yet to count."""

    row: int
    slot: int
    context: list[int]
    output: list[int]
    anew: bool  # whether what it counted before is void
    placeholder: bool  # whether there is one token more, which the host does not know yet


class TokenCounts:
    """Rows of counts over the vocabulary: is a token in the context, and how often was it output.

    `latest_tokens` has the token that was sampled last for each slot. It is all of a sequence that the host
    may not know: no sequence is sampled while it has two placeholders.
    """

    def __init__(self, rows: int, vocab: int, latest_tokens: Tensor) -> None:
        self._latest_tokens = latest_tokens
        # Left as they are: a row is emptied when a slot gets it.
        self._context = torch.empty(rows, vocab, dtype=torch.bool, device=latest_tokens.device)
        self._output = torch.empty(rows, vocab, dtype=torch.int32, device=latest_tokens.device)
        self._free = list(range(rows))
        self._rows: dict[int, int] = {}  # of a slot, in the order of their last use
        self._counted: dict[int, tuple[int, int]] = {}  # of a slot: tokens counted, and their version

    def release_slot(self, slot: int) -> None:
        if slot in self._rows:
            self._free.append(self._rows.pop(slot))
            self._counted.pop(slot, None)

    def penalise(
        self,
        scores: Tensor,
        requests: list[SampleRequest],
        repetition: Tensor,
        presence: Tensor,
        frequency: Tensor,
    ) -> Tensor:
        """The scores less the penalties: one row a sequence, and one penalty of each kind a row."""
        rows = self._rows_of([request.seq.slot for request in requests])
        self._catch_up(requests, rows)
        places = upload(rows, scores.device)
        repetition, presence, frequency = (
            penalty.to(scores.dtype)[:, None]
            for penalty in (repetition.clamp(min=MIN_REPETITION), presence, frequency)
        )
        repeated = torch.where(scores < 0, scores * repetition, scores / repetition)
        scores = torch.where(self._context[places], repeated, scores)
        output = self._output[places]
        return scores.sub_(frequency * output).sub_(presence * (output > 0))

    def _rows_of(self, slots: list[int]) -> list[int]:
        """A row for each: its own, or a free one, or that of the slot which used its own longest ago."""
        assert len(slots) <= len(self._context), "more streams are sampled at once than there are rows"
        for slot in sorted(slots, key=lambda slot: slot not in self._rows):  # who has one keeps it
            if slot not in self._rows and not self._free:
                self.release_slot(next(iter(self._rows)))
            self._rows[slot] = self._rows.pop(slot) if slot in self._rows else self._free.pop()
        return [self._rows[slot] for slot in slots]

    # -- counting ----------------------------------------------------------------------------------

    def _catch_up(self, requests: list[SampleRequest], rows: list[int]) -> None:
        """Count all that stands before the requested tokens. A row where that fails is counted anew."""
        uncounted = [self._uncounted(request, row) for request, row in zip(requests, rows, strict=True)]
        void = [part.row for part in uncounted if part.anew]
        if void:
            places = upload(void, self._context.device)
            self._context.index_fill_(0, places, 0)
            self._output.index_fill_(0, places, 0)
        placeholders = [part for part in uncounted if part.placeholder]
        context = self._places([(part.row, part.context) for part in uncounted], placeholders)
        output = self._places([(part.row, part.output) for part in uncounted], placeholders)
        self._context.index_put_(context, self._context.new_ones(()))
        self._output.index_put_(output, self._output.new_ones(()), accumulate=True)
        for request in requests:
            self._counted[request.seq.slot] = _before(request), request.seq.tokens_version

    def _uncounted(self, request: SampleRequest, row: int) -> Uncounted:
        seq, upto = request.seq, _before(request)
        assert upto - seq.num_tokens in (0, 1), "two placeholders, or a token that is sampled again"
        counted, version = self._counted.pop(seq.slot, (0, -1))
        anew = version != seq.tokens_version or counted > upto
        if anew:
            context, output, counted = seq.tokens, seq.output_tokens(), 0
        else:  # whatever is new was sampled
            context = output = seq.tokens[counted:]
        placeholder = max(counted, seq.num_tokens) < upto
        return Uncounted(row, seq.slot, context, output, anew, placeholder)

    def _places(
        self, runs: list[tuple[int, list[int]]], placeholders: list[Uncounted]
    ) -> tuple[Tensor, Tensor]:
        """Where tokens are counted: those of each row, and then the placeholders."""
        device = self._context.device
        columns = [token for _, tokens in runs for token in tokens]
        rows = upload([row for row, _ in runs], device)
        lengths = upload([len(tokens) for _, tokens in runs], device)
        known = rows.repeat_interleave(lengths, output_size=len(columns))  # given, so that nobody waits
        late = upload([part.row for part in placeholders], device)
        latest = self._latest_tokens[upload([part.slot for part in placeholders], device)]
        return torch.cat([known, late]), torch.cat([upload(columns, device), latest])


def _before(request: SampleRequest) -> int:
    """How many tokens stand before the requested one, with placeholders."""
    return request.seq.num_tokens + request.index - request.seq.num_outputs
