"""Forks over the WebSocket: what they hold in common they hold once, and an engine's death is nothing to
them."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator, Sequence

import pytest

import midstream
from tests.server.server_process import Served, used

PROMPT = "Once upon a time"
BLOCK, AT, ON, END, BRANCHES = 16, 1000, 1050, 1100, 8  # tokens, but for the last


@pytest.fixture(scope="module")
def toy() -> Iterator[Served]:
    server = Served()
    yield server
    server.end()


async def until(stream: midstream.Stream, index: int) -> None:
    """It has come so far, and no further: it has credit for no more."""
    stream.grant(index)
    while stream.consumed < index:
        assert await stream.next() is not None


async def branches(client: midstream.Client, stem: midstream.Stream) -> list[midstream.Stream]:
    return [
        await client.fork(stem, at=AT, seed=seed, window=1, credit={"limit": AT}) for seed in range(BRANCHES)
    ]


async def all_until(streams: Sequence[midstream.Stream], index: int) -> list[str]:
    await asyncio.gather(*(until(stream, index) for stream in streams))
    return [stream.text for stream in streams]


async def test_eight_forks_add_their_own_tokens_blocks_and_survive_the_engine(toy: Served) -> None:
    async with midstream.connect(toy.http) as client:
        stem = await client.start(
            prompt="Once upon a time",
            seed=9,
            ignore_eos=True,
            max_tokens=END + 1,
            window=1,
            credit={"limit": AT},
        )
        await until(stem, AT)
        expected = await all_until(await branches(client, stem), END)
        assert len(set(expected)) == BRANCHES
        known = stem.prompt_tokens or 0
        alone = await toy.until(lambda now: used(now) == -(-(known + AT) // BLOCK))
        forks = await branches(client, stem)
        await all_until(forks, ON)
        own = -(-(known + ON) // BLOCK) - (known + AT) // BLOCK  # the first is copied: it was not full
        now = await toy.metrics()
        assert used(now) - used(alone) == BRANCHES * own
        os.kill(toy.engine, signal.SIGKILL)
        assert await all_until([*forks, stem], END) == [*expected, stem.text]
    await toy.until_idle()
