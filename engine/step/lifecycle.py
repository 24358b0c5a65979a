"""Stream lifecycle in the engine: how streams begin and end, and the news that are collected for them.

A stream has a slot, a row of the sampler's tensors, from its beginning to its end, a place in the scheduler,
and what follows its grammar if it has one. Its news are collected here until the step is over, and answers to
commands until the token in flight is there or void. It knows no command but `Submit`, no batch and no model.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Several

from engine import api
from engine.sampling.sampler import Sampler
from engine.schedule.scheduler import Scheduler
from engine.schedule.sequence import ALL, OWN, SampledToken, Sequence
from engine.step.constraining import Constraining

Answer = Callable[[int], api.AnyChange]  # to a command, given the index of the next token
HOLDING = (api.Paused, api.Resumed)


class Lifecycle:
    def __init__(
        self,
        scheduler: Scheduler,
        sampler: Sampler,
        constraining: Constraining,
        *,
        slots: int,
        context: int,
    ) -> None:
        self._scheduler = scheduler
        self._sampler = sampler
        self._constraining = constraining
        self._context = context
        self._free_slots = list(range(slots))
        self._news: list[api.News] = []
        self._latest: dict[int, api.News] = {}  # of each stream that has any
        self._waiting: dict[int, list[Answer]] = {}  # for a stream's token in flight

    @property
    def full(self) -> bool:
        return not self._free_slots

    def tenant_of(self, stream: int) -> int | None:
        sequence = self._scheduler.sequences.get(stream)
        return None if sequence is None else sequence.tenant

    def submit(self, command: api.Submit) -> None:
        if self.full:
            why = "the engine has as many streams as it may"
            self._news.append(api.News(command.stream, finish=api.Finish("error", why)))
            return
        sequence = Sequence(
            command.stream,
            command.tokens,
            command.sampling,
            credit=command.credit,
            context=self._context,
            priority=command.priority,
            tenant=command.tenant,
            num_prompt=ALL if command.prompt is None else command.prompt,
            injections=command.injections,
            known_bans=command.bans,
            cache_of=OWN if command.cache_of is None else command.cache_of,
        )
        sequence.paused = command.paused
        sequence.num_yielding = len(command.tokens) - 1 if command.yields else 0
        sequence.slot = self._free_slots.pop()
        starts = [sequence.num_prompt + start for start in command.grammar_starts]
        self._constraining.begin(sequence, starts)
        self._scheduler.add(sequence)
        if not command.whole:  # else it may end by its last token
            self.update(sequence)

    def update(self, sequence: Sequence) -> None:
        """After any change: finish a sequence that has reached its length, or reconsider what it computes."""
        if sequence.length_reached:
            self.finish(sequence, "length")
        else:
            self._scheduler.update_ready(sequence)

    def finish(self, sequence: Sequence, reason: api.FinishReason, detail: str | None = None) -> None:
        self._waiting.pop(sequence.stream, None)  # overtaken by its end
        news = self.news(sequence)
        if news.finish is not None:  # it was held before its own end, which is told all the same
            news = self._begin_news(sequence)
        news.finish = api.Finish(reason, detail)
        self._scheduler.remove(sequence)
        self._sampler.release_slot(sequence)
        self._constraining.end(sequence)
        self._free_slots.append(sequence.slot)

    def hold(self, sequence: Sequence) -> None:
        """It would have ended here, and may yet."""
        self.tell_answers(sequence)
        self.news(sequence).finish = api.Finish("eos", held=True)

    # -- news ------------------------------------------------------------------------------------

    def news(self, sequence: Sequence) -> api.News:
        """Its news in this step, to be added to."""
        return self._latest.get(sequence.stream) or self._begin_news(sequence)

    def _begin_news(self, sequence: Sequence) -> api.News:
        news = self._latest[sequence.stream] = api.News(sequence.stream)
        self._news.append(news)
        return news

    def _news_before_changes(self, sequence: Sequence) -> api.News:
        """Further news, where the last end with what commands did: what happens now happened behind that."""
        news = self.news(sequence)
        return self._begin_news(sequence) if news.changes else news

    def answer(self, sequence: Sequence, answer: Answer) -> None:
        """A command has taken effect, behind the token in flight if there is one."""
        self._waiting.setdefault(sequence.stream, []).append(answer)
        if not sequence.num_placeholders:
            self.tell_answers(sequence)

    def goes_on(self, sequence: Sequence) -> bool:
        """Whether it is to be told, behind the token in flight, that it does."""
        kinds = [getattr(answer, "func", answer) for answer in self._waiting.get(sequence.stream, ())]
        return next((kind is api.Resumed for kind in reversed(kinds) if kind in HOLDING), False)

    def tell_answers(self, sequence: Sequence) -> None:
        """What they waited for is told, or will not come."""
        for answer in self._waiting.pop(sequence.stream, ()):
            self.news(sequence).changes.append(answer(sequence.num_outputs))

    def add_memory_change(self, sequence: Sequence, change: api.AnyChange) -> None:
        self.tell_answers(sequence)
        news = self._news_before_changes(sequence)
        if news.tokens:  # that were forced before the step was planned
            news = self._begin_news(sequence)
        news.early.append(change)

    def add_forced(self, sequence: Sequence, tokens: list[int]) -> None:
        """Tokens that nobody sampled: they were certain."""
        for token in tokens:
            self.add_token(sequence, token, SampledToken(token, _certain(token, sequence.sampling.logprobs)))
        self.news(sequence).forced += len(tokens)

    def add_token(self, sequence: Sequence, token: int, sampled: SampledToken) -> None:
        news = self._news_before_changes(sequence)
        if not news.tokens:
            news.index = sequence.num_outputs
        news.tokens.append(token)
        if sampled.logprob is not None:
            if news.logprobs is None:
                news.logprobs = []
            news.logprobs.append(sampled.logprob)

    def take_news(self) -> list[api.News]:
        """All news since they were last taken."""
        news, self._news, self._latest = self._news, [], {}
        return news

    def audit(self, sequences: Several[Sequence]) -> None:
        """Raise unless every slot is accounted for."""
        slots = [sequence.slot for sequence in sequences] + self._free_slots
        assert len(set(slots)) == len(slots)


def _certain(token: int, count: int | None) -> api.Logprob | None:
    if count is None:
        return None
    return api.Logprob(0.0, [(token, 0.0)] if count else [])
