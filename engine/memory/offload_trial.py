"""Whether paused streams' keys and values are moved to the host's memory: only if bringing them back is
quicker than computing them again, which is tried once, when an engine starts.

It knows a runner and its pool, and what the host has to give; it moves and computes for the trial alone.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from engine.forward.interface import Runner
from engine.forward.kv_pool import KvPool
from engine.memory.host_pool import HostPool
from engine.memory.kv_sizing import trial_row
from engine.transfer import Download

log = logging.getLogger(__name__)

GIB = 2**30
SHARE = 0.5  # of the host's memory that is free: the rest is everybody's


def host_pool(
    pool: KvPool, runner: Runner, *, block: int, chunk: int, gib: float, free: int | None
) -> HostPool | None:
    """Memory for what streams leave when they pause; None where it would not serve.

    `chunk`: the most tokens of a prompt that one step computes.
    """
    limit = int(gib * GIB)
    if free is not None:
        limit = min(limit, int(free * SHARE))
    try:
        host = HostPool(pool, block, limit)
    except (MemoryError, RuntimeError) as error:  # CUDA's own words for it come as the latter
        log.warning("nothing of the KV cache is kept in the host's memory: it cannot be had (%s)", error)
        return None
    if not host.total:
        log.info("nothing of the KV cache is kept in the host's memory: %d bytes hold no block", limit)
        return None
    return host if _cheaper(host, pool, runner, block, chunk) else None


def _cheaper(host: HostPool, pool: KvPool, runner: Runner, block: int, chunk: int) -> bool:
    blocks = min(host.most, host.total, runner.context // block, pool.tokens // block, -(-chunk // block))
    tokens = min(blocks * block, chunk)  # there is memory for no larger step
    moves = [(number, number) for number in range(blocks)]
    host.save(moves)  # nothing but zeros, which may lie in any block
    bring_s = _seconds(lambda: host.load(moves).wait())
    row = trial_row(0, tokens, list(range(blocks)))
    compute_s = _seconds(lambda: Download(runner.forward([row])).read())
    pool.scrub(slice(0, blocks * block))
    log.info(
        "%d tokens come back from the host's memory in %.2f ms, and are computed again in %.2f ms: %s",
        tokens,
        bring_s * 1e3,
        compute_s * 1e3,
        f"{host.total * block} tokens of paused streams may lie there"
        if bring_s < compute_s
        else "none are kept there",
    )
    return bring_s < compute_s


def _seconds(work: Callable[[], object]) -> float:
    work()  # the first time, something may have to be compiled
    began = time.perf_counter()
    work()
    return time.perf_counter() - began
