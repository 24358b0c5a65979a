"""Runs a function in a thread of its own. The thread ends with the program, whatever it waits for: nobody can
stop it, and an executor's threads would be waited for."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from contextvars import copy_context
from typing import TypeVar

T = TypeVar("T")


async def in_thread(function: Callable[[], T]) -> T:
    """What it returns, or raises. Whoever is cancelled meanwhile waits for it no longer."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[Callable[[], T]] = loop.create_future()
    context = copy_context()

    def settle(outcome: Callable[[], T]) -> None:
        if not done.done():
            done.set_result(outcome)

    def run() -> None:
        outcome = _outcome(lambda: context.run(function))
        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(settle, outcome)

    threading.Thread(target=run, name=f"midstream {function!r}", daemon=True).start()
    return (await done)()


def _outcome(function: Callable[[], T]) -> Callable[[], T]:
    """What gives the same again."""
    try:
        result = function()
    except BaseException as error:  # noqa: BLE001 - it is raised where it is waited for
        failure = error if isinstance(error, Exception) else RuntimeError(f"it ended in {error!r}")

        def fail() -> T:
            raise failure

        return fail
    return lambda: result
