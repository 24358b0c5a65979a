"""KV cache sizing: how many bytes of a device are left for the cache beside everything else.

What weights take is known once they lie there; what a step takes on top is found by trying the largest ones
on a small pool: a full prompt chunk, and a full batch that decodes, with everything that a sampler may be
asked for. The rest is the cache's, up to the share of the device that the engine may use. It knows a runner
and a sampler, and asks a meter what the trial took.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

import torch

from engine.api import Sampling
from engine.forward.interface import Runner
from engine.sampling.readback import SampleRequest
from engine.sampling.sampler import Sampler
from engine.schedule.batch import Row
from engine.schedule.sequence import Sequence

log = logging.getLogger(__name__)

GIB = 2**30
MemoryMeter = Callable[[Callable[[], object]], int]  # runs something; the most bytes that it took

ALL_PARAMETERS = Sampling(
    top_k=1000,
    top_p=0.9,
    min_p=0.01,
    repetition_penalty=1.1,
    frequency_penalty=0.1,
    logit_bias={0: 1.0},
    logprobs=20,
)


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """Bytes."""

    total: int
    free: int  # with the weights in it


def kv_bytes(device: DeviceMemory, step: int, fraction: float) -> int:
    """What the cache may take, if others' memory, the weights and a step are to fit too; 0 if they do not."""
    others = device.total - device.free
    return max(0, min(int(device.total * fraction) - others, device.free) - step)


def step_bytes(
    runner: Runner,
    sampler: Sampler,
    *,
    chunk: int,
    rows: int,
    block_size: int,
    groups: int,
    meter: MemoryMeter,
) -> int:
    """What the largest steps take: one that is computed as it comes, and sampled from; and one more that is
    captured as a CUDA graph and stays, with its logits.

    The runner's pool holds `chunk` tokens or more; what it holds is overwritten.
    """
    blocks = list(range(-(-chunk // block_size)))
    many = meter(lambda: runner.forward([trial_row(0, chunk, blocks, groups)]))
    batch = [trial_row(slot, 1, blocks[:1], groups) for slot in range(rows)]

    def decode() -> None:
        requests = [SampleRequest(row.sequence, 0) for row in batch]
        sampler.launch(runner.forward(batch), requests).read()

    few = meter(decode)
    for row in batch:
        sampler.release_slot(row.sequence)
    captured = meter(lambda: runner.forward(batch).clone())
    return max(many, few) + captured


def trial_row(slot: int, count: int, blocks: list[int], groups: int = 1) -> Row:
    """A row of no stream, that computes `count` tokens and samples, in the same blocks for all groups of
    layers: what they then hold is nothing."""
    sequence = Sequence(-1 - slot, [0] * count, ALL_PARAMETERS, credit=1, context=count + 1)
    sequence.slot, sequence.blocks, sequence.other_blocks = slot, blocks, [blocks] * (groups - 1)
    return Row(sequence, 0, count, True, sequence.sampling)


def cuda_meter(work: Callable[[], object]) -> int:
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    work()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


def kv_bytes_on_device(
    runner_with: Callable[[int], Runner],
    sampler: Sampler,
    *,
    chunk: int,
    rows: int,
    block_size: int,
    groups: int,
    fraction: float,
    reserved: int,
) -> int:
    """Bytes of the CUDA device for the KV cache: what the weights, the largest steps and what else is
    `reserved` leave of its share."""
    trial = runner_with(chunk)
    step = step_bytes(
        trial, sampler, chunk=chunk, rows=rows, block_size=block_size, groups=groups, meter=cuda_meter
    )
    del trial
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info()
    left = kv_bytes(DeviceMemory(total, free), step + reserved, fraction)
    log.info(
        "of %.1f GiB, %.1f are free beside the weights, steps take up to %.1f, and %.1f are for the KV cache",
        *(number / GIB for number in (total, free, step, left)),
    )
    return left
