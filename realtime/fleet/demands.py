"""The demand for each model, as the streams of this gateway make it: looked at again and again by whoever
tells it to those who have more or fewer engines.

It reads the hub, and changes nothing. It knows no engine beyond what the hub has of it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from collections.abc import Set as AbstractSet

from realtime.hub.demand import NOWHERE, Demand, Wait
from realtime.hub.hub import Hub
from realtime.hub.registry import LiveStream
from realtime.hub.router import FIRST_TOKEN_S
from realtime.pieces import Pieces, batches

LOOKED_AT = 512  # streams in a piece of work, some two milliseconds


class Demands:
    def __init__(
        self, hub: Hub, asked_for: Callable[[], AbstractSet[str]], clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`asked_for`: models that somebody wants, whether or not a stream needs them."""
        self._hub = hub
        self._asked_for = asked_for
        self._clock = clock
        self._token_s: dict[str, float] = {}  # of a context, by model, as its engines were last seen to take
        self._since: dict[int, float] = {}  # streams that wait: when they were first seen to

    def look(self) -> Pieces[dict[str, Demand]]:
        """By model."""
        for engine in self._hub.serving.engines.values():
            self._token_s[engine.model.name] = engine.token_s
        asked_for = self._asked_for()
        found = {known.name: Demand(streams=int(known.name in asked_for)) for known in self._hub.models}
        since, self._since = self._since, {}
        for some in batches(self._hub.serving.entries, LOOKED_AT):
            now = self._clock()
            for entry in some:
                if entry.stream.needs_engine and entry.stream.model.name in found:
                    self._add(entry, found[entry.stream.model.name], since, now)
            yield
        return found

    def _add(self, entry: LiveStream, demand: Demand, since: dict[int, float], now: float) -> None:
        stream, engine = entry.stream, entry.engine
        token_s = self._token_s.get(stream.model.name, FIRST_TOKEN_S)
        work_s = token_s * len(stream.context)
        demand.streams += 1
        demand.work_s += work_s
        if stream.needs_compute and (engine is None or engine.is_yet_to_compute(stream.number)):
            began = self._since[stream.number] = since.get(stream.number, now)
            wait = demand.waits.setdefault(NOWHERE if engine is None else engine.keeper.hex(), Wait())
            wait.work_s += work_s
            wait.waited_s = max(wait.waited_s, now - began)
