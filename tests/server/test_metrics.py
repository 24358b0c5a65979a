"""What `/metrics` says of a real run: every name that is documented, bounded labels, and the truth."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

from tests.server.independent_client import client_of
from tests.server.server_process import PATIENCE_S, Served

Serve = Callable[..., Served]
DOCUMENT = Path(__file__).parents[2] / "docs/observability.md"
ROW = re.compile(
    r"^\| `([a-z_]+?)(?:_total)?(?:\{([a-z_,]+)\})?` \| (histogram|counter|gauge) \|", re.MULTILINE
)
FLEET = "midstream_fleet_"
GREEDY: dict[str, Any] = {"ignore_eos": True, "temperature": 0}


def documented(*, of_fleet: bool) -> dict[str, tuple[str, set[str]]]:
    """`of_fleet`: what is told of one on many machines, and nothing else."""
    return {
        name: (kind, set(labels.split(",")) if labels else set())
        for name, labels, kind in ROW.findall(DOCUMENT.read_text())
        if name.startswith(FLEET) == of_fleet
    }


def told(served: Served) -> list[Metric]:
    status, text = served.get("/metrics")
    assert status == 200
    return list(text_string_to_metric_families(text))


def shape(family: Metric) -> tuple[str, set[str]]:
    return family.type, {label for sample in family.samples for label in sample.labels} - {"le"}


@pytest.fixture
def served(serve: Serve) -> Served:
    return serve("--toy-step-ms", "5")


async def test_all_of_it_is_documented_and_nothing_else_is(served: Served) -> None:
    async with client_of(served.url) as client:
        stream = await client.start("a", params=GREEDY | {"max_tokens": 3})
        await stream.rest()
    assert served.get("/v1/nothing")[0] == 404
    assert {family.name: shape(family) for family in told(served)} == documented(of_fleet=False)


async def test_a_run_can_be_read_from_it(served: Served) -> None:
    async with client_of(served.url) as client:
        steered = await client.start("steered", params=GREEDY, credit={"limit": 9})
        await steered.until_index(9)
        await steered.ask("rewind", "rewound", to=4)
        read = await client.start("read", params=GREEDY | {"max_tokens": 40})
        await read.rest()
        left = await client.start("left", params=GREEDY, on_disconnect="pause")
        await left.until_index(1)
        await steered.ask("cancel", "final")
        assert (await served.metrics())["midstream_connections"] == 1
    async with httpx2.AsyncClient(base_url=served.http, timeout=PATIENCE_S) as http:
        body = {"model": "toy", "prompt": "Once", "max_tokens": 5, "ignore_eos": True}
        assert (await http.post("/v1/completions", json=body)).status_code == 200
    now = await served.until(lambda now: now['stream_disconnects_total{cause="closed"}'] == 1)
    by_route = {
        route: now[f'stream_ttft_seconds_count{{cache="miss",model="toy",route="{route}"}}']
        for route in ("websocket", "http")
    }
    assert by_route == {"websocket": 3, "http": 1}
    assert now["stream_inter_token_seconds_count"] >= 39 + 4
    assert now["stream_inter_token_seconds_sum"] / now["stream_inter_token_seconds_count"] >= 0.005
    assert now["scheduler_credit_stalls_total"] >= 1
    assert now['midstream_control_steps_count{frame="rewind"}'] == 1
    assert now['midstream_control_seconds_count{frame="cancel"}'] == 1
    assert now['midstream_streams_finished_total{finish_reason="length"}'] == 2
    assert now['midstream_tenant_streams_total{tenant="local"}'] == 4
    assert now['midstream_tenant_tokens_total{kind="output",tenant="local"}'] >= 9 + 40 + 1 + 5
    assert now["midstream_tokens_discarded_total"] >= 5
    assert now["midstream_connections"] == 0
    await served.until(lambda now: now["midstream_event_loop_lag_seconds_count"] > 0)


async def test_an_engine_that_was_replaced_is_counted_and_totals_never_fall(served: Served) -> None:
    async with client_of(served.url) as client:
        stream = await client.start("outlives", params=GREEDY | {"max_tokens": 200})
        await stream.until_index(20)
        before = await served.metrics()
        os.kill(served.engine, signal.SIGKILL)
        await stream.rest()
    after = await served.until(lambda now: now["midstream_engine_restarts_total"] == 1)
    assert after['stream_retries_total{reason="engine"}'] == 1
    fallen = {name for name in before if name.endswith(("_total", "_count")) and after[name] < before[name]}
    assert not fallen


async def test_a_server_that_counts_nothing_says_so_and_serves(serve: Serve) -> None:
    served = serve("--metrics", "off")
    async with client_of(served.url) as client:
        await (await client.start("a", params=GREEDY | {"max_tokens": 3})).rest()
    status, text = served.get("/metrics")
    assert (status, "--metrics" in text) == (404, True)
