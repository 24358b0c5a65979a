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
        self.end = asyncio.get_running_loop().create_future()  # with its exit status

    def kill(self) -> None:
        self.killed += 1

    async def wait(self) -> int:
        return int(await asyncio.shield(self.end))


class Ended(Stuck):
    """One that has ended by a signal."""

    def __init__(self) -> None:
        super().__init__()
        self.end.set_result(-9)


def link_to(process: Stuck, *, loaded: bool = True) -> ProcessLink:
    link = ProcessLink(api.EngineOptions(model="toy"), lambda messages: None, lambda: None)
    link._process, link._loaded = cast(Any, process), loaded
    return link


async def test_a_process_that_cannot_be_killed_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("CLOSE_S", "KILLED_S"):
        monkeypatch.setattr(process_link, name, 0.01)
    link = link_to(stuck := Stuck())
    async with asyncio.timeout(10):
        await link.close()
    assert stuck.killed == 1
    assert "process 7, an engine's, does not end, though it was killed" in caplog.text


@pytest.mark.parametrize("turns", range(4))
async def test_whoever_is_cancelled_as_the_process_ends_does_not_go_on(turns: int) -> None:
    """As its supervisor, when the server ends: it started another engine, and was waited for for ever."""
    link = link_to(stuck := Stuck())
    closing = asyncio.create_task(link.close())
    for _ in range(10):  # until it waits
        await asyncio.sleep(0)
    stuck.end.set_result(0)
    for _ in range(turns):
        await asyncio.sleep(0)
    if not closing.done():
        closing.cancel()
        await asyncio.wait([closing])
        assert closing.cancelled()


@pytest.mark.parametrize("loaded", [True, False])
async def test_by_which_signal_an_engine_has_ended_is_said_once(
    caplog: pytest.LogCaptureFixture, *, loaded: bool
) -> None:
    """Who is killed for its memory, or by a fault of a library, says nothing by itself."""
    link = link_to(ended := Ended(), loaded=loaded)
    link.connection_lost(None)
    await link.close()
    await link.close()
    assert caplog.messages == ["process 7, an engine's, was ended by signal 9"]
    assert ended.killed == 0, "or it would seem to be ended by us"


async def test_of_one_that_was_ended_here_nothing_is_said(caplog: pytest.LogCaptureFixture) -> None:
    hung, loading = link_to(Ended()), link_to(Ended(), loaded=False)
    hung.kill()
    for link in (hung, loading):
        await link.close()
    assert caplog.messages == []
