"""A tokenizing pool without threads, where a text takes any number of turns of the event loop, by chance."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from realtime.hub.tokenizing_pool import TokenizingPool

P = ParamSpec("P")
T = TypeVar("T")

TURNS = [0, 0, 1, 3, 10]


class UnhurriedPool(TokenizingPool):
    def __init__(self, chance: random.Random) -> None:
        super().__init__()
        self._chance = chance

    async def run(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        for _ in range(self._chance.choice(TURNS)):
            await asyncio.sleep(0)
        return work(*args, **kwargs)
