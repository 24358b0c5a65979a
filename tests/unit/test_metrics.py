"""What is counted, held against whole lives of streams in a server without sockets."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace
from prometheus_client.parser import text_string_to_metric_families

from engine import api
from midstream import protocol
from midstream.protocol import Credit, Params
from realtime.hub.observers import DISCONNECT_CAUSES, RETRY_REASONS
from realtime.hub.placement import PlacedEngine, PlacedMachine, PlacedModel, Placement
from realtime.observability.engine_metrics import EngineMetrics
from realtime.observability.metrics import Metrics
from realtime.observability.tenant_usage import OTHER, TENANT_LIMIT
from realtime.pieces import at_once
from tests.fakes.checking_client import Reader
from tests.fakes.simulated_client import SIZE, TENANT, endless, rest, run_out, start
from tests.fakes.simulated_server import Clock, SimulatedServer
from tests.server.test_metrics import documented, shape

NAMES: Any = {"model": "toy", "device": "cuda:0", "dtype": "bf16", "attention": "triton"}
HELLO = api.Hello(folder="", vocab=1, context=1, eos=[], kv_tokens=1, block=1, **NAMES)


class Counted:
    """A server that is counted."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.metrics = Metrics()
        self.server = SimulatedServer(SIZE, clock=self.clock, observer=self.metrics)
        self.metrics.engine_ready(0, HELLO)
        self.reader = Reader(self.server)

    def value(self, name: str, **labels: str) -> float | None:
        found = [
            sample.value
            for family in text_string_to_metric_families(at_once(self.metrics.text()).decode())
            for sample in family.samples
            if sample.name == name and sample.labels == labels
        ]
        assert len(found) <= 1
        return found[0] if found else None

    def values(self, name: str, label: str) -> dict[str, float]:
        return {
            sample.labels[label]: sample.value
            for family in text_string_to_metric_families(at_once(self.metrics.text()).decode())
            for sample in family.samples
            if sample.name == name
        }

    def ticks(self, count: int, each_s: float) -> None:
        for _ in range(count):
            self.clock.advance(each_s)
            self.server.tick()


@pytest.fixture
def counted() -> Counted:
    return Counted()


def test_what_an_alert_may_ask_for_is_there_before_it_happens(counted: Counted) -> None:
    assert counted.values("stream_disconnects_total", "cause") == dict.fromkeys(DISCONNECT_CAUSES, 0)
    assert counted.values("stream_retries_total", "reason") == dict.fromkeys(RETRY_REASONS, 0)
    for name in (
        *("scheduler_credit_stalls_total", "midstream_kv_evictions_total", "midstream_preemptions_total"),
        *("midstream_engine_restarts_total", "midstream_tokens_total", "midstream_tokens_discarded_total"),
    ):
        assert counted.value(name) == 0


def test_a_model_whose_starts_are_refused_is_named(counted: Counted) -> None:
    """Also where nobody sends one, since /readyz says that they are."""
    counted.metrics.starts_taken = {"toy": True, "other": False}
    assert counted.values("midstream_model_takes_starts", "model") == {"toy": 1, "other": 0}


def test_a_fleet_on_many_machines_is_told_as_it_is_placed(counted: Counted) -> None:
    assert counted.value("midstream_fleet_machines") is None
    counted.metrics.placed(
        Placement(
            [PlacedMachine("gpu1", 8, 4, 2**35), PlacedMachine("gpu2", 8, 4, 2**35)],
            [
                PlacedEngine("a#0", "a", "ready", "gpu1", "10.0.0.7:7000", ""),
                PlacedEngine("a#1", "a", "ready", "gpu1", "10.0.0.7:7001", ""),
                PlacedEngine("a#2", "a", "waiting", "", "", "no machine has 8 GPUs"),
            ],
            [PlacedModel("a", 3, 1, 4, may_sleep=False)],
        )
    )
    assert counted.value("midstream_fleet_machines") == 2
    assert counted.value("midstream_fleet_wanted_engines", model="a") == 3
    engines = {("ready", "gpu1"): 2, ("waiting", ""): 1, ("failed", ""): 0}
    for (state, machine), count in engines.items():
        assert counted.value("midstream_fleet_engines", model="a", state=state, machine=machine) == count
    of_fleet = [
        family
        for family in text_string_to_metric_families(at_once(counted.metrics.text()).decode())
        if family.name.startswith("midstream_fleet_")
    ]
    assert {family.name: shape(family) for family in of_fleet} == documented(of_fleet=True)


