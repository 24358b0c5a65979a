"""Servers for the tests of this folder: one for all of them, and others with options of their own."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from tests.server.independent_client import Client, client_of
from tests.server.keyed_server import Keyed
from tests.server.server_process import Served

JSON, MSGPACK = "midstream.v1.json", "midstream.v1.msgpack"


@pytest.fixture(scope="session")
def shared() -> Iterator[Served]:
    """One server for many tests."""
    yield from in_good_order()


@pytest.fixture(scope="session")
def shared_slow() -> Iterator[Served]:
    """The same at a real model's pace, for what must happen while something runs."""
    yield from in_good_order("--toy-step-ms", "15")


def in_good_order(*options: str) -> Iterator[Served]:
    """A server that ends by SIGTERM behind the last test, leaves nobody behind, and had no complaint."""
    server = Served(*options, loaded=False)
    try:
        yield server
        server.tell()
        assert server.ended() == 0, server.log()
        assert "Traceback" not in server.log()
    finally:
        server.end()


@pytest.fixture(scope="module")
def scripted() -> Iterator[Served]:
    """A server whose model says what it is told to, one for each file."""
    served = Served(scripted=True)
    yield served
    served.end()


@pytest.fixture
async def server(shared: Served) -> AsyncIterator[Served]:
    """The shared server, idle before and after the test: whatever it left behind would show there."""
    await shared.until_idle()
    yield shared
    await shared.until_idle()


@pytest.fixture
async def slow(shared_slow: Served) -> AsyncIterator[Served]:
    """The shared slow server, idle before and after."""
    await shared_slow.until_idle()
    yield shared_slow
    await shared_slow.until_idle()


@pytest.fixture
def full(tmp_path: Path) -> Iterator[Keyed]:
    """A server with keys, at a real model's pace, and with room for one stream."""
    keyed = Keyed(tmp_path, "--max-streams", "1", "--toy-step-ms", "15")
    yield keyed
    keyed.served.end()


@pytest.fixture(params=[JSON, MSGPACK])
async def client(request: pytest.FixtureRequest, server: Served) -> AsyncIterator[Client]:
    """A client of the shared server, in each encoding."""
    async with client_of(server.url, request.param) as connection:
        yield connection


@pytest.fixture
def serve() -> Iterator[Callable[..., Served]]:
    """Start a server with options of its own, that is gone when the test is."""
    started: list[Served] = []

    def start(*options: str) -> Served:
        started.append(Served(*options))
        return started[-1]

    yield start
    for server in started:
        server.end()
