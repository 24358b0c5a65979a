"""Stream lifecycle in the engine: how streams begin and end, and the news that are collected for them.

A stream has a slot, a row of the sampler's tensors, from its beginning to its end, and a place in the
scheduler. Its news are collected here until the step is over. It knows no command but `Submit`, no batch and
no model.
"""

from __future__ import annotations

from collections.abc import Sequence as Several

from engine import api
from engine.sampling.sampler import Sampler
from engine.schedule.scheduler import Scheduler
from engine.schedule.sequence import SampledToken, Sequence


class Lifecycle:
    def __init__(self, scheduler: Scheduler, sampler: Sampler, *, slots: int, context: int) -> None:
        self._scheduler = scheduler
        self._sampler = sampler
        self._context = context
        self._free_slots = list(range(slots))
        self._news: dict[int, api.News] = {}

    def submit(self, command: api.Submit) -> None:
        sequence = Sequence(
            command.stream,
            command.tokens,
            command.sampling,
            credit=command.credit,
            context=self._context,
            priority=command.priority,
            tenant=command.tenant,
            num_prompt=command.prompt,
            injections=command.injections,
        )
        sequence.paused = command.paused
        sequence.slot = self._free_slots.pop()
        self._sampler.assign_slot(sequence)
        self._scheduler.add(sequence)
        self.update(sequence)

    def update(self, sequence: Sequence) -> None:
        """After any change: finish a sequence that has reached its length, or reconsider what it computes."""
        if sequence.length_reached:
            self.finish(sequence, "length")
        else:
            self._scheduler.update_ready(sequence)

    def finish(self, sequence: Sequence, reason: api.FinishReason, detail: str | None = None) -> None:
        self.news(sequence).finish = api.Finish(reason, detail)
        self._scheduler.remove(sequence)
        self._sampler.release_slot(sequence)
        self._free_slots.append(sequence.slot)

    # -- news ------------------------------------------------------------------------------------

    def news(self, sequence: Sequence) -> api.News:
        """Its news in this step, to be added to."""
        news = self._news.get(sequence.stream)
        if news is None:
            news = self._news[sequence.stream] = api.News(sequence.stream)
        return news

    def add_change(self, sequence: Sequence, change: api.AnyChange) -> None:
        self.news(sequence).changes.append(change)

    def add_token(self, sequence: Sequence, token: int, sampled: SampledToken) -> None:
        news = self.news(sequence)
        if not news.tokens:
            news.index = sequence.num_outputs
        news.tokens.append(token)
        if sampled.logprob is not None:
            news.logprobs = [*(news.logprobs or []), sampled.logprob]

    def take_news(self) -> list[api.News]:
        """All news since they were last taken."""
        news, self._news = self._news, {}
        return list(news.values())

    def audit(self, sequences: Several[Sequence]) -> None:
        """Raise unless every slot is accounted for."""
        slots = [sequence.slot for sequence in sequences] + self._free_slots
        assert len(set(slots)) == len(slots)
