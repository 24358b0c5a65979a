"""How many tokens of a turn are reasoning, and how many more may be.

A turn's first span may have all that is left of the limit. One that a model opens again, behind its answer or
a call, may always have a few: so nobody need look at every token of an answer before the next is sampled.
"""

from __future__ import annotations

from typing import NamedTuple

REOPENED = 16  # tokens, of a span that is not the first, where fewer are left


class ReasoningCount(NamedTuple):
    """`before`: in the turn's earlier spans, of which there were so many; `now`: in the one that is open."""

    spans: int = 0
    before: int = 0
    now: int | None = None

    def opened(self) -> ReasoningCount:
        return ReasoningCount(self.spans, self.before, 0)

    def token(self) -> ReasoningCount:
        return self if self.now is None else self._replace(now=self.now + 1)

    def closed(self) -> ReasoningCount:
        return self if self.now is None else ReasoningCount(self.spans + 1, self.before + self.now)

    @property
    def tokens(self) -> int:
        """All of them, with their ends."""
        return self.before + (self.now or 0)

    def room(self, limit: int) -> int:
        """Tokens that may come before the span that is open, or would be opened by the next, has all of
        them."""
        left = max(0, limit - self.before)
        whole = max(left, REOPENED) if self.spans else left
        return 1 + whole if self.now is None else max(0, whole - self.now)
