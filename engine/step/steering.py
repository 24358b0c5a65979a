"""What each command does to its stream, and how it is answered.

It knows commands, sequences and their memory; it knows no batch, no model and no queue of commands. Whatever
changes what a stream says next first gives up what is under way for it.
"""

from __future__ import annotations

from engine import api
from engine.sampling.sampler import Sampler
from engine.schedule.scheduler import Scheduler
from engine.schedule.sequence import Sequence
from engine.step.lifecycle import Lives


class Steering:
    def __init__(self, lives: Lives, scheduler: Scheduler, sampler: Sampler) -> None:
        self._lives = lives
        self._scheduler = scheduler
        self._sampler = sampler

    def apply(self, command: api.AnyCommand) -> None:
        if isinstance(command, api.Submit):
            self._lives.begin(command)
            return
        sequence = self._scheduler.sequences.get(command.stream)
        if sequence is None:
            return  # it ended in this very step, and that news is under way
        match command:
            case api.Cancel():
                self._lives.end(sequence, "cancelled")
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
                self._append(sequence, tokens)
        self._lives.settle(sequence)

    def _pause(self, sequence: Sequence, release: bool) -> None:
        sequence.recall()
        sequence.paused = True
        sequence.preempted = False  # now the client waits for nobody but itself
        if release:
            self._scheduler.release(sequence)
        self._lives.changed(sequence, api.Paused(sequence.outputs))

    def _resume(self, sequence: Sequence) -> None:
        sequence.paused = False
        sequence.preempted = False  # it is told now that it goes on, and not again when it has its memory
        recomputed = 0
        if sequence.evicted:
            # What is still held for it is taken now, so that the number told is the number recomputed.
            recomputed = sequence.known - 1 - self._scheduler.regain(sequence)
        self._lives.changed(sequence, api.Resumed(sequence.outputs, recomputed))

    def _adjust(self, sequence: Sequence, sampling: api.Sampling) -> None:
        sequence.recall()
        sequence.sampling = sampling
        self._sampler.adjust(sequence)
        self._lives.changed(sequence, api.Adjusted(sequence.outputs))

    def _truncate(self, sequence: Sequence, index: int) -> None:
        sequence.recall()
        sequence.truncate(min(index, sequence.outputs))
        self._scheduler.release(sequence, keep=sequence.computed)
        self._lives.changed(sequence, api.Truncated(sequence.outputs))

    def _append(self, sequence: Sequence, tokens: list[int]) -> None:
        if sequence.known + len(tokens) >= sequence.context:
            refused = api.Refused(sequence.outputs, sequence.known, sequence.context)
            self._lives.changed(sequence, refused)
            return
        sequence.recall()
        sequence.append(tokens)
        self._lives.changed(sequence, api.Appended(sequence.outputs, len(tokens)))
