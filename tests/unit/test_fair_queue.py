"""Fair queue: everything comes out once, a client's jobs in order, and nobody waits for another's crowd."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from realtime.hub.fair_queue import FairQueue

Jobs = FairQueue[str]


def queue_of(*jobs: tuple[str, str, int]) -> Jobs:
    """Of (tenant, client, size): each job is named for its client and its number."""
    queue = Jobs()
    counts: dict[str, int] = {}
    for tenant, client, size in jobs:
        counts[client] = counts.get(client, 0) + 1
        queue.put(tenant, client, size, f"{client}{counts[client]}")
    return queue


def drained(queue: Jobs) -> list[str]:
    taken = []
    while queue:
        taken.append(queue.take())
    return taken


def test_tenants_of_equal_jobs_have_a_turn_each() -> None:
    crowd = [("a", "x", 10)] * 4
    assert drained(queue_of(*crowd, ("b", "y", 10), ("b", "y", 10))) == ["x1", "y1", "x2", "y2", "x3", "x4"]


def test_clients_of_one_tenant_have_a_turn_each_and_many_of_them_are_one_tenant() -> None:
    queue = queue_of(("a", "x", 10), ("a", "x", 10), ("a", "y", 10), ("b", "z", 10), ("b", "z", 10))
    assert drained(queue) == ["x1", "z1", "y1", "z2", "x2"]


def test_a_small_job_passes_a_crowd_of_large_ones_wherever_they_come_from() -> None:
    crowd = [("a", f"x{n}", 1000) for n in range(50)]
    assert drained(queue_of(*crowd, ("a", "y", 3)))[0] == "y1"
    assert drained(queue_of(*crowd, ("b", "y", 3)))[0] == "y1"


def test_small_jobs_pass_a_large_one_only_until_they_have_had_as_much() -> None:
    queue = queue_of(("a", "large", 1000))
    passed = 0
    while True:
        queue.put("a", f"small{passed}", 10, "small")  # each a client of its own
        if queue.take() == "large1":
            break
        passed += 1
    assert passed == 99


def test_who_comes_back_still_owes_what_it_had() -> None:
    queue = queue_of(("a", "x", 100), *[("a", "y", 30)] * 5)
    assert [queue.take() for _ in range(4)] == ["y1", "y2", "y3", "x1"]
    queue.put("a", "x", 100, "x2")
    assert drained(queue) == ["y4", "y5", "x2"]


def test_who_was_away_has_saved_nothing_up() -> None:
    queue = queue_of(*[("a", "x", 10)] * 20)
    for _ in range(10):
        queue.take()
    for _ in range(3):
        queue.put("a", "y", 10, "y")
    assert drained(queue)[:6] == ["x11", "y", "x12", "y", "x13", "y"]


@pytest.mark.parametrize("of_one_tenant", [True, False])
def test_a_turn_looks_at_few_however_many_wait(of_one_tenant: bool) -> None:
    looks = 0

    class Size(int):
        def __radd__(self, tag: int) -> int:
            nonlocal looks
            looks += 1
            return tag + int(self)

    queue = Jobs()
    for n in range(500):
        queue.put("a" if of_one_tenant else f"a{n}", f"x{n}", Size(1 + n % 7), f"x{n}")
    looks = 0
    taken = drained(queue)
    assert sorted(taken) == sorted(f"x{n}" for n in range(500))
    assert looks < 500 * 20


jobs = st.tuples(st.sampled_from("ab"), st.sampled_from("xyz"), st.integers(0, 50))


@given(st.lists(jobs | st.none(), max_size=80))
def test_all_come_out_once_and_those_of_one_client_in_order(
    actions: list[tuple[str, str, int] | None],
) -> None:
    queue = FairQueue[tuple[str, str, int]]()
    put, taken = 0, []
    for action in actions:
        if action is not None:
            tenant, client, size = action
            queue.put(tenant, client, size, (tenant, client, put))
            put += 1
        elif queue:
            taken.append(queue.take())
    while queue:
        taken.append(queue.take())
    assert sorted(number for _, _, number in taken) == list(range(put))
    for tenant in "ab":
        for client in "xyz":
            mine = [number for *whose, number in taken if whose == [tenant, client]]
            assert mine == sorted(mine)


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 50)), min_size=1, max_size=60))
def test_tenants_with_something_to_wait_for_differ_by_one_job_each(jobs: list[tuple[str, int]]) -> None:
    """However large the jobs are, and however many each has."""
    queue = FairQueue[tuple[str, int]]()
    for tenant, size in jobs:
        queue.put(tenant, tenant, size, (tenant, size))
    left = {tenant: sum(whose == tenant for whose, _ in jobs) for tenant in "abc"}
    had = dict.fromkeys("abc", 0)
    while queue:
        tenant, size = queue.take()
        had[tenant] += size
        left[tenant] -= 1
        waiting = [had[one] for one in "abc" if left[one]]
        if waiting:
            assert had[tenant] - min(waiting) <= 50
