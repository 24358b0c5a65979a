"""A lookout: where it is found what comes next in streams that have grammars, as whoever steps asks for it.

It knows sequences, rows and outlooks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from collections.abc import Sequence as Several
from collections.abc import Set as AbstractSet
from typing import Protocol

from engine.schedule.batch import Row
from engine.schedule.sequence import Sequence
from engine.structure.constraint import Constraint
from engine.structure.matcher import GrammarError

Masks = list[bytes | None]  # of a row: of each token that it samples
Found = list[tuple[Row, Masks | GrammarError]]


class Lookout(Protocol):
    """Where it is found what comes next in the streams that are `unsettled`, those of whose outlook there may
    be news. What is known of one hangs on when it was looked at, and stands until its tokens change."""

    @property
    def busy(self) -> bool:
        """Whether a step would settle something, without being woken for it."""

    def start(self) -> None:
        """Have whatever happened to tokens followed."""

    def before_plan(self) -> Iterator[Sequence]:
        """Each just looked at, as far as that is of use to a plan."""

    def before_choice(self, rows: Several[Row], masks_of: Callable[[Row], Masks | GrammarError]) -> Found:
        """All that can be chosen in, just looked at."""

    def wake_for(self, stream: int) -> None:
        """As soon as there is news of it: somebody waits for that."""

    def end(self, sequence: Sequence) -> None:
        """It has no grammar from now on."""


MakeLookout = Callable[
    [Mapping[int, Sequence], Callable[[], None], Callable[[AbstractSet[int]], bool]],
    Lookout,
]  # of the unsettled; `wake`, and whether any stream but these has something to compute


def forces(sequence: Sequence) -> bool:
    return sequence.sampling.grammar is not None and sequence.sampling.grammar.force


def constraint_of(sequence: Sequence) -> Constraint:
    assert sequence.constraint is not None
    return sequence.constraint
