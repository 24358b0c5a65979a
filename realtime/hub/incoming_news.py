"""What engines say of streams, on its way in: each step's news are taken in by the streams that they are of,
charged to whoever they are for, and told to whoever watches.

Of thousands each turn of the event loop has some; what streams are in the middle of is then as if their news
were still on the way. So it is where their engine goes: what it said and nobody has taken in, another says
again. It knows neither frames nor who listens.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping

from msgspec.structs import replace

from engine import api
from realtime.hub.deadlines import Deadlines
from realtime.hub.decoded_turns import DecodedTurns
from realtime.hub.mistakes import MistakesEnd
from realtime.hub.news_lines import NewsLines, StepNews, StreamNews
from realtime.hub.observers import Observer
from realtime.hub.registry import LiveStream, StreamRegistry, Timer
from realtime.hub.serving import Serving
from realtime.hub.serving_engine import ServingEngine
from realtime.hub.told import Released
from realtime.hub.untaken import Untaken, moves
from realtime.hub.waking import Waking
from realtime.stream.pending_commands import Owe, PendingCommand
from realtime.stream.spanned_text import FEW
from realtime.stream.stream import Stream
from realtime.tenants.quota import Quotas

NEWS_A_TURN = 256  # tokens that are taken in before others have their turn
GUARDED_TOKEN = 32  # as how many one counts that guards read
READ_TOKENS, TAKEN_TOKENS = 8, 256  # that were injected and are read, or are not yet, and count as one
CHANGE = 8  # as how many tokens one counts that a command made: all that stands may be read anew for it
ACT_S = 0.0003  # what a guard that acts has the engine do, in another process
FINAL_NEWS = 16  # as how many the news of an end count: it is logged, and much is brought to an end

Receive = Callable[[api.News, float], list[PendingCommand]]  # as a stream does


class IncomingNews:
    def __init__(
        self,
        registry: StreamRegistry,
        serving: Serving,
        quotas: Quotas,
        turns: DecodedTurns,
        observer: Observer,
        waking: Waking,
        take_elsewhere: Callable[[ServingEngine, api.News], bool],
        tell_left: Callable[[LiveStream], None],
        deadlines: Deadlines,
        clock: Callable[[], float],
        call_later: Callable[[float, Callable[[], None]], Timer],
    ) -> None:
        """`turns`: where those are kept that end. `take_elsewhere`: news of a stream that is not there yet;
        whether it will be. `tell_left`: have results told that were left without those that they waited
        for."""
        self._take_elsewhere = take_elsewhere
        self._tell_left = tell_left
        self._registry = registry
        self._serving = serving
        self._quotas = quotas
        self._turns = turns
        self._observer = observer
        self._clock = clock
        self._deadlines = deadlines
        self._waking = waking
        self._lines = NewsLines(
            self._take_in,
            self._step_told,
            self._weighed,
            most=NEWS_A_TURN,
            wait_s=self._wait_s,
            call_later=call_later,
        )

    def receive(self, number: int, outputs: list[api.StepOutput]) -> None:
        """Steps of the engine of this number, which came together."""
        engine = self._serving.engines[number]
        now = self._clock()
        for output in outputs:
            engine.stepped(output)
            self._observer.stepped(number, output, now)
        steps = [StepNews(engine, output, now) for output in outputs]
        if self._lines.empty and self._are_few_tokens(steps):
            self._take_tokens(steps)
            for step in steps:
                self._step_told(step)
        else:
            self._lines.add(steps)

    def untaken(self, engine: ServingEngine) -> Untaken:
        """What it has said of its streams, and nobody has taken in."""
        by_number, untaken = self._registry.by_number, Untaken()
        for one in self._lines:
            entry = by_number(one.news.stream) if one.step.engine is engine else None
            if entry is not None and entry.engine is engine:
                untaken.add(one.news)
        return untaken

    def _wait_s(self, stream: int) -> float:
        """Who has guards pays for what they do. While that is owed, and there are others, they read no more;
        and no more is decoded than a little ahead of what they have read."""
        entry = self._registry.by_number(stream)
        if entry is None or entry.payer is None or not self._registry.several_pay:
            return 0.0
        return entry.payer.debt_s

    def _weighed(self, step: StepNews, news: api.News) -> StreamNews:
        entry, tokens = self._registry.by_number(news.stream), len(news.tokens)
        is_dear = False
        if entry is not None and (is_dear := entry.stream.is_dear()):
            # What they have to read again is more of it, and nothing behind it is in the same turn.
            at_once = not (entry.stream.reading or news.changes)
            tokens = GUARDED_TOKEN * tokens if at_once else NEWS_A_TURN
        elif news.changes:
            tokens += CHANGE * len(news.changes) + sum(map(_read, news.changes))
        if news.finish is not None:
            waiting = 0 if entry is None else entry.stream.num_waiting
            tokens = max(tokens, FINAL_NEWS + waiting)
        payer = 0 if entry is None else entry.stream.owner.payer
        return StreamNews(step, news, payer, tokens or 1, is_dear)

    def _are_few_tokens(self, steps: list[StepNews]) -> bool:
        """Whether they are nothing else, as most often: these need not stand in line."""
        by_number, tokens = self._registry.by_number, 0
        for step in steps:
            for news in step.output.news:
                entry = by_number(news.stream)
                if entry is None or entry.engine is not step.engine:
                    return False
                if _is_more(news) or entry.stream.is_dear():
                    return False
                tokens += len(news.tokens)
        return tokens <= NEWS_A_TURN

    def _take_tokens(self, steps: list[StepNews]) -> None:
        """Of an engine's steps that came together."""
        by_number = self._registry.by_number
        computed: defaultdict[str, int] = defaultdict(int)
        moved: list[Stream] = []
        with self._waking() as wake:
            for step in steps:
                for news in step.output.news:
                    entry = by_number(news.stream)
                    if entry is None or entry.engine is not step.engine:  # those before it had it end
                        self._take_of_nobody(step.engine, news)
                        continue
                    stream = entry.stream
                    if stream.keeping is not None:
                        stream.keeping.hear(news)
                    self._tell(entry, stream.receive_tokens, news, step.at)
                    computed[entry.key.tenant] += tokens_computed(news)
                    moved.append(stream)
                    wake(stream)
            if moved:
                self._count(computed, {steps[0].engine: moved})

    def _take_in(self, some: Iterator[StreamNews]) -> None:
        computed: defaultdict[str, int] = defaultdict(int)
        moved: defaultdict[ServingEngine, list[Stream]] = defaultdict(list)
        with self._waking() as wake:
            try:
                for one in some:
                    entry = self._take_in_one(one)
                    if entry is None:
                        continue
                    news = one.news
                    computed[entry.key.tenant] += tokens_computed(news)
                    if news.admitted is not None:
                        entry.quota.prefill_begun()
                    if moves(news):
                        moved[one.step.engine].append(entry.stream)
                    wake(entry.stream)
            finally:
                self._count(computed, moved)

    def _count(self, computed: Mapping[str, int], moved: Mapping[ServingEngine, list[Stream]]) -> None:
        """Tokens for each tenant, and streams of each engine that have moved."""
        for tenant, tokens in computed.items():
            self._quotas.count(tenant, tokens)
        for engine, streams in moved.items():
            self._serving.of_engine(engine.number).progressed(engine, streams)

    def _step_told(self, step: StepNews) -> None:
        prepares = step.output.stats.prefill_rows and step.output.stats.ready
        if not (prepares or step.engine.is_lost):
            self._serving.of_engine(step.engine.number).prepared(step.engine)
            self._serving.flush()
        self._observer.delivered(step.engine.number, step.output)

    def _take_in_one(self, one: StreamNews) -> LiveStream | None:
        """Returns whose they were, if they are taken in; else they are the next of theirs again."""
        news, engine = one.news, one.step.engine
        entry = self._registry.by_number(news.stream)
        if entry is None or not (one.is_more or (entry.engine is engine and not engine.is_lost)):
            self._take_of_nobody(engine, news)
            return None
        stream = entry.stream
        is_dear = stream.is_dear()
        reads = is_dear and stream.reading
        if reads and news != api.News(news.stream):  # it reads first what it began with, or what was put in
            self._lines.more(one)
            self._lines.more(_reading_on(one))
            return None
        if stream.keeping is not None and not one.is_more:
            stream.keeping.hear(news)
        if is_dear or _is_more(news):
            self._take_in_more(entry, one)
        else:
            self._tell(entry, stream.receive_tokens, news, one.step.at)
        return entry

    def _take_in_more(self, entry: LiveStream, one: StreamNews) -> None:
        """What may be more than that it has more tokens."""
        stream, news, now = entry.stream, one.news, one.step.at
        for pending in self._receive(entry, news, now):
            # An end that was on its way, or waited here, answers a later cancel.
            steps = max(0, one.step.output.step - pending.step)
            self._observer.steered(stream, pending.kind, steps, max(0.0, now - pending.received_s))
        entry.count_waiting()
        for turn in stream.take_decoded_turns():
            self._turns.add(entry.key.tenant, stream.model.name, turn, now)
        for action in stream.take_acted():
            self._observer.guarded(stream, action)
            if action != "tell":
                _charge_reader(entry, ACT_S)
        entry.count_in_vain()
        self.time_hold(entry)
        self._tell_left(entry)
        if stream.reading:
            self._lines.more(_reading_on(one))
        elif entry.reads_for:
            entry.reads_for = []
        if not stream.reads_injected:
            entry.tell_read()
        if news.admitted is not None and not (news.tokens or news.changes) and stream.out_of_credit:
            self._serving.of_engine(one.step.engine.number).preparing(one.step.engine, stream.number)

    def _take_of_nobody(self, engine: ServingEngine, news: api.News) -> None:
        if not self._take_elsewhere(engine, news):
            self._observer.discarded(len(news.tokens))

    def _receive(self, entry: LiveStream, news: api.News, now: float) -> list[PendingCommand]:
        """Whoever asked for what takes effect in it pays, also where it is read long after; and for guards,
        whoever reads what they let through."""
        asked, takes_effect = entry.stream.to_make, bool(news.changes) or entry.stream.reading
        if not takes_effect and entry.stream.context.guards is None:
            return self._tell(entry, entry.stream.receive_news, news, now)
        began_s = time.thread_time()
        effective = self._tell(entry, entry.stream.receive_news, news, now)
        work_s = time.thread_time() - began_s
        if takes_effect and (by := effective or ([asked] if asked else [])):
            entry.reads_for = [pending.owe for pending in by]
        if not takes_effect or not _charge(entry.reads_for, work_s):
            _charge_reader(entry, work_s)
        return effective

    def _tell(self, entry: LiveStream, receive: Receive, news: api.News, now: float) -> list[PendingCommand]:
        with MistakesEnd(entry, "take in what was decoded", now):
            return receive(news, now)
        return []

    def time_hold(self, entry: LiveStream) -> None:
        """Memory is held for a stream that waits for results as long as its start said."""
        stream = entry.stream
        if stream.paused != "tool_call":
            entry.end_hold()
        elif entry.hold is None and stream.terms.tool_hold_s is not None:
            entry.hold = self._deadlines.after(stream.terms.tool_hold_s, entry, self._release_kv)

    def _release_kv(self, entry: LiveStream) -> None:
        entry.stream.release_kv(entry.step)
        entry.note(Released())
        self._serving.flush()


