"""Constraining: the grammars of streams, in step with their tokens.

Matchers are worked at in three threads (`structure/constraint.py`), while the device computes or the host
does something else, and this is where their work is given out and waited for, shortly (`step/patience.py`):
before a step is planned where the next tokens may be forced, else behind its forward, where a token is
chosen. What is not there by then is no stream's but its own loss: its row is given up in this step, and the
stream samples nothing until it is.

It knows sequences, rows and outlooks; what a forced token is to a stream's reader it leaves to `force`, and
where a sequence stands that has less to compute than before, to `moved`.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from collections.abc import Sequence as Several
from collections.abc import Set as AbstractSet
from concurrent.futures import Future, wait
from functools import partial
from operator import itemgetter

from engine import api
from engine.schedule.batch import Row
from engine.schedule.sequence import Sequence
from engine.step.patience import MOST_S, Patience
from engine.structure.constraint import Constraint
from engine.structure.follower import Follower
from engine.structure.mask import ALLOWED, without
from engine.structure.matcher import GrammarError
from engine.structure.matcher_memory import MatcherMemory
from engine.structure.vocabulary import Vocabulary
from engine.structure.worker import Worker

# Streams whose matchers follow before those of another tenant have their turn, or fewer where they took long.
PIECE, PIECE_S = 8, 0.002
FEW_TENANTS = 256  # whose patience is remembered: others wait 10 ms anew for whoever is forgotten
_ANY = bytes([ALLOWED])

Starts = Several[int]  # positions at which a grammar begins
Masks = list[bytes | None]  # of a row: of each token that it samples


def same_grammar(one: api.Sampling, other: api.Sampling) -> bool:
    """Whether whoever follows the one need not begin anew with the other."""
    return _sources(one.grammar) == _sources(other.grammar)


class Constraining:
    """`wake` is called from any thread, when what a stream waits for is there. `others`: whether any stream
    but these has something to compute. `patient`: everything is waited for, and done one after the other, so
    that what happens in a step hangs on no thread's pace; then nobody need be woken."""

    def __init__(
        self,
        vocabulary: Vocabulary | None = None,
        *,
        wake: Callable[[], None] = lambda: None,
        force: Callable[[Sequence], None] = lambda sequence: None,
        moved: Callable[[Sequence], None] = lambda sequence: None,
        others: Callable[[AbstractSet[int]], bool] = lambda streams: False,
        patient: bool = False,
    ) -> None:
        self._vocabulary = vocabulary
        self._wake = wake
        self._force = force
        self._moved = moved
        self._others = others
        self._patience: dict[int, Patience] = {}  # with the grammars of each tenant
        self._patient = patient
        self._slow = Worker("slow grammars")
        self._quick = Worker("grammars", None if patient else self._slow)
        self._compiling = Worker("new grammars")
        self._memory = MatcherMemory()
        self._unsettled: dict[int, Sequence] = {}  # those of whose outlook there may be news
        self._jobs: dict[int, Future[None]] = {}  # of each stream: the last
        # Jobs worth waiting for: whose they are, and the streams of which each is the last.
        self._awaited: dict[Future[None], tuple[int, set[int]]] = {}

    @property
    def busy(self) -> bool:
        """Whether a step would settle something, without being woken for it: who is woken in the middle of a
        step does not hear of it."""
        if self._patient:
            return bool(self._unsettled)
        return any(_constraint(sequence).known for sequence in self._unsettled.values())

    @property
    def grammar_states(self) -> int:
        """Of all matchers, beyond what each has for nothing."""
        return self._memory.taken()

    # -- grammars that begin and end -----------------------------------------------------------------

    def begin(self, sequence: Sequence, starts: Starts | None = None) -> None:
        """By the sequence's parameters: from the next token on, or from where they began before."""
        self.end(sequence)
        grammar = sequence.sampling.grammar
        if grammar is None:
            return
        if starts is None:
            starts = [sequence.num_tokens + sequence.num_placeholders]
        changed = partial(self._unsettled.__setitem__, sequence.stream, sequence)
        share = self._memory.share(sequence.tenant)
        constraint = Constraint(
            grammar.source,
            self._vocabulary,
            starts[0],
            changed,
            grammar.later,
            share,
            Follower(watched=not self._patient),
        )
        _replay(constraint, sequence, starts)
        sequence.constraint = sequence.awaited_outlook = constraint

    def end(self, sequence: Sequence) -> None:
        if sequence.constraint is not None:
            self._finish()
            _constraint(sequence).give_up()
        sequence.constraint = sequence.awaited_outlook = None
        self._unsettled.pop(sequence.stream, None)
        self._forget_job(sequence.stream)

    # -- the threads -----------------------------------------------------------------------------------

    def start(self) -> None:
        """Have the threads follow whatever happened to tokens."""
        self._finish()
        due = [sequence for sequence in self._unsettled.values() if _constraint(sequence).due]
        if self._patient:
            if due:
                self._give(self._quick, due)
            return
        quick: dict[tuple[bool, int], list[Sequence]] = {}  # of a tenant: who may be forced, and others
        for sequence in due:
            constraint = _constraint(sequence)
            if not constraint.compiled:
                self._give(self._compiling, [sequence])
            elif constraint.slow:
                self._give(self._slow, [sequence])
            else:
                quick.setdefault((not _forces(sequence), sequence.tenant), []).append(sequence)
        for _, sequences in sorted(quick.items(), key=itemgetter(0)):
            for piece in _pieces(sequences):
                self._give(self._quick, piece)

    def _finish(self) -> None:
        """Where all is waited for, what is under way: else who can be given more work, and who finds room for
        more of a grammar, would hang on a thread's pace."""
        if self._patient:
            wait(self._awaited)
            self._awaited.clear()

    def _give(self, worker: Worker, sequences: list[Sequence]) -> None:
        work = [_constraint(sequence).submit() for sequence in sequences]
        job = worker.submit(lambda: [follow() for follow in work], sequences[0].tenant)
        for sequence in sequences:
            self._forget_job(sequence.stream)
            self._jobs[sequence.stream] = job
            if sequence.awaited_outlook:
                self._wake_behind(job)
        if worker is self._quick:
            self._awaited[job] = sequences[0].tenant, {sequence.stream for sequence in sequences}

    def _forget_job(self, stream: int) -> None:
        """Nobody waits for what is the last of no stream."""
        job = self._jobs.pop(stream, None)
        if job is not None and job in self._awaited:
            _, streams = self._awaited[job]
            streams.discard(stream)
            if not streams:
                del self._awaited[job]

    def _await(self, sequences: Iterable[Sequence]) -> None:
        jobs = {self._jobs[sequence.stream] for sequence in sequences if sequence.stream in self._jobs}
        awaited = {job: self._awaited.pop(job) for job in jobs & self._awaited.keys()}
        if all(job.done() for job in awaited):
            return
        if self._patient:
            wait(awaited)
        elif self._are_of_several or self._others(self._unsettled.keys()):
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

    # -- a step --------------------------------------------------------------------------------------

    def settle(self) -> Iterator[Sequence]:
        """Before a step is planned: the streams of whose next token more is known than before, or less. Where
        they are very many tenants have turns, and some wait for the next step: whoever waits for no answer
        has its row meanwhile."""
        if not self._unsettled:
            return
        self.start()
        settled = [sequence for sequence in self._unsettled.values() if not self._settled_at_choice(sequence)]
        self._await(settled)
        began_s = time.perf_counter()
        for sequence in _in_turns(settled):
            if self._settle(sequence):
                yield sequence
                if not self._patient and time.perf_counter() - began_s > MOST_S:
                    return

    def _settled_at_choice(self, sequence: Sequence) -> bool:
        """What its grammar says is of no use to the plan: it has a row in any case, and nothing is forced."""
        if self._patient or not sequence.decoding or _forces(sequence):
            return False
        return self._jobs.get(sequence.stream) in self._awaited

    def _settle(self, sequence: Sequence) -> bool:
        if not _constraint(sequence).known:
            if sequence.awaited_outlook or sequence.num_placeholders:  # behind those it will be another
                return False
            self.postpone(sequence)
            return True
        sequence.awaited_outlook = None
        del self._unsettled[sequence.stream]
        return True

    def postpone(self, sequence: Sequence) -> None:
        """It samples nothing before its outlook is there."""
        sequence.awaited_outlook = sequence.constraint
        self._unsettled[sequence.stream] = sequence
        job = self._jobs.get(sequence.stream)
        if job is not None:
            self._wake_behind(job)

    def _wake_behind(self, job: Future[None]) -> None:
        if not self._patient:
            job.add_done_callback(lambda _: self._wake())

    def choose(self, rows: list[Row]) -> list[tuple[Row, Masks | GrammarError]]:
        """Of rows that were launched, and whose streams' last tokens are known: those that can be sampled
        now, each with its masks. Others are not to be sampled, or are given up.

        A row with drafts loses those behind which there is no mask, and is sampled where a token is forced:
        it comes to the same."""
        self._follow(rows)
        if not all(_constraint(row.sequence).known for row in rows if row.drafts):
            self._follow(rows)  # their drafts had to wait for what was under way
        for row in rows:
            if not row.given_up and not row.drafts:
                self._force(row.sequence)
        chosen: list[tuple[Row, Masks | GrammarError]] = []
        for row in rows:
            if not row.samples or row.given_up:
                continue
            if not _constraint(row.sequence).known:
                row.sequence.give_up_in_flight(row.end - row.num_sampled)
                self.postpone(row.sequence)
                self._moved(row.sequence)
            else:
                chosen.append((row, self._masks(row)))
        return chosen

    def _follow(self, rows: list[Row]) -> None:
        self.start()
        self._await(row.sequence for row in rows)

    def _masks(self, row: Row) -> Masks | GrammarError:
        """For what is sampled behind the last known token, and behind each draft: an error there is for the
        step that comes to it."""
        outlook = _constraint(row.sequence).outlook
        if outlook.error is not None:
            return GrammarError(outlook.error)
        masks: Masks = []
        for mask in [outlook.mask, *outlook.masks_ahead[: len(row.drafts)]]:
            try:
                masks.append(self._mask(row.sequence, row.index + len(masks), mask))
            except GrammarError as error:
                if not masks:
                    return error
                break
        row.sequence.draft(row, row.drafts[: len(masks) - 1])
        return masks

    def _mask(self, sequence: Sequence, index: int, mask: bytes | None) -> bytes | None:
        """That of the grammar, without what may not come at this index for other reasons."""
        if mask is None or self._vocabulary is None:
            return mask
        if _ANY not in mask:
            raise GrammarError("The grammar leaves nothing that could come next.")
        if banned := sequence.banned_at(index):
            mask = without(mask, banned)
            if _ANY not in mask:
                raise GrammarError(
                    f"The grammar leaves nothing but what a guard has banned at token {index}."
                )
        if index < sequence.sampling.min_tokens:
            mask = without(mask, self._vocabulary.ends)
            if _ANY not in mask:
                least = sequence.sampling.min_tokens
                raise GrammarError(
                    f"The grammar leaves nothing but an end at token {index}, and `min_tokens` is {least}."
                )
        return mask

    def forced(self, sequence: Sequence) -> list[int]:
        """What comes next of itself, as far as the stream may go now."""
        constraint, sampling = sequence.constraint, sequence.sampling
        if constraint is None or sampling.grammar is None or not sampling.grammar.force:
            return []
        if not constraint.known or not sequence.admitted or sequence.awaited_outlook:
            return []
        if sequence.paused or sequence.preempted:  # whichever of the two it was told
            return []
        tokens = constraint.outlook.forced
        if self._vocabulary is None or not tokens:
            return []
        if tokens[0] in self._vocabulary.ends and sequence.num_outputs < sampling.min_tokens:
            return []
        most = min(sequence.credit, sampling.max_tokens) - sequence.num_outputs
        tokens = tokens[: max(0, min(most, sequence.context - sequence.num_tokens))]
        index = sequence.num_outputs
        banned = (at for at, token in enumerate(tokens) if token in sequence.banned_at(index + at))
        return tokens[: next(banned, len(tokens))]


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
        took_s += _constraint(sequence).took_s
        if len(piece) == PIECE or (piece and took_s > PIECE_S):
            yield piece
            piece, took_s = [], _constraint(sequence).took_s
        piece.append(sequence)
    yield piece


def _forces(sequence: Sequence) -> bool:
    return sequence.sampling.grammar is not None and sequence.sampling.grammar.force


def _sources(grammar: api.Grammar | None) -> tuple[str | None, str | None]:
    return (None, None) if grammar is None else (grammar.source, grammar.later)


def _constraint(sequence: Sequence) -> Constraint:
    assert sequence.constraint is not None
    return sequence.constraint


def _replay(constraint: Constraint, sequence: Sequence, starts: Starts) -> None:
    """All that stands, from each beginning up to the injection behind which there is another."""
    ends, put = {}, 0
    for index, count in sequence.injections:
        put += count
        ends[sequence.num_prompt + index + put] = count
    at = starts[0]
    for start in starts[1:]:
        constraint.append(sequence.tokens[at : start - ends[start]].tolist(), at)
        constraint.begin_anew(start)
        at = start
    constraint.append(sequence.tokens[at:].tolist(), at)
