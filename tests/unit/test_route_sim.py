"""The simulation of routing, in a short run: it counts what it says it does, and the product's policy stands
where docs/bench.md puts it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench.route_sim.__main__ import Setting, fleets, played
from bench.route_sim.policies import POLICIES, ours, round_robin
from bench.route_sim.replica import STEP_S, STEP_TOKENS, TOKEN_S, Replica
from bench.route_sim.trace import BLOCK, Request, made_up, read

OLD = Setting("old news", 8, 8, 0.05, 1)


def test_a_replica_computes_a_prompt_in_chunks_and_then_finds_it() -> None:
    replica = Replica()
    replica.add(Request(1.0, (1, 2, 3, 4), 4 * BLOCK + 10, 5))
    replica.advance(10.0)
    steps = -(-(4 * BLOCK + 10) // STEP_TOKENS)
    assert replica.first_token_s == [pytest.approx(steps * STEP_S + TOKEN_S * (4 * BLOCK + 10))]
    assert not replica.busy
    replica.add(Request(11.0, (1, 2, 3, 9), 4 * BLOCK, 5))
    assert replica.found == 3 * BLOCK
    assert replica.waiting_tokens == BLOCK


def test_decoding_in_one_go_is_as_step_by_step() -> None:
    whole, often = Replica(), Replica()
    for replica in (whole, often):
        replica.add(Request(0.0, (), 100, 300))
        replica.add(Request(0.0, (), 100, 900))
    whole.advance(4.0)
    for at in range(1, 401):
        often.advance(at / 100)
    for replica in (whole, often):
        replica.add(Request(4.0, (), 1000, 10))
        replica.advance(100.0)
    assert whole.first_token_s == pytest.approx(often.first_token_s)


def test_a_file_of_mooncakes_form_is_read(tmp_path: Path) -> None:
    row = {"timestamp": 3000, "input_length": 1100, "output_length": 7, "hash_ids": [5, 6]}
    (tmp_path / "trace.jsonl").write_text(json.dumps(row) + "\n")
    (request,) = read(tmp_path / "trace.jsonl", seed=1)
    assert 3.0 <= request.at_s < 6.0
    assert request[1:] == ((5, 6), 1100, 7)


def test_every_policy_serves_everybody_and_the_products_is_no_worse_than_turns() -> None:
    trace = [request for request in made_up(seed=3) if request.at_s < 100]
    outcomes = {name: played(trace, OLD, made, seed=3) for name, made in POLICIES.items()}
    assert all(0 <= outcome.found <= 1 for outcome in outcomes.values())
    mine, turns = played(trace, OLD, ours, seed=3), played(trace, OLD, round_robin, seed=3)
    assert mine.mean_s < turns.mean_s
    assert mine.found > turns.found


def test_a_token_costs_a_larger_fleet_what_it_costs_a_small_one() -> None:
    """Within 5 %, at as much to do for each replica, though routers are many and their news are old."""
    small, large = (fleets(size, minutes=1.0, seed=1) for size in (8, 64))
    assert large.cost_us <= 1.05 * small.cost_us
    assert large.mean_s <= 1.05 * small.mean_s
