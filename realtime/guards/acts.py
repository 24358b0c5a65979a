"""What guards have done to a stream, in order: which token was banned where, and what was let through.

It is part of what a stream knows: another engine, and a fork, go on by it. A rewind by a client takes back
what was done behind it, as if it had not come so far; one by a guard is itself an act. It knows no text.
"""

from __future__ import annotations

from collections import Counter

from msgspec import Struct

from midstream.protocol import Guard

ACT_BYTES = 100


class Act(Struct, frozen=True):
    """`token`: what is banned at `index`; None where a guard let it pass there, or has had its say."""

    guard: Guard
    index: int
    token: int | None = None


class Acts:
    """Asked with every token, of each guard: so it is known which are whose, for one may have let by very
    many."""

    def __init__(self) -> None:
        self._acts: list[Act] = []
        self._rewinds = Counter[str]()  # by name
        self._passed: dict[str, list[Act]] = {}  # by name, those that let something by

    @property
    def bytes(self) -> int:
        return ACT_BYTES * len(self._acts)

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
        self._acts.append(act)
        if act.token is None:
            self._passed.setdefault(act.guard.name, []).append(act)
        else:
            self._rewinds[act.guard.name] += 1

    def times(self, name: str) -> int:
        """How often the guard of this name has rewound."""
        return self._rewinds[name]

    def passed(self, guard: Guard, index: int | None = None) -> bool:
        """Whether this very guard has had its say, at this index or anywhere."""
        own = self._passed.get(guard.name, [])
        return any(act.guard == guard and index in (None, act.index) for act in reversed(own))

    def cut(self, index: int) -> None:
        """All that was done since the stream stood before this output token is taken back."""
        while self._acts and self._acts[-1].index > index:
            act = self._acts.pop()
            if act.token is None:
                self._passed[act.guard.name].pop()
            else:
                self._rewinds[act.guard.name] -= 1

    def until(self, index: int) -> Acts:
        """Of another that goes on as this one stood there."""
        again = Acts()
        again._acts, again._rewinds = self._acts[:], self._rewinds.copy()
        again._passed = {name: acts[:] for name, acts in self._passed.items()}
        again.cut(index)
        return again
