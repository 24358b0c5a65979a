"""A command queue outside of time: what a step takes hangs on no busy machine."""

from __future__ import annotations

import math
from collections.abc import Iterator

from engine import api
from engine.step.command_queue import CommandQueue


class UntimedCommands(CommandQueue):
    def take(self, most_s: float) -> Iterator[api.AnyCommand]:
        """All that there are."""
        return super().take(math.inf)