def test_a_life_is_counted_once_by_its_model_route_and_tenant(counted: Counted) -> None:
    counted.reader.send(start(params=Params(max_tokens=5, ignore_eos=True)))
    counted.ticks(9, 0.25)
    run_out(counted.server, counted.reader.accounts[0])
    labels = {"model": "toy", "route": "websocket", "cache": "miss"}
    assert counted.value("stream_ttft_seconds_count", **labels) == 1
    assert counted.value("stream_inter_token_seconds_count") == 4
    assert counted.value("stream_inter_token_seconds_sum") == 1.0
    assert counted.value("stream_tokens_per_second_sum", model="toy", phase="decode") == 4.0
    assert counted.value("midstream_streams_finished_total", finish_reason="length") == 1
    assert counted.value("midstream_tenant_streams_total", tenant=TENANT) == 1
    prompt = counted.reader.accounts[0].prompt
    assert counted.value("midstream_tenant_tokens_total", tenant=TENANT, kind="prompt") == len(prompt)
    assert counted.value("midstream_tenant_tokens_total", tenant=TENANT, kind="output") == 5


def test_a_tenants_tokens_count_while_they_come(counted: Counted) -> None:
    counted.reader.send(endless(credit=Credit(limit=3)))
    rest(counted.server)
    assert counted.value("midstream_tenant_tokens_total", tenant=TENANT, kind="output") == 3
    assert counted.value("midstream_streams", state="stalled") == 1
    assert counted.value("scheduler_credit_stalls_total") == 1


def test_a_stream_that_ends_while_it_is_told_is_not_counted_twice(counted: Counted) -> None:
    """A total that goes back is a restart to Prometheus, and all of it a burst."""
    counted.reader.send(start(params=Params(max_tokens=5, ignore_eos=True, temperature=0)))
    counted.ticks(3, 0.01)
    telling = counted.metrics.text()
    next(telling)  # it has looked at those that live
    rest(counted.server)
    assert not counted.server.hub.streams
    told = [
        sample.value
        for family in text_string_to_metric_families(at_once(telling).decode())
        for sample in family.samples
        if sample.name == "midstream_tenant_tokens_total" and sample.labels["kind"] == "output"
    ]
    assert 0 < told[0] < 5
    assert counted.value("midstream_tenant_tokens_total", tenant=TENANT, kind="output") == 5


def test_batches_are_counted_by_what_they_compute(counted: Counted) -> None:
    for name in ("a", "b"):
        counted.reader.send(endless(name, credit=Credit(limit=4)))
    rest(counted.server)
    assert counted.value("scheduler_batch_size_sum", phase="prefill") == 2
    assert counted.value("scheduler_batch_size_sum", phase="decode") == 2 * 3, "the first comes of the prompt"
    assert counted.value("scheduler_batch_size_count", phase="decode") == 3


def test_steering_is_counted_from_when_the_frame_came(counted: Counted) -> None:
    counted.reader.send(endless(credit=Credit(limit=100)))
    counted.ticks(5, 0.01)
    counted.reader.send(protocol.Rewind(request_id="a", to=2))
    counted.clock.advance(0.03)
    counted.server.tick()
    assert counted.value("midstream_control_steps_sum", frame="rewind") == 1
    assert counted.value("midstream_control_seconds_sum", frame="rewind") == pytest.approx(0.03)
    assert counted.value("midstream_tokens_discarded_total") == 0, "of a stream that lives: not yet"
    counted.reader.send(protocol.Cancel(request_id="a"))
    final = run_out(counted.server, counted.reader.accounts[0])
    assert final.usage.discarded_tokens > 0
    assert counted.value("midstream_tokens_discarded_total") == final.usage.discarded_tokens


@pytest.mark.parametrize("cause", DISCONNECT_CAUSES)
def test_a_listener_that_goes_is_counted_by_why(counted: Counted, cause: Any) -> None:
    for name in ("a", "b"):
        counted.reader.send(endless(name, on_disconnect="pause"))
    counted.reader.gone = True
    counted.server.hub.detach(counted.reader, cause)
    assert counted.values("stream_disconnects_total", "cause") == dict.fromkeys(DISCONNECT_CAUSES, 0) | {
        cause: 2
    }


