"""Exactness: streams that are computed in many ways come to the same tokens, and to the same logits, bit for
bit; and what that costs.

Every stream is computed alone first. Each other way computes all of them again: in a crowd, staggered, with
pauses, in small and in large steps, in little memory, behind cached prefixes, in engines that are thrown away
half way, with drafts. A fourth follow a grammar. What is steered is steered at the same index in each:
whoever is to be steered there has credit up to there, and no further. A difference counts from the first
logits that differ, with all tokens behind them.

`python -m bench.exact STREAMS TOKENS` takes fewer of them.
"""

from __future__ import annotations

import json
import random
import statistics
import sys
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import cycle, islice
from pathlib import Path

import msgspec
import torch
from torch import Tensor

from bench.contestants import engine_times
from bench.decode import DECODING, ROUNDS
from bench.result_tables import Figure
from engine import api
from engine.build.build import build
from engine.drafts.interface import Kind
from engine.drafts.lookup import Context
from engine.engine import Engine
from engine.forward.interface import Runner
from engine.model.default_model import DEFAULT_MODEL
from engine.sampling.sampler import Sampler
from engine.schedule.batch import Row
from engine.schedule.block_cache import BlockCache
from engine.schedule.scheduler import Scheduler
from engine.step.drafting import Drafting
from engine.structure.vocabulary import Vocabulary, read_vocabulary

STREAMS, TOKENS = 64, 200
LONGEST_PROMPT = 1500
STEP_TOKENS = 128
INJECTED = 1  # which of four
SLOTS = 128
RUNS = tuple((what, threads) for what in ("q8", "float32", "bfloat16") for threads in (1, 2))
WIDTHS = {"q8": ("q8", "auto"), "float32": ("f32", "auto"), "bfloat16": ("f32", "bfloat16")}  # weights, dtype


# It has a choice for ever, and may end.
LIST = api.Grammar(json.dumps({"grammars": [{"lark_grammar": r"start: /([a-z]{2,9}, ){3,}[0-9]+\./"}]}))


# -- what is computed ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Script:
    """A stream's start, and what is done to it at which index, in that order."""

    stream: int
    prompt: list[int]
    sampling: api.Sampling
    steering: list[tuple[int, api.AnyCommand]]


def scripts(count: int, tokens: int, vocab: int, longest: int = LONGEST_PROMPT) -> list[Script]:
    """Prompts of all lengths, some of which begin alike; drawn from all tokens or by top_p; a fourth each is
    rewound, injected into, adjusted, and left alone. Of those into which nothing is injected that might not
    fit, some follow a grammar."""
    dice = random.Random(1)
    head = [dice.randrange(vocab) for _ in range(longest)]
    found = []
    for stream in range(count):
        length = 5 + (longest - 5) * stream // max(1, count - 1)
        own = [dice.randrange(vocab) for _ in range(length)]
        alike = length // 2 if stream % 3 == 0 else 0
        prompt = head[:alike] + own[alike:]
        top_p = 0.9 if stream % 2 else 1.0
        grammar = LIST if stream % 3 == 0 and stream % 4 != INJECTED else None
        sampling = api.Sampling(top_p=top_p, seed=stream, max_tokens=tokens, ignore_eos=True, grammar=grammar)
        changed = msgspec.structs.replace(sampling, temperature=0.7, top_k=40)
        half, third = tokens // 2, tokens // 3
        steering: list[tuple[int, api.AnyCommand]] = [
            (half, api.Truncate(stream, third)),
            (half, api.Append(stream, own[:7])),
            (half, api.Adjust(stream, changed)),
        ]
        which = stream % 4
        found.append(Script(stream, prompt, sampling, steering[which : which + 1]))
    return found


# -- who computes it -------------------------------------------------------------------------------

Known = dict[tuple[int, int], int]  # the sum of the logits behind so many tokens, by their own sum


