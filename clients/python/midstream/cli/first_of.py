"""Doing several things at once until the first of them is over. It does not know what is done."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any


async def first_of(*works: Coroutine[Any, Any, object], also: tuple[asyncio.Future[Any], ...] = ()) -> None:
    """Wait for the first that ends, and end the others; `also` are waited for, and left as they are.

    Raises what went wrong in any of the works.
    """
    tasks = [asyncio.create_task(work) for work in works]
    try:
        await asyncio.wait([*tasks, *also], return_when=asyncio.FIRST_COMPLETED)
    finally:
        outcomes = await end(tasks)
    for outcome in outcomes:
        if isinstance(outcome, Exception):
            raise outcome


async def end(tasks: list[asyncio.Task[Any]]) -> list[Any]:
    """Cancel what still runs, and wait until it has: what came of each."""
    for task in tasks:
        task.cancel()
    return await asyncio.gather(*tasks, return_exceptions=True)
