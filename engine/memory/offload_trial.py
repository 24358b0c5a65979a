"""The offload trial: whether loading KV blocks from the host is quicker than computing them again.

It is tried once, when an engine starts; where it is not, nothing of the KV cache is offloaded. It knows a
runner and its pool, and what the host has to give; it copies and computes for the trial alone.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from engine.forward.interface import Runner
from engine.forward.kv_pool import KvPool
from engine.memory.host_pool import HostPool
from engine.memory.kv_sizing import trial_row
from engine.nonblocking_transfer import Download

log = logging.getLogger(__name__)

GIB = 2**30
FREE_SHARE = 0.5  # of the host's memory that is free: the rest is everybody's


def host_pool_if_faster(
    pool: KvPool, runner: Runner, *, block_size: int, chunk: int, gib: float, free: int | None
) -> HostPool | None:
    """Memory for the blocks of paused streams; None where it would not serve.

    `chunk`: the most tokens of a prompt that one step computes.
    """
    if runner.context < block_size:  # and blocks are offloaded whole
        log.info("the KV cache is not offloaded: no stream fills a block of %d tokens", block_size)
        return None
    limit = int(gib * GIB)
    if free is not None:
        limit = min(limit, int(free * FREE_SHARE))
    try:
        host_pool = HostPool(pool, block_size, limit)
    except (MemoryError, RuntimeError) as error:  # CUDA raises the latter
        log.warning("the KV cache is not offloaded: the host's memory cannot be had (%s)", error)
        return None
    if not host_pool.total_blocks:
        log.info("the KV cache is not offloaded: %d bytes of the host's memory hold no block", limit)
        return None
    return host_pool if _is_faster(host_pool, pool, runner, block_size, chunk) else None


def _is_faster(host_pool: HostPool, pool: KvPool, runner: Runner, block_size: int, chunk: int) -> bool:
    room = min(runner.context, pool.tokens)
    blocks = min(host_pool.max_blocks, host_pool.total_blocks, room // block_size, -(-chunk // block_size))
    tokens = min(blocks * block_size, chunk)  # there is memory for no larger step
    copies = [(number, number) for number in range(blocks)]
    host_pool.save(copies)  # nothing but zeros, which may lie in any block
    load_s = _seconds(lambda: host_pool.load(copies).wait())
    row = trial_row(0, tokens, list(range(blocks)), len(pool.groups))
    compute_s = _seconds(lambda: Download(runner.forward([row])).read())
    pool.zero(slice(0, blocks * block_size))
    log.info(
        "%d tokens are loaded from the host's memory in %.2f ms, and computed again in %.2f ms: %s",
        tokens,
        load_s * 1e3,
        compute_s * 1e3,
        f"up to {host_pool.total_blocks * block_size} tokens of paused streams are offloaded"
        if load_s < compute_s
        else "the KV cache is not offloaded",
    )
    return load_s < compute_s


def _seconds(work: Callable[[], object]) -> float:
    work()  # the first time, something may have to be compiled
    began = time.perf_counter()
    work()
    return time.perf_counter() - began
