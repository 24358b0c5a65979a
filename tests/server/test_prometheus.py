"""What ops/ has for Prometheus and Grafana: rules that are told of services by hand, and a real Prometheus
that scrapes a real run and answers every query of the dashboard."""

from __future__ import annotations

import asyncio
import json
import math
import re
import secrets
import shutil
import socket
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.server.independent_client import Client, client_of
from tests.server.server_process import PATIENCE_S, Served, said

OPS = Path(__file__).parents[2] / "ops"
RULES = OPS / "prometheus/midstream.rules.yml"
DASHBOARD: dict[str, Any] = json.loads((OPS / "grafana/midstream.json").read_text())
DOCUMENT = Path(__file__).parents[2] / "docs/observability.md"
EDGES = {"stream_ttft_seconds": (0.15, 0.8), "stream_inter_token_seconds": (0.035,)}
WHERE = "was not found: install it (Debian, Ubuntu: apt install prometheus)"
PROMETHEUS, PROMTOOL = shutil.which("prometheus"), shutil.which("promtool")
with_prometheus = pytest.mark.skipif(PROMETHEUS is None, reason=f"prometheus {WHERE}")
with_promtool = pytest.mark.skipif(PROMTOOL is None, reason=f"promtool {WHERE}")

GREEDY: dict[str, Any] = {"ignore_eos": True, "temperature": 0}


def queries() -> list[str]:
    """All that the dashboard asks for, as Grafana would with everything chosen and a short while shown."""
    asked = [target["expr"] for panel in DASHBOARD["panels"] for target in panel.get("targets", [])]
    asked += [annotation["expr"] for annotation in DASHBOARD["annotations"]["list"]]
    return [re.sub(r"\$(job|instance)", ".*", query.replace("$__rate_interval", "10s")) for query in asked]


# -- rules -----------------------------------------------------------------------------------------


