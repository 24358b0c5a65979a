"""The engine driver: an engine in this very process, stepped by hand, audited and checked after each step.

`engine_of` and `model_engine` put engines together with any amount of memory; `Driver` sends commands, steps,
and checks what every stream is told: answers in the order of the commands, indices that are the truth, no
token past the credit or during a pause, nothing after the end. It knows nothing of what the tokens should be.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, cast

import torch
from transformers import PreTrainedModel

from engine import api, toy_model
from engine.drafts.lookup import Lookup
from engine.engine import Engine
from engine.forward import backends
from engine.forward.attention import NAME, AttentionBackend
from engine.forward.by_sdpa import SdpaBackend
from engine.forward.interface import Runner
from engine.forward.kv_pool import KvPool
from engine.forward.model_runner import ModelRunner
from engine.forward.toy_runner import ToyRunner
from engine.memory.host_pool import HostPool
from engine.memory.idle_memory import IdleMemory
from engine.model.facts import describe
from engine.model.layer_groups import group_layers
from engine.sampling.sampler import Sampler
from engine.schedule.block_cache import BlockCache
from engine.schedule.host_cache import HostCache
from engine.schedule.scheduler import Scheduler
from engine.schedule.windows import Windows
from engine.step.drafting import Drafting
from engine.step.lookout import MakeLookout
from engine.step.matcher_threads import MatcherThreads
from engine.structure.vocabulary import Vocabulary
from tests.fakes.attention_packages import flash_attn_backend, flashinfer_backend
from tests.fakes.devices import DEVICE, ON_DEVICE
from tests.fakes.late_block_copier import LateBlockCopier, ToyHostPool
from tests.fakes.small_tokenizers import toy_vocabulary
from tests.fakes.tiny_models import tiny_model
from tests.fakes.triton_kernels import gather_backend, triton_backend
from tests.fakes.untimed_commands import UntimedCommands

if TYPE_CHECKING:
    from engine.forward.by_triton import TritonBackend

TOY = "toy"
SLOTS = 64
ANSWERS: dict[type[api.Command], tuple[type[api.Change], ...]] = {
    api.Pause: (api.Paused,),
    api.Resume: (api.Resumed,),
    api.Adjust: (api.Adjusted,),
    api.Truncate: (api.Truncated,),
    api.Append: (api.Appended, api.Refused),
}
Wrap = Callable[[Runner], Runner]
Injections = list[tuple[int, list[int]]]  # (index of the output token behind it, tokens)


def sdpa_backend(pool: KvPool, block_size: int, heads: int, slots: int) -> SdpaBackend:
    return SdpaBackend(pool, block_size)


BACKENDS: dict[str, Callable[[KvPool, int, int, int], AttentionBackend]] = {
    "sdpa": sdpa_backend,
    "triton": triton_backend,
    "gathered": gather_backend,
    "flash_attn": flash_attn_backend,
    "flashinfer": flashinfer_backend,
}


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What an engine may use: little by default, so that memory and steps are always short."""

    kv_tokens: int = 160
    block_size: int = 4
    step_tokens: int = 24
    batch_rows: int = 8
    tenant_prefill: int = 1000
    overlap: bool = False
    drafts: bool = False  # as many as there are, whatever they cost
    make_lookout: MakeLookout = MatcherThreads
    attention: str = "sdpa"
    captured: bool = False  # needs "triton" or "gathered"
    host_blocks: int = 0  # that may lie in the host's memory, or somewhat fewer
    idle_steps: int = 0  # after which memory that nobody uses is given back; 0 keeps it


PLENTY = Limits(kv_tokens=4096, step_tokens=512, batch_rows=32)


def engine_of(
    architecture: str,
    limits: Limits = PLENTY,
    wrap: Wrap | None = None,
    vocabulary: Vocabulary | None = None,
) -> Engine:
    """Around the toy, or a tiny model in float64 that knows no end tokens but those of the vocabulary, and
    writes as long as it is let."""
    if architecture == TOY:
        return _toy_engine(limits, wrap)
    return model_engine(tiny_model(architecture, dtype=torch.float64), limits, wrap, vocabulary)


