"""The recovery of streams on other engines: all at once, unless one of them may be what killed the last.

An engine that dies is mostly killed from outside, and what it was doing is not to blame. But if it dies
before everybody whom it was given has moved on, one of those who have not may be: they are suspects. Suspects
are tried on one engine, in a few parts, then one by one, each part when the one before has proven harmless,
until one that is alone with dying engines has shown often enough that it is the culprit. Where there are
other engines the rest goes on there meanwhile, so that a stream that kills engines does not kill all of them.

Pure: numbers in, numbers out. It knows no stream, no engine and no time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

DEATHS_ALONE = 3  # engines that die under one stream alone before it is given up
PARTS = 32  # of suspects


class EngineRecovery:
    def __init__(self) -> None:
        self._groups: deque[list[int]] = deque()  # of suspects, to be tried one after the other
        self._unproven: dict[
            int, set[int]
        ] = {}  # by engine: those of whom it was given that have not moved on
        self._preparing: dict[int, set[int]] = {}  # those of them that have nothing to show for it yet
        self._tried_on: int | None = None  # the engine that was given nobody but who is to be watched
        self._alone: int | None = None  # whom the last trial was of, if of one alone
        self._deaths = 0  # of engines, under that one alone

    @property
    def suspicious(self) -> bool:
        """Whether somebody may be what kills engines."""
        return bool(self._groups) or self._deaths > 0

    def is_suspected(self, number: int) -> bool:
        """Whether it waits to be tried."""
        return any(number in group for group in self._groups)

    def takes_starts(self, engine: int) -> bool:
        """Whether nobody is tried there: nobody else should come in until that is clear."""
        return not (self.suspicious and engine == self._tried_on)

    @property
    def needs_engine(self) -> bool:
        """Whether suspects wait for one to be tried on."""
        return bool(self._groups) and self._tried_on is None

    def proven(self, engine: int) -> bool:
        """Whether everybody whom the engine was given has moved on."""
        return not self._unproven.get(engine) and not (engine == self._tried_on and self._groups)

    def given(self, engine: int, numbers: Iterable[int]) -> None:
        """An engine that others are on is given these besides."""
        self._unproven.setdefault(engine, set()).update(numbers)

    def engine_died(self, engine: int) -> int | None:
        """Returns the culprit, if that is clear now."""
        suspects = sorted(self._unproven.pop(engine, ()))
        self._preparing.pop(engine, None)
        tried = engine == self._tried_on
        if tried:
            self._tried_on = None
        if not suspects:
            return None
        if len(suspects) > 1 or not tried:
            size = -(-len(suspects) // PARTS)
            parts = [suspects[at : at + size] for at in range(0, len(suspects), size)]
            self._groups.extendleft(reversed(parts))
            return None
        self._deaths = self._deaths + 1 if suspects[0] == self._alone else 1
        self._alone = suspects[0]
        if self._deaths < DEATHS_ALONE:
            self._groups.appendleft(suspects)
            return None
        self._deaths = 0
        return self._alone

    def engine_left(self, engine: int) -> None:
        """The engine ended because it was told to: who was tried there is tried elsewhere."""
        unproven = sorted(self._unproven.pop(engine, ()))
        self._preparing.pop(engine, None)
        if engine == self._tried_on:
            self._tried_on = None
            if unproven and self.suspicious:
                self._groups.appendleft(unproven)

    def engine_ready(self, engine: int, waiting: list[int], *, others: bool) -> list[int]:
        """An engine with nobody on it, and the streams that no other has: returns those that it is given now.
        `others`: whether there are engines for those who are not suspected while suspects are tried here."""
        live = set(waiting)
        suspects = [[number for number in group if number in live] for group in self._groups]
        self._groups = deque(filter(None, suspects))
        trusted = [number for number in waiting if not self.is_suspected(number)]
        if self._tried_on is not None or (others and not self._groups):
            self.given(engine, trusted)
            return trusted
        self._tried_on = engine
        if not self._groups:
            return self._try(trusted)
        return ([] if others else trusted) + self._try(self._groups.popleft())

    def ended(self, engine: int | None, number: int) -> list[int]:
        """A stream is no more; returns those that its engine is given now."""
        self._groups = deque(
            filter(None, ([one for one in group if one != number] for group in self._groups))
        )
        return [] if engine is None else self.progressed(engine, number)

    def progressed(self, engine: int, number: int) -> list[int]:
        """A stream has moved on; returns those that its engine is given now."""
        unproven = self._unproven.get(engine, set())
        unproven.discard(number)
        if unproven or engine != self._tried_on:
            return []
        self._deaths = 0
        if self._groups:
            return self._try(self._groups.popleft())
        self._tried_on = None
        return []

    def preparing(self, engine: int, number: int) -> None:
        """The engine has begun with a stream that has no credit: it will hear no token of it."""
        self._preparing.setdefault(engine, set()).add(number)

    def prepared(self, engine: int) -> list[int]:
        """Nothing is being prepared there any more; returns those that the engine is given now."""
        moved = self._preparing.pop(engine, ())
        return [other for number in moved for other in self.progressed(engine, number)]

    def _try(self, group: list[int]) -> list[int]:
        assert self._tried_on is not None
        self._unproven[self._tried_on] = set(group)
        if not group:
            self._tried_on = None
        return group
