"""How many engines there are, by demand: whatever gateways say, within what a model may have; and under a
load that stays as it is, as many as it takes, without back and forth."""

from __future__ import annotations

import itertools
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from keeper.gateways import together
from keeper.plan import ModelPlan, Need, Plan
from keeper.scaling import QUIET_S, Scaling
from realtime.hub.demand import NOWHERE, Demand, Wait

LOOK_S = 1.0
seconds = st.floats(0, 100)
waits = st.builds(Wait, seconds, seconds)
demands = st.builds(
    Demand, st.integers(0, 50), seconds, st.dictionaries(st.sampled_from([NOWHERE, "e0", "e1", "e2"]), waits)
)
ranges = st.tuples(st.integers(1, 5), st.integers(0, 10)).map(lambda pair: (pair[0], sum(pair)))


def plan(least: int, most: int, keep_alive_s: float | None = None, *, engines: int | None = None) -> Plan:
    has = least if engines is None else engines
    return Plan("", {"a": ModelPlan(has, [], Need(1, 0), least, most, 1.0, keep_alive_s)})


class Looked(NamedTuple):
    demand: Demand | None  # None where nobody says anything
    ready: int
    passed_s: float


@given(
    ranges,
    st.one_of(st.none(), st.floats(0, 100)),
    st.lists(
        st.builds(Looked, st.one_of(st.none(), demands), st.integers(0, 12), st.floats(0.1, 50)), max_size=40
    ),
)
def test_whatever_is_said_it_has_what_it_may_have(
    least_and_most: tuple[int, int], keep_alive_s: float | None, looked: list[Looked]
) -> None:
    least, most = least_and_most
    has, scaling, now = plan(least, most, keep_alive_s), Scaling(), 0.0
    for demand, ready, passed_s in looked:
        now += passed_s
        before = has.models["a"].engines
        changed = scaling.engines(has, None if demand is None else {"a": demand}, {"a": ready}, now)
        if demand is None:
            assert not changed, "who knows nothing changes nothing"
        has = has.with_engines(changed)
        after = has.models["a"].engines
        assert least <= after <= most or (after == 0 and keep_alive_s is not None)
        if demand is not None and demand.streams:
            assert after, "it sleeps only where nobody needs it"
        if not before and after:
            assert after == least
        if before and after:
            assert before / 2 <= after <= max(2 * before, before + 1)


def test_it_wakes_at_once_and_sleeps_when_nobody_has_needed_it_for_long_enough() -> None:
    scaling, has = Scaling(), plan(2, 4, 10.0, engines=0)
    assert scaling.engines(has, {"a": Demand(1)}, {}, 0.0) == {"a": 2}
    has = plan(2, 4, 10.0)
    told = [(1.0, 0), (10.0, 0), (10.5, 1), (11.0, 0), (20.0, 0), (21.0, 0)]
    slept = [scaling.engines(has, {"a": Demand(streams)}, {"a": 2}, now) for now, streams in told]
    assert slept == [{}, {}, {}, {}, {}, {"a": 0}]


def test_nobody_is_late_where_one_engine_is_free_and_all_are_where_none_is() -> None:
    busy = Wait(30.0, 5.0)
    for ready, waiting, grows in [(2, {"e0": busy}, False), (2, {"e0": busy, "e1": busy}, True)]:
        scaling, has = Scaling(), plan(1, 8, engines=2)
        looks = [
            scaling.engines(has, {"a": Demand(9, 1e9, waiting)}, {"a": ready}, now) for now in (0.0, 0.5, 1.0)
        ]
        assert looks == [{}, {}, {"a": 4} if grows else {}]


def test_engines_that_are_being_started_count_as_if_they_had_their_share() -> None:
    for work_s, more in [(1.9, {}), (2.1, {"a": 3})]:
        scaling, has = Scaling(), plan(1, 8, engines=2)
        told = {"a": Demand(9, 1e9, {"e0": Wait(work_s, 5.0)})}
        assert [scaling.engines(has, told, {"a": 1}, now) for now in (0.0, 1.0)] == [{}, more]


