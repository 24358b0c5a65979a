"""`make bench-gpu`: what a CUDA device does under the engine, beside its limits and beside transformers.

One command, one run, one table and a JSON file. `--dry` runs all of it with a tiny model on the CPU: that the
bench works is then shown, and its figures mean nothing.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import PreTrainedModel

from bench import chip, gpu_peers
from bench.figures import Figure, table, write
from bench.gpu_engine import Bench
from bench.random_models import random_model, shape_of
from bench.roofline import Shape, fraction_of_memory
from engine import api, toy_model
from engine.load import around

NO_DEVICE = "make bench-gpu needs a CUDA device, and torch sees none here; --dry runs it on the CPU, for show"


@dataclass(frozen=True)
class Plan:
    """How large everything is."""

    device: torch.device
    dtype: torch.dtype
    large: str
    small: str
    batches: tuple[int, ...]
    small_batches: tuple[int, ...]
    context: int
    prompt: int
    listening: int
    crowd: tuple[int, int]
    rounds: int  # of controls
    peer_tokens: int
    peer_room: dict[str, int]  # what `generate_batch` may take; all that it finds if nothing is said
    copy_bytes: int
    product: int


FULL = Plan(
    device=torch.device("cuda"),
    dtype=torch.bfloat16,
    large="llama-3.1-8b",
    small="smollm2-135m",
    batches=(1, 16, 64, 256),
    small_batches=(1, 64, 256),
    context=1024,
    prompt=8192,
    listening=32,
    crowd=(100, 900),
    rounds=100,
    peer_tokens=64,
    peer_room={},
    copy_bytes=4 * 2**30,
    product=8192,
)
DRY = Plan(
    device=torch.device("cpu"),
    dtype=torch.float32,
    large="tiny",
    small="tinier",
    batches=(1, 3),
    small_batches=(2,),
    context=24,
    prompt=512,
    listening=3,
    crowd=(4, 12),
    rounds=3,
    peer_tokens=4,
    peer_room={"num_blocks": 32, "max_batch_tokens": 64, "page_size": 16},
    copy_bytes=2**22,
    product=128,
)


@dataclass(frozen=True)
class Chip:
    bytes_per_s: float
    flops_per_s: float


def main(arguments: list[str]) -> int:
    dry = arguments == ["--dry"]
    if not dry and not torch.cuda.is_available():
        print(NO_DEVICE, file=sys.stderr)
        return 1
    figures = []
    for figure in measured(DRY if dry else FULL):
        print(f"{figure.name}: {figure.value:,.4g} {figure.unit}", file=sys.stderr, flush=True)
        figures.append(figure)
    print(table(figures))
    if not dry:
        print(f"\nwritten to {write(figures, Path('bench/results'))}")
    return 0


def measured(plan: Plan) -> Iterator[Figure]:
    limits = Chip(
        chip.bytes_per_s(plan.device, plan.copy_bytes),
        chip.flops_per_s(plan.device, plan.dtype, plan.product),
    )
    yield Figure("memory, a large copy", limits.bytes_per_s / 1e9, "GB/s")
    yield Figure("a large product", limits.flops_per_s / 1e12, "TFLOP/s")
    yield from _speed(plan, limits, plan.large, plan.batches, whole=True)
    yield from _speed(plan, limits, plan.small, plan.small_batches, whole=False)
    yield from _exactness(plan)


def _speed(plan: Plan, limits: Chip, name: str, batches: tuple[int, ...], whole: bool) -> Iterator[Figure]:
    model = random_model(name, plan.device, plan.dtype)
    shape = shape_of(model)
    peers = _peers(model, plan, batches, shape.facts.vocab)
    bench = _bench(model, plan, shape.facts.vocab)
    for rows in batches:
        yield from _decoding(bench, plan, limits, shape, f"{name}, {rows} streams", rows, peers.get(rows))
    if whole:
        yield from _steering(bench, plan, limits, shape)


def _bench(model: PreTrainedModel, plan: Plan, vocab: int) -> Bench:
    gc.collect()
    if plan.device.type == "cuda":
        torch.cuda.empty_cache()
    held = max(plan.context * max(plan.batches), plan.prompt) + 64 * sum(plan.crowd)
    options = api.EngineOptions(
        model="random",
        kv_tokens=4 * held if plan.device.type == "cpu" else 0,
        max_streams=2 * sum(plan.crowd),
        context=2 * plan.prompt,
    )
    engine, _ = around(model, toy_model.FOLDER, options)
    return Bench(engine, vocab, plan.device)


def _peers(
    model: PreTrainedModel, plan: Plan, batches: tuple[int, ...], vocab: int
) -> dict[int, tuple[float, str]]:
    """Tokens a second of `generate_batch` for each batch, in its best configuration for the second."""
    prompts = [
        [(31 * at + 7919 * row) % (vocab - 2) + 2 for at in range(plan.context)]
        for row in range(max(batches))
    ]
    way = gpu_peers.fastest(model, prompts[: batches[min(1, len(batches) - 1)]], 16, plan.peer_room)
    if way is None:
        return {}
    return {
        rows: (gpu_peers.batch_rate(model, prompts[:rows], plan.peer_tokens, way), str(way))
        for rows in batches
    }


def _decoding(
    bench: Bench,
    plan: Plan,
    limits: Chip,
    shape: Shape,
    name: str,
    rows: int,
    peer: tuple[float, str] | None,
) -> Iterator[Figure]:
    seconds = bench.decode_s(rows, plan.context)
    rate = rows / seconds
    if peer is None:
        yield Figure(name, rate, "tok/s", ">= 1.5 x", None, "generate_batch, which does not run here")
    else:
        yield Figure(name, rate, "tok/s", ">= 1.5 x", rate / peer[0], f"generate_batch ({peer[1]})")
    yield Figure(f"{name}: a step", seconds * 1e3, "ms")
    share = fraction_of_memory(shape.decode_bytes(rows, plan.context), seconds, limits.bytes_per_s)
    goal = {1: ">= 70", 64: ">= 60"}.get(rows, "") if shape.facts.hidden > 1024 else ""
    yield Figure(f"{name}: of the memory's limit", 100 * share, "%", goal)
    gap = bench.gap_s(rows, plan.context)
    if gap is not None:
        yield Figure(f"{name}: no kernel runs", gap * 1e6, "us a step")


def _steering(bench: Bench, plan: Plan, limits: Chip, shape: Shape) -> Iterator[Figure]:
    seconds = bench.prefill_s(plan.prompt)
    flops = shape.prefill_flops(plan.prompt) / seconds
    name = f"prefill, {plan.prompt} tokens"
    yield Figure(name, flops / 1e12, "TFLOP/s", "", flops / limits.flops_per_s, "a large product")
    p99 = bench.intertoken_p99_s(plan.listening, plan.context, plan.prompt, prompts=4)
    yield Figure(f"{plan.listening} streams while prompts arrive, p99 between tokens", p99 * 1e3, "ms")
    means, discarded = bench.controls(max(plan.batches[1], 2), plan.context, plan.rounds)
    for kind, steps in means.items():
        yield Figure(f"{kind}, to its effect", steps, "steps")
    yield Figure("discarded by overlap", discarded, "tokens a thousand controls")
    running, paused = plan.crowd
    ratio = bench.crowd_ratio(running, paused, plan.context // 4)
    yield Figure(
        f"a step of {running} beside {paused} paused", ratio, "x", "<= 1.02", ratio, f"{running} alone"
    )
    if plan.device.type == "cuda":
        said = bench.syncs(plan.batches[1], plan.context)
        print(*sorted(set(said)), sep="\n", file=sys.stderr)
        yield Figure("times that steps of decoding make the host wait", len(said), "in 64 steps", "0")


def _exactness(plan: Plan) -> Iterator[Figure]:
    model = random_model(plan.small, plan.device, torch.float32)
    vocab = shape_of(model).facts.vocab
    prompt = [(31 * at) % (vocab - 2) + 2 for at in range(plan.context)]
    expected = gpu_peers.greedy(model, prompt, plan.peer_tokens)
    bench = _bench(model, plan, vocab)
    asked = api.Sampling(temperature=0, ignore_eos=True, max_tokens=plan.peer_tokens)
    bench.engine.send([api.Submit(0, prompt, asked, plan.peer_tokens)])
    said: list[int] = []
    while len(said) < plan.peer_tokens:
        said += [token for news in bench.engine.step().news for token in news.tokens]
    same = sum(a == b for a, b in zip(said, expected, strict=True)) / len(expected)
    yield Figure("greedy tokens in float32 that are transformers'", 100 * same, "%", "100")
    draws = gpu_peers.draws_agree(plan.device, vocab, 64)
    yield Figure("seeded draws that are the CPU's", 100 * draws, "%", "100")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
