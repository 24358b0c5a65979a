"""Sampling penalties: repetition, presence and frequency, and the counts of tokens that they need.

There are as many rows of counts as streams are sampled at once: a row belongs to a slot until others need it
more, catches up with its sequence's tokens when it is next used, and is counted anew where it was lost. A row
names the tokens that it has, so that what a penalty costs goes by the context, and not by the vocabulary.

It knows sequences, and nothing of temperatures, seeds or draws.
"""

from __future__ import annotations

import itertools
from array import array
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.nonblocking_transfer import upload, upload_tensor
from engine.sampling.readback import SampleRequest
from engine.schedule.sequence import Sequence

MIN_REPETITION = 1e-30  # a score that is divided by it is still a number in float32
# Tokens that are looked at one by one, as mostly: those that a step sampled. Very many streams may have been
# told at once to be penalised, with very long contexts: numpy reads those in a tenth of the time.
FEW = 32

Tokens = NDArray[np.intc]
NONE = np.empty(0, np.intc)


@dataclass(slots=True)
class CountedRow:
    """What is counted of a sequence: these tokens, as they were at that version."""

    row: int
    named: NDArray[np.bool_]  # of the whole vocabulary, whether the row names it
    version: int = -1
    tokens: array[int] = field(default_factory=lambda: array("i"))
    marks: bytearray = field(default_factory=bytearray)  # of each, whether it was output
    # In the order in which the row names them, and where each stands first.
    distinct: array[int] = field(default_factory=lambda: array("i"))
    places: array[int] = field(default_factory=lambda: array("i"))

    def catch_up(self, seq: Sequence, first: Tokens) -> tuple[Tokens, Tokens, Tokens]:
        """Count what the host knows. Returns tokens that the row has not named yet, those that were output
        since, and those that were and are not any more. `first`: room for a number for each of the
        vocabulary."""
        stand = min(len(self.tokens), seq.stood_since(self.version))
        if self.version == seq.tokens_version:  # whatever is new was sampled
            marks = bytearray(b"\1" * (seq.num_tokens - stand))
        else:
            marks = seq.output_marks(stand)
        gone = _marked(self.tokens[stand:], self.marks[stand:])
        self._forget_from(stand)
        more = seq.tokens[stand:]
        at = _new_at(more, self.named, first)
        new = np.asarray(more)[at]
        self.named[new] = True
        self.distinct.frombytes(new.tobytes())
        self.places.frombytes((stand + at).astype(np.intc).tobytes())
        self.tokens[stand:], self.marks[stand:], self.version = more, marks, seq.tokens_version
        return new, _marked(more, marks), gone

    def _forget_from(self, place: int) -> None:
        if self.places and self.places[-1] >= place:
            standing = bisect_left(self.places, place)
            self.named[self.distinct[standing:]] = False
            del self.distinct[standing:], self.places[standing:]


def _new_at(tokens: array[int], named: NDArray[np.bool_], first: Tokens) -> NDArray[np.intp]:
    """Where those stand for the first time that are not named."""
    if len(tokens) <= FEW:
        new = [at for at, token in enumerate(tokens) if not named[token] and tokens.index(token) == at]
        return np.array(new, np.intp)
    every, places = np.asarray(tokens), np.arange(len(tokens), dtype=np.intc)
    first[every] = len(tokens)
    np.minimum.at(first, every, places)
    return np.flatnonzero((first[every] == places) & ~named[every])


def _marked(tokens: array[int], marks: bytearray) -> Tokens:
    return np.asarray(tokens)[np.frombuffer(marks, np.bool_)] if tokens else NONE


