"""A clock of work for tests: whatever is measured took a millisecond, and nobody really sleeps."""

from __future__ import annotations

import asyncio
import itertools

import pytest


def a_millisecond_a_piece(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The delays that were slept from now on."""
    worked_ms = itertools.count()
    monkeypatch.setattr("time.thread_time", lambda: next(worked_ms) / 1000)
    slept: list[float] = []
    sleep = asyncio.sleep

    async def sleeping(delay_s: float) -> None:
        slept.append(delay_s)
        await sleep(0)

    monkeypatch.setattr("asyncio.sleep", sleeping)
    return slept
