"""A little of everything that `make reliability` tries: what it holds a server to must hold here as well.

How much, how often and how fast is measured there; here nothing is timed. Engines that die and hang are in
`test_engine_death.py` and `test_fleet.py`, the cases of RFC 6455 in `test_conformance.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import httpx2
import pytest

from bench.reliability import (
    abuse_search,
    abusive_frames,
    connections,
    cuts,
    drains,
    fuzz,
    grammars,
    handshakes,
    poison,
    readers,
    restarts,
    soak,
    socket_fuzz,
)
from bench.reliability.scoring import quiet_run
from bench.reliability.trial_server import complaints
from tests.fakes.cutting_proxy import CutKind
from tests.fakes.steering_clients import STEERING_CLIENTS
from tests.server.server_process import PATIENCE_S, Served

Serve = Callable[..., Served]


@pytest.mark.parametrize("packed", [False, True], ids=["json", "msgpack"])
async def test_mutated_frames_raise_nothing_and_a_good_stream_beside_them_is_exact(packed: bool) -> None:
    fed = await fuzz.feeding(7, 12 * fuzz.A_CONNECTION, packed)
    assert fed.wrong == []
    assert fed.good
    assert fed.steered


def test_generated_schemas_are_kept_to_on_a_model_that_knows_nothing() -> None:
    found = grammars.on_the_tiny_model(48)
    assert found.wrong == []
    assert found.ended > 40
    assert found.forced


async def test_mutated_frames_and_bodies_over_sockets_are_refused_in_words(serve: Serve) -> None:
    served = serve("--toy-step-ms", "5")
    score = await quiet_run(served.http, range(2), STEERING_CLIENTS)
    frames, bodies = await socket_fuzz.batter(served, score, 800, 7)
    assert (frames >= 800, bodies) == (True, 16)
    assert score.wrong + complaints(served) == []


async def test_whatever_valid_frames_are_said_little_is_held_for_who_does_not_read() -> None:
    found = await abuse_search.search(3, tokens=100)
    assert len(found) == len(abusive_frames.KINDS) + 3
    for one in found:  # a stream holds what it knows
        begins = not abusive_frames.ANEW.isdisjoint(one.kinds)
        assert one.held_bytes < (16 << 20 if begins else 1 << 20), one


@pytest.mark.parametrize("path", socket_fuzz.PATHS)
async def test_a_body_that_no_stack_can_hold_is_the_clients_mistake(server: Served, path: str) -> None:
    async with httpx2.AsyncClient(base_url=server.http, timeout=PATIENCE_S) as client:
        response = await client.post(path, content=b"[" * 4000)
    assert 400 <= response.status_code < 500


@pytest.mark.parametrize(("how", "times"), [("reset", 5), ("close", 5), ("silence", 2), ("stall", 5)])
async def test_wires_are_cut_and_nothing_is_lost_doubled_or_reordered(
    server: Served, how: CutKind, times: int
) -> None:
    """That one has fallen silent takes time to be seen."""
    score = await quiet_run(server.http, range(2), STEERING_CLIENTS)
    assert await cuts.cut(server, score, 7, times, (how,)) > times
    assert score.wrong == []


async def test_readers_that_read_nothing_are_cut_off_and_leave_nothing_behind(serve: Serve) -> None:
    served = serve("--toy-step-ms", "5", "--send-timeout-s", "1")
    crowd = await readers.hostile(served, 6)
    await readers.until_freed(served, crowd, 0)
    metrics = await served.until_idle()
    assert metrics['midstream_streams_finished_total{finish_reason="cancelled"}'] == 12


async def test_many_connections_stream_and_leave_no_task_behind(slow: Served) -> None:
    before = (await slow.metrics())["midstream_tasks"]
    crowd = await connections.crowd(f"{slow.host}:{slow.port}", 20)
    reading = [connections.Reader(sock) for sock in crowd]
    for reader in reading:
        reader.start()
    await asyncio.to_thread(connections.read_all, reading)
    connections.hang_up(crowd)
    await slow.until(lambda now: now["midstream_tasks"] == before)


async def test_half_a_handshake_is_hung_up_on(server: Served) -> None:
    host = f"{server.host}:{server.port}"
    halves = [await handshakes.half(host) for _ in range(50)]
    assert await handshakes.connect_ms(host), "and meanwhile others come in"
    await handshakes.until_all_gone(halves)
    for sock in halves:
        sock.close()


@pytest.mark.parametrize("seed", range(6))
def test_poisoned_requests_harm_no_neighbour(seed: int) -> None:
    wrong: list[str] = []
    poison.one_round(seed, wrong)
    assert wrong == []


async def test_a_drain_under_load_loses_nothing_that_was_accepted() -> None:
    wrong: list[str] = []
    await drains.drain(7, wrong)
    assert wrong == []


async def test_streams_whose_homes_both_die_go_on_as_they_would_have(server: Served) -> None:
    wrong: list[str] = []
    assert await restarts.one_death(server, "toy", 4, wrong) > 0
    assert wrong == []


async def test_after_everything_at_once_a_server_holds_what_it_held(serve: Serve) -> None:
    served = serve("--engine-spare", "on", "--toy-step-ms", "5")
    score = await quiet_run(served.http, range(2), STEERING_CLIENTS)
    before = await soak.held(served)
    assert await soak.under_load(served, score, 3.0)
    assert await soak.settled(served, before) == before
    assert score.wrong == []
