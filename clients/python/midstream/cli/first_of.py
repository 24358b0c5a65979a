"""Runs coroutines until the first of them is done, and cancels the others. It does not know what they do."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any


async def first_of(*coros: Coroutine[Any, Any, object], also: tuple[asyncio.Future[Any], ...] = ()) -> None:
    """Wait for the first that ends, and end the others; `also` are waited for, and left as they are.

    Raises what went wrong in any of the coroutines.
    """
    tasks = [asyncio.create_task(coro) for coro in coros]
    try:
        await asyncio.wait([*tasks, *also], return_when=asyncio.FIRST_COMPLETED)
    finally:
        outcomes = await cancel_all(tasks)
    for outcome in outcomes:
        if isinstance(outcome, Exception):
            raise outcome


async def cancel_all(tasks: list[asyncio.Task[Any]]) -> list[Any]:
    """Cancel what still runs, and wait until it has: what came of each."""
    for task in tasks:
        task.cancel()
    return await asyncio.gather(*tasks, return_exceptions=True)
