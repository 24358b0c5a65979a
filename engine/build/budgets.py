"""Budgets: how many tokens and rows a step may have, and how many tokens the KV cache in a CPU's memory.

Numbers alone; it knows no model and no tensor.
"""

from __future__ import annotations

import os

from engine.model.preflight import ModelError

STEP_TOKENS = {"cpu": 128, "cuda": 2048}
LEAST_BLOCKS = 2  # of the KV cache
MEMORY_SHARE = 0.25  # of the memory that is free beside the weights, for the KV cache
PROCESS_BYTES = (
    360 << 20
)  # that an engine's process took with a model of no size: libraries, for the most part
MAX_CONTEXTS = 16  # and no more than so many sequences of full length


def step_tokens(asked: int, device: str) -> int:
    """At least two: a step has room for a token and for preparing another."""
    return max(2, asked or STEP_TOKENS[device.partition(":")[0]])


def decoding_rows(asked: int, streams: int) -> int:
    """The limit of streams that decode in one step; the scheduler always has room for two."""
    return min(max(2, asked), streams)


def check_kv_tokens(asked: int, block_size: int) -> None:
    """0 leaves the choice to the memory."""
    least = LEAST_BLOCKS * block_size
    if 0 < asked < least:
        raise ModelError(
            f"--kv-tokens is {asked}; it must be at least {least}, which are {LEAST_BLOCKS} blocks of "
            f"--block-size {block_size}, or 0 for as many as the memory holds"
        )


def whole_blocks(tokens: int, block_size: int, device: str) -> int:
    if tokens < LEAST_BLOCKS * block_size:
        raise ModelError(f"there is not enough memory on {device} for the keys and values of one sequence")
    return tokens // block_size * block_size


def shortage(needed: int, free: int | None) -> str | None:
    """What to say where a KV cache may come to take more than is free: it takes its memory late."""
    if free is None or needed <= free:
        return None
    return (
        f"the KV cache may come to take {needed / 1e9:.2f} GB, and {free / 1e9:.2f} are free: the system may "
        "end the engine then; a smaller --kv-tokens is safe"
    )


def affordable_tokens(free: int | None, bytes_per_token: int, longest: int) -> int:
    """As many tokens as a fair share of the free memory holds; half of all there is where that is not
    known. `longest`: what a sequence of full length takes."""
    if free is None:
        free = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
    return min(int(free * MEMORY_SHARE) // bytes_per_token, MAX_CONTEXTS * longest)
