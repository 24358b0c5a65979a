"""What the service manager is told, where there is one that asks."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from realtime.service_manager import ENDS, LIVES, SERVES, ServiceManager, asking, not_asking


@pytest.fixture(params=["told", "@told", "abstract"])
def listening(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[socket.socket, str]]:
    """One that is told, and its address as it stands in an environment."""
    is_abstract = request.param == "abstract"
    name = f"@midstream-{os.getpid()}" if is_abstract else str(tmp_path / request.param)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as told:
        told.bind(name.replace("@", "\0") if is_abstract else name)
        told.settimeout(10)
        yield told, name


def test_it_is_told_word_by_word(listening: tuple[socket.socket, str]) -> None:
    told, name = listening
    manager = ServiceManager({"NOTIFY_SOCKET": name})
    assert not manager.watches
    for word in (SERVES, ENDS):
        manager.tell(word)
        assert told.recv(100).decode() == word


async def test_it_is_told_again_and_again_that_the_loop_turns(listening: tuple[socket.socket, str]) -> None:
    told, name = listening
    manager = ServiceManager(asking(name, 0.02))
    assert manager.watches
    telling = asyncio.create_task(manager.keep_telling())
    for _ in range(3):
        assert (await asyncio.to_thread(told.recv, 100)).decode() == LIVES
    telling.cancel()
    with suppress(asyncio.CancelledError):
        await telling


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"NOTIFY_SOCKET": "/nobody/listens"},
        {"NOTIFY_SOCKET": "/nobody/listens", "WATCHDOG_USEC": "soon"},
        {"WATCHDOG_USEC": "1000000"},
        asking("/nobody/listens", 1.0) | {"WATCHDOG_PID": "1"},
    ],
)
def test_nobody_is_told_who_has_not_asked_or_is_not_there(environ: dict[str, str]) -> None:
    manager = ServiceManager(environ)
    assert not manager.watches
    manager.tell(SERVES)


def test_whoever_takes_nothing_is_not_waited_for(listening: tuple[socket.socket, str]) -> None:
    manager = ServiceManager(asking(listening[1], 1.0))
    for _ in range(10_000):
        manager.tell(LIVES)


def test_a_process_of_ours_is_not_asked() -> None:
    assert not_asking(asking("there", 1.0) | {"WATCHDOG_PID": "1", "HOME": "here"}) == {"HOME": "here"}
