"""How streams begin and end in an engine, and what is told of them.

A stream has a slot, a row of the sampler's tensors, from its beginning to its end, and a place in the
scheduler. Its news are collected here until the step is over. It knows no command but the first, no batch and
no model.
"""

from __future__ import annotations

from collections.abc import Sequence as Several

from engine import api
from engine.sampling.sampler import Sampler
from engine.schedule.scheduler import Scheduler
from engine.schedule.sequence import Choice, Sequence


class Lives:
    def __init__(self, scheduler: Scheduler, sampler: Sampler, *, slots: int, context: int) -> None:
        self._scheduler = scheduler
        self._sampler = sampler
        self._context = context
        self._free_slots = list(range(slots))
        self._news: dict[int, api.News] = {}

    def begin(self, command: api.Submit) -> None:
        sequence = Sequence(
            command.stream,
            command.tokens,
            command.sampling,
            credit=command.credit,
            context=self._context,
            priority=command.priority,
            tenant=command.tenant,
            prompt=command.prompt,
            injections=command.injections,
        )
        sequence.paused = command.paused
        sequence.slot = self._free_slots.pop()
        self._sampler.adopt(sequence)
        self._scheduler.add(sequence)
        self.settle(sequence)

    def settle(self, sequence: Sequence) -> None:
        """After any change: the sequence has reached its end, or wants something else than before."""
        if sequence.length_reached:
            self.end(sequence, "length")
        else:
            self._scheduler.refresh(sequence)

    def end(self, sequence: Sequence, reason: api.FinishReason, detail: str | None = None) -> None:
        self.news(sequence).finish = api.Finish(reason, detail)
        self._scheduler.remove(sequence)
        self._sampler.release(sequence)
        self._free_slots.append(sequence.slot)

    # -- news ------------------------------------------------------------------------------------

    def news(self, sequence: Sequence) -> api.News:
        news = self._news.get(sequence.stream)
        if news is None:
            news = self._news[sequence.stream] = api.News(sequence.stream)
        return news

    def changed(self, sequence: Sequence, change: api.AnyChange) -> None:
        self.news(sequence).changes.append(change)

    def said(self, sequence: Sequence, token: int, choice: Choice) -> None:
        news = self.news(sequence)
        if not news.tokens:
            news.index = sequence.outputs
        news.tokens.append(token)
        if choice.logprob is not None:
            news.logprobs = [*(news.logprobs or []), choice.logprob]

    def told(self) -> list[api.News]:
        """All news since it was last asked."""
        news, self._news = self._news, {}
        return list(news.values())

    def audit(self, sequences: Several[Sequence]) -> None:
        """Raise unless every slot is accounted for."""
        slots = [sequence.slot for sequence in sequences] + self._free_slots
        assert len(set(slots)) == len(slots)