class RecordingRunner:
    """A runner that notes the logits behind each context."""

    def __init__(self, runner: Runner) -> None:
        self.context, self.eos = runner.context, runner.eos
        self.copy_blocks, self.zero_blocks = runner.copy_blocks, runner.zero_blocks
        self.logits: Known = {}
        self._runner = runner

    def forward(self, rows: Sequence[Row]) -> Tensor:
        logits = self._runner.forward(rows)
        behind = [(row, at) for row in rows for at in range(row.num_sampled)]
        for (row, at), numbers in zip(behind, logits, strict=True):
            tokens = [*row.sequence.tokens[: row.end - len(row.drafts)], *row.drafts[:at]]
            self.logits[row.sequence.stream, _sum_of(tokens)] = _sum(numbers)
        return logits


def _sum_of(tokens: list[int]) -> int:
    return _sum(torch.tensor(tokens))


def _sum(numbers: Tensor) -> int:
    return zlib.crc32(numbers.contiguous().view(torch.uint8).cpu().numpy().data)


class Rehearsed:
    """Drafts what streams have said before, and now and then something else."""

    kind: Kind = "lookup"

    def __init__(self, followed: dict[int, int]) -> None:
        self._followed = followed

    def seconds(self, rows: int) -> float:
        return 0.0

    def propose(self, wanted: Sequence[tuple[Context, int]]) -> list[list[int]]:
        return [self._drafts(list(context.tokens), most) for context, most in wanted]

    def _drafts(self, tokens: list[int], most: int) -> list[int]:
        drafts: list[int] = []
        while len(drafts) < most and (known := _sum_of(tokens)) in self._followed:
            drafts.append(self._followed[known] ^ (known % 5 == 0))
            tokens.append(drafts[-1])
        return drafts


class Free:
    """What a draft costs: nothing, so that there are as many as there may be."""

    of_token = 0.0

    def of_step(self, tokens: int) -> float:
        return 1.0

    def learn(self, tokens: int, seconds: float) -> None: ...


