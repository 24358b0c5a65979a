"""The link to an engine's process: it ends the process, and waits for no end that does not come."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from engine import api
from realtime.fleet import process_link
from realtime.fleet.process_link import ProcessLink


class Stuck:
    """A process that waits in the system, and hears of no signal."""

    pid = 7

    def __init__(self) -> None:
        self.killed = 0
        self.end = asyncio.get_running_loop().create_future()

    def kill(self) -> None:
        self.killed += 1

    async def wait(self) -> None:
        await asyncio.shield(self.end)


async def test_a_process_that_cannot_be_killed_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("CLOSE_S", "KILLED_S"):
        monkeypatch.setattr(process_link, name, 0.01)
    link, stuck = ProcessLink(api.EngineOptions(model="toy"), lambda messages: None, lambda: None), Stuck()
    link._process, link._loaded = cast(Any, stuck), True
    async with asyncio.timeout(10):
        await link.close()
    assert stuck.killed == 1
    assert "process 7, an engine's, does not end, though it was killed" in caplog.text


@pytest.mark.parametrize("turns", range(4))
async def test_whoever_is_cancelled_as_the_process_ends_does_not_go_on(turns: int) -> None:
    """As its supervisor, when the server ends: it started another engine, and was waited for for ever."""
    link, stuck = ProcessLink(api.EngineOptions(model="toy"), lambda messages: None, lambda: None), Stuck()
    link._process, link._loaded = cast(Any, stuck), True
    closing = asyncio.create_task(link.close())
    for _ in range(10):  # until it waits
        await asyncio.sleep(0)
    stuck.end.set_result(None)
    for _ in range(turns):
        await asyncio.sleep(0)
    if not closing.done():
        closing.cancel()
        await asyncio.wait([closing])
        assert closing.cancelled()
