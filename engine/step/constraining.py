"""Constraining: the grammars of streams, in step with their tokens.

What comes next is found elsewhere, while the device computes or the host does something else, and this is
where it is asked for: before a step is planned where the next tokens may be forced, else behind its forward,
where a token is chosen. What is not there by then is no stream's but its own loss: its row is given up in
this step, and the stream samples nothing until it is.

It knows sequences, rows and outlooks; who finds those it leaves to its lookout, what a forced token is to a
stream's reader to `force`, and where a sequence stands that has less to compute than before, to `moved`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from collections.abc import Sequence as Several
from collections.abc import Set as AbstractSet
from functools import partial

from engine import api
from engine.schedule.batch import Row
from engine.schedule.sequence import Sequence
from engine.step.lookout import Found, MakeLookout, Masks, constraint_of
from engine.structure.constraint import Constraint
from engine.structure.mask import ALLOWED, without
from engine.structure.matcher import GrammarError
from engine.structure.matcher_memory import MatcherMemory
from engine.structure.vocabulary import Vocabulary

_ANY = bytes([ALLOWED])

Starts = Several[int]  # positions at which a grammar begins


def same_grammar(one: api.Sampling, other: api.Sampling) -> bool:
    """Whether whoever follows the one need not begin anew with the other."""
    return _sources(one.grammar) == _sources(other.grammar)


class Constraining:
    """`wake` is called from any thread, when what a stream waits for is there. `others`: whether any stream
    but these has something to compute."""

    def __init__(
        self,
        make_lookout: MakeLookout,
        vocabulary: Vocabulary | None = None,
        *,
        wake: Callable[[], None] = lambda: None,
        force: Callable[[Sequence], None] = lambda sequence: None,
        moved: Callable[[Sequence], None] = lambda sequence: None,
        others: Callable[[AbstractSet[int]], bool] = lambda streams: False,
    ) -> None:
        self._vocabulary = vocabulary
        self._force = force
        self._moved = moved
        self._memory = MatcherMemory()
        self._unsettled: dict[int, Sequence] = {}
        self._lookout = make_lookout(self._unsettled, wake, others)

    @property
    def busy(self) -> bool:
        """Who is woken in the middle of a step does not hear of it."""
        return self._lookout.busy

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
        constraint = Constraint(grammar.source, self._vocabulary, starts[0], changed, grammar.later, share)
        _replay(constraint, sequence, starts)
        sequence.constraint = sequence.awaited_outlook = constraint

    def end(self, sequence: Sequence) -> None:
        if sequence.constraint is not None:
            sequence.constraint.give_up()
            self._lookout.end(sequence)
        sequence.constraint = sequence.awaited_outlook = None
        self._unsettled.pop(sequence.stream, None)

    # -- a step --------------------------------------------------------------------------------------

    def start(self) -> None:
        """Have whatever happened to tokens followed."""
        self._lookout.start()

    def settle(self) -> Iterator[Sequence]:
        """Before a step is planned: the streams of whose next token more is known than before, or less."""
        if self._unsettled:
            yield from filter(self._settle, self._lookout.before_plan())

    def _settle(self, sequence: Sequence) -> bool:
        if not constraint_of(sequence).known:
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
        self._lookout.wake_for(sequence.stream)

    def choose(self, rows: list[Row]) -> Found:
        """Of rows that were launched, and whose streams' last tokens are known: those that can be sampled
        now, each with its masks. Others are not to be sampled, or are given up.

        A row with drafts loses those behind which there is no mask, and is sampled where a token is forced:
        it comes to the same."""
        rows = [row for row in rows if row.samples and not row.given_up]
        found = self._lookout.before_choice(rows, self._masks)
        known = {id(row) for row, _ in found}
        for row in rows:
            if id(row) not in known:
                row.sequence.give_up_in_flight(row.end - row.num_sampled)
                self.postpone(row.sequence)
                self._moved(row.sequence)
            elif not row.drafts:
                self._force(row.sequence)
        return [(row, masks) for row, masks in found if row.samples]

    def _masks(self, row: Row) -> Masks | GrammarError:
        """For what is sampled behind the last known token, and behind each draft: an error there is for the
        step that comes to it."""
        outlook = constraint_of(row.sequence).outlook
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


def _sources(grammar: api.Grammar | None) -> tuple[str | None, str | None]:
    return (None, None) if grammar is None else (grammar.source, grammar.later)


def _replay(constraint: Constraint, sequence: Sequence, starts: Starts) -> None:
    """All that stands, from each beginning up to the injection behind which there is another."""
    ends, put = {}, 0
    for index, count in sequence.injections:
        put += count
        ends[sequence.num_prompt + index + put] = count
    at = starts[0]
    for start in starts[1:]:
        constraint.append(sequence.tokens[at : start - ends[start]], at)
        constraint.begin_anew(start)
        at = start
    constraint.append(sequence.tokens[at:], at)
