"""Steering: what each command does to its stream, and how it is answered.

A command takes effect behind what is in flight for its stream, and is answered behind it: a pause or an
adjust lets the token that is being sampled stand, and acts on the next. Only what changes the tokens before
that one makes it void, and only what takes the stream's memory away voids what is computed beside it.

Whether an injection fits into a stream's grammar is asked first, and known a moment later: meanwhile the
stream's further commands wait behind it.

It knows commands, sequences and their memory; it knows no batch, no model and no queue of commands.
"""

from __future__ import annotations

from functools import partial
from weakref import WeakKeyDictionary

from engine import api
from engine.schedule.scheduler import Scheduler
from engine.schedule.sequence import Sequence
from engine.step.constraining import Constraining, same_grammar
from engine.step.lifecycle import Lifecycle


class Steering:
    def __init__(self, lifecycle: Lifecycle, scheduler: Scheduler, constraining: Constraining) -> None:
        self._lifecycle = lifecycle
        self._scheduler = scheduler
        self._constraining = constraining
        # The injection that is asked about, and what came behind it; as long as there is the sequence.
        self._waiting = WeakKeyDictionary[Sequence, list[api.StreamCommand]]()

    def apply(self, command: api.StreamCommand) -> None:
        if isinstance(command, api.Submit):
            self._lifecycle.submit(command)
            return
        sequence = self._scheduler.sequences.get(command.stream)
        if sequence is None:
            return  # it finished in this very step, and that news is on its way
        if sequence in self._waiting and not isinstance(command, api.Cancel | api.Grant):
            self._waiting[sequence].append(command)
            return
        self._apply(command, sequence)

    def _apply(self, command: api.StreamCommand, sequence: Sequence) -> None:
        match command:
            case api.Cancel():
                self._lifecycle.tell_answers(sequence)
                self._lifecycle.finish(sequence, "cancelled")
                return
            case api.Grant(credit=credit):
                sequence.credit = credit
            case api.Pause(release=release):
                self._pause(sequence, release)
            case api.Resume():
                self._resume(sequence)
            case api.Adjust(sampling=sampling):
                self._adjust(sequence, sampling)
            case api.Truncate(index=index, ban=ban):
                self._truncate(sequence, index, ban)
            case api.Append():
                self._inject(sequence, command)
        self._lifecycle.update(sequence)

    def go_on(self, sequence: Sequence) -> list[api.StreamCommand]:
        """What was asked of the stream's grammar is answered. Returns what waited for it, which is to be done
        before the next token."""
        waiting = self._waiting.pop(sequence, None)
        if waiting is None:
            return []
        injection, *behind = waiting
        assert isinstance(injection, api.Append)
        assert sequence.constraint is not None
        self._put_in(sequence, injection, fits=sequence.constraint.outlook.fits)
        if behind:
            self._constraining.postpone(sequence)
        self._lifecycle.update(sequence)
        return behind

    def hold(self, sequence: Sequence) -> None:
        """It has come to an end token, and the gateway says whether it ends: it stands paused before it. Who
        has said already that it goes on said so behind that token."""
        goes_on = self._lifecycle.goes_on(sequence)
        sequence.take_back_end()
        sequence.paused = not goes_on
        if goes_on:
            self._sample_again(sequence)
        self._lifecycle.hold(sequence)
        self._lifecycle.update(sequence)

    def _pause(self, sequence: Sequence, release: bool) -> None:
        sequence.paused = True
        sequence.preempted = False  # now the client waits for nobody but itself
        if release:
            sequence.give_up_in_flight()
            self._scheduler.release_blocks(sequence)
        self._lifecycle.answer(sequence, api.Paused)

    def _resume(self, sequence: Sequence) -> None:
        sequence.paused = False
        sequence.preempted = False  # it is told now that it goes on, and not again when it has its memory
        recomputed = 0
        if sequence.evicted:
            # What may be taken of what is still cached for it is taken now, so that the number told is the
            # number recomputed.
            lost = sequence.num_recomputed
            found = self._scheduler.restore_blocks(sequence)
            recomputed = max(0, lost - found)
            if sequence.blocks and not sequence.admitted:  # as a fork that was paused before its turn
                sequence.admitted = True
                self._lifecycle.news(sequence).admitted = found
        elif sequence.num_computed == sequence.num_tokens:  # held before an end token, and nothing put there
            self._sample_again(sequence)
        self._lifecycle.answer(sequence, partial(api.Resumed, recomputed=recomputed))

    def _sample_again(self, sequence: Sequence) -> None:
        """Behind its last token."""
        self._scheduler.release_blocks(sequence, keep=sequence.num_tokens - 1)

    def _adjust(self, sequence: Sequence, sampling: api.Sampling) -> None:
        anew = not same_grammar(sampling, sequence.sampling)
        sequence.sampling = sampling
        if anew:
            self._constraining.begin(sequence)
        if sequence.length_reached:
            sequence.give_up_in_flight()
        self._lifecycle.answer(sequence, api.Adjusted)

    def _truncate(self, sequence: Sequence, index: int, ban: int | None) -> None:
        self._cut(sequence, sequence.output_position(min(index, sequence.num_outputs)))
        if ban is not None and index == sequence.num_outputs:
            sequence.ban(ban)
        self._lifecycle.answer(sequence, api.Truncated)

    def _cut(self, sequence: Sequence, position: int) -> None:
        self._lifecycle.tell_answers(sequence)  # the token that they wait for will not come
        sequence.cut(position)
        self._scheduler.release_blocks(sequence, keep=sequence.next_position)

    def _inject(self, sequence: Sequence, command: api.Append) -> None:
        tokens, kept = command.tokens, _kept(sequence, command)
        asked = sequence.unfollowed(kept) + ([] if command.grammar_anew else tokens)
        if not tokens and command.behind is None:
            self._lifecycle.answer(sequence, api.Appended)
        elif kept + len(tokens) >= sequence.context:
            self._lifecycle.answer(sequence, partial(api.Refused, known=kept, context=sequence.context))
        elif sequence.constraint is None or not asked:
            self._put_in(sequence, command, fits=True)
        else:
            # Else it would be asked a token too early.
            sequence.give_up_in_flight(sequence.num_tokens - 1)
            sequence.constraint.ask(asked, length=kept)
            self._constraining.postpone(sequence)
            self._waiting[sequence] = [command]

    def _put_in(self, sequence: Sequence, command: api.Append, *, fits: bool) -> None:
        if not fits:
            self._lifecycle.answer(sequence, partial(api.Refused, reason="grammar"))
            return
        if command.behind is not None:
            self._cut(sequence, _kept(sequence, command))
        if command.tokens:
            sequence.inject(command.tokens, grammar_anew=command.grammar_anew)
        self._lifecycle.answer(sequence, partial(api.Appended, count=len(command.tokens)))


def _kept(sequence: Sequence, command: api.Append) -> int:
    """How many of its tokens stay."""
    if command.behind is None:
        return sequence.num_tokens
    return min(sequence.num_tokens, sequence.num_prompt + command.behind)
