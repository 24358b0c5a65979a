"""The GPU benchmark, `make bench-gpu`: the engine on a CUDA device, beside its limits and transformers.

One command, one run, one table and a JSON file. `--dry` runs all of it with a tiny model on the CPU: that the
bench works is then shown, and its figures mean nothing.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import PreTrainedModel

from bench import gpu_peers, hardware_limits
from bench.gpu_engine import DoesNotFit, EngineBench
from bench.gpu_offload_bandwidth import transfers
from bench.gpu_sizes import DRY, FULL, Plan
from bench.random_models import random_model, shape_of
from bench.result_tables import Figure, shown, table, write
from bench.roofline import Shape, fraction_of_memory
from engine import api, toy_model
from engine.build.build import build_around
from engine.heap import settle_heap

ALONE = 8  # streams that are computed alone as well
NO_DEVICE = "make bench-gpu needs a CUDA device, and torch sees none here; --dry runs it on the CPU, for show"


@dataclass(frozen=True)
class HardwareLimits:
    bytes_per_s: float
    flops_per_s: float


def main(arguments: list[str]) -> int:
    dry = arguments == ["--dry"]
    if not dry and not torch.cuda.is_available():
        print(NO_DEVICE, file=sys.stderr)
        return 1
    figures = []
    for figure in measured(DRY if dry else FULL):
        print(f"{figure.name}: {shown(figure)} {figure.unit}", file=sys.stderr, flush=True)
        figures.append(figure)
    print(table(figures))
    if not dry:
        print(f"\nwritten to {write(figures, Path('bench/results'))}")
    return 0


def measured(plan: Plan) -> Iterator[Figure]:
    limits = HardwareLimits(
        hardware_limits.bytes_per_s(plan.device, plan.copy_bytes),
        hardware_limits.flops_per_s(plan.device, plan.dtype, plan.product),
    )
    yield Figure("memory, a large copy", limits.bytes_per_s / 1e9, "GB/s")
    yield Figure("a large product", limits.flops_per_s / 1e12, "TFLOP/s")
    yield from _speed(plan, limits, plan.large, plan.batches, whole=True)
    yield from _speed(plan, limits, plan.small, plan.small_batches, whole=False)
    yield from _exactness(plan)


def _speed(
    plan: Plan, limits: HardwareLimits, name: str, batches: tuple[int, ...], whole: bool
) -> Iterator[Figure]:
    gpu_peers.release(plan.device)  # the model before: the other process needs the device's memory
    peers = gpu_peers.measure(plan, name, plan.peer_batches) if name in plan.peers else {}
    model = random_model(name, plan.device, plan.dtype)
    shape = shape_of(model)
    bench = _bench(model, plan, shape.facts.vocab)
    rates: dict[int, float | None] = {}
    for rows in batches:
        of = f"{name}, {rows} streams"
        figures = [
            *_if_it_fits(of, "tok/s", _decoding(bench, plan, limits, shape, of, rows, peers.get(rows)))
        ]
        rates[rows] = figures[0].value
        yield from figures
    if whole:
        yield from _steering(bench, plan, limits, shape)
    del bench, model  # and what they take of the device; whose layers were fused is not exact
    gpu_peers.release(plan.device)
    bench = _bench(random_model(name, plan.device, plan.dtype), plan, shape.facts.vocab, exact="on")
    yield from _if_it_fits(f"{name}, exact", "tok/s", _exact(bench, plan, name, rates))


def _bench(model: PreTrainedModel, plan: Plan, vocab: int, exact: str = "auto") -> EngineBench:
    gpu_peers.release(plan.device)
    tokens = max(plan.context * max(plan.batches), plan.prompt) + 64 * sum(plan.running_and_paused)
    options = api.EngineOptions(
        model="random",
        kv_tokens=plan.kv_tokens or (4 * tokens if plan.device.type == "cpu" else 0),
        max_streams=2 * sum(plan.running_and_paused),
        context=2 * plan.prompt,
        exact=exact,
    )
    engine, _ = build_around(model, toy_model.FOLDER, options)
    settle_heap()  # as an engine's process does
    return EngineBench(engine, vocab, plan.device)


def _if_it_fits(name: str, unit: str, figures: Iterator[Figure]) -> Iterator[Figure]:
    """These figures, or one that says what does not fit."""
    try:
        yield from figures
    except DoesNotFit as error:
        yield Figure(name, None, unit, peer=str(error))


def _decoding(
    bench: EngineBench,
    plan: Plan,
    limits: HardwareLimits,
    shape: Shape,
    name: str,
    rows: int,
    peer: gpu_peers.Rate | None,
) -> Iterator[Figure]:
    seconds = bench.decode_s(rows, plan.context)
    rate = rows / seconds
    if peer is None:
        yield Figure(name, rate, "tok/s", ">= 1.5 x", None, "generate_batch, which gave no rate here")
    else:
        ratio = rate / peer.tokens_per_s
        yield Figure(name, rate, "tok/s", ">= 1.5 x", ratio, f"generate_batch ({peer.config})")
    yield Figure(f"{name}: a step", seconds * 1e3, "ms")
    share = fraction_of_memory(shape.decode_bytes(rows, plan.context), seconds, limits.bytes_per_s)
    goal = {1: ">= 70", 64: ">= 60"}.get(rows, "") if shape.facts.hidden > 1024 else ""
    yield Figure(f"{name}: of the memory's limit", 100 * share, "%", goal)
    gap = bench.gap_s(rows, plan.context)
    if gap is not None:
        yield Figure(f"{name}: no kernel runs", gap * 1e6, "us a step")


def _exact(bench: EngineBench, plan: Plan, name: str, rates: dict[int, float | None]) -> Iterator[Figure]:
    """What exactness costs, and whether it is."""
    for rows, rate in rates.items():
        if rate is not None:
            exact = rows / bench.decode_s(rows, plan.context)
            yield Figure(
                f"{name}, {rows} streams, exact", exact, "tok/s", ">= 0.67 x", exact / rate, "not exact"
            )
    count = max((rows for rows, rate in rates.items() if rate is not None), default=1)
    prompts = [bench.prompt(plan.context + 7 * at, salt=at) for at in range(count)]
    sampling = api.Sampling(seed=1, ignore_eos=True, max_tokens=plan.peer_tokens)
    alone = [bench.outputs([prompt], sampling)[0] for prompt in prompts[:ALONE]]
    crowd = bench.outputs(prompts, sampling)[:ALONE]
    differ = sum(
        a != b for one, other in zip(alone, crowd, strict=True) for a, b in zip(one, other, strict=True)
    )
    total = sum(map(len, alone))
    yield Figure(f"{name}: tokens of {total} that differ among {count} streams, exact", differ, "", "0")


def _steering(bench: EngineBench, plan: Plan, limits: HardwareLimits, shape: Shape) -> Iterator[Figure]:
    name = f"prefill, {plan.prompt} tokens"
    yield from _if_it_fits(name, "TFLOP/s", _prefill(bench, plan, limits, shape, name))
    name = f"{plan.decoding} streams while prompts arrive, p99 between tokens"
    yield from _if_it_fits(name, "ms", _decoding_beside_prompts(bench, plan, name))
    yield from _if_it_fits("controls, to their effect", "steps", _controls(bench, plan))
    name = f"a step of {plan.running_and_paused[0]} beside {plan.running_and_paused[1]} paused"
    yield from _if_it_fits(name, "x", _beside_paused(bench, plan, name))
    if plan.device.type == "cuda":
        name = "times that steps of decoding make the host wait"
        yield from _if_it_fits(name, "in 64 steps", _waits(bench, plan, name))
    yield from transfers(bench.engine, plan.device)


def _prefill(
    bench: EngineBench, plan: Plan, limits: HardwareLimits, shape: Shape, name: str
) -> Iterator[Figure]:
    flops = shape.prefill_flops(plan.prompt) / bench.prefill_s(plan.prompt)
    yield Figure(name, flops / 1e12, "TFLOP/s", "", flops / limits.flops_per_s, "a large product")


def _decoding_beside_prompts(bench: EngineBench, plan: Plan, name: str) -> Iterator[Figure]:
    p99 = bench.intertoken_p99_s(plan.decoding, plan.context, plan.prompt, prompts=4)
    yield Figure(name, p99 * 1e3, "ms")


def _controls(bench: EngineBench, plan: Plan) -> Iterator[Figure]:
    means, discarded = bench.controls(max(plan.batches[1], 2), plan.context, plan.rounds)
    for kind, steps in means.items():
        yield Figure(f"{kind}, to its effect", steps, "steps")
    yield Figure("discarded by overlap", discarded, "tokens a thousand controls")


def _beside_paused(bench: EngineBench, plan: Plan, name: str) -> Iterator[Figure]:
    running, paused = plan.running_and_paused
    ratio = bench.paused_ratio(running, paused, plan.context // 4)
    yield Figure(name, ratio, "x", "<= 1.02", ratio, f"{running} alone")


def _waits(bench: EngineBench, plan: Plan, name: str) -> Iterator[Figure]:
    waits = bench.syncs(plan.batches[1], plan.context)
    print(*sorted(set(waits)), sep="\n", file=sys.stderr)
    yield Figure(name, len(waits), "in 64 steps", "0")


def _exactness(plan: Plan) -> Iterator[Figure]:
    model = random_model(plan.small, plan.device, torch.float32)
    vocab = shape_of(model).facts.vocab
    prompt = [(31 * at) % (vocab - 2) + 2 for at in range(plan.context)]
    expected = gpu_peers.greedy(model, prompt, plan.peer_tokens)
    bench = _bench(model, plan, vocab)
    sampling = api.Sampling(temperature=0, ignore_eos=True, max_tokens=plan.peer_tokens)
    (output,) = bench.outputs([prompt], sampling)
    same = sum(a == b for a, b in zip(output, expected, strict=True)) / len(expected)
    yield Figure("greedy tokens in float32 that are transformers'", 100 * same, "%", "100")
    draws = gpu_peers.draws_agree(plan.device, vocab, 64)
    yield Figure("seeded draws that are the CPU's", 100 * draws, "%", "100")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