def _is_more(news: api.News) -> bool:
    """Whether it is more than tokens, or none."""
    more = news.changes or news.early or news.finish is not None or news.admitted is not None
    return bool(more) or not news.tokens


def _reading_on(one: StreamNews) -> StreamNews:
    """With its next news, be they none."""
    return replace(one, news=api.News(one.news.stream), is_more=True)


def tokens_computed(news: api.News) -> int:
    """For whoever has the stream. What it was started with was counted then; what is computed again because
    others' streams had its memory, or an engine is gone, is nobody's doing."""
    tokens = len(news.tokens) + news.recomputed
    return tokens + sum(map(_put_in, news.changes)) if news.changes else tokens


def _put_in(change: api.AnyChange) -> int:
    return change.count if isinstance(change, api.Appended) else 0


def _read(change: api.AnyChange) -> int:
    """What it weighs that a few injected tokens are read, which may be a part of a call, and the others
    taken; or what guards read that come with an adjustment."""
    match change:
        case api.Appended(count=tokens):
            return min(tokens, FEW) // READ_TOKENS + tokens // TAKEN_TOKENS
        case api.Adjusted():
            return NEWS_A_TURN
    return 0


def _charge(payers: list[Owe | None], work_s: float) -> bool:
    """What frames come to when they take effect, such as to read text again from where it was rewound to.
    Returns whether somebody pays."""
    for owe in payers:
        if owe is not None:
            owe(work_s / len(payers))
    return any(owe is not None for owe in payers)


def _charge_reader(entry: LiveStream, work_s: float) -> None:
    """What guards come to, here or in the engine."""
    if entry.payer is not None and entry.stream.context.guards is not None:
        entry.payer.owe(work_s)
