"""The fair cache: within its limit whatever comes, and nobody loses an equal share to others."""

from __future__ import annotations

import os
from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from realtime.hub.fair_cache import FairCache, Holdings

EXAMPLES = os.environ.get("MIDSTREAM_EXAMPLES")
SETTINGS = settings(
    max_examples=int(EXAMPLES or 200), derandomize=EXAMPLES is None, database=None, deadline=None
)
LIMIT = 24
OWNERS = st.integers(0, 4)
PUT = st.tuples(OWNERS, st.integers(0, 40), st.integers(1, 30))


class Model:
    """The same as a plain list, looked through from its beginning."""

    def __init__(self) -> None:
        self.entries: list[tuple[int, int, int]] = []  # owner, key, weight

    @property
    def held(self) -> Counter[int]:
        held: Counter[int] = Counter()
        for owner, _, weight in self.entries:
            held[owner] += weight
        return held

    def remove(self, key: int) -> None:
        self.entries = [entry for entry in self.entries if entry[1] != key]

    def lose(self, key: int) -> None:
        """One goes: it must be the oldest of an owner who holds the most, which is above an equal share."""
        owner = next(owner for owner, other, _ in self.entries if other == key)
        assert key == next(other for whose, other, _ in self.entries if whose == owner)
        assert self.held[owner] == max(self.held.values())
        assert self.held[owner] * len(self.held) > LIMIT
        self.remove(key)


@SETTINGS
@given(st.lists(st.one_of(PUT, st.integers(0, 40)), max_size=120))
def test_it_keeps_within_its_limit_and_takes_from_whoever_holds_the_most(
    acts: list[tuple[int, int, int] | int],
) -> None:
    cache, model = FairCache[int, int, str](LIMIT), Model()
    for act in acts:
        if isinstance(act, int):
            cache.pop(act)
            model.remove(act)
        else:
            owner, key, weight = act
            model.remove(key)
            model.entries.append(act)
            for gone in cache.put(owner, key, f"{owner} {key}", weight):
                assert model.held.total() > LIMIT, "nothing goes while there is room"
                model.lose(gone)
        assert model.held.total() <= LIMIT
        assert len(cache) == len(model.entries)
        assert all(cache.get(key) == f"{owner} {key}" for owner, key, _ in model.entries)
        assert cache.oldest == next(((key, f"{owner} {key}") for owner, key, _ in model.entries), None)


@SETTINGS
@given(st.lists(st.tuples(OWNERS, st.integers(1, 9)), max_size=200))
def test_what_is_remembered_of_who_held_what_does_not_pile_up(changes: list[tuple[int, int]]) -> None:
    holdings, held = Holdings[int](), Counter[int]()
    for owner, more in changes:
        amount = -held[owner] if held[owner] > 20 else more
        held[owner] += amount
        holdings.change(owner, amount)
        assert holdings.total == held.total()
        if held.total():
            assert held[holdings.largest()] == max(held.values())
        assert len(holdings._ranking) <= 2 * len(+held) + 8