def test_coming_back_is_counted_by_how(counted: Counted) -> None:
    begun = endless(on_disconnect="pause", credit=Credit(limit=2))
    counted.reader.send(begun)
    counted.reader.send(protocol.Attach(request_id="a", after=-1))
    counted.reader.send(begun)
    assert counted.values("stream_retries_total", "reason") == {"attach": 1, "start": 1, "engine": 0}


def test_totals_go_on_where_an_engine_was_replaced(counted: Counted) -> None:
    counted.reader.send(endless(credit=Credit(limit=3)))
    rest(counted.server)
    counted.metrics.engine_lost(0)
    counted.server.kill_engine()
    assert counted.value("midstream_engine_restarts_total") == 1
    assert counted.value("midstream_tokens_total") == 3
    assert counted.value("midstream_kv_blocks", state="used") == 0
    counted.metrics.engine_ready(0, HELLO)
    counted.server.revive_engine()
    counted.reader.send(protocol.Grant(request_id="a", limit=5))
    rest(counted.server)
    assert counted.value("midstream_tokens_total") == 5
    assert counted.values("stream_retries_total", "reason")["engine"] == 1


def test_an_engine_that_computed_for_others_before_leaps_no_total(counted: Counted) -> None:
    """Nor one whose connection was lost, and that comes back: it counts from its own start on."""
    listens = replace(HELLO, keeper=b"1")
    for tokens, evictions, told in ((1_000, 50, 2), (5_000, 60, 4)):
        counted.metrics.engine_ready(1, listens)
        assert counted.value("midstream_tokens_total") == told - 2
        for ours in ([7, 7], []):
            stats = api.Stats(tokens_total=tokens, evictions_total=evictions)
            news = [api.News(1, tokens=ours)] if ours else []
            counted.metrics.stepped(1, api.StepOutput(1, news, stats), counted.clock())
        assert counted.value("midstream_tokens_total") == told
        counted.metrics.engine_lost(1)
    assert counted.value("midstream_kv_evictions_total") == 0


def test_an_engine_that_is_wanted_no_more_is_no_restart(counted: Counted) -> None:
    counted.reader.send(endless())
    rest(counted.server)
    counted.metrics.engine_lost(0, dismissed=True)
    assert counted.value("midstream_engine_restarts_total") == 0


@pytest.mark.parametrize(
    ("name", "stats"),
    [
        ("midstream_kv_host_blocks", api.Stats(kv_host=7)),
        ("midstream_grammar_states", api.Stats(grammar_states=7)),
    ],
)
def test_what_an_engine_holds_is_shown_while_it_lives(name: str, stats: api.Stats) -> None:
    metrics = EngineMetrics()
    metrics.engine_ready(0, HELLO)

    def shown() -> list[float]:
        return [each.samples[0].value for each in metrics.families() if each.name == name]

    metrics.stepped(0, api.StepOutput(1, [], stats))
    assert shown() == [7]
    metrics.engine_lost(0, dismissed=False)
    assert shown() == [0]


def test_there_are_never_more_labels_than_are_bounded_for(counted: Counted) -> None:
    for number in range(TENANT_LIMIT + 5):
        reader = Reader(counted.server, f"tenant {number}")
        reader.send(start(f"{number}", params=Params(max_tokens=1, ignore_eos=True)))
        run_out(counted.server, reader.accounts[0])
    tenants = counted.values("midstream_tenant_streams_total", "tenant")
    assert len(tenants) == TENANT_LIMIT + 1
    assert tenants[OTHER] == 5
    samples = [
        sample
        for family in text_string_to_metric_families(at_once(counted.metrics.text()).decode())
        for sample in family.samples
    ]
    assert len(samples) < 900
    named = {name for sample in samples for name in sample.labels}
    assert not named & {"request_id", "session_id", "key", "prompt"}


def test_the_engine_that_runs_is_named(counted: Counted) -> None:
    assert counted.value("midstream_engine_info", **NAMES) == 1


def test_lateness_of_the_event_loop_is_counted(counted: Counted) -> None:
    counted.metrics.lagged(0.3)
    assert counted.value("midstream_event_loop_lag_seconds_sum") == 0.3
    assert counted.value("midstream_event_loop_lag_seconds_bucket", le="0.2") == 0
    assert counted.value("midstream_event_loop_lag_seconds_bucket", le="0.5") == 1