class TokenCounts:
    """Rows over the vocabulary: which tokens a context has, and how often each was output.

    Counted is what the host knows. Tokens *ahead* of that are not: drafts, and the last token of a context
    that the host may not know yet, which is the one that `latest_tokens` has for its slot.
    """

    def __init__(self, rows: int, vocab: int, latest_tokens: Tensor) -> None:
        self._latest_tokens = latest_tokens
        self._vocab = vocab
        # Left as they are: a row is emptied when a slot gets it.
        self._distinct = torch.empty(rows, vocab, dtype=torch.int32, device=latest_tokens.device)
        self._output = torch.empty(rows, vocab, dtype=torch.int32, device=latest_tokens.device)
        self._first = np.empty(vocab, np.intc)
        self._free = list(range(rows))
        self._rows: dict[int, int] = {}  # of a slot, in the order of their last use
        self._counted: dict[int, CountedRow] = {}  # of a slot

    def release_slot(self, slot: int) -> None:
        if slot in self._rows:
            self._free.append(self._rows.pop(slot))
            self._counted.pop(slot, None)

    def penalise(
        self, scores: Tensor, places: list[int], requests: list[SampleRequest], penalties: Tensor
    ) -> None:
        """Subtract from the scores at these places, one a request; `penalties` has a row for each score."""
        counts = self._catch_up(requests)
        rows = upload([row.row for row in counts], scores.device)
        places_of = upload(places, scores.device)
        # What is ahead comes last: of a token that both name it knows how often it is ahead as well.
        named = [self._counted_tokens(counts, rows), *self._tokens_ahead(requests, rows)]
        repetition, presence, frequency = penalties[places_of].to(scores.dtype).T.contiguous()
        repetition = repetition.clamp(min=MIN_REPETITION)
        less = []
        for owners, ids, output in named:
            at, times = places_of[owners], repetition[owners]
            known = scores[at, ids]
            repeated = torch.where(known < 0, known * times, known / times)
            repeated.sub_(frequency[owners] * output).sub_(presence[owners] * (output > 0))
            less.append((at, ids, repeated))
        for at, ids, score in less:
            scores.index_put_((at, ids), score)

    def _counted_tokens(self, counts: list[CountedRow], rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The tokens of all contexts in one line: whose each is, which it is, and how often it was output."""
        owners, places = _spread([len(row.distinct) for row in counts], self._output.device)
        ids = self._distinct[rows[owners], places].long()
        return owners, ids, self._output[rows[owners], ids]

    def _tokens_ahead(
        self, requests: list[SampleRequest], rows: Tensor
    ) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """The same of those that are not counted, if there are any: each as often as it is ahead, with one
        score."""
        device = self._output.device
        lines = [[*request.ahead, *([0] if _is_late(request) else [])] for request in requests]
        most = max(map(len, lines))
        if not most:
            return
        tokens = upload([line + [-1] * (most - len(line)) for line in lines], device)
        late = [at for at, request in enumerate(requests) if _is_late(request)]
        if late:
            at, place = upload([late, [len(lines[at]) - 1 for at in late]], device)
            tokens[at, place] = self._latest_tokens[upload([requests[at].seq.slot for at in late], device)]
        owners, place = upload(
            [[at, place] for at, line in enumerate(lines) for place in range(len(line))], device
        ).unbind(1)
        ids = tokens[owners, place]
        yield owners, ids, self._output[rows[owners], ids] + (ids[:, None] == tokens[owners]).sum(1)

    def _rows_of(self, slots: list[int]) -> list[int]:
        """A row for each: its own, or a free one, or that of the slot which used its own longest ago."""
        assert len(slots) <= len(self._output), "more streams are sampled at once than there are rows"
        for slot in sorted(slots, key=lambda slot: slot not in self._rows):  # who has one keeps it
            if slot not in self._rows and not self._free:
                self.release_slot(next(iter(self._rows)))
            self._rows[slot] = self._rows.pop(slot) if slot in self._rows else self._free.pop()
        return [self._rows[slot] for slot in slots]

    # -- counting ----------------------------------------------------------------------------------

    def _catch_up(self, requests: list[SampleRequest]) -> list[CountedRow]:
        """Count all that the host knows, and return it for each request. A row where that fails is counted
        anew."""
        device = self._output.device
        seqs = list({request.seq.slot: request.seq for request in requests}.values())
        rows = self._rows_of([seq.slot for seq in seqs])
        counts: dict[int, CountedRow] = {}
        anew = []
        named = _Columns()  # rows, tokens that they have not named yet, where to put these
        output = _Columns()  # rows, tokens that are output, or no longer, and how often
        for seq, row in zip(seqs, rows, strict=True):
            count = self._counted.pop(seq.slot, None)
            if count is None:
                count = CountedRow(row, np.zeros(self._vocab, np.bool_))
                anew.append(row)
            new, said, gone = count.catch_up(seq, self._first)
            end = len(count.distinct)
            named.extend(row, new, np.arange(end - len(new), end))
            output.extend(row, said, 1)
            output.extend(row, gone, -1)
            counts[seq.slot] = count
        if anew:
            self._output.index_fill_(0, upload(anew, device), 0)
        owners, tokens, at = named.uploaded(device)
        self._distinct.index_put_((owners, at), tokens.int())
        owners, tokens, times = output.uploaded(device)
        self._output.index_put_((owners, tokens), times.int(), accumulate=True)
        self._counted |= counts
        return [counts[request.seq.slot] for request in requests]


class _Columns:
    """Three, of whole contexts, maybe."""

    def __init__(self) -> None:
        self._parts = [np.empty((3, 0), np.int64)]

    def extend(self, row: int, tokens: Tokens, values: NDArray[np.intp] | int) -> None:
        if len(tokens):
            part = np.empty((3, len(tokens)), np.int64)
            part[0], part[1], part[2] = row, tokens, values
            self._parts.append(part)

    def uploaded(self, device: torch.device) -> tuple[Tensor, ...]:
        return upload_tensor(torch.from_numpy(np.concatenate(self._parts, 1)), device).unbind()


def _spread(lengths: list[int], device: torch.device) -> tuple[Tensor, Tensor]:
    """Runs of these lengths in one line: which run each place is of, and where in it."""
    ends = list(itertools.accumulate(lengths))
    begins, counts = upload([[0, *ends[:-1]], lengths], device)
    owners = torch.arange(len(lengths), device=device)
    owners = owners.repeat_interleave(counts, output_size=ends[-1])  # given, so that nobody waits
    return owners, torch.arange(ends[-1], device=device) - begins[owners]


def _is_late(request: SampleRequest) -> bool:
    """Whether the host does not know the token before the requested one yet."""
    late = request.index - len(request.ahead) - request.seq.num_outputs
    assert late in (0, 1), "two placeholders, or a token that is sampled again"
    return late == 1
