"""What gateways say of their streams, heard again and again, and added up. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from msgspec import Struct

from realtime.hub.demand import Demand, Wait

SILENT_S = 60.0  # after which a gateway is gone, and its streams with it


class Said(Struct, frozen=True):
    """What a gateway has said of its streams."""

    count: int  # of times: another is news
    demands: dict[str, Demand]  # by model


class Gateways:
    """What each said last, by clocks of nobody's but ours. Streams of one that dies wait for another in their
    engines, so its word holds for a while."""

    def __init__(self) -> None:
        self._heard: dict[str, tuple[Said, float]] = {}

    def hear(self, said: Mapping[str, Said], now: float) -> list[str]:
        """Returns those that are gone."""
        for gateway, news in said.items():
            before = self._heard.get(gateway)
            if before is None or before[0].count != news.count:
                self._heard[gateway] = news, now
        gone = [gateway for gateway, (_, at) in self._heard.items() if now - at > SILENT_S]
        for gateway in gone:
            del self._heard[gateway]
        return gone

    @property
    def demands(self) -> dict[str, Demand] | None:
        """By model, of all together; None where there is no gateway."""
        if not self._heard:
            return None
        models = {model for said, _ in self._heard.values() for model in said.demands}
        return {
            model: together(said.demands[model] for said, _ in self._heard.values() if model in said.demands)
            for model in models
        }


def together(demands: Iterable[Demand]) -> Demand:
    """Of all gateways."""
    total = Demand()
    for demand in demands:
        total.streams += demand.streams
        total.work_s += demand.work_s
        for engine, wait in demand.waits.items():
            one = total.waits.setdefault(engine, Wait())
            one.work_s += wait.work_s
            one.waited_s = max(one.waited_s, wait.waited_s)
    return total