def test_what_gateways_say_is_added_up() -> None:
    one, other = (
        Demand(2, 3.0, {"e0": Wait(1.0, 4.0)}),
        Demand(1, 1.0, {"e0": Wait(2.0, 3.0), "e1": Wait(5.0)}),
    )
    assert together([one, other]) == Demand(3, 4.0, {"e0": Wait(3.0, 4.0), "e1": Wait(5.0)})
    assert together([one]) == one


class Load:
    """`arrives` seconds of work come each second, and go to the engine that is soonest; a new one takes a
    while. Whoever decodes has a context that would have to be computed again."""

    def __init__(self, arrives: float, held_s: float) -> None:
        self.arrives, self.held_s = arrives, held_s
        self.waiting: list[float] = [0.0]
        self.coming: list[float] = []

    def passes(self, engines: int, now: float) -> Demand:
        self.coming += [now + 5.0] * (engines - len(self.waiting) - len(self.coming))
        gone = max(0, len(self.waiting) + len(self.coming) - engines)
        homeless = self.arrives * LOOK_S
        for _ in range(gone):
            homeless += self.waiting.pop() + self.held_s / (engines + gone)
        self.waiting += [0.0 for at in self.coming if at <= now]
        self.coming = [at for at in self.coming if at > now]
        for _ in range(20):
            soonest = self.waiting.index(min(self.waiting))
            self.waiting[soonest] += homeless / 20
        self.waiting = [max(0.0, wait - LOOK_S) for wait in self.waiting]
        return Demand(
            1 + int(10 * self.arrives),
            self.held_s,
            {str(at): Wait(wait, wait) for at, wait in enumerate(self.waiting) if wait},
        )


@pytest.mark.parametrize("arrives", [0.1, 1.2, 2.5, 7.0])
@pytest.mark.parametrize("held_s", [0.0, 30.0])
def test_under_a_load_that_stays_the_count_comes_to_rest(arrives: float, held_s: float) -> None:
    has, scaling, load, counts = plan(1, 16), Scaling(), Load(arrives, held_s), list[int]()
    for look in range(int(8 * 3600 / LOOK_S)):
        now = look * LOOK_S
        demand = load.passes(has.models["a"].engines, now)
        changed = scaling.engines(has, {"a": demand}, {"a": len(load.waiting)}, now)
        has = has.with_engines(changed)
        counts.append(has.models["a"].engines)
    changes = [now for now, (before, after) in enumerate(itertools.pairwise(counts)) if before != after]
    lately = [at for at in changes if at > len(counts) // 2]
    assert len(lately) <= 8, "in the last four hours"
    rest = max(set(counts), key=counts.count)
    assert arrives <= rest <= 2 * arrives + 1
    assert max(counts) <= 4 * arrives + 2
    assert len(changes) <= 40


def test_after_a_step_of_load_it_grows_within_seconds_and_when_that_is_over_it_shrinks() -> None:
    has, scaling, load = plan(1, 4), Scaling(), Load(0.1, 0.0)
    grew = shrank = None
    for look in range(1200):
        now = look * LOOK_S
        load.arrives = 3.0 if 60 <= now < 120 else 0.1
        demand = load.passes(has.models["a"].engines, now)
        has = has.with_engines(scaling.engines(has, {"a": demand}, {"a": len(load.waiting)}, now))
        count = has.models["a"].engines
        grew = now if grew is None and count > 1 else grew
        shrank = now if count == 1 and grew is not None else shrank
        if shrank == now:
            break
    assert grew is not None
    assert shrank is not None
    assert grew - 60 <= 3.0, "and then the engine is started"
    assert shrank - 120 <= 5 * QUIET_S
    assert structs.replace(has.models["a"], engines=1) == plan(1, 4).models["a"]
