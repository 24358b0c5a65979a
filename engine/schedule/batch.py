"""The batch: the rows of one step, and what must happen to memory before they are computed.

It is what the scheduler tells those who run it. It decides nothing, and knows no tensor.
"""

from __future__ import annotations

from msgspec import Struct

from engine.api import Sampling
from engine.schedule.host_cache import Load
from engine.schedule.sequence import Sequence


class Row(Struct, eq=False):
    """`count` tokens of a sequence, from position `start`; `samples` when the next token is sampled behind
    them.

    The last of them may be drafts, of which nobody knows whether they come. Then a token is sampled behind
    the last known one and behind each draft: one that is what was sampled before it was right.

    While it is in flight the sequence may give a part of it up, from the end on, and what it samples with it:
    what it was steered away from, and drafts that were wrong.
    """

    sequence: Sequence
    start: int
    count: int
    samples: bool
    sampling: Sampling  # in force when the row was planned
    index: int = 0  # of the output token that is sampled
    given_up: int = 0  # of `count`
    forced: bool = False  # what it was to sample was certain before it did
    drafts: tuple[int, ...] = ()  # of a row that samples: the last of its tokens

    @property
    def end(self) -> int:
        return self.start + self.count

    @property
    def tokens(self) -> list[int]:
        """Those that it computes, as far as the host knows them."""
        known = self.sequence.tokens[self.start : self.end - len(self.drafts)]
        return [*known, *self.drafts]

    @property
    def num_sampled(self) -> int:
        """Tokens: one behind the last of its own, and one before each draft."""
        return 1 + len(self.drafts) if self.samples else 0

    @property
    def decodes(self) -> bool:
        """Whether it computes no more than what a token is sampled behind, or was to be."""
        return self.count == (1 if self.forced else self.num_sampled)

    @property
    def num_awaited(self) -> int:
        """Those of them that somebody wants."""
        return max(0, self.num_sampled - self.given_up)

    @property
    def num_right(self) -> int:
        """Of its drafts, as far as is known."""
        return max(0, len(self.drafts) - self.given_up)

    @property
    def kept(self) -> int:
        """Tokens of it that stand once they are computed."""
        return self.count - self.given_up

    @property
    def discarded(self) -> bool:
        """Whether nothing of it stands."""
        return not self.kept

    @property
    def void(self) -> bool:
        """Whether it samples, and nobody wants a token of it any more."""
        return self.samples and self.given_up > len(self.drafts)

    @property
    def outdated(self) -> bool:
        """Whether to compute it once more would give something else: its sequence was steered meanwhile."""
        return self.given_up > 0 or (self.samples and self.sampling is not self.sequence.sampling)


class Batch(Struct, eq=False):
    rows: list[Row] = []
    copies: list[tuple[int, int]] = []  # blocks to copy before anything is written
    loads: list[Load] = []  # blocks to load from the host
    fence: bool = False  # whether nothing may be written before the loads under way are done
    preempted: list[Sequence] = []
    resumed: list[tuple[Sequence, int]] = []  # after preemption; tokens to compute again
    admitted: list[tuple[Sequence, int]] = []  # first run; tokens found computed
    recomputed: list[tuple[Sequence, int]] = []  # by their tenant's doing; some may have ended
