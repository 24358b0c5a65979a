"""The sizes of the GPU benchmark: how large everything is, on a device, and for a dry run on the CPU."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Plan:
    """How large everything is."""

    name: str
    device: torch.device
    dtype: torch.dtype
    large: str
    small: str
    batches: tuple[int, ...]
    small_batches: tuple[int, ...]
    context: int
    prompt: int
    decoding: int  # streams beside which prompts arrive
    running_and_paused: tuple[int, int]  # streams
    rounds: int  # of controls
    peers: tuple[str, ...]  # models that `generate_batch` runs, too
    peer_batches: tuple[int, ...]  # which it takes minutes for, where they are large
    peer_tokens: int
    peer_room: dict[str, int]  # what `generate_batch` may take; all that it finds if nothing is said
    copy_bytes: int
    product: int
    kv_tokens: int = 0  # what there is room for, if nothing is said


FULL = Plan(
    name="full",
    device=torch.device("cuda"),
    dtype=torch.bfloat16,
    large="llama-3.1-8b",
    small="smollm2-135m",
    batches=(1, 16, 64, 256),
    small_batches=(1, 64, 256),
    context=1024,
    prompt=8192,
    decoding=32,
    running_and_paused=(100, 900),
    rounds=100,
    peers=("llama-3.1-8b", "smollm2-135m"),
    peer_batches=(1, 64),
    peer_tokens=64,
    peer_room={},
    copy_bytes=4 * 2**30,
    product=8192,
)
DRY = Plan(
    name="dry",
    device=torch.device("cpu"),
    dtype=torch.float32,
    large="tiny",
    small="tinier",
    batches=(1, 3),
    small_batches=(2,),
    context=24,
    prompt=512,
    decoding=3,
    running_and_paused=(4, 12),
    rounds=3,
    peers=("tiny",),
    peer_batches=(1, 3),
    peer_tokens=4,
    peer_room={"num_blocks": 32, "max_batch_tokens": 64, "page_size": 16},
    copy_bytes=2**22,
    product=128,
)
PLANS = {plan.name: plan for plan in (FULL, DRY)}
