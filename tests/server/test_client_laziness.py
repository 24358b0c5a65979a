"""The Python client decodes what is read, and no more: shown by the tokens that the engine has decoded."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

import midstream
from tests.server.server_process import Metrics, Served, decoded, streams


@pytest.fixture
async def client(server: Served) -> AsyncIterator[midstream.Client]:
    async with midstream.connect(server.http) as client:
        yield client


async def at_rest(server: Served, tokens: float) -> Metrics:
    """Once so many are decoded and the stream waits to be asked for more."""
    return await server.until(lambda now: decoded(now) >= tokens and streams(now, "stalled") == 1)


@pytest.mark.parametrize(
    ("window", "read", "ahead"),
    [
        (1, 0, 0),  # not a token before the first is asked for
        (1, 1, 0),
        (1, 10, 0),
        (64, 0, 64),
        (64, 10, 54),  # a grant for less than half a window is not worth its frame
        (64, 32, 32),
        (64, 33, 63),
        (64, 100, 60),
    ],
)
async def test_the_engine_decodes_what_was_read_and_at_most_a_window(
    server: Served, client: midstream.Client, window: int, read: int, ahead: int
) -> None:
    before = decoded(await server.metrics())
    async with await client.start(prompt="Hello", window=window, ignore_eos=True, max_tokens=400) as stream:
        for _ in range(read):
            assert await stream.next() is not None
        now = await at_rest(server, before + read + ahead)
        assert decoded(now) - before == read + ahead
        await client.ping()
        assert decoded(await server.metrics()) == decoded(now)


async def test_leaving_the_loop_stops_the_engine(server: Served, client: midstream.Client) -> None:
    before = decoded(await server.metrics())
    stream = await client.start(prompt="Hello", window=1, ignore_eos=True, max_tokens=400)
    async for chunk in stream:
        if chunk.end == 10:
            break
    assert decoded(await server.until_idle()) - before == 10
