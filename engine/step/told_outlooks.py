"""Outlooks of ranks: rank 0 alone has matchers, and says what they have found whenever it looks.

So nobody waits for a grammar that takes long where a model is shared either, and whatever hangs on a thread's
pace, or on which of two grammars finds room, is decided once. The others need no mask: the token that rank 0
chose is theirs.

What is said goes through the same pipes as the commands of a step, and all know when: where there is anything
unsettled before a plan, and where rows with grammars are to be chosen in.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from collections.abc import Sequence as Several
from collections.abc import Set as AbstractSet

from msgspec import Struct

from engine.schedule.batch import Row
from engine.schedule.sequence import Sequence
from engine.step.lookout import Found, Masks, constraint_of
from engine.step.matcher_threads import MatcherThreads
from engine.structure.constraint import Outlook
from engine.structure.matcher import GrammarError


class FoundOutlook(Struct, array_like=True, frozen=True):
    """Of a stream, as far as whoever has no matcher needs it; not `known` where that is not there yet."""

    stream: int
    known: bool
    forced: list[int]
    fits: bool
    error: str | None  # also where there is one for this row alone: then it samples nothing


class FoundOutlooks(Struct, frozen=True):
    """Of one look."""

    found: list[FoundOutlook]


class LeaderLookout(MatcherThreads):
    """Of rank 0."""

    def __init__(
        self,
        tell: Callable[[FoundOutlooks], None],
        unsettled: Mapping[int, Sequence],
        wake: Callable[[], None],
        others: Callable[[AbstractSet[int]], bool],
    ) -> None:
        super().__init__(unsettled, wake, others)
        self._tell = tell

    def before_plan(self) -> Iterator[Sequence]:
        """The others hear of them behind the last: how many there was time for is known then."""
        found: list[FoundOutlook] = []
        for sequence in super().before_plan():
            found.append(_found(sequence))
            yield sequence
        self._tell(FoundOutlooks(found))

    def before_choice(self, rows: Several[Row], masks_of: Callable[[Row], Masks | GrammarError]) -> Found:
        chosen = super().before_choice(rows, masks_of)
        errors = {id(row): str(masks) for row, masks in chosen if isinstance(masks, GrammarError)}
        self._tell(FoundOutlooks([_found(row.sequence, errors.get(id(row))) for row in rows]))
        return chosen


class FollowerLookout:
    """Of the others: `hear` waits until rank 0 has looked."""

    busy = False  # nothing may depend on what is here early

    def __init__(
        self,
        hear: Callable[[], FoundOutlooks],
        unsettled: Mapping[int, Sequence],
        wake: Callable[[], None],
        others: Callable[[AbstractSet[int]], bool],
    ) -> None:
        self._hear = hear
        self._unsettled = unsettled

    def start(self) -> None:
        """Not here."""

    def before_plan(self) -> Iterator[Sequence]:
        for found in self._hear().found:
            sequence = self._unsettled[found.stream]
            _tell(sequence, found)
            yield sequence

    def before_choice(self, rows: Several[Row], masks_of: Callable[[Row], Masks | GrammarError]) -> Found:
        chosen: Found = []
        for row, found in zip(rows, self._hear().found, strict=True):
            _tell(row.sequence, found)
            if found.known:
                chosen.append((row, [None] if found.error is None else GrammarError(found.error)))
        return chosen

    def wake_for(self, stream: int) -> None:
        """Not here: the next step waits for rank 0."""

    def end(self, sequence: Sequence) -> None:
        """Not here."""


def _found(sequence: Sequence, error: str | None = None) -> FoundOutlook:
    constraint = constraint_of(sequence)
    if not constraint.known:
        return FoundOutlook(sequence.stream, known=False, forced=[], fits=False, error=None)
    outlook = constraint.outlook
    return FoundOutlook(sequence.stream, True, outlook.forced, outlook.fits, error or outlook.error)


def _tell(sequence: Sequence, found: FoundOutlook) -> None:
    if not found.known:
        return
    outlook = Outlook()
    outlook.forced, outlook.fits, outlook.error = found.forced, found.fits, found.error
    constraint_of(sequence).tell(outlook)