@dataclass
class Engines:
    """Engines around one model, each with a cache of its own."""

    runner: Runner
    vocab: int
    blocks: int
    block_size: int
    windows: tuple[int | None, ...] = (None,)  # of its groups of layers
    vocabulary: Vocabulary | None = None
    device: str = "cpu"
    followed: dict[int, int] = field(default_factory=dict)  # what came behind tokens, by their sum

    @classmethod
    def of(cls, options: api.EngineOptions) -> Engines:
        engine, hello = build(options)
        vocabulary = read_vocabulary(Path(hello.folder), hello.vocab, hello.eos)
        windows = engine.cache.windows.sizes
        blocks = engine.cache.total
        return cls(engine.runner, hello.vocab, blocks, hello.block, windows, vocabulary, hello.device)

    def engine(
        self, *, tokens: int = 0, step_tokens: int = STEP_TOKENS, drafts: bool = False
    ) -> tuple[Engine, RecordingRunner]:
        runner = RecordingRunner(self.runner)
        sampler = Sampler(SLOTS, self.vocab, eos=[], rows=SLOTS, device=self.device)
        wanted = -(-tokens // self.block_size) * len(self.windows)
        cache = BlockCache(
            min(self.blocks, wanted or self.blocks), self.block_size, windows=self.windows, chunk=step_tokens
        )
        scheduler = Scheduler(cache, step_tokens=step_tokens, batch_rows=SLOTS, tenant_prefill=10**9)
        drafting = Drafting(scheduler, [Rehearsed(self.followed)], Free()) if drafts else None
        made = Engine(
            runner,
            sampler,
            cache,
            scheduler,
            slots=SLOTS,
            drafting=drafting,
            vocabulary=self.vocabulary,
        )
        return made, runner


@dataclass
class Stream:
    """One stream as its client knows it, which follows its script."""

    script: Script
    heard: list[int] = field(default_factory=list)  # every token, also those that were taken back
    known: list[int] = field(default_factory=list)  # prompt, output and injections
    outputs: int = 0
    places: list[int] = field(default_factory=list)  # of the output in `known`
    followed: dict[int, int] = field(default_factory=dict)
    injections: list[tuple[int, int]] = field(default_factory=list)
    steered: int = 0  # how much of its script is done
    paused: bool = False
    done: bool = False

    def __post_init__(self) -> None:
        self.known = list(self.script.prompt)
        self.sampling = self.script.sampling

    @property
    def _next(self) -> tuple[int, api.AnyCommand | None]:
        """At which index it is to be steered next, and how; its end otherwise."""
        left = self.script.steering[self.steered :]
        return left[0] if left else (self.sampling.max_tokens, None)

    def submit(self) -> list[api.AnyCommand]:
        """Its start, or all that it has come to since."""
        self.paused = False
        start = api.Submit(
            self.script.stream,
            list(self.known),
            self.sampling,
            self._next[0],
            prompt=len(self.script.prompt),
            injections=list(self.injections),
        )
        return [start, *self._due()]

    def _due(self) -> list[api.AnyCommand]:
        index, command = self._next
        return [command] if command is not None and len(self.places) == index else []

    def hear(self, news: api.News) -> list[api.AnyCommand]:
        """What it says to that."""
        for token in news.tokens:
            self.followed[_sum_of(self.known)] = token
            self.places.append(len(self.known))
            self.known.append(token)
            self.heard.append(token)
        self.done = news.finish is not None
        due = self._due() if news.tokens else []
        for change in news.changes:
            if isinstance(change, api.Truncated | api.Appended | api.Adjusted):
                self._steer()
                due.append(api.Grant(self.script.stream, self._next[0]))
        return due

    def _steer(self) -> None:
        """The command that was due has taken effect."""
        match self._next[1]:
            case api.Truncate(index=index):
                del self.known[self.places[index] :], self.places[index:]
            case api.Append(tokens=tokens):
                self.injections.append((len(self.places), len(tokens)))
                self.known += tokens
            case api.Adjust(sampling=sampling):
                self.sampling = sampling
        self.steered += 1


# -- the ways --------------------------------------------------------------------------------------


@dataclass
class Computed:
    heard: list[list[int]]
    logits: Known


Disturb = Callable[[int, Engine, list[Stream]], None]  # before each step, by its number


def compute(
    engines: Engines,
    wanted: list[Script],
    *,
    tokens: int = 0,
    step_tokens: int = STEP_TOKENS,
    every: int = 0,
    disturb: Disturb | None = None,
    rebuilt: int = 0,
    twice: bool = False,
    drafts: bool = False,
) -> Computed:
    """All streams at once, or one `every` so many steps; `rebuilt` in so many further engines."""
    engine, runner = engines.engine(tokens=tokens, step_tokens=step_tokens, drafts=drafts)
    logits = runner.logits
    if twice:
        _run(engine, [Stream(script) for script in wanted], every, None, None)
    streams = [Stream(script) for script in wanted]
    for _ in range(rebuilt):
        _run(engine, streams, every, disturb, _tokens_left(streams) // (rebuilt + 1))
        engine, runner = engines.engine(tokens=tokens, step_tokens=step_tokens, drafts=drafts)
        logits |= runner.logits
        runner.logits = logits
    _run(engine, streams, every, disturb, None)
    for stream in streams:
        engines.followed |= stream.followed
    return Computed([stream.heard for stream in streams], logits)


def _tokens_left(streams: list[Stream]) -> int:
    return sum(stream.sampling.max_tokens - len(stream.places) for stream in streams)


def _run(
    engine: Engine, streams: list[Stream], every: int, disturb: Disturb | None, most: int | None
) -> None:
    """Until all are done, or so many tokens have come."""
    waiting = [stream for stream in streams if not stream.done]
    by_number = {stream.script.stream: stream for stream in waiting}
    came, step = 0, 0
    while any(not stream.done for stream in by_number.values()):
        while waiting and (not every or step % every == 0):
            engine.send(waiting.pop(0).submit())
            if every:
                break
        if disturb is not None:
            disturb(step, engine, [stream for stream in by_number.values() if stream not in waiting])
        for news in engine.step().news:
            came += len(news.tokens)
            engine.send(by_number[news.stream].hear(news))
        step += 1
        if most is not None and came >= most:
            return


def pauses(seed: int) -> Disturb:
    """Some pause for a while, some of them giving their memory up."""
    dice = random.Random(seed)

    def disturb(step: int, engine: Engine, streams: list[Stream]) -> None:
        for stream in streams:
            number = stream.script.stream
            if stream.done or number not in engine.scheduler.sequences or dice.random() > 0.05:
                continue
            stream.paused = not stream.paused
            release = dice.random() < 0.5
            engine.send([api.Pause(number, release) if stream.paused else api.Resume(number)])

    return disturb


def alone(engines: Engines, wanted: list[Script]) -> Computed:
    each = [compute(engines, [script]) for script in wanted]
    logits = {key: value for one in each for key, value in one.logits.items()}
    return Computed([one.heard[0] for one in each], logits)


def ways(wanted: list[Script]) -> dict[str, Callable[[Engines, list[Script]], Computed]]:
    whole = sum(len(script.prompt) + script.sampling.max_tokens + 16 for script in wanted)
    third = max(whole // 3, max(len(script.prompt) for script in wanted) + 300)
    return {
        "in a crowd": compute,
        "staggered": partial(compute, every=3),
        "with pauses and releases": partial(compute, disturb=pauses(1)),
        "in steps of 64 tokens": partial(compute, step_tokens=64),
        "in steps of 512 tokens": partial(compute, step_tokens=512),
        "in a third of the memory": partial(compute, tokens=third, every=2),
        "behind cached prefixes": partial(compute, twice=True),
        "in three engines": partial(compute, rebuilt=2, disturb=pauses(2)),
        "with drafts, in two engines": partial(compute, rebuilt=1, disturb=pauses(3), drafts=True),
    }


def differing(one: Computed, other: Computed) -> tuple[int, int]:
    """How many tokens differ, and how many logits of the same tokens."""
    tokens = sum(
        a != b
        for heard, again in zip(one.heard, other.heard, strict=True)
        for a, b in zip(heard, again, strict=False)
    ) + sum(abs(len(heard) - len(again)) for heard, again in zip(one.heard, other.heard, strict=True))
    return tokens, sum(one.logits[key] != value for key, value in other.logits.items() if key in one.logits)


# -- the figures -----------------------------------------------------------------------------------


def measure(streams: int = STREAMS, tokens: int = TOKENS) -> list[Figure]:
    return [*_differences(streams, tokens), *_costs()]


def _differences(streams: int, tokens: int) -> Iterator[Figure]:
    known: dict[str, Computed] = {}
    for what, threads in RUNS:
        weights, dtype = WIDTHS[what]
        options = api.EngineOptions(
            model=DEFAULT_MODEL,
            device="cpu",
            weights=weights,
            dtype=dtype,
            threads=threads,
            kv_tokens=SLOTS * 2048,
        )
        engines = Engines.of(options)
        wanted = scripts(streams, tokens, engines.vocab)
        trials: dict[str, Callable[[Engines, list[Script]], Computed]] = ways(wanted)
        if what not in known:
            known[what] = alone(engines, wanted)
        for name, way in trials.items():
            tokens_off, logits_off = differing(known[what], way(engines, wanted))
            count = sum(map(len, known[what].heard))
            where = f"{what}, {threads} thread{'s' * (threads > 1)}"
            print(f"{where}: {name}: {tokens_off} of {count} tokens, {logits_off} logits", file=sys.stderr)
            yield Figure(f"tokens of {count} that differ {name}, {where}", tokens_off, "", "0")


def _costs() -> Iterator[Figure]:
    """Decoding with and without, taking turns."""
    engines = {
        exact: build(api.EngineOptions(model=DEFAULT_MODEL, device="cpu", exact=exact))[0]
        for exact in ("off", "on")
    }
    for question in DECODING:
        rates: dict[str, list[float]] = {"off": [], "on": []}
        for exact in islice(cycle(rates), 4 * ROUNDS):
            rates[exact].append(question.asked_of(partial(engine_times, engines[exact])))
        off, on = (statistics.median(rates[exact]) for exact in ("off", "on"))
        yield Figure(f"exact, {question.name}", on, "tok/s", ">= 0.95 x", on / off, "not exact")


if __name__ == "__main__":
    from bench.__main__ import report

    sys.exit(report(measure(*map(int, sys.argv[1:]))))
