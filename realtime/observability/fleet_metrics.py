"""The metrics of a fleet on many machines, as its keeper says that it is. Every gateway tells the same."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client.core import GaugeMetricFamily, Metric

from realtime.hub.placement import Placement


def families(placement: Placement) -> Iterable[Metric]:
    yield GaugeMetricFamily("midstream_fleet_machines", "Machines", value=len(placement.machines))
    wanted = GaugeMetricFamily(
        "midstream_fleet_wanted_engines", "Engines that a model is to have", labels=["model"]
    )
    for model in placement.models:
        wanted.add_metric([model.name], model.engines)
    yield wanted
    yield _engines(placement)


def _engines(placement: Placement) -> Metric:
    """Also those that nobody has: what an alert asks for is there before it happens."""
    counts: dict[tuple[str, str, str], int] = {
        (model.name, state, ""): 0 for model in placement.models for state in ("waiting", "failed")
    }
    for one in placement.engines:
        counts[one.model, one.state, one.machine] = counts.get((one.model, one.state, one.machine), 0) + 1
    engines = GaugeMetricFamily(
        "midstream_fleet_engines", "Engines that the keeper has", labels=["model", "state", "machine"]
    )
    for labels, count in counts.items():
        engines.add_metric(labels, count)
    return engines
