"""The ranks beside this process, where a model is shared among several: for as long as the engine lives."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from engine import api

if TYPE_CHECKING:
    from engine.build.build import JoinRanks


@contextmanager
def other_ranks(options: api.EngineOptions) -> Iterator[JoinRanks | None]:
    """How this process becomes one of them; None where it is alone."""
    if options.devices == 1:
        yield None
        return
    # It brings torch.distributed, which an engine that is alone does without.
    from engine.parallel.ranks import RankLauncher

    launcher = RankLauncher(options)
    try:
        yield launcher.start
    finally:
        launcher.close()
