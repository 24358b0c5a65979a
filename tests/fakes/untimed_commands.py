"""A command queue outside of time: what a step takes hangs on no busy machine."""

from __future__ import annotations

import math
from collections.abc import Iterator

from engine import api
from engine.step.command_queue import CommandQueue, Streams


class UntimedCommands(CommandQueue):
    def take(self, most_s: float, streams: Streams) -> Iterator[api.AnyCommand]:
        """All that there are."""
        return super().take(math.inf, streams)
