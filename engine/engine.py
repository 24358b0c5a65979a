"""The engine: sequences, a scheduler and a runner, moved on one step at a time.

It knows tokens, commands and news of them. It knows no text, no socket and no client; who calls `step()`, a
test, a thread or a process of its own, is not its business.

With `overlap` the device never waits for the host: a step launches its batch, and then takes what the batch
before it brought. Whatever happens meanwhile to a stream with a row under way gives that row up: it is void,
what it brings is counted as discarded, and it is computed again if the stream goes on. So every index that is
told is the truth, and no token is ever taken back from a client.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from queue import Empty, SimpleQueue

from engine import api
from engine.cache import BlockCache
from engine.flights import Flights, Outcome, Runner
from engine.sampler import Sampler
from engine.scheduler import Batch, Row, Scheduler
from engine.sequence import Choice, Sequence

log = logging.getLogger(__name__)


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
    ) -> None:
        self.runner = runner
        self.sampler = sampler
        self.cache = cache
        self.scheduler = scheduler
        self.tokens_total = 0
        self._discarded = 0  # in the last step
        self._flights = Flights(runner, sampler, overlap=overlap)
        self._free_slots = list(range(slots))
        self._inbox: SimpleQueue[list[api.AnyCommand]] = SimpleQueue()
        self._arrived: list[api.AnyCommand] = []
        self._news: dict[int, api.News] = {}
        self._stopping = False

    # -- the step --------------------------------------------------------------------------------

    def step(self) -> api.StepOutput:
        """One step. Commands act behind the tokens that were on their way, and are answered together with
        them: whoever steers waits for the step in flight, never for another."""
        started = time.perf_counter()
        batch = self.scheduler.schedule()
        self._announce(batch)
        landed = self._land(batch)
        self._drain()
        return self._emit(landed, time.perf_counter() - started)

    @property
    def idle(self) -> bool:
        """Whether a step would do nothing."""
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
                self._arrived += self._inbox.get()

    def stop(self) -> None:
        """From any thread."""
        self._stopping = True
        self._inbox.put([])

    def audit(self) -> None:
        """Raise unless every block and slot is accounted for."""
        self.cache.audit(self.scheduler.sequences.values())
        slots = [sequence.slot for sequence in self.scheduler.sequences.values()] + self._free_slots
        assert len(set(slots)) == len(slots)

    # -- run -------------------------------------------------------------------------------------

    def _announce(self, batch: Batch) -> None:
        for sequence in batch.preempted:
            self._tell(sequence).early.append(api.Paused(sequence.outputs, "memory"))
        for sequence, recomputed in batch.resumed:
            self._tell(sequence).early.append(api.Resumed(sequence.outputs, recomputed, "memory"))
        for sequence, found in batch.admitted:
            self._tell(sequence).admitted = found

    def _land(self, batch: Batch) -> list[Row]:
        """Launch the batch, and keep what has landed."""
        rows: list[Row] = []
        self._discarded = 0
        for landed in self._flights.fly(batch):
            for row, outcome in landed:
                if row.void:
                    self._discarded += row.samples
                else:
                    self._commit(row, outcome)
                rows.append(row)
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
            news = self._tell(sequence)
            if not news.tokens:
                news.index = sequence.outputs
            news.tokens.append(choice.token)
            if choice.logprob is not None:
                news.logprobs = [*(news.logprobs or []), choice.logprob]
            sequence.sampled(choice.token)
            self.tokens_total += 1
            if choice.token in self.runner.eos and not sequence.sampling.ignore_eos:
                self._finish(sequence, "eos")
                return
        self._settle(sequence)

    def _settle(self, sequence: Sequence) -> None:
        """After any change: the sequence has reached its end, or wants something else than before."""
        if sequence.length_reached:
            self._finish(sequence, "length")
        else:
            self.scheduler.refresh(sequence)

    def _fail(self, sequence: Sequence, detail: str) -> None:
        # What it wrote may be no numbers, and a masked read of no number is none either: leave nothing of
        # it behind.
        self.cache.disown(sequence)
        own = [number for number in sequence.blocks if self.cache.refs[number] == 1]
        self._finish(sequence, "error", detail)
        self.runner.scrub_blocks(own)

    def _finish(self, sequence: Sequence, reason: api.FinishReason, detail: str | None = None) -> None:
        self._tell(sequence).finish = api.Finish(reason, detail)
        self.scheduler.remove(sequence)
        self.sampler.release(sequence)
        self._free_slots.append(sequence.slot)

    # -- drain -----------------------------------------------------------------------------------

    def _drain(self) -> None:
        arrived, self._arrived = self._arrived, []
        while True:
            for command in arrived:
                self._apply(command)
            try:
                arrived = self._inbox.get_nowait()
            except Empty:
                return

    def _apply(self, command: api.AnyCommand) -> None:
        if isinstance(command, api.Submit):
            self._submit(command)
            return
        sequence = self.scheduler.sequences.get(command.stream)
        if sequence is None:
            return  # it ended in this very step, and that news is under way
        match command:
            case api.Cancel():
                self._finish(sequence, "cancelled")
                return
            case api.Grant(credit=credit):
                sequence.credit = max(sequence.credit, credit)
            case api.Pause(release=release):
                self._pause(sequence, release)
            case api.Resume():
                self._resume(sequence)
            case api.Adjust(sampling=sampling):
                sequence.recall()
                sequence.sampling = sampling
                self.sampler.adjust(sequence)
                self._changed(sequence, api.Adjusted(sequence.outputs))
            case api.Truncate(index=index):
                sequence.recall()
                sequence.truncate(min(index, sequence.outputs))
                self.cache.release(sequence, keep=sequence.computed)
                self._changed(sequence, api.Truncated(sequence.outputs))
            case api.Append(tokens=tokens):
                self._append(sequence, tokens)
        self._settle(sequence)

    def _submit(self, command: api.Submit) -> None:
        sequence = Sequence(
            command.stream,
            command.tokens,
            command.sampling,
            credit=command.credit,
            context=self.runner.context,
            priority=command.priority,
            tenant=command.tenant,
            prompt=command.prompt,
            injections=command.injections,
        )
        sequence.paused = command.paused
        sequence.slot = self._free_slots.pop()
        self.sampler.adopt(sequence)
        self.scheduler.add(sequence)
        self._settle(sequence)

    def _pause(self, sequence: Sequence, release: bool) -> None:
        sequence.recall()
        sequence.paused = True
        sequence.preempted = False  # now the client waits for nobody but itself
        if release:
            self.cache.release(sequence)
        self._changed(sequence, api.Paused(sequence.outputs))

    def _resume(self, sequence: Sequence) -> None:
        sequence.paused = False
        sequence.preempted = False  # it is told now that it goes on, and not again when it has its memory
        recomputed = 0
        if sequence.evicted:
            # What the prefix cache still holds is taken now, so that the number told is the number
            # recomputed.
            recomputed = sequence.known - 1 - self.cache.adopt_prefix(sequence)
        self._changed(sequence, api.Resumed(sequence.outputs, recomputed))

    def _append(self, sequence: Sequence, tokens: list[int]) -> None:
        if sequence.known + len(tokens) >= sequence.context:
            self._changed(sequence, api.Refused(sequence.outputs, sequence.known, sequence.context))
            return
        sequence.recall()
        sequence.append(tokens)
        self._changed(sequence, api.Appended(sequence.outputs, len(tokens)))

    # -- emit ------------------------------------------------------------------------------------

    def _tell(self, sequence: Sequence) -> api.News:
        news = self._news.get(sequence.stream)
        if news is None:
            news = self._news[sequence.stream] = api.News(sequence.stream)
        return news

    def _changed(self, sequence: Sequence, change: api.AnyChange) -> None:
        self._tell(sequence).changes.append(change)

    def _emit(self, landed: list[Row], seconds: float) -> api.StepOutput:
        news, self._news = self._news, {}
        return api.StepOutput(self.scheduler.steps, list(news.values()), self._stats(landed, seconds))

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
        )
