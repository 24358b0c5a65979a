"""The engine: a scheduler, a runner and a sampler, moved on one step at a time.

It knows tokens, commands and news of them. It knows no text, no socket and no client; who calls `step()`, a
test, a thread or a process of its own, is not its business.

With `overlap` the device never waits for the host: a step launches its batch, and then takes the results of
the batch before it. A command acts behind the token in flight for its stream, and is answered behind it. Only
what changes the tokens before that one makes it void: it is counted as discarded, and sampled again if the
stream goes on. So every index that a client is told is the truth, and no token is ever taken back.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from collections.abc import Sequence as Several

from engine import api
from engine.forward.interface import Runner
from engine.memory.idle_memory import IdleMemory
from engine.sampling.sampler import Sampler
from engine.schedule.batch import Batch, Row
from engine.schedule.block_cache import BlockCache
from engine.schedule.scheduler import Scheduler
from engine.schedule.sequence import SampledToken, Sequence
from engine.step.command_queue import CommandQueue, CommandSource
from engine.step.constraining import Constraining
from engine.step.drafting import Drafting
from engine.step.executor import Executor, Result
from engine.step.lifecycle import Lifecycle
from engine.step.lookout import MakeLookout
from engine.step.matcher_threads import MatcherThreads
from engine.step.steering import Steering
from engine.step.step_times import StepTimes
from engine.step.swapping import BlockCopier, Swapping
from engine.structure.matcher import GrammarError
from engine.structure.vocabulary import Vocabulary

SWITCH_S = 0.0005  # after which a thread that prepares grammars, or talks to gateways, gives way to the step
CROWD_S = 0.01  # for what very many commands do behind a step, however short that was


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
        copier: BlockCopier | None = None,
        commands: CommandSource | None = None,
        make_lookout: MakeLookout = MatcherThreads,
        retry: bool = True,
        idle_memory: Several[IdleMemory] = (),
        vocabulary: Vocabulary | None = None,
        drafting: Drafting | None = None,
        times: StepTimes | None = None,
    ) -> None:
        assert not (overlap and drafting), "nobody can tell what follows a token that is not known"
        self.runner = runner
        self.cache = cache
        self.scheduler = scheduler
        self.tokens_total = 0
        self._discarded = 0  # in the last step
        self._commands = commands or CommandQueue()
        self._constraining = Constraining(
            make_lookout,
            vocabulary,
            wake=lambda: self._commands.put([]),
            force=self._force,
            moved=scheduler.update_ready,
            others=scheduler.has_ready_beside,
        )
        self._drafting = drafting or Drafting(scheduler)
        self._times = times
        self._executor = Executor(runner, sampler, self._constraining, overlap=overlap, retry=retry)
        self._swapping = Swapping(scheduler.host_cache, copier)
        self._lifecycle = Lifecycle(
            scheduler, sampler, self._constraining, slots=slots, context=runner.context
        )
        self._steering = Steering(self._lifecycle, scheduler, self._constraining)
        self._idle_memory = list(idle_memory)
        self._stopping = False

    # -- the step --------------------------------------------------------------------------------

    def step(self) -> api.StepOutput:
        """One step. Commands act behind the tokens that were on their way, and are answered behind them:
        whoever steers waits for the step in flight, and for another only behind a crowd."""
        started = time.perf_counter()
        self._give_back_idle_memory()
        self._finish_loads()
        waited_s = time.perf_counter() - started
        self._settle_grammars()
        batch = self.scheduler.schedule()
        self._drafting.extend(batch)
        self._constraining.start()  # on the masks behind drafts, while the model computes
        self._announce(batch)
        completed = self._execute(batch)
        self._apply_commands(max(CROWD_S, time.perf_counter() - started))
        self._constraining.start()
        seconds = time.perf_counter() - started
        self._learn(completed, seconds - waited_s)
        self._save_while_idle()
        return self._output(completed, seconds)

    @property
    def idle(self) -> bool:
        """Whether a step would do nothing."""
        return self._nothing_to_compute and not self._swapping.busy and self._commands.empty

    @property
    def _nothing_to_compute(self) -> bool:
        return self.scheduler.idle and not self._executor.busy and not self._constraining.busy

    def send(self, commands: list[api.AnyCommand]) -> None:
        """From any thread: commands for the end of the step in flight."""
        self._commands.put(commands)

    def run(self, emit: Callable[[api.StepOutput], None]) -> None:
        """Step for as long as there is anything to do, wait while there is not, until `stop()`."""
        sys.setswitchinterval(SWITCH_S)
        while not self._stopping:
            output = self.step()
            emit(output)
            if output.stats.decode_rows or output.stats.prefill_tokens or not self.idle:
                continue
            if not self._stopping:  # the step has taken what `stop` has put, where it was under way
                due = [memory.due_in_s for memory in self._idle_memory]
                self.wait(min((one for one in due if one is not None), default=None))

    def wait(self, timeout_s: float | None = None) -> None:
        """Until there is something to do again, or for so long."""
        self._commands.wait(timeout_s)

    def stop(self) -> None:
        """From any thread."""
        self._stopping = True
        self._commands.put([])

    def audit(self) -> None:
        """Raise unless every block and slot is accounted for."""
        self.cache.audit(self.scheduler.sequences.values())
        self.scheduler.audit()
        self.scheduler.host_cache.audit()
        self._lifecycle.audit(list(self.scheduler.sequences.values()))

    # -- memory that nobody has used for a while ---------------------------------------------------

    def _give_back_idle_memory(self) -> None:
        """A little in a step; where nothing is to be computed all of it, until a command comes."""
        for memory in self._idle_memory:
            more = memory.give_back()
            while more and self._nothing_to_compute and self._commands.empty:
                more = memory.give_back()
            if not more and self._nothing_to_compute and self._commands.empty:
                memory.rest()

    # -- grammars --------------------------------------------------------------------------------

    def _settle_grammars(self) -> None:
        """What is known by now of next tokens: an error, an answer that was waited for, or the tokens
        themselves. What waited behind an answer is first of its tenant's commands again."""
        for sequence in self._constraining.settle():
            constraint = sequence.constraint
            assert constraint is not None
            if not constraint.known:
                self.scheduler.update_ready(sequence)  # it has to wait
            elif constraint.outlook.error is not None:
                self._lifecycle.finish(sequence, "error", constraint.outlook.error)
            else:
                self._commands.put_back(sequence.tenant, self._steering.go_on(sequence))
                if not sequence.num_placeholders:
                    self._force(sequence)
                if self._lives(sequence):
                    self._lifecycle.update(sequence)

    def _force(self, sequence: Sequence) -> None:
        """Take the tokens to which its grammar leaves it no choice, if it has come so far."""
        tokens = self._constraining.forced(sequence)
        if not tokens:
            return
        self._lifecycle.add_forced(sequence, tokens)
        sequence.force(tokens)
        self.tokens_total += len(tokens)
        self._end_or_go_on(sequence)

    def _end_or_go_on(self, sequence: Sequence) -> None:
        """Behind output tokens more."""
        if sequence.tokens[-1] in self.runner.eos and not sequence.sampling.ignore_eos:
            self._end(sequence)
        else:
            self._lifecycle.update(sequence)

    def _end(self, sequence: Sequence) -> None:
        """The last token is an end token."""
        if sequence.sampling.hold_at_eos:
            self._steering.hold(sequence)
        else:
            self._lifecycle.finish(sequence, "eos")

    def _lives(self, sequence: Sequence) -> bool:
        return self.scheduler.sequences.get(sequence.stream) is sequence

    # -- execute ---------------------------------------------------------------------------------

    def _finish_loads(self) -> None:
        """Streams that waited for blocks from the host go on; where nothing else runs, one load is waited
        for. What could not be loaded is computed again."""
        for load in self._swapping.take_failed():
            self.scheduler.abandon_load(load)
        for load in self._swapping.take_done(wait=self._nothing_to_compute):
            self.scheduler.finish_load(load)

    def _announce(self, batch: Batch) -> None:
        for sequence in batch.preempted:
            paused = api.Paused(sequence.num_outputs, "memory")
            self._lifecycle.add_memory_change(sequence, paused)
        for sequence, recomputed in batch.resumed:
            resumed = api.Resumed(sequence.num_outputs, recomputed, "memory")
            self._lifecycle.add_memory_change(sequence, resumed)
        for sequence, found in batch.admitted:
            self._lifecycle.news(sequence).admitted = found
        for sequence, tokens in batch.recomputed:
            if self._lives(sequence):
                self._lifecycle.news(sequence).recomputed += tokens

    def _execute(self, batch: Batch) -> list[Row]:
        """Run the batch, beside blocks that are swapped in and out; returns the rows that completed."""
        self._discarded = 0
        self._swapping.start_loads(batch)
        completed = self._executor.run(batch, self._commit)
        self._swapping.save(self.cache)
        return completed

    def _learn(self, completed: list[Row], seconds: float) -> None:
        """How long these made others wait: while they were computed, and while the step did what it does
        beside for each of them. `seconds` are the step's, but for what it waited with nothing to do."""
        if self._times is not None and (computed_s := self._executor.completed_s) is not None:
            self._times.learn(completed, computed_s + seconds - self._executor.seconds)

    def _save_while_idle(self) -> None:
        """Where nothing is to be computed there is time to save all of it, until a command comes."""
        while (
            self._nothing_to_compute and self._commands.empty and self._swapping.save(self.cache, wait=True)
        ):
            pass

    # -- commit ----------------------------------------------------------------------------------

    def _commit(self, row: Row, result: Result) -> None:
        self._discarded += row.void
        if row.discarded:
            self.scheduler.void(row)
            self._lifecycle.tell_answers(row.sequence)
        elif isinstance(result, GrammarError):
            self._lifecycle.finish(row.sequence, "error", str(result))
        elif isinstance(result, Exception):
            self._fail(row.sequence, "the model failed on this stream")
        elif result and result[-1].token is None:
            self._fail(row.sequence, "the model gave no number for any token of this stream")
        else:
            self._commit_computed(row, result)

    def _commit_computed(self, row: Row, sampled: list[SampledToken] | None) -> None:
        sequence = row.sequence
        ended = bool(sampled and not row.void and self._take(row, sampled))
        self.scheduler.commit(row)
        if ended:
            self._end(sequence)
            return
        was_last = sequence.num_outputs >= row.sampling.max_tokens or sequence.num_tokens >= sequence.context
        if not (was_last and sequence.length_reached):  # else they are overtaken by its end
            self._lifecycle.tell_answers(sequence)
        self._lifecycle.update(sequence)

    def _take(self, row: Row, sampled: list[SampledToken]) -> bool:
        """What the row sampled, up to an end token; drafts behind that are given up. Returns whether there is
        one."""
        sequence, ends = row.sequence, frozenset[int]() if row.sampling.ignore_eos else self.runner.eos
        stand = 1 + next((at for at, one in enumerate(sampled) if one.token in ends), len(sampled) - 1)
        if row.drafts:
            sequence.give_up_in_flight(row.end - row.num_sampled + stand)
            self._drafting.learn(row)
        for one in sampled[:stand]:
            assert one.token is not None
            self._lifecycle.add_token(sequence, one.token, one)
            sequence.append_output(one.token)
        self.tokens_total += stand
        return sampled[stand - 1].token in ends

    def _fail(self, sequence: Sequence, detail: str) -> None:
        # What it wrote may be no numbers, and a masked read of no number is none either: leave nothing of
        # it behind.
        own = self.scheduler.invalidate(sequence)
        self._lifecycle.finish(sequence, "error", detail)
        self.runner.zero_blocks(own)

    # -- commands and output ---------------------------------------------------------------------

    def _apply_commands(self, most_s: float) -> None:
        """A crowd's take no longer than what was computed: others wait for the next step meanwhile."""
        for command in self._commands.take(most_s, self._lifecycle):
            if isinstance(command, api.TellBlocks):
                self.cache.blocks.news.ask()
            elif not isinstance(command, api.KeptCommand):  # which are for who keeps streams
                self._steering.apply(command)
                if isinstance(command, api.Submit) and command.whole:
                    self._end_what_is_whole(command.stream)

    def _end_what_is_whole(self, stream: int) -> None:
        """By its last token, if that is an end token, or by its length."""
        sequence = self.scheduler.sequences.get(stream)
        if sequence is not None:
            self._end_or_go_on(sequence)

    def _output(self, completed: list[Row], seconds: float) -> api.StepOutput:
        news = self._lifecycle.take_news()
        stats, blocks = self._stats(completed, seconds), self.cache.blocks.take_news()
        return api.StepOutput(self.scheduler.steps, news, stats, blocks)

    def _stats(self, rows: list[Row], seconds: float) -> api.Stats:
        scheduler, cache = self.scheduler, self.cache
        decode = sum(row.decodes for row in rows)
        return api.Stats(
            step_s=seconds,
            decode_rows=decode,
            prefill_tokens=sum(row.count - len(row.drafts) for row in rows) - decode,
            streams=len(scheduler.sequences),
            ready=scheduler.num_ready,
            kv_used=cache.used,
            kv_cached=cache.cached,
            kv_free=cache.free,
            tokens_total=self.tokens_total,
            discarded=self._discarded,
            evictions_total=scheduler.evictions,
            preemptions_total=scheduler.preemptions,
            prefill_rows=len(rows) - decode,
            forward_s=self._executor.seconds,
            credit_stalls_total=scheduler.credit_stalls,
            kv_host=scheduler.host_cache.used,
            grammar_states=self._constraining.grammar_states,
            drafted_total=self._drafting.drafted.total(),
            accepted_total=self._drafting.accepted.total(),
            model_drafted_total=self._drafting.drafted["model"],
            model_accepted_total=self._drafting.accepted["model"],
        )
