"""KV offload bandwidth: to the host's memory and back, beside a plain copy of as much."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from bench import hardware_limits
from bench.result_tables import Figure
from engine.engine import Engine
from engine.forward.model_runner import ModelRunner
from engine.memory.host_pool import STAGING_BYTES, HostPool


def transfers(engine: Engine, device: torch.device) -> Iterator[Figure]:
    """As much as the engine copies at once. Nothing runs meanwhile; each block returns to its place."""
    assert isinstance(engine.runner, ModelRunner)
    host = HostPool(engine.runner.pool, engine.cache.block_size, STAGING_BYTES)
    copies = [(number, number) for number in range(host.max_blocks)]
    size = host.max_blocks * host.block_bytes
    out, back = hardware_limits.pinned_bytes_per_s(device, size)
    for name, work, plain in (
        ("the cache to the host's memory", lambda: host.save(copies), out),
        ("the cache back from the host's memory", lambda: host.load(copies), back),
    ):
        rate = size / hardware_limits.seconds_of(work, device)
        yield Figure(name, rate / 1e9, "GB/s", "", rate / plain, "a plain copy of pinned memory")
