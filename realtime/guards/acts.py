"""What guards have done to a stream, in order: which token was banned where, and what was let through.

It is part of what a stream knows: another engine, and a fork, go on by it. A rewind by a client takes back
what was done behind it, as if it had not come so far; one by a guard is itself an act. It knows no text.
"""

from __future__ import annotations

from msgspec import Struct, msgpack

from midstream.protocol import Guard

ACT_BYTES = 300
GUARD_BYTES = 500  # of one that has acted, beside what it says, however often it did
SAID_BYTES = 6  # a byte of that: four at most of a text, and what msgpack holds it in

FEW = 8  # times as many are known of as stand: those are begun anew with

_said = msgpack.Encoder().encode


class Act(Struct, frozen=True):
    """`token`: what is banned at `index`; None where a guard let it pass there, or has had its say."""

    guard: Guard
    index: int
    token: int | None = None


class Acts:
    """Asked with every token, of each guard: so it is known where each had its say, for one may have let by
    very many, and very many may have had the same name. What is known of places that are no more, or are
    another's by now, is passed over, so that to take very many back is not to look at each."""

    def __init__(self) -> None:
        self._acts: list[Act] = []
        self._guards: dict[bytes, Guard] = {}  # that have acted, by what they say: of those alike, one
        self._guard_bytes = 0
        self._passed: dict[int, int] = {}  # by a guard's id, where among the acts it has first had its say
        self._passed_at: dict[tuple[int, int], int] = {}  # and by its id and index
        self._rewinds: dict[str, tuple[int, ...]] = {}  # by name

    @property
    def bytes(self) -> int:
        """Also of what is known of places that are no more."""
        return ACT_BYTES * max(len(self._acts), len(self._passed_at)) + self._guard_bytes

    @property
    def bans(self) -> list[tuple[int, int]]:
        """Tokens that may not stand at an index. Whoever went back to before one has taken it back."""
        bans: list[tuple[int, int]] = []
        least = None
        for act in reversed(self._acts):
            if least is None or act.index <= least:
                least = act.index
                bans += [] if act.token is None else [(act.index, act.token)]
        return bans[::-1]

    def add(self, act: Act) -> None:
        guard, place = self._kept(act.guard), len(self._acts)
        at = (id(guard), act.index)
        if act.token is not None:
            self._rewinds[guard.name] = (*self._rewinds_of(guard.name), place)
        else:
            if not self._stands(self._passed.get(id(guard)), guard):
                self._passed[id(guard)] = place
            if not self._stands(self._passed_at.get(at), guard, act.index):
                self._passed_at[at] = place
        self._acts.append(act if act.guard is guard else Act(guard, act.index, act.token))

    def _kept(self, guard: Guard) -> Guard:
        """The one that says the same: each adjustment brings its own, and what they say may be long."""
        said = _said(guard)
        if said not in self._guards:
            self._guards[said] = guard
            self._guard_bytes += GUARD_BYTES + SAID_BYTES * len(said)
        return self._guards[said]

    def _stands(self, place: int | None, guard: Guard, index: int | None = None) -> bool:
        """Whether it is that guard's say yet."""
        if place is None or place >= len(self._acts):
            return False
        act = self._acts[place]
        return act.guard is guard and act.token is None and index in (None, act.index)

    def _rewinds_of(self, name: str) -> tuple[int, ...]:
        places = self._rewinds.get(name, ())
        while places and not self._is_rewind(places[-1], name):
            places = places[:-1]
        return places

    def _is_rewind(self, place: int, name: str) -> bool:
        if place >= len(self._acts):
            return False
        act = self._acts[place]
        return act.token is not None and act.guard.name == name

    def times(self, name: str) -> int:
        """How often the guard of this name has rewound."""
        return len(self._rewinds_of(name))

    def passed(self, guard: Guard, index: int | None = None) -> bool:
        """Whether this very guard has had its say, at this index or anywhere."""
        kept = self._guards.get(_said(guard))
        if kept is None:
            return False
        place = self._passed.get(id(kept)) if index is None else self._passed_at.get((id(kept), index))
        return self._stands(place, kept, index)

    def cut(self, index: int) -> None:
        """All that was done since the stream stood before this output token is taken back."""
        standing = self._standing(index)
        if self._are_few(standing):
            self._begin_with(self._acts[:standing])
        else:
            del self._acts[standing:]

    def _standing(self, index: int) -> int:
        """How many acts stand before this output token."""
        acts, standing = self._acts, len(self._acts)
        while standing and acts[standing - 1].index > index:
            standing -= 1
        return standing

    def _are_few(self, standing: int) -> bool:
        """Of all that is known of."""
        return FEW * standing < max(len(self._passed_at), len(self._guards))

    def until(self, index: int) -> Acts:
        """Of another that goes on as this one stood there."""
        again, standing = Acts(), self._standing(index)
        if self._are_few(standing):
            again._begin_with(self._acts[:standing])
            return again
        again._acts = self._acts[:standing]
        again._guards, again._guard_bytes = self._guards.copy(), self._guard_bytes
        again._passed, again._passed_at = self._passed.copy(), self._passed_at.copy()
        again._rewinds = self._rewinds.copy()
        return again

    def _begin_with(self, few: list[Act]) -> None:
        """And with nothing else."""
        self._acts, self._guards, self._guard_bytes = [], {}, 0
        self._passed, self._passed_at, self._rewinds = {}, {}, {}
        for act in few:
            self.add(act)
