"""The lag of the event loop: whatever holds it up delays everybody's next token."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

EVERY_S = 0.25


async def measure(observe: Callable[[float], None]) -> None:
    """For as long as the server runs."""
    loop = asyncio.get_running_loop()
    while True:
        due = loop.time() + EVERY_S
        await asyncio.sleep(EVERY_S)
        observe(max(0.0, loop.time() - due))
