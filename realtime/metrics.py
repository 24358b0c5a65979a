"""What is counted, and how Prometheus asks for it.

The hub tells what happens; gauges are read from the hub and the engine's last news when somebody scrapes.
Label sets are bounded: no tenant's or request's name is ever one.
"""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from engine import api
from realtime.hub import Hub
from realtime.stream import Stream

STATES = ("queued", "running", "paused", "stalled")
_STEP_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.035, 0.05, 0.1, 0.2, 0.5, 1.0, 2.5)
_FEW = (1, 2, 3, 4, 8)


class Metrics(Collector):
    """Implements the hub's `Watcher`."""

    def __init__(self) -> None:
        self._hub: Hub | None = None
        self.stats = api.Stats()
        self._totals_before = 0  # of engines that are gone
        self.registry = CollectorRegistry()
        self._step = Histogram(
            "midstream_step_seconds", "One step of the engine", registry=self.registry, buckets=_STEP_BUCKETS
        )
        self._control = Histogram(
            "midstream_control_steps",
            "Steps from a control frame's arrival to its effect",
            ["frame"],
            registry=self.registry,
            buckets=_FEW,
        )
        self._discarded = Counter(
            "midstream_tokens_discarded",
            "Tokens decoded, but rewound or never delivered",
            registry=self.registry,
        )
        self._finished = Counter(
            "midstream_streams_finished", "Streams that ended", ["finish_reason"], registry=self.registry
        )
        self._restarts = Counter(
            "midstream_engine_restarts", "Times that the engine was started again", registry=self.registry
        )
        self.registry.register(self)

    def watch(self, hub: Hub) -> None:
        self._hub = hub

    # -- told by the hub and the supervisor ------------------------------------------------------

    def stepped(self, output: api.StepOutput) -> None:
        self.stats = output.stats
        if output.stats.decode_rows or output.stats.prefill_tokens:
            self._step.observe(output.stats.step_s)

    def acted(self, kind: str, steps: int) -> None:
        self._control.labels(kind).observe(steps)

    def finished(self, stream: Stream) -> None:
        self._finished.labels(stream.finish_reason).inc()
        self._discarded.inc(stream.discarded)

    def discarded(self, tokens: int) -> None:
        self._discarded.inc(tokens)

    def restarted(self) -> None:
        self._restarts.inc()
        self._totals_before += self.stats.tokens_total
        self.stats = api.Stats()

    # -- asked by Prometheus ---------------------------------------------------------------------

    def text(self) -> bytes:
        return generate_latest(self.registry)

    def collect(self) -> Iterable[Metric]:
        tally = Tally[str](stream.state for stream in self._hub.streams) if self._hub else Tally[str]()
        live = GaugeMetricFamily("midstream_streams", "Live streams", labels=["state"])
        for state in STATES:
            live.add_metric([state], tally[state])
        yield live
        blocks = GaugeMetricFamily("midstream_kv_blocks", "Blocks of the KV cache", labels=["state"])
        for state, count in self._blocks().items():
            blocks.add_metric([state], count)
        yield blocks
        stats = self.stats
        decoded = self._totals_before + stats.tokens_total
        yield CounterMetricFamily("midstream_tokens", "Tokens decoded by the engine", value=decoded)
        yield CounterMetricFamily(
            "midstream_kv_evictions", "Idle sequences evicted", value=stats.evictions_total
        )
        yield CounterMetricFamily(
            "midstream_preemptions", "Running sequences preempted", value=stats.preemptions_total
        )
        yield GaugeMetricFamily(
            "midstream_batch_rows", "Rows that decoded in the last step", value=stats.decode_rows
        )

    def _blocks(self) -> dict[str, int]:
        return {"used": self.stats.kv_used, "cached": self.stats.kv_cached, "free": self.stats.kv_free}
