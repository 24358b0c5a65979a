"""The draft model: a small model beside the one that is served says what may come next.

Its logits go into the very race that the token itself is drawn by: the stream's parameters, its seed, what
its penalties count. So a draft is right wherever both models' races have the same winner, also at a high
temperature, and not only where a token is near certain.

It follows a stream by comparing. Of what it has computed for one there stands what the stream's tokens begin
with, and the rest is computed again, so that rewinds, injections, pauses and rebuilt streams are nothing to
be told of. Its memory is its own, bounded, and given up first: a stream that has no row in a step holds none.
What was computed for it is found in the cache, if it comes back before others needed the room.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Sequence as Several
from dataclasses import dataclass, field

from torch import Tensor
from torch.nn import functional

from engine.drafts.interface import Kind
from engine.drafts.pace import Cost, StepCost
from engine.forward.interface import Runner
from engine.sampling.readback import SampleRequest
from engine.sampling.sampler import Sampler
from engine.schedule.batch import Row
from engine.schedule.block_cache import BlockCache
from engine.schedule.sequence import Sequence

RECENT = 32  # last tokens, among which a stream mostly differs from what was drafted for it
NEW = 2  # tokens: what a stream has more than was computed for it, where all its drafts were right


@dataclass(slots=True, eq=False)
class Draft:
    """Of a stream, in one step. `own`: its tokens with the drafts, and how many are computed here."""

    stream: Sequence
    own: Sequence
    most: int
    tokens: list[int] = field(default_factory=list)

    @property
    def request(self) -> SampleRequest:
        return SampleRequest(self.stream, self.stream.num_outputs + len(self.tokens), tuple(self.tokens))


class DraftModel:
    """`runner` and `cache` are the model's own; `sampler` is the engine's, which draws from `vocab` tokens:
    of these the model knows the first `known`. In a step it computes up to `step_tokens`."""

    kind: Kind = "model"

    def __init__(
        self,
        runner: Runner,
        cache: BlockCache,
        sampler: Sampler,
        *,
        vocab: int,
        known: int,
        step_tokens: int,
        cost: Cost | None = None,
    ) -> None:
        self._runner = runner
        self._cache = cache
        self._sampler = sampler
        self._vocab, self._known = vocab, known
        self._step_tokens = step_tokens
        self._cost = cost or StepCost()
        self._followed: dict[Sequence, Sequence] = {}  # those that hold memory, the latest wanted last

    def seconds(self, rows: int) -> float:
        return self._cost.of_step(rows) / max(1, rows)

    def propose(self, wanted: Several[tuple[Sequence, int]]) -> list[list[int]]:
        self._let_go_of_resting()
        drafts = [self._follow(stream, most) for stream, most in wanted]
        self._draft([draft for draft in drafts if draft is not None])
        return [draft.tokens if draft is not None else [] for draft in drafts]

    def audit(self) -> None:
        """Raise unless every block is accounted for."""
        self._cache.audit(self._followed.values())

    # -- following -----------------------------------------------------------------------------------

    def _let_go_of_resting(self) -> None:
        for stream in [stream for stream in self._followed if not stream.in_flight]:
            self._cache.release(self._followed.pop(stream))

    def _follow(self, stream: Sequence, most: int) -> Draft | None:
        """None where the model cannot say anything: the text is too long for it, or has tokens of which it
        has not heard. Nor behind a prompt, whose first token need not wait for what comes behind it."""
        if stream.in_flight[-1].count > 1:
            return None
        own = self._followed.pop(stream, None) or Sequence(
            stream.stream,
            [],
            stream.sampling,
            credit=0,
            context=self._runner.context,
            cache_of=stream.cache_of,
        )
        stands = min(_common(own.tokens, stream.tokens), stream.num_tokens - 1)
        self._cut(own, stands)
        new = stream.tokens[stands:]
        most = min(most, self._runner.context - stream.num_tokens)
        if most < 1 or max(new) >= self._known:
            self._cache.release(own)
            return None
        own.tokens += new
        if not own.blocks:
            self._cache.match_prefix(own)
        self._followed[stream] = own
        return Draft(stream, own, most)

    def _cut(self, own: Sequence, keep: int) -> None:
        del own.tokens[keep:]
        del own.token_hashes[keep // self._cache.block_size :]
        if keep < own.num_computed:  # where a window before it is gone all of it is to be found anew
            self._cache.release(own, keep if self._cache.can_keep(own, keep) else 0)

    # -- drafting ------------------------------------------------------------------------------------

    def _draft(self, drafts: list[Draft]) -> None:
        """First what the model lacks of each stream, those first that lack least. Who is not done with that
        in this step goes on in the next."""
        busy = {draft.stream for draft in drafts}
        left, rows = self._step_tokens, list[tuple[Draft, Row]]()
        for draft in sorted(drafts, key=lambda draft: draft.own.num_uncomputed):
            row = self._row(draft, min(left, draft.own.num_uncomputed), busy)
            if row is not None:
                rows.append((draft, row))
                left -= row.count
        while rows:
            going = [draft for draft in self._computed(rows) if len(draft.tokens) < draft.most]
            planned = [(draft, self._row(draft, 1, busy)) for draft in going]
            rows = [(draft, row) for draft, row in planned if row is not None]

    def _row(self, draft: Draft, count: int, busy: set[Sequence]) -> Row | None:
        """With its memory, if that can be had of streams that draft nothing in this step."""
        own, end = draft.own, draft.own.num_computed + count
        if count < 1:
            return None
        if end > own.num_writable:
            if not self._make_room(own, end, busy):
                return None
            for copy in self._cache.make_writable(own):
                self._runner.copy_blocks([copy])
        return Row(own, own.num_computed, count, end == own.num_tokens, own.sampling)

    def _make_room(self, own: Sequence, tokens: int, busy: set[Sequence]) -> bool:
        missing, blocks = self._cache.missing(own, tokens), self._cache.blocks
        needed = sum(missing) + self._cache.shared(own)
        for stream in [stream for stream in self._followed if stream not in busy]:
            if needed <= blocks.available:
                break
            self._cache.release(self._followed.pop(stream))
        if needed > blocks.available:
            return False
        self._cache.extend(own, missing)
        return True

    def _computed(self, rows: list[tuple[Draft, Row]]) -> list[Draft]:
        """Returns those that have a token more, behind which another may come."""
        began = time.perf_counter()
        logits = self._runner.forward([row for _, row in rows])
        sampling = [draft for draft, row in rows if row.samples]
        found = self._sampler.launch(self._fitted(logits), [draft.request for draft in sampling]).read()
        if all(row.count <= NEW for _, row in rows):
            self._cost.learn(sum(row.count for _, row in rows), time.perf_counter() - began)
        for draft, row in rows:
            draft.own.num_computed += row.count
            self._cache.cache_full_blocks(draft.own)
            self._cache.let_go_of_past(draft.own)
        going = []
        for draft, sampled in zip(sampling, found, strict=True):
            if sampled.token is not None and sampled.token < self._known:
                draft.tokens.append(sampled.token)
                draft.own.tokens.append(sampled.token)
                if sampled.token not in self._runner.eos or draft.stream.sampling.ignore_eos:
                    going.append(draft)
        return going

    def _fitted(self, logits: Tensor) -> Tensor:
        """As wide as the sampler's, with no chance for what the model does not know."""
        more = self._vocab - logits.shape[1]
        return functional.pad(logits, (0, more), value=-float("inf")) if more else logits


def _common(one: array[int], other: array[int]) -> int:
    """How many tokens both begin with."""
    most = min(len(one), len(other))
    start = max(0, most - RECENT)
    if one[:start] != other[:start]:
        start = 0
    return next((at for at in range(start, most) if one[at] != other[at]), most)