@with_promtool
@pytest.mark.parametrize(
    "words",
    [
        ["test", "rules", "midstream.rules.test.yml"],
        ["check", "rules", "--lint=all", "--lint-fatal", "midstream.rules.yml"],
        ["check", "config", "prometheus.yml"],
    ],
)
def test_the_rules_do_what_they_say(words: list[str]) -> None:
    done = subprocess.run(
        [str(PROMTOOL), *words], cwd=RULES.parent, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_alert_was_told_of_a_service_that_keeps_its_promise_and_of_one_that_breaks_it() -> None:
    alerts = re.findall(r"- alert: (\w+)", RULES.read_text())
    kept, broken = (RULES.parent / "midstream.rules.test.yml").read_text().split("- name: Broken")
    assert alerts
    for alert in alerts:
        assert f"alertname: {alert}}}" in kept, "and says nothing"
        assert re.search(rf"alertname: {alert}\n +exp_alerts:", broken), "and says so"


# -- the dashboard ---------------------------------------------------------------------------------


def test_all_that_is_asked_for_is_documented_or_recorded() -> None:
    names = set(
        re.findall(r"\b(?:stream|scheduler|midstream)_[a-z_]+", "\n".join([*queries(), RULES.read_text()]))
    )
    names = {re.sub(r"_(bucket|sum|count)$", "", name) for name in names}
    known = set(re.findall(r"^\| `([a-z_]+)", DOCUMENT.read_text(), re.MULTILINE))
    recorded = set(re.findall(r"record: (\S+)", RULES.read_text()))
    parts = {part for name in recorded for part in name.split(":")}
    assert names - known <= parts
    assert set(re.findall(r"\bjob\w*:[a-z_]+:\w+", "\n".join(queries()))) <= recorded


def test_what_is_recorded_and_watched_is_documented() -> None:
    names = set(re.findall(r"(?:record|alert): (\S+)", RULES.read_text()))
    assert names == set(re.findall(r"^\| `(job\S+|Midstream\w+)` \|", DOCUMENT.read_text(), re.MULTILINE))


def test_panels_have_names_units_and_room_of_their_own() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        at = panel["gridPos"]
        room = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not room & taken, panel["title"]
        assert at["x"] + at["w"] <= 24
        taken |= room
        assert panel["title"]
        if panel["type"] != "row":
            assert panel["description"]
            assert panel["fieldConfig"]["defaults"]["unit"]
            assert all(target["legendFormat"] for target in panel["targets"])
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(ids) == len(set(ids))


# -- a real run ------------------------------------------------------------------------------------


class Prometheus:
    def __init__(self, folder: Path, served: Served) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.address = f"127.0.0.1:{free.getsockname()[1]}"
        text = (RULES.parent / "prometheus.yml").read_text()
        text = text.replace("127.0.0.1:8000", f"{served.host}:{served.port}").replace(": 15s", ": 200ms")
        (folder / "prometheus.yml").write_text(text)
        shutil.copy(RULES, folder)
        self._log = (folder / "log").open("w+")
        self._process = subprocess.Popen(
            [
                str(PROMETHEUS),
                f"--config.file={folder / 'prometheus.yml'}",
                f"--storage.tsdb.path={folder / 'data'}",
                f"--web.listen-address={self.address}",
            ],
            stdout=self._log,
            stderr=self._log,
        )

    async def ask(self, client: httpx2.AsyncClient, query: str) -> list[float]:
        """The numbers that answer it, none that is no number. Prometheus may not listen yet."""
        try:
            answer = await client.get(f"http://{self.address}/api/v1/query", params={"query": query})
        except httpx2.TransportError:
            assert self._process.poll() is None, self.log()
            return []
        if answer.status_code == 503:
            return []  # it is not ready
        assert answer.status_code == 200, f"{query}: {answer.text}"
        values = [float(one["value"][1]) for one in answer.json()["data"]["result"]]
        return [value for value in values if not math.isnan(value)]

    def log(self) -> str:
        return said(self._log)

    def end(self) -> None:
        self._process.terminate()
        self._process.wait(PATIENCE_S)
        self._log.close()


@pytest.fixture
def prometheus(serve: Callable[..., Served], tmp_path: Path) -> Iterator[tuple[Prometheus, Served]]:
    served = serve("--toy-step-ms", "5")
    running = Prometheus(tmp_path, served)
    yield running, served
    running.end()


async def visit(served: Served) -> None:
    """Something of everything that a server counts."""
    prompt = "Once upon a time there was a model. " * 8
    async with client_of(served.url) as client:
        stream = await client.start("steered", prompt=prompt, params=GREEDY, credit={"limit": 20})
        await stream.until_index(20)
        for kind, answer, fields in (
            ("pause", "paused", {}),
            ("resume", "resumed", {}),
            ("adjust", "adjusted", {"params": {"temperature": 0.5}}),
            ("inject", "injected", {"text": " and"}),
            ("rewind", "rewound", {"to": 5}),
        ):
            await stream.ask(kind, answer, **fields)
        await stream.ask("cancel", "final")
        await lose(client, prompt)
    async with httpx2.AsyncClient(base_url=served.http, timeout=PATIENCE_S) as http:
        unheard = f"{secrets.token_hex(8)} {prompt}"
        body = {"model": "toy", "prompt": unheard, "max_tokens": 30, "ignore_eos": True}
        assert (await http.post("/v1/completions", json=body)).status_code == 200
        assert (await http.get("/v1/nothing")).status_code == 404


async def lose(client: Client, prompt: str) -> None:
    stream = await client.start("lost", prompt=prompt, params=GREEDY)
    await stream.until_index(3)
    client.websocket.transport.abort()
    await client.websocket.wait_closed()


@asynccontextmanager
async def visited(served: Served) -> AsyncIterator[asyncio.Task[None]]:
    """Meanwhile somebody comes again and again."""

    async def come() -> None:
        while True:
            await visit(served)

    task = asyncio.create_task(come())
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.wait([task])  # it parts from the server


@with_prometheus
async def test_every_query_of_the_dashboard_is_answered_with_numbers_from_a_real_run(
    prometheus: tuple[Prometheus, Served],
) -> None:
    running, served = prometheus
    wanted: dict[str, Callable[[list[float]], bool]] = {
        query: bool
        for query in queries()
        if "changes(" not in query  # nothing dies here
        and "midstream_fleet_" not in query  # nor is there a fleet on many machines
    }
    wanted |= {
        "job:stream_resets:ratio_1h": lambda told: max(told, default=0) > 0.1,  # one of three was lost
        "job_device:stream_inter_token_seconds:p95": lambda told: min(told, default=0) >= 0.005,
        'count(ALERTS{alertname="MidstreamResets"})': lambda told: told == [1],
    }
    async with httpx2.AsyncClient(timeout=PATIENCE_S) as client, visited(served) as visitor:
        try:
            async with asyncio.timeout(2 * PATIENCE_S):
                while wanted:
                    assert not visitor.done(), visitor.exception()
                    wanted = {
                        query: holds
                        for query, holds in wanted.items()
                        if not holds(await running.ask(client, query))
                    }
        except TimeoutError:
            raise AssertionError(f"these have no answer: {[*wanted]}\n{running.log()}") from None


async def test_the_edges_of_buckets_lie_at_what_is_promised(serve: Callable[..., Served]) -> None:
    now = await serve().metrics()
    for name, edges in EDGES.items():
        for edge in edges:
            assert any(key.startswith(f"{name}_bucket") and f'le="{edge}"' in key for key in now), (
                name,
                edge,
            )
