"""Matcher threads: where matchers follow their streams' tokens, and where that is waited for, shortly
(`step/patience.py`).

There are three (`structure/constraint.py`). What is done by when somebody looks is known from then on; what
is not is no stream's but its own loss.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from collections.abc import Sequence as Several
from collections.abc import Set as AbstractSet
from concurrent.futures import Future
from operator import itemgetter

from engine.schedule.batch import Row
from engine.schedule.sequence import Sequence
from engine.step.lookout import Found, Masks, constraint_of, forces
from engine.step.patience import MOST_S, Patience
from engine.structure.constraint import Constraint
from engine.structure.matcher import GrammarError
from engine.structure.worker import Worker

# Streams whose matchers follow before those of another tenant have their turn, or fewer where they took long.
PIECE, PIECE_S = 8, 0.002
FEW_TENANTS = 256  # whose patience is remembered: others wait 10 ms anew for whoever is forgotten


class MatcherThreads:
    """`wake` is called from any thread. `others`: whether any stream but these has something to compute."""

    def __init__(
        self,
        unsettled: Mapping[int, Sequence],
        wake: Callable[[], None],
        others: Callable[[AbstractSet[int]], bool],
    ) -> None:
        self._unsettled = unsettled
        self._wake = wake
        self._others = others
        self._patience: dict[int, Patience] = {}  # with the grammars of each tenant
        self._slow = Worker("slow grammars")
        self._quick = Worker("grammars", self._slow)
        self._compiling = Worker("new grammars")
        self._ended = deque[Constraint]()  # whose matchers are to be given back
        self._jobs: dict[int, Future[None]] = {}  # of each stream: the last
        # Jobs worth waiting for: whose they are, and the streams of which each is the last.
        self._awaited: dict[Future[None], tuple[int, set[int]]] = {}

    @property
    def busy(self) -> bool:
        return any(constraint_of(sequence).followed_all for sequence in self._unsettled.values())

    # -- work given out ------------------------------------------------------------------------------

    def start(self) -> None:
        quick: dict[tuple[bool, int], list[Sequence]] = {}  # of a tenant: who may be forced, and others
        for sequence in self._unsettled.values():
            constraint = constraint_of(sequence)
            if not constraint.due:
                continue
            if not constraint.compiled:
                self._give(self._compiling, [sequence])
            elif constraint.slow:
                self._give(self._slow, [sequence])
            else:
                quick.setdefault((not forces(sequence), sequence.tenant), []).append(sequence)
        for _, sequences in sorted(quick.items(), key=itemgetter(0)):
            for piece in _pieces(sequences):
                self._give(self._quick, piece)

    def _give(self, worker: Worker, sequences: list[Sequence]) -> None:
        work = [constraint_of(sequence).submit() for sequence in sequences]
        job = worker.submit(lambda: [follow() for follow in work], sequences[0].tenant)
        for sequence in sequences:
            self._forget(sequence.stream)
            self._jobs[sequence.stream] = job
            if sequence.awaited_outlook:
                self._wake_behind(job)
        if worker is self._quick:
            self._awaited[job] = sequences[0].tenant, {sequence.stream for sequence in sequences}

    def end(self, sequence: Sequence) -> None:
        """What its matcher has is given back before another of its tenant's is compiled, and with it that of
        all that ended meanwhile, in a line of nobody's: were each a piece of its tenant's, what that begins
        next would wait for as many of others' grammars to be compiled."""
        self._forget(sequence.stream)
        constraint = constraint_of(sequence)
        if constraint.compiled:
            self._ended.append(constraint)
            if len(self._ended) == 1:  # else who gives it back is yet to come, or there
                self._compiling.submit(self._give_back)

    def _give_back(self) -> None:
        while self._ended:
            self._ended.popleft().let_go()

    def _forget(self, stream: int) -> None:
        """Nobody waits for what is the last of no stream."""
        job = self._jobs.pop(stream, None)
        if job is not None and job in self._awaited:
            _, streams = self._awaited[job]
            streams.discard(stream)
            if not streams:
                del self._awaited[job]

    def wake_for(self, stream: int) -> None:
        if (job := self._jobs.get(stream)) is not None:
            self._wake_behind(job)

    def _wake_behind(self, job: Future[None]) -> None:
        job.add_done_callback(lambda _: self._wake())

    # -- and looked at -------------------------------------------------------------------------------

    def before_plan(self) -> Iterator[Sequence]:
        """Where they are very many tenants have turns, and some wait for the next step: whoever waits for no
        answer has its row meanwhile."""
        self.start()
        sequences = [one for one in self._unsettled.values() if not self._is_for_choice(one)]
        self._await(sequences)
        began_s = time.perf_counter()
        for sequence in _in_turns(sequences):
            constraint_of(sequence).look()
            yield sequence
            if time.perf_counter() - began_s > MOST_S:
                return

    def _is_for_choice(self, sequence: Sequence) -> bool:
        """What its grammar says is of no use to the plan: it has a row in any case, and nothing is forced."""
        if not sequence.decoding or forces(sequence):
            return False
        return self._jobs.get(sequence.stream) in self._awaited

    def before_choice(self, rows: Several[Row], masks_of: Callable[[Row], Masks | GrammarError]) -> Found:
        self._follow(rows)
        if not all(constraint_of(row.sequence).known for row in rows if row.drafts):
            self._follow(rows)  # their drafts had to wait for what was under way
        return [(row, masks_of(row)) for row in rows if constraint_of(row.sequence).known]

    def _follow(self, rows: Several[Row]) -> None:
        self.start()
        self._await(row.sequence for row in rows)
        for row in rows:
            constraint_of(row.sequence).look()

    def _await(self, sequences: Iterable[Sequence]) -> None:
        jobs = {self._jobs[sequence.stream] for sequence in sequences if sequence.stream in self._jobs}
        awaited = {job: self._awaited.pop(job) for job in jobs & self._awaited.keys()}
        if all(job.done() for job in awaited):
            return
        if self._are_of_several or self._others(self._unsettled.keys()):
            self._await_each(awaited)
        else:
            ((tenant, _), *_) = awaited.values()
            self._patience_with(tenant).wait(awaited, sum(len(streams) for _, streams in awaited.values()))

    def _await_each(self, awaited: dict[Future[None], tuple[int, set[int]]]) -> None:
        """Whoever has few first: it is not to lose its token by what another's took. Of very many not all."""
        began_s = time.perf_counter()
        jobs: dict[int, list[Future[None]]] = {}
        for job, (tenant, _) in awaited.items():
            jobs.setdefault(tenant, []).append(job)
        for tenant in sorted(jobs, key=lambda tenant: len(jobs[tenant])):
            if time.perf_counter() - began_s < MOST_S:
                self._patience_with(tenant).wait_beside_others(jobs[tenant])

    def _patience_with(self, tenant: int) -> Patience:
        if len(self._patience) >= FEW_TENANTS and tenant not in self._patience:
            self._patience.clear()
        return self._patience.setdefault(tenant, Patience())

    @property
    def _are_of_several(self) -> bool:
        """Tenants: one's grammars are beside another's."""
        tenants = {sequence.tenant for sequence in self._unsettled.values()}
        return len(tenants) > 1


def _in_turns(sequences: list[Sequence]) -> list[Sequence]:
    """Of each tenant one, then of each another."""
    turns, before = list[int](), Counter[int]()
    for sequence in sequences:
        turns.append(before[sequence.tenant])
        before[sequence.tenant] += 1
    return [sequence for _, sequence in sorted(zip(turns, sequences, strict=True), key=itemgetter(0))]


def _pieces(sequences: list[Sequence]) -> Iterator[list[Sequence]]:
    piece, took_s = list[Sequence](), 0.0
    for sequence in sequences:
        took_s += constraint_of(sequence).took_s
        if len(piece) == PIECE or (piece and took_s > PIECE_S):
            yield piece
            piece, took_s = [], constraint_of(sequence).took_s
        piece.append(sequence)
    yield piece
