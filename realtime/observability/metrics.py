"""The metrics of the server, as Prometheus asks for them.

It is told what happens to streams, and counts in plain numbers; the metrics are made of them when somebody
scrapes. What is counted with every token lies in `latency`, what engines say of themselves in
`engine_metrics`, what tenants use in `tenant_usage`. Label sets are bounded: no request's name is ever one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import get_args

from prometheus_client import generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from engine import api
from midstream.protocol import FinishReason, GuardAction
from realtime.hub.observers import (
    DISCONNECT_CAUSES,
    RETRY_REASONS,
    Caller,
    DisconnectCause,
    Observer,
    RetryReason,
    StreamOrigin,
)
from realtime.hub.placement import Placement
from realtime.observability import fleet_metrics
from realtime.observability.engine_metrics import EngineMetrics
from realtime.observability.histograms import Histogram
from realtime.observability.latency import LatencyMetrics
from realtime.observability.tenant_usage import TenantUsage
from realtime.pieces import Pieces, batches
from realtime.stream.stream import Stream

STATES = ("queued", "running", "paused", "stalled")
STEERING = ("pause", "resume", "adjust", "inject", "amend", "rewind", "cancel")
_FEW = (1, 2, 3, 4, 8)
_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.035, 0.05, 0.1, 0.2, 0.5, 1.0, 2.5)


LOOKED_AT = 512  # streams in a piece of work, some two milliseconds


class Family(Collector):
    """One alone, as the library wants to be shown it."""

    def __init__(self, metric: Metric) -> None:
        self._metric = metric

    def collect(self) -> Iterable[Metric]:
        return [self._metric]


class Metrics(Observer):
    def __init__(self) -> None:
        self._live: dict[int, tuple[Stream, StreamOrigin]] = {}
        self._times = LatencyMetrics()
        self._engine = EngineMetrics()
        self._usage = TenantUsage()
        self._placement: Placement | None = None  # where the fleet is on many machines
        self._steps = Histogram(
            "midstream_control_steps", "Steps from a control frame's arrival to its effect", _FEW, ("frame",)
        )
        self._seconds = Histogram(
            "midstream_control_seconds", "From a control frame's arrival to its effect", _SECONDS, ("frame",)
        )
        self._lag = Histogram(
            "midstream_event_loop_lag_seconds", "How late the gateway's event loop is", _SECONDS
        )
        self.lagged = self._lag.of().observe
        self.tasks = 0  # of the gateway's event loop
        self.connections = 0
        self.starts_taken: dict[str, bool] = {}  # by model
        self._discarded = 0
        self._finished = Counter[str](dict.fromkeys(get_args(FinishReason), 0))
        self._guarded = Counter[str](dict.fromkeys(get_args(GuardAction), 0))
        self._left = Counter[str](dict.fromkeys(DISCONNECT_CAUSES, 0))
        self._refused = Counter[tuple[str, str]]()  # by code and endpoint
        self._retried = Counter[str](dict.fromkeys(RETRY_REASONS, 0))
        for kind in STEERING:
            self._steps.of(kind)
            self._seconds.of(kind)

    # -- told by the hub and the supervisor ------------------------------------------------------

    def engine_ready(self, engine: int, hello: api.Hello) -> None:
        self._engine.engine_ready(engine, hello)
        self._times.engine_ready(hello.model)

    def engine_lost(self, engine: int, *, dismissed: bool = False) -> None:
        self._engine.engine_lost(engine, dismissed=dismissed)
        self._times.engine_lost(engine)

    def placed(self, placement: Placement) -> None:
        self._placement = placement

    def started(self, stream: Stream, origin: StreamOrigin, now: float) -> None:
        self._live[stream.number] = stream, origin
        self._times.started(stream.number, origin, stream.prompt_tokens, now)
        self._usage.started(origin.tenant, stream)

    def stepped(self, engine: int, output: api.StepOutput, now: float) -> None:
        self._engine.stepped(engine, output)
        self._discarded += output.stats.discarded
        self._times.stepped(engine, output, now)

    def steered(self, stream: Stream, kind: str, steps: int, seconds: float) -> None:
        self._steps.of(kind).observe(steps)
        self._seconds.of(kind).observe(seconds)

    def guarded(self, stream: Stream, action: GuardAction) -> None:
        self._guarded[action] += 1

    def granted(self, stream: Stream) -> None:
        self._times.granted(stream.number)

    def refused(self, code: str, caller: Caller) -> None:
        self._refused[code, caller.endpoint] += 1

    def retried(self, stream: Stream, reason: RetryReason) -> None:
        self._retried[reason] += 1

    def detached(self, stream: Stream, cause: DisconnectCause) -> None:
        self._left[cause] += 1

    def discarded(self, tokens: int) -> None:
        self._discarded += tokens

    def moved(self, stream: Stream) -> None:
        _, origin = self._live.pop(stream.number)
        self._times.finished(stream.number, origin, None)
        self._usage.finished(origin.tenant, stream)

    def finished(self, stream: Stream, now: float) -> None:
        assert stream.final is not None
        _, origin = self._live.pop(stream.number)
        self._finished[stream.final.finish_reason] += 1
        self._discarded += stream.counts.discarded
        self._times.finished(stream.number, origin, stream.final.timing.tokens_per_s)
        self._usage.finished(origin.tenant, stream)

    # -- asked by Prometheus ---------------------------------------------------------------------

    def text(self) -> Pieces[bytes]:
        states, decoded, ended = Counter[str](), Counter[str](), self._usage.ended()
        for some in batches([*self._live.values()], LOOKED_AT):
            for stream, origin in some:
                states[stream.state] += 1
                decoded[origin.tenant] += stream.counts.decoded
            yield
        text = b""
        usage = self._usage.families(ended, decoded)
        for metric in self._families(states, usage):
            text += generate_latest(Family(metric))
            yield
        return text

    def _families(self, states: Counter[str], usage: Iterable[Metric]) -> Iterable[Metric]:
        yield _streams(states)
        yield self._starts_taken()
        yield from self._times.families()
        yield from self._engine.families()
        yield from usage
        if self._placement is not None:
            yield from fleet_metrics.families(self._placement)
        yield from (histogram.family() for histogram in (self._steps, self._seconds, self._lag))
        yield CounterMetricFamily(
            "midstream_tokens_discarded",
            "Tokens decoded, but rewound or never delivered",
            value=self._discarded,
        )
        yield GaugeMetricFamily("midstream_tasks", "Tasks of the gateway's event loop", value=self.tasks)
        yield GaugeMetricFamily("midstream_connections", "Open WebSocket connections", value=self.connections)
        yield _counter("midstream_streams_finished", "Streams that ended", "finish_reason", self._finished)
        yield _counter("midstream_guard_acts", "What guards did", "action", self._guarded)
        yield self._refusals()
        yield _counter("stream_disconnects", "Streams whose listener went", "cause", self._left)
        yield _counter(
            "stream_retries", "Streams that were asked for, or begun with, again", "reason", self._retried
        )

    def _starts_taken(self) -> Metric:
        taken = GaugeMetricFamily(
            "midstream_model_takes_starts", "Whether starts for the model are taken", labels=["model"]
        )
        for model, takes in self.starts_taken.items():
            taken.add_metric([model], takes)
        return taken

    def _refusals(self) -> Metric:
        refused = CounterMetricFamily(
            "midstream_refusals", "What clients were told no to", labels=["code", "endpoint"]
        )
        for kind, count in self._refused.items():
            refused.add_metric(kind, count)
        return refused


def _streams(states: Counter[str]) -> Metric:
    live = GaugeMetricFamily("midstream_streams", "Live streams", labels=["state"])
    for state in STATES:
        live.add_metric([state], states[state])
    return live


def _counter(name: str, help_: str, label: str, counts: Counter[str]) -> Metric:
    family = CounterMetricFamily(name, help_, labels=[label])
    for value, count in counts.items():
        family.add_metric([value], count)
    return family
