"""The metrics of engines, all together: what they tell of themselves each step, as counters that go on when
one is replaced."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from engine import api
from realtime.observability.engine_totals import EngineTotals
from realtime.observability.histograms import Histogram

_STEP = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.035, 0.05, 0.1, 0.2, 0.5, 1.0, 2.5)
_ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)

# Totals that an engine counts: what each is called, and what it says.
_TOTALS = {
    "tokens_total": ("midstream_tokens", "Tokens decoded by the engine"),
    "evictions_total": ("midstream_kv_evictions", "Idle sequences evicted"),
    "preemptions_total": ("midstream_preemptions", "Running sequences preempted"),
    "credit_stalls_total": (
        "scheduler_credit_stalls",
        "Times that a stream left the batch for want of credit",
    ),
}
# Of drafts: the total of all, and that of the draft model's.
_DRAFTS = {
    ("drafted_total", "model_drafted_total"): (
        "midstream_drafted_tokens",
        "Tokens computed before it was known whether they come",
    ),
    ("accepted_total", "model_accepted_total"): (
        "midstream_accepted_drafts",
        "Drafts that came: each spared its stream a step",
    ),
}


class EngineMetrics:
    def __init__(self) -> None:
        self._totals = EngineTotals()
        self._restarts = 0
        self._hellos: dict[str, api.Hello] = {}  # of each model, of the engine that came last
        self._models: dict[int, str] = {}  # of those that serve
        self._steps = Histogram("midstream_step_seconds", "One step of the engine", _STEP)
        self._batches = Histogram("scheduler_batch_size", "Rows of a step", _ROWS, ("phase",))
        self._computed = {"prefill": 0, "decode": 0}  # tokens that went through the model
        self._step = self._steps.of()
        self._decode, self._prefill = self._batches.of("decode"), self._batches.of("prefill")

    def engine_ready(self, engine: int, hello: api.Hello) -> None:
        self._totals.engine_ready(engine, hello)
        self._hellos[hello.model], self._models[engine] = hello, hello.model

    def stepped(self, engine: int, output: api.StepOutput) -> None:
        self._totals.stepped(engine, output)
        stats = output.stats
        self._computed["prefill"] += stats.prefill_tokens
        self._computed["decode"] += stats.decode_rows
        if stats.decode_rows:
            self._decode.observe(stats.decode_rows)
        if stats.prefill_rows:
            self._prefill.observe(stats.prefill_rows)
        if stats.decode_rows or stats.prefill_rows:
            self._step.observe(stats.step_s)

    def engine_lost(self, engine: int, *, dismissed: bool) -> None:
        self._restarts += not dismissed
        self._totals.engine_lost(engine)
        self._models.pop(engine, None)

    def families(self) -> Iterable[Metric]:
        yield self._steps.family()
        yield self._batches.family()
        yield self._tokens()
        for field, (name, help_) in _TOTALS.items():
            yield CounterMetricFamily(name, help_, value=self._totals.of(field))
        yield from self._drafts()
        yield CounterMetricFamily(
            "midstream_engine_restarts",
            "Times that an engine that served has died or left by itself",
            value=self._restarts,
        )
        yield GaugeMetricFamily("midstream_engines", "Engines that serve", value=len(self._models))
        yield self._by_model()
        rows = self._totals.now("decode_rows")
        yield GaugeMetricFamily("midstream_batch_rows", "Rows that decoded in the last step", value=rows)
        yield self._blocks()
        held = self._totals.now("kv_host")
        yield GaugeMetricFamily("midstream_kv_host_blocks", "Blocks kept in the host's memory", value=held)
        yield GaugeMetricFamily(
            "midstream_grammar_states",
            "Memory of grammars, in lexer states of 1.5 KB, beyond the first of each",
            value=self._totals.now("grammar_states"),
        )
        yield self._info()

    def _drafts(self) -> Iterable[Metric]:
        for (every, by_model), (name, help_) in _DRAFTS.items():
            drafts = CounterMetricFamily(name, help_, labels=["kind"])
            drafts.add_metric(["lookup"], self._totals.of(every) - self._totals.of(by_model))
            drafts.add_metric(["model"], self._totals.of(by_model))
            yield drafts

    def _tokens(self) -> Metric:
        about = "Tokens that went through the model, drafts left out"
        computed = CounterMetricFamily("midstream_tokens_computed", about, labels=["phase"])
        for phase, count in self._computed.items():
            computed.add_metric([phase], count)
        return computed

    def _blocks(self) -> Metric:
        blocks = GaugeMetricFamily("midstream_kv_blocks", "Blocks of the KV cache", labels=["state"])
        for state in ("used", "cached", "free"):
            blocks.add_metric([state], self._totals.now(f"kv_{state}"))
        return blocks

    def _info(self) -> Metric:
        names = ["model", "device", "dtype", "attention"]
        info = GaugeMetricFamily(
            "midstream_engine_info", "The engine that runs a model, or ran it last", labels=names
        )
        for hello in self._hellos.values():
            info.add_metric([getattr(hello, name) for name in names], 1)
        return info

    def _by_model(self) -> Metric:
        serving = GaugeMetricFamily(
            "midstream_model_engines", "Engines that serve the model", labels=["model"]
        )
        for model in self._hellos:
            serving.add_metric([model], list(self._models.values()).count(model))
        return serving
