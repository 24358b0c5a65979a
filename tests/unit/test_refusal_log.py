"""The log of refusals: a line a second at most of each kind, that says who, where, how often; never what."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import structlog
from prometheus_client.parser import text_string_to_metric_families
from structlog.testing import LogCapture

from midstream import protocol
from midstream.protocol import Params
from realtime.hub.observers import Caller
from realtime.observability.metrics import Metrics
from realtime.observability.refusal_log import EVERY_S, RefusalLog
from realtime.pieces import at_once
from realtime.transport.awaited_connections import network_of
from tests.fakes.checking_client import Reader
from tests.fakes.engine_links import HELLO
from tests.fakes.recording_listener import RecordingListener
from tests.fakes.simulated_client import SIZE, endless, start
from tests.fakes.simulated_server import SimulatedServer

ALICE = Caller("http", "/v1/streams", "192.0.2.1", "acme", "alice")
BOB = Caller("http", "/v1/streams", "192.0.2.2", "acme", "bob")


class Timer:
    def cancel(self) -> None:
        pytest.fail("a line that is due is written")


class Seconds:
    """Passes when it is told to."""

    def __init__(self) -> None:
        self._due: list[Callable[[], None]] = []

    def call_later(self, delay: float, call: Callable[[], None]) -> Timer:
        assert delay == EVERY_S
        self._due.append(call)
        return Timer()

    def pass_one(self) -> None:
        due, self._due = self._due, []
        for call in due:
            call()


@pytest.fixture
def lines() -> Iterator[list[Any]]:
    kept = LogCapture()
    structlog.configure(processors=[kept], cache_logger_on_first_use=False)
    yield kept.entries
    structlog.reset_defaults()


def test_the_first_is_told_at_once_and_the_rest_of_a_second_together(lines: list[Any]) -> None:
    seconds = Seconds()
    log = RefusalLog(call_later=seconds.call_later)
    log.refused("forbidden", ALICE)
    assert lines == [
        {
            "event": "refused",
            "log_level": "warning",
            "code": "forbidden",
            "endpoint": "/v1/streams",
            "times": 1,
            "tenant": "acme",
            "key": "alice",
            "address": "192.0.2.1",
        }
    ]
    for caller in (ALICE, BOB, BOB):
        log.refused("forbidden", caller)
    log.refused("rate_limited", BOB)
    assert [(line["code"], line["times"]) for line in lines] == [("forbidden", 1), ("rate_limited", 1)]
    seconds.pass_one()
    assert [(line["code"], line["times"], line["key"]) for line in lines[2:]] == [("forbidden", 3, "bob")]


def test_a_flood_of_one_hides_nobody_elses(lines: list[Any]) -> None:
    seconds = Seconds()
    log = RefusalLog(network_of, seconds.call_later)
    log.refused("forbidden", ALICE)
    for number in range(1000):  # an IPv6 network is one subscriber's, whatever address they take
        log.refused("forbidden", Caller("http", "/v1/streams", f"2001:db8::{number:x}"))
        if number == 500:
            log.refused("forbidden", BOB)
    seconds.pass_one()
    assert (lines[1]["times"], lines[1]["address"]) == (1001, "2001:db8::3e7")
    assert lines[1]["others"] == [{"tenant": "acme", "key": "bob", "address": "192.0.2.2", "times": 1}]


def test_as_many_as_there_are_a_line_names_a_few(lines: list[Any]) -> None:
    seconds = Seconds()
    log = RefusalLog(network_of, seconds.call_later)
    for number in range(200):
        log.refused("forbidden", Caller("http", "/v1/streams", f"192.0.2.{number}"))
    seconds.pass_one()
    assert [other["address"] for other in lines[1]["others"]] == [f"192.0.2.{n}" for n in range(1, 9)]


def test_behind_a_quiet_second_nothing_is_kept_and_the_next_is_told_at_once(lines: list[Any]) -> None:
    seconds = Seconds()
    log = RefusalLog(call_later=seconds.call_later)
    for expected in (1, 2):
        log.refused("forbidden", ALICE)
        assert len(lines) == expected
        seconds.pass_one()
    assert [line["times"] for line in lines] == [1, 1]
    assert not log._unsaid


# -- what the hub refuses ----------------------------------------------------------------------------


def of_one_engine() -> Metrics:
    metrics = Metrics()
    metrics.engine_ready(0, HELLO)
    return metrics


def counted(metrics: Metrics) -> dict[str, float]:
    families = text_string_to_metric_families(at_once(metrics.text()).decode())
    (family,) = (family for family in families if family.name == "midstream_refusals")
    return {sample.labels["code"]: sample.value for sample in family.samples}


def test_every_refusal_of_the_hubs_is_told_to_observers_once() -> None:
    metrics = of_one_engine()
    server = SimulatedServer(SIZE, observer=metrics)
    reader = Reader(server)
    reader.send(endless())
    server.tick()
    reader.send(protocol.Pause(request_id="nobody"))
    reader.send(start(request_id="b", model="another"))
    reader.send(start(params=Params(temperature=2)))
    server.tick()
    assert counted(metrics) == {"unknown_request": 1, "unknown_model": 1, "request_conflict": 1}


def test_whoever_loses_a_stream_to_another_is_counted_as_refused() -> None:
    metrics = of_one_engine()
    server = SimulatedServer(SIZE, observer=metrics)
    first, second = (RecordingListener(server) for _ in range(2))
    first.send(endless())
    server.tick()
    second.attach()
    assert counted(metrics) == {"request_taken": 1}


@pytest.mark.parametrize("elsewhere", [False, True])
def test_what_is_refused_only_by_the_engine_or_the_end_is_counted_too(elsewhere: bool) -> None:
    metrics = of_one_engine()
    server = SimulatedServer(SIZE, observer=metrics)
    listener = RecordingListener(server)
    listener.send(endless())
    server.tick()
    steering = RecordingListener(server) if elsewhere else listener
    listener.send(protocol.Cancel(request_id="a"))
    steering.send(protocol.Adjust(request_id="a", params=Params(temperature=0.5), ref="late"))
    while not server.at_rest:
        server.tick()
    assert counted(metrics) == {"request_finished": 1}