def model_engine(
    model: PreTrainedModel,
    limits: Limits,
    wrap: Wrap | None = None,
    vocabulary: Vocabulary | None = None,
) -> Engine:
    """Around any model, which belongs to the engine from now on."""
    ends = vocabulary.ends if vocabulary is not None else frozenset[int]()
    facts = describe(model.config)
    model.to(DEVICE)  # type: ignore[arg-type]
    model.set_attn_implementation(NAME)
    groups = group_layers(facts.windows, facts.context)
    windows = tuple(group.window for group in groups)
    blocks = limits.kv_tokens // limits.block_size
    longest = Windows(windows, limits.block_size, limits.step_tokens).longest(blocks)
    context = min(facts.context, longest)
    sampler = Sampler(SLOTS, facts.vocab, eos=ends, rows=limits.batch_rows, device=DEVICE)
    pool = KvPool(
        facts.layers,
        facts.kv_heads,
        facts.head_dim,
        tokens=limits.kv_tokens + limits.block_size,
        dtype=model.dtype,
        device=str(DEVICE),
        groups=groups,
    )
    kernels = BACKENDS[limits.attention](pool, limits.block_size, facts.heads, SLOTS)
    runner = ModelRunner(
        model,
        pool,
        kernels,
        sampler.latest_tokens,
        block_size=limits.block_size,
        context=context,
        eos=ends,
    )
    if limits.captured:
        _capture_decode(runner, kernels, limits.batch_rows)
    wrapped = runner if wrap is None else wrap(runner)
    copier = _copier(pool, limits)
    return _assembled(wrapped, sampler, limits, copier, pool, windows, vocabulary)


def _capture_decode(runner: ModelRunner, kernels: AttentionBackend, rows: int) -> None:
    if ON_DEVICE:  # where some models in float64 wait for it, and are not captured
        backends.capture_decode(runner, kernels, rows)
    else:
        runner.capture_decode(cast("TritonBackend", kernels), rows, lambda work: work)


def _copier(pool: KvPool, limits: Limits) -> LateBlockCopier | None:
    if not limits.host_blocks:
        return None
    return LateBlockCopier(
        HostPool(pool, limits.block_size, limits.host_blocks * pool.blocks(limits.block_size)[0].nbytes)
    )


def _toy_engine(limits: Limits, wrap: Wrap | None) -> Engine:
    sampler = Sampler(SLOTS, toy_model.VOCAB, eos=[toy_model.EOS], rows=limits.batch_rows)
    runner = ToyRunner(
        tokens=limits.kv_tokens,
        block_size=limits.block_size,
        context=limits.kv_tokens,
        latest_tokens=sampler.latest_tokens,
    )
    copier = LateBlockCopier(ToyHostPool(runner, limits.host_blocks)) if limits.host_blocks else None
    return _assembled(
        runner if wrap is None else wrap(runner), sampler, limits, copier, vocabulary=toy_vocabulary()
    )


def _assembled(
    runner: Runner,
    sampler: Sampler,
    limits: Limits,
    copier: LateBlockCopier | None = None,
    pool: KvPool | None = None,
    windows: tuple[int | None, ...] = (None,),
    vocabulary: Vocabulary | None = None,
) -> Engine:
    cache = BlockCache(
        limits.kv_tokens // limits.block_size,
        limits.block_size,
        runs=limits.attention == "sdpa",
        windows=windows,
        chunk=limits.step_tokens,
    )
    scheduler = Scheduler(
        cache,
        step_tokens=limits.step_tokens,
        batch_rows=limits.batch_rows,
        tenant_prefill=limits.tenant_prefill,
        host_cache=HostCache(copier.total_blocks if copier else 0),
    )
    idle_memory = None
    if pool is not None and limits.idle_steps:
        idle_memory = IdleMemory(cache, pool, limits.idle_steps, clock=lambda: scheduler.steps)
    return Engine(
        runner,
        sampler,
        cache,
        scheduler,
        slots=SLOTS,
        overlap=limits.overlap,
        copier=copier,
        commands=UntimedCommands(),
        idle_memory=[] if idle_memory is None else [idle_memory],
        make_lookout=limits.make_lookout,
        vocabulary=vocabulary,
        drafting=Drafting(scheduler, [Lookup(least=2)], Free()) if limits.drafts else None,
    )


class Free:
    """What a token more costs a step: nothing."""

    of_token = 0.0

    def of_step(self, tokens: int) -> float:
        return 1.0

    def learn(self, tokens: int, seconds: float) -> None: ...


