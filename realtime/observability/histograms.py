"""Histograms that cost a list's item each time, for what is counted with every token.

`prometheus_client`'s own take a lock and a multi-process value for each bucket. These are counted in the
event loop alone, many of the same value at once, and become its metrics when somebody asks.
"""

from __future__ import annotations

from bisect import bisect_left
from itertools import accumulate

from prometheus_client.core import HistogramMetricFamily


class Buckets:
    """How often a value was at most one of `bounds`, and how often above them all."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        self.counts[bisect_left(self.bounds, value)] += times
        self.sum += value * times

    def cumulative(self) -> list[tuple[str, float]]:
        names = [*(str(float(bound)) for bound in self.bounds), "+Inf"]
        return list(zip(names, accumulate(self.counts), strict=True))


class Histogram:
    """Buckets for each set of labels. The names of a set that is known are there before anything is."""

    def __init__(
        self, name: str, help_: str, bounds: tuple[float, ...], labels: tuple[str, ...] = ()
    ) -> None:
        self._name = name
        self._help = help_
        self._bounds = bounds
        self._labels = labels
        self._buckets: dict[tuple[str, ...], Buckets] = {}

    def of(self, *labels: str) -> Buckets:
        buckets = self._buckets.get(labels)
        if buckets is None:
            assert len(labels) == len(self._labels)
            buckets = self._buckets[labels] = Buckets(self._bounds)
        return buckets

    def family(self) -> HistogramMetricFamily:
        family = HistogramMetricFamily(self._name, self._help, labels=self._labels)
        for labels, buckets in self._buckets.items():
            family.add_metric(labels, buckets.cumulative(), buckets.sum)
        return family
