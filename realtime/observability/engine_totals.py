"""What engines have counted, all together, since each serves here: totals that never go back, whichever is
lost, and that do not leap where one comes that has computed for others for days."""

from __future__ import annotations

from collections import Counter

from msgspec.structs import replace

from engine import api

NAMES = tuple(name for name in api.Stats.__struct_fields__ if name.endswith("_total"))


class EngineTotals:
    def __init__(self) -> None:
        self.latest: dict[int, api.Stats] = {}  # of those that serve: those of the last step
        self._began: dict[int, api.Stats] = {}  # of those that serve: what they had counted before
        self._unheard = set[int]()  # of those that serve: who may have counted before, and has told nothing
        self._before = Counter[str]()  # of engines that are gone

    def engine_ready(self, engine: int, hello: api.Hello) -> None:
        self.latest[engine] = self._began[engine] = api.Stats()
        if hello.keeper:  # it listens: others were there, or we were ourselves
            self._unheard.add(engine)

    def stepped(self, engine: int, output: api.StepOutput) -> None:
        self.latest[engine] = stats = output.stats
        if engine in self._unheard:
            self._unheard.discard(engine)
            ours = sum(len(news.tokens) for news in output.news)
            self._began[engine] = replace(stats, tokens_total=stats.tokens_total - ours)

    def engine_lost(self, engine: int) -> None:
        for name in NAMES:
            self._before[name] += self._since(engine, name)
        del self.latest[engine], self._began[engine]
        self._unheard.discard(engine)

    def of(self, name: str) -> int:
        return self._before[name] + sum(self._since(engine, name) for engine in self.latest)

    def now(self, count: str) -> int:
        """What is no total: of those that serve, together."""
        return sum(getattr(stats, count) for stats in self.latest.values())

    def _since(self, engine: int, name: str) -> int:
        counted: int = getattr(self.latest[engine], name) - getattr(self._began[engine], name)
        return counted