@dataclass
class Told:
    """What one stream was told, put together as its reader would."""

    submit: api.Submit
    credit: int
    tokens: list[int] = field(default_factory=list)  # those that no rewind took back
    injections: Injections = field(default_factory=list)
    changes: list[api.AnyChange] = field(default_factory=list)
    voided: list[tuple[list[int], Injections]] = field(default_factory=list)  # what stood before each rewind
    steered: list[tuple[list[int], api.StreamCommand, api.AnyChange]] = field(
        default_factory=list
    )  # the output that stood before each command's effect
    logprobs: list[api.Logprob] = field(default_factory=list)
    admitted: int | None = None
    finish: api.Finish | None = None
    paused: bool = False
    awaited: deque[api.StreamCommand] = field(default_factory=deque)

    @property
    def known(self) -> int:
        """Tokens in its context."""
        return len(self.submit.tokens) + len(self.tokens) + sum(len(put) for _, put in self.injections)

    def asked(self, command: api.StreamCommand) -> None:
        if isinstance(command, api.Grant):
            self.credit = max(self.credit, command.credit)
        if type(command) in ANSWERS:
            self.awaited.append(command)

    def hear(self, news: api.News) -> None:
        assert self.finish is None, "nothing follows the end"
        for change in news.early:
            assert isinstance(change, api.Paused | api.Resumed)
            assert change.reason == "memory"
            assert self.paused == isinstance(change, api.Resumed), "memory is taken once, and given back once"
            self._changed(change)
        if news.tokens:
            assert news.index == len(self.tokens)
            assert not self.paused, "no token comes during a pause"
            self.tokens += news.tokens
            assert len(self.tokens) <= self.credit
            self.logprobs += news.logprobs or []
        held = news.finish is not None and news.finish.held
        if held:  # before the end token, which is told and not kept
            self.tokens.pop()
            self.paused = True
        for change in news.changes:
            command = self.awaited.popleft()
            assert isinstance(change, ANSWERS[type(command)])
            self.steered.append((list(self.tokens), command, change))
            self._did(command, change)
        if news.admitted is not None:
            assert self.admitted is None
            self.admitted = news.admitted
        self.finish = None if held else news.finish

    def _did(self, command: api.StreamCommand, change: api.AnyChange) -> None:
        match command, change:
            case api.Truncate(index=index), api.Truncated():
                self.voided.append((list(self.tokens), list(self.injections)))
                del self.tokens[index:], self.logprobs[index:]
                self.injections = [(before, put) for before, put in self.injections if before <= index]
            case api.Append(tokens=tokens, behind=behind), api.Appended(count=count):
                assert count == len(tokens)
                if behind is not None:
                    self._cut(behind)
                if tokens:
                    self.injections.append((len(self.tokens), tokens))
        self._changed(change)

    def _cut(self, left: int) -> None:
        """Of the tokens behind the prompt so many stand."""
        self.voided.append((list(self.tokens), list(self.injections)))
        injections, self.injections = self.injections, []
        for before, put in injections:
            stays = max(0, min(len(put), left - before))
            self.injections += [(before, put[:stays])] if stays else []
            left -= stays
        del self.tokens[left:], self.logprobs[left:]

    def _changed(self, change: api.AnyChange) -> None:
        assert change.index == len(self.tokens)
        if isinstance(change, api.Paused | api.Resumed):
            self.paused = isinstance(change, api.Paused)
        self.changes.append(change)


class Driver:
    """Steps an engine, and keeps what each stream was told."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.told: dict[int, Told] = {}
        self.outputs: list[api.StepOutput] = []

    @property
    def stats(self) -> api.Stats:
        return self.outputs[-1].stats

    def send(self, *commands: api.StreamCommand) -> None:
        for command in commands:
            if isinstance(command, api.Submit):
                self.told[command.stream] = Told(command, command.credit, paused=command.paused)
            else:
                self.told[command.stream].asked(command)
        self.engine.send(list(commands))

    @property
    def _awaits_grammars(self) -> bool:
        """Whether a stream goes on when a thread is done with its grammar, which then wakes the engine."""
        return any(sequence.awaited_outlook for sequence in self.engine.scheduler.sequences.values())

    def step(self, times: int = 1) -> None:
        for _ in range(times):
            if self.engine.idle and self._awaits_grammars:
                self.engine.wait(timeout_s=60)
            output = self.engine.step()
            self.engine.audit()
            for news in output.news:
                self.told[news.stream].hear(news)
            self.outputs.append(output)

    def settle(self, *commands: api.StreamCommand, steps: int = 3000) -> None:
        """Send, and step until there is nothing to do."""
        self.send(*commands)
        for _ in range(steps):
            self.step()
            if self.engine.idle and not self._awaits_grammars:
                return
        raise AssertionError(f"there is still something to do after {steps} steps")

    def until(self, happened: Callable[[], bool], steps: int = 3000) -> None:
        for _ in range(steps):
            if happened():
                return
            self.step()
        raise AssertionError(f"it has not happened within {steps} steps")

    def has(self, stream: int, tokens: int) -> Callable[[], bool]:
        return lambda: len(self.told[stream].tokens) >= tokens

    def ended(self, reason: api.FinishReason = "length") -> list[Told]:
        return [told for told in self.told.values() if told.finish and told.finish.reason == reason]


def greedy(tokens: int = 30) -> api.Sampling:
    return api.Sampling(temperature=0, max_tokens=tokens, ignore_eos=True)
