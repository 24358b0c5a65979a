"""Steering: what each command does to its stream, and how it is answered.

It knows commands, sequences and their memory; it knows no batch, no model and no queue of commands. Whatever
changes a stream's next tokens first discards what is in flight for it.
"""

from __future__ import annotations

from engine import api
from engine.sampling.sampler import Sampler
from engine.schedule.scheduler import Scheduler
from engine.schedule.sequence import Sequence
from engine.step.lifecycle import Lifecycle


class Steering:
    def __init__(self, lifecycle: Lifecycle, scheduler: Scheduler, sampler: Sampler) -> None:
        self._lifecycle = lifecycle
        self._scheduler = scheduler
        self._sampler = sampler

    def apply(self, command: api.AnyCommand) -> None:
        if isinstance(command, api.Submit):
            self._lifecycle.submit(command)
            return
        sequence = self._scheduler.sequences.get(command.stream)
        if sequence is None:
            return  # it finished in this very step, and that news is on its way
        match command:
            case api.Cancel():
                self._lifecycle.finish(sequence, "cancelled")
                return
            case api.Grant(credit=credit):
                sequence.credit = max(sequence.credit, credit)
            case api.Pause(release=release):
                self._pause(sequence, release)
            case api.Resume():
                self._resume(sequence)
            case api.Adjust(sampling=sampling):
                self._adjust(sequence, sampling)
            case api.Truncate(index=index):
                self._truncate(sequence, index)
            case api.Append(tokens=tokens):
                self._inject(sequence, tokens)
        self._lifecycle.update(sequence)

    def _pause(self, sequence: Sequence, release: bool) -> None:
        sequence.discard_in_flight()
        sequence.paused = True
        sequence.preempted = False  # now the client waits for nobody but itself
        if release:
            self._scheduler.release_blocks(sequence)
        self._lifecycle.add_change(sequence, api.Paused(sequence.num_outputs))

    def _resume(self, sequence: Sequence) -> None:
        sequence.paused = False
        sequence.preempted = False  # it is told now that it goes on, and not again when it has its memory
        recomputed = 0
        if sequence.evicted:
            # What is still cached for it is taken now, so that the number told is the number recomputed.
            recomputed = sequence.num_tokens - 1 - self._scheduler.restore_blocks(sequence)
        self._lifecycle.add_change(sequence, api.Resumed(sequence.num_outputs, recomputed))

    def _adjust(self, sequence: Sequence, sampling: api.Sampling) -> None:
        sequence.discard_in_flight()
        sequence.sampling = sampling
        self._sampler.update_parameters(sequence)
        self._lifecycle.add_change(sequence, api.Adjusted(sequence.num_outputs))

    def _truncate(self, sequence: Sequence, index: int) -> None:
        sequence.discard_in_flight()
        sequence.truncate(min(index, sequence.num_outputs))
        self._scheduler.release_blocks(sequence, keep=sequence.num_computed)
        self._lifecycle.add_change(sequence, api.Truncated(sequence.num_outputs))

    def _inject(self, sequence: Sequence, tokens: list[int]) -> None:
        if sequence.num_tokens + len(tokens) >= sequence.context:
            refused = api.Refused(sequence.num_outputs, sequence.num_tokens, sequence.context)
            self._lifecycle.add_change(sequence, refused)
            return
        sequence.discard_in_flight()
        sequence.inject(tokens)
        self._lifecycle.add_change(sequence, api.Appended(sequence.num_outputs, len(tokens)))
