"""The latency metrics: queueing, time to first token, time between tokens.

It is told of whole steps, and is the only work that is done for every token only to count it: so streams
that had their last tokens in the same step are counted together. A wait that the client itself asked for, by
a pause or by want of credit, is none. It knows moments and numbers of streams, and no stream.
"""

from __future__ import annotations

from collections import Counter
from itertools import product

from msgspec import Struct
from prometheus_client.core import HistogramMetricFamily

from engine import api
from realtime.hub.observers import ROUTES, StreamOrigin
from realtime.observability.histograms import Histogram

MS = (
    0.001,
    0.002,
    0.005,
    0.01,
    0.015,
    0.02,
    0.025,
    0.03,
    0.035,
    0.04,
    0.05,
    0.075,
    0.1,
    0.15,
    0.25,
    0.5,
    1.0,
    2.5,
)
TTFT = (0.01, 0.025, 0.05, 0.1, 0.15, 0.2, 0.3, 0.5, 0.8, 1.2, 2.0, 3.0, 5.0, 10.0, 30.0, 60.0)
RATES = (1, 2, 5, 10, 15, 20, 30, 50, 75, 100, 150, 250, 500, 1000, 2500, 5000, 10000, 50000)
CACHES, PHASES = ("hit", "miss"), ("prefill", "decode")
UNCOUNTED = -1.0  # in place of the moment of the last token: the wait since then is the client's own


class Waiting(Struct):
    """A stream that has no token yet."""

    origin: StreamOrigin
    prompt: int
    since: float
    admitted: float | None = None
    found: int = 0  # tokens of the prompt that stood computed
    held_up: bool = False  # by the client

    @property
    def cache(self) -> str:
        return "hit" if 2 * self.found >= self.prompt else "miss"


class LatencyMetrics:
    def __init__(self) -> None:
        self.ttft = Histogram(
            "stream_ttft_seconds", "From a start to its first token", TTFT, ("model", "route", "cache")
        )
        self.gaps = Histogram("stream_inter_token_seconds", "Between a stream's tokens", MS)
        self.rates = Histogram(
            "stream_tokens_per_second", "Prompt or output tokens of a stream", RATES, ("model", "phase")
        )
        self.waits = Histogram(
            "scheduler_wait_time_seconds", "From when a stream could go on to its next step", MS, ("phase",)
        )
        self._gap = self.gaps.of()
        self._prefill_wait = self.waits.of("prefill")
        self._decode_wait = self.waits.of("decode")
        self._waiting: dict[int, Waiting] = {}
        self._last: dict[int, float] = {}  # of each stream that has a token: when the last one came
        # The streams of a step are most often those of its engine's step before, and when that was.
        self._together: dict[int, tuple[list[int], float]] = {}

    def families(self) -> list[HistogramMetricFamily]:
        return [histogram.family() for histogram in (self.ttft, self.gaps, self.rates, self.waits)]

    def engine_ready(self, model: str) -> None:
        """A rate is of two counts: the first of a set of labels is to be there before anything is."""
        for route, cache in product(ROUTES, CACHES):
            self.ttft.of(model, route, cache)
        for phase in PHASES:
            self.rates.of(model, phase)

    def started(self, number: int, origin: StreamOrigin, prompt: int, now: float) -> None:
        self._waiting[number] = Waiting(origin, prompt, now)

    def engine_lost(self, engine: int) -> None:
        self._part(engine)

    def stepped(self, engine: int, output: api.StepOutput, now: float) -> None:
        began = now - output.stats.step_s
        moved = [news.stream for news in output.news if news.tokens]
        rare = [news for news in output.news if news.changes or news.admitted is not None]
        together, then = self._together.get(engine, ([], 0.0))
        if moved == together and not rare:
            self._waited(then, began, now, len(moved))
        else:
            self._part(engine)
            moved = self._one_by_one(moved, rare, began, now)
        self._together[engine] = moved, now
        for news in rare:
            if news.changes:
                self._changed(news)

    def granted(self, number: int) -> None:
        """It waited for the client."""
        self._part_all()
        if number in self._last:
            self._last[number] = UNCOUNTED
        elif number in self._waiting:
            self._waiting[number].held_up = True

    def finished(self, number: int, origin: StreamOrigin, tokens_per_s: float | None) -> None:
        self._part_all()
        self._waiting.pop(number, None)
        self._last.pop(number, None)
        if tokens_per_s is not None:
            self.rates.of(origin.model, "decode").observe(tokens_per_s)

    def _part_all(self) -> None:
        for engine in list(self._together):
            self._part(engine)

    def _part(self, engine: int) -> None:
        """From now on each has a moment of its own."""
        together, then = self._together.pop(engine, ([], 0.0))
        self._last.update(dict.fromkeys(together, then))

    def _one_by_one(self, moved: list[int], rare: list[api.News], began: float, now: float) -> list[int]:
        """Returns those that have their last token now."""
        for news in rare:
            if news.admitted is not None:
                self._admitted(news, news.admitted, began)
        lasts = Counter(map(self._last.get, moved))
        if lasts.pop(None, 0):
            for number in moved:
                if number not in self._last:
                    self._first(number, now)
        lasts.pop(UNCOUNTED, None)
        for before, times in lasts.items():
            assert before is not None
            self._waited(before, began, now, times)
        return [number for number in moved if number in self._last]

    def _waited(self, before: float, began: float, now: float, times: int) -> None:
        self._gap.observe(now - before, times)
        self._decode_wait.observe(max(0.0, began - before), times)

    def _admitted(self, news: api.News, found: int, began: float) -> None:
        waiting = self._waiting.get(news.stream)
        if waiting is not None and waiting.admitted is None:
            waiting.admitted, waiting.found = began, found
            if not (waiting.held_up or _goes_on(news)):
                self._prefill_wait.observe(max(0.0, began - waiting.since))

    def _first(self, number: int, now: float) -> None:
        waiting = self._waiting.pop(number, None)
        if waiting is None:
            return  # it has ended, and the engine did not know
        self._last[number] = now
        if waiting.held_up:
            return
        origin = waiting.origin
        self.ttft.of(origin.model, origin.route, waiting.cache).observe(now - waiting.since)
        if waiting.admitted is not None and now > waiting.admitted:
            rate = (waiting.prompt - waiting.found) / (now - waiting.admitted)
            self.rates.of(origin.model, "prefill").observe(rate)

    def _changed(self, news: api.News) -> None:
        if _goes_on(news):
            self.granted(news.stream)


def _goes_on(news: api.News) -> bool:
    """Whether its client has it do so, who had paused it, or had it wait for results."""
    return any(isinstance(change, api.Resumed) and change.reason == "client" for change in news.changes)
