"""The recovery of streams on other engines: all at once, unless one of them may be what killed the last.

An engine that dies is mostly killed from outside, and what it was doing is not to blame. Under a stream that
kills engines they die alike: before it has moved on there, or after it has moved on as often as in the last.
Whoever an engine dies under like that is a suspect. Suspects are tried on one engine, in a few parts, each
when the one before has moved on a little, so that no two of them have moved on as often; until so many in a
row have died alike under one of them, and no other, that it is the culprit. Where there are other engines the
rest goes on there meanwhile, so that a stream that kills engines does not kill all of them.

Pure: numbers in, numbers out. It knows no stream, no engine and no time.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from typing import NamedTuple

DEATHS = 4  # of engines in a row that die alike under a stream, until it is given up
FEW = 3  # times that one moves on by what the last engine did and did not tell
PARTS = 32  # of suspects


class Death(NamedTuple):
    """The last engine that died under a stream, which has not moved on more often since."""

    moves: int  # how often it had moved on there
    row: int  # how many deaths in a row were alike, with this

    def is_like(self, moves: int) -> bool:
        """Whether one behind so many moves is; if not, it has come too early."""
        return moves <= FEW or moves >= self.moves - FEW

    def is_still_to_come(self, moves: int) -> bool:
        """Whether there have been several, and so many moves are too few for another."""
        return self.row > 1 and not self.is_like(moves)


class EngineRecovery:
    def __init__(self) -> None:
        # Of suspects, to be tried one after the other; there may be thousands, each of which may end first.
        self._groups: deque[dict[int, None]] = deque()
        self._moves: dict[int, Counter[int]] = {}  # by engine: how often each stream has moved on there
        self._unproven: dict[int, set[int]] = {}  # by engine: whom it was given and who has hardly moved on
        self._preparing: dict[int, set[int]] = {}  # those of them that have nothing to show for it yet
        self._deaths: dict[int, Death] = {}  # by stream
        self._tried_on: int | None = None  # the engine that suspects are tried on
        self._watched: set[int] = set()  # suspects there that have not outlived what they are suspected of

    @property
    def suspicious(self) -> bool:
        """Whether somebody may be what kills engines, and has not moved on since."""
        return bool(self._groups) or bool(self._tried_on is not None and self._unproven.get(self._tried_on))

    @property
    def suspects(self) -> AbstractSet[int]:
        """Who waits to be tried: asked for once for many, since there may be thousands of both."""
        return {number for group in self._groups for number in group}

    def takes_starts(self, engine: int) -> bool:
        """Whether nobody there has still to show a first move: nobody else should come in until then."""
        return not (self.suspicious and engine == self._tried_on)

    def is_apart(self, engine: int) -> bool:
        """Whether it is better left to those who are tried there."""
        return engine == self._tried_on

    def is_watched(self, engine: int) -> bool:
        """Whether others wait until somebody there has moved on."""
        return engine == self._tried_on or bool(self._unproven.get(engine))

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

    def engine_died(
        self, engine: int, at_rest: AbstractSet[int] = frozenset(), moved: Iterable[int] = ()
    ) -> int | None:
        """Returns the culprit, if that is clear now. `at_rest`: for whom it had nothing to compute. `moved`:
        who has moved on there besides, as is known now that nobody is given to it any more."""
        for number in moved:
            self._move(engine, number)
        watched = set(self._watched) if engine == self._tried_on else set[int]()
        moves, unproven = self._take(engine)
        under = {number: self._deaths.get(number) for number in (moves.keys() | unproven) - at_rest}
        early = {number for number, last in under.items() if last and last.is_still_to_come(moves[number])}
        alike = {
            number
            for number, last in under.items()
            if number not in early and (last.is_like(moves[number]) if last else not moves[number])
        }
        blamed = alike
        if alike & watched:  # not who came along with them, unless it has hardly moved on for the second time
            again = {number for number in alike if (last := under[number]) and last.moves <= FEW}
            blamed = alike & (watched | unproven | again)
        for number in under.keys() - early:
            last = under[number]
            self._deaths[number] = Death(moves[number], 1 + last.row if last and number in blamed else 1)
        for number in self._deaths.keys() - under.keys():
            self._deaths[number] = Death(self._deaths[number].moves, 1)  # engines die under others, too
        suspects = sorted(blamed | early, key=lambda number: (moves[number], number))
        culprit = None
        if len(blamed) == 1 and self._deaths[min(blamed)].row >= DEATHS:
            (culprit,) = blamed
            suspects.remove(culprit)
            del self._deaths[culprit]
        size = -(-len(suspects) // PARTS) or 1
        parts = [dict.fromkeys(suspects[at : at + size]) for at in range(0, len(suspects), size)]
        self._groups.extendleft(reversed(parts))
        return culprit

    def engine_left(self, engine: int) -> None:
        """The engine ended because it was told to: who was tried there is tried elsewhere."""
        watched = sorted(self._watched) if engine == self._tried_on else []
        self._take(engine)
        if watched:
            self._groups.appendleft(dict.fromkeys(watched))

    def engine_ready(self, engine: int, waiting: list[int], *, others: bool) -> list[int]:
        """An engine with nobody on it, and the streams that no other has: returns those that it is given now.
        `others`: whether there are engines for those who are not suspected while suspects are tried here."""
        live = set(waiting)
        groups = [dict.fromkeys(number for number in group if number in live) for group in self._groups]
        self._groups = deque(filter(None, groups))
        suspects = self.suspects
        given = [number for number in waiting if number not in suspects]
        if self.needs_engine:
            self._tried_on = engine
            along = [] if others else given
            self._moves[engine] = Counter(dict.fromkeys(along, 0))
            return along + self._next_part(engine)
        self.given(engine, given)
        return given

    def ended(self, engine: int | None, number: int) -> list[int]:
        """A stream is no more; returns those that its engine is given now."""
        for group in self._groups:
            group.pop(number, None)
        self._groups = deque(filter(None, self._groups))
        self._deaths.pop(number, None)
        if engine is None:
            return []
        self._moves.get(engine, Counter[int]()).pop(number, None)
        self._pass(engine, number)
        return self._go_on(engine)

    def trusts(self, engine: int) -> bool:
        """Whether nobody is watched there, or has lost an engine: it need only be counted who moves on."""
        return not (self._deaths or self.is_watched(engine))

    def count(self, engine: int, numbers: Iterable[int]) -> None:
        """These streams have moved on in an engine that is trusted."""
        moves = self._moves.get(engine)
        if moves is None:
            moves = self._moves[engine] = Counter()
        moves.update(numbers)

    def progressed(self, engine: int, number: int, *, rests: bool = False) -> list[int]:
        """A stream has moved on; returns those that its engine is given now. `rests`: it will not go on by
        itself, and is not waited for."""
        self._move(engine, number, rests=rests)
        return self._go_on(engine)

    def _move(self, engine: int, number: int, *, rests: bool = False) -> None:
        self.count(engine, (number,))
        moved = self._moves[engine][number]
        last = self._deaths.get(number)
        if last is not None and moved > last.moves + FEW:
            del self._deaths[number]
            last = None
        if rests or (moved > FEW and last is None and self.is_watched(engine)):
            self._pass(engine, number)
        elif moved > FEW and last is not None:
            self._unproven.get(engine, set()).discard(number)

    def rests(self, engine: int, number: int) -> list[int]:
        """A stream that comes has nothing to be computed; returns those that the engine is given now."""
        self._pass(engine, number)
        return self._go_on(engine)

    def preparing(self, engine: int, number: int) -> None:
        """The engine has begun with a stream that has no credit: it will hear no token of it."""
        self._preparing.setdefault(engine, set()).add(number)

    def prepared(self, engine: int) -> list[int]:
        """Nothing is being prepared there any more; returns those that the engine is given now."""
        moved = self._preparing.pop(engine, ())
        for number in moved:
            self._pass(engine, number)
        return self._go_on(engine) if moved else []

    def _pass(self, engine: int, number: int) -> None:
        """Nobody waits for it any more."""
        self._unproven.get(engine, set()).discard(number)
        if engine == self._tried_on:
            self._watched.discard(number)

    def _go_on(self, engine: int) -> list[int]:
        if engine != self._tried_on or self._unproven.get(engine):
            return []
        if self._groups:
            return self._next_part(engine)
        if not self._watched:
            self._tried_on = None
        return []

    def _next_part(self, engine: int) -> list[int]:
        part = list(self._groups.popleft())
        self.given(engine, part)
        self._watched.update(part)
        return part

    def _take(self, engine: int) -> tuple[Counter[int], set[int]]:
        """What is known of an engine that is no more: who moved on there how often, and who hardly did."""
        self._preparing.pop(engine, None)
        if engine == self._tried_on:
            self._tried_on = None
            self._watched.clear()
        return self._moves.pop(engine, Counter()), self._unproven.pop(engine, set())
