"""The engine: sequences, a scheduler and a runner, moved on one step at a time.

It knows tokens, commands and news of them. It knows no text, no socket and no client; who calls `step()`, a
test, a thread or a process of its own, is not its business.

With `overlap` the device never waits for the host: a step launches its batch, and then takes what the batch
before it brought. Whatever happens meanwhile to a stream with a row under way gives that row up: it is void,
what it brings is counted as discarded, and it is computed again if the stream goes on. So every index that is
told is the truth, and no token is ever taken back from a client.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from engine import api
from engine.forward.interface import Runner
from engine.sampling.sampler import Sampler
from engine.schedule.batch import Batch, Row
from engine.schedule.block_cache import BlockCache
from engine.schedule.scheduler import Scheduler
from engine.schedule.sequence import Choice, Sequence
from engine.step.command_queue import Inbox, Incoming
from engine.step.executor import Flights, Outcome
from engine.step.lifecycle import Lives
from engine.step.steering import Steering
from engine.step.swapping import Mover, Moves


class Engine:
    def __init__(
        self,
        runner: Runner,
        sampler: Sampler,
        cache: BlockCache,
        scheduler: Scheduler,
        *,
        slots: int,
        overlap: bool = False,
        mover: Mover | None = None,
        inbox: Incoming | None = None,
        salvage: bool = True,
    ) -> None:
        self.runner = runner
        self.cache = cache
        self.scheduler = scheduler
        self.tokens_total = 0
        self._discarded = 0  # in the last step
        self._flights = Flights(runner, sampler, overlap=overlap, salvage=salvage)
        self._moves = Moves(scheduler.host, mover)
        self._lives = Lives(scheduler, sampler, slots=slots, context=runner.context)
        self._steering = Steering(self._lives, scheduler, sampler)
        self._inbox = inbox or Inbox()
        self._stopping = False

    # -- the step --------------------------------------------------------------------------------

    def step(self) -> api.StepOutput:
        """One step. Commands act behind the tokens that were on their way, and are answered together with
        them: whoever steers waits for the step in flight, never for another."""
        started = time.perf_counter()
        self._fetch()
        batch = self.scheduler.schedule()
        self._announce(batch)
        landed = self._land(batch)
        self._drain()
        return self._emit(landed, time.perf_counter() - started)

    @property
    def idle(self) -> bool:
        """Whether a step would do nothing."""
        return self._nobody_runs and not self._moves.under_way

    @property
    def _nobody_runs(self) -> bool:
        return self.scheduler.idle and not self._flights.under_way

    def send(self, commands: list[api.AnyCommand]) -> None:
        """From any thread: commands for the end of the step in flight."""
        self._inbox.put(commands)

    def run(self, emit: Callable[[api.StepOutput], None]) -> None:
        """Step for as long as there is anything to do, wait while there is not, until `stop()`."""
        while not self._stopping:
            output = self.step()
            emit(output)
            if not output.stats.decode_rows and not output.stats.prefill_tokens and self.idle:
                self._inbox.wait()

    def stop(self) -> None:
        """From any thread."""
        self._stopping = True
        self._inbox.put([])

    def audit(self) -> None:
        """Raise unless every block and slot is accounted for."""
        self.cache.audit(self.scheduler.sequences.values())
        self.scheduler.host.audit()
        self._lives.audit(list(self.scheduler.sequences.values()))

    # -- run -------------------------------------------------------------------------------------

    def _fetch(self) -> None:
        """Who waited for what lay in the host's memory goes on; where nobody else runs, one is waited for."""
        for load in self._moves.arrived(wait=self._nobody_runs):
            self.scheduler.arrived(load)

    def _announce(self, batch: Batch) -> None:
        for sequence in batch.preempted:
            self._lives.news(sequence).early.append(api.Paused(sequence.outputs, "memory"))
        for sequence, recomputed in batch.resumed:
            self._lives.news(sequence).early.append(api.Resumed(sequence.outputs, recomputed, "memory"))
        for sequence, found in batch.admitted:
            self._lives.news(sequence).admitted = found

    def _land(self, batch: Batch) -> list[Row]:
        """Launch the batch, and keep what has landed."""
        rows: list[Row] = []
        self._discarded = 0
        self._moves.launch(batch)
        for landed in self._flights.fly(batch):
            for row, outcome in landed:
                if row.void:
                    self._discarded += row.samples
                else:
                    self._commit(row, outcome)
                rows.append(row)
        self._moves.keep(self.cache)
        # Where nobody runs there is time for all of it, until somebody asks for something.
        while self._nobody_runs and self._inbox.empty and self._moves.keep(self.cache, wait=True):
            pass
        return rows

    # -- commit ----------------------------------------------------------------------------------

    def _commit(self, row: Row, outcome: Outcome) -> None:
        if isinstance(outcome, Exception):
            self._fail(row.sequence, "the model failed on this stream")
        elif outcome is not None and outcome.token is None:
            self._fail(row.sequence, "the model gave no number for any token of this stream")
        else:
            self._keep(row, outcome)

    def _keep(self, row: Row, choice: Choice | None) -> None:
        self.scheduler.commit(row)
        sequence = row.sequence
        if choice is not None and choice.token is not None:
            self._lives.said(sequence, choice.token, choice)
            sequence.sampled(choice.token)
            self.tokens_total += 1
            if choice.token in self.runner.eos and not sequence.sampling.ignore_eos:
                self._lives.end(sequence, "eos")
                return
        self._lives.settle(sequence)

    def _fail(self, sequence: Sequence, detail: str) -> None:
        # What it wrote may be no numbers, and a masked read of no number is none either: leave nothing of
        # it behind.
        own = self.scheduler.disown(sequence)
        self._lives.end(sequence, "error", detail)
        self.runner.scrub_blocks(own)

    # -- drain and emit --------------------------------------------------------------------------

    def _drain(self) -> None:
        for command in self._inbox.take():
            self._steering.apply(command)

    def _emit(self, landed: list[Row], seconds: float) -> api.StepOutput:
        return api.StepOutput(self.scheduler.steps, self._lives.told(), self._stats(landed, seconds))

    def _stats(self, rows: list[Row], seconds: float) -> api.Stats:
        scheduler, cache = self.scheduler, self.cache
        decode = sum(row.samples and row.count == 1 for row in rows)
        return api.Stats(
            step_s=seconds,
            decode_rows=decode,
            prefill_tokens=sum(row.count for row in rows) - decode,
            streams=len(scheduler.sequences),
            ready=scheduler.ready,
            kv_used=cache.used,
            kv_cached=cache.cached,
            kv_free=cache.free,
            tokens_total=self.tokens_total,
            discarded=self._discarded,
            evictions_total=scheduler.evictions,
            preemptions_total=scheduler.preemptions,
            prefill_rows=len(rows) - decode,
            forward_s=self._flights.seconds,
            credit_stalls_total=scheduler.credit_stalls,
            kv_host=scheduler.host.used,
        )
