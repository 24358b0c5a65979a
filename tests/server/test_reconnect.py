"""The Python client and the server, and between them a proxy that cuts: nothing is lost and nothing repeated.

MIDSTREAM_CUTS says how many cuts each seed makes.
"""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import AsyncIterator
from typing import NamedTuple

import pytest

import midstream
from tests.fakes.cutting import CuttingProxy, How, cuts
from tests.server.served import Served

CUTS = int(os.environ.get("MIDSTREAM_CUTS", "12"))
MOST_BYTES = 4000  # of a connection before it is cut: a handshake takes some hundred
LENGTH = 60
rounds = itertools.count()


class Outcome(NamedTuple):
    """All that a stream has come to, but for its name and its times."""

    text: str
    tokens: list[int]
    taken: str  # what the chunks say
    steered: list[int]
    finish_reason: str | None


def options(kind: str, seed: int) -> midstream.options.StartOptions:
    return {
        "prompt": f"Once upon {seed}",
        "seed": seed,
        "max_tokens": LENGTH,
        "ignore_eos": True,
        "return_tokens": True,
        "request_id": f"{kind}-{next(rounds)}",
    }


async def read(client: midstream.Client, seed: int) -> Outcome:
    return await _to_the_end(await client.start(**options("read", seed)), "", [])


async def pull(client: midstream.Client, seed: int) -> Outcome:
    """One token at a time; so every word about the stream takes effect where it has been read to."""
    stream = await client.start(window=1, **options("pull", seed))
    taken, steered = "", list[int]()
    for _ in range(8):
        chunk = await stream.next()
        taken += chunk.text if chunk is not None else ""
        steered += [await stream.pause(kv="release"), await stream.resume()]
    steered.append(await stream.adjust(temperature=0.3))
    steered.append(await stream.inject(text=" and then"))
    return await _to_the_end(stream, taken, steered)


async def steer(client: midstream.Client, seed: int) -> Outcome:
    """Decoded far ahead, and steered from what was read; several frames are under way at once."""
    stream = await client.start(window=32, **options("steer", seed))
    steered: list[int] = []
    for at in (10, 20, 30):
        while stream.consumed < at:
            assert await stream.next()
        steered += await asyncio.gather(
            stream.adjust(at=at - 2, seed=seed + at),
            stream.inject(tokens=[7, 8], at=at - 4),
            stream.rewind(at - 5),
            stream.adjust(top_k=at, at=at - 6),
        )
    return await _to_the_end(stream, "", steered)


async def whole(client: midstream.Client, seed: int) -> Outcome:
    done = await client.complete(**options("whole", seed))
    return Outcome(done.text, done.tokens, done.text, [], done.finish_reason)


async def _to_the_end(stream: midstream.Stream, taken: str, steered: list[int]) -> Outcome:
    async for chunk in stream:
        taken += chunk.text
    assert stream.final is not None
    assert stream.consumed == stream.index == stream.final.index
    return Outcome(stream.text, stream.tokens, taken, steered, stream.final.finish_reason)


async def play(client: midstream.Client, seed: int) -> list[Outcome]:
    return await asyncio.gather(*(act(client, seed) for act in (read, pull, steer, whole)))


@pytest.fixture
async def uncut(server: Served) -> AsyncIterator[midstream.Client]:
    async with midstream.connect(server.http) as client:
        yield client


async def check(
    server: Served, uncut: midstream.Client, seed: int, count: int, hows: tuple[How, ...]
) -> None:
    """Play until every cut has come about: each time it comes to the same."""
    truth = await play(uncut, seed)
    plan = itertools.chain([None], cuts(seed, count, MOST_BYTES, hows))
    encoding: midstream.dial.Encoding = "json" if seed % 2 else "msgpack"
    async with CuttingProxy(server.port, plan) as proxy:
        client = await midstream.connect(proxy.url, encoding=encoding, silence_s=0.6)
        proxy.cut()
        while proxy.done <= count:
            assert await play(client, seed) == truth
        await client.close()
    assert proxy.connections > count


@pytest.mark.parametrize("seed", range(4))
async def test_whatever_is_cut_it_comes_to_the_same(
    server: Served, uncut: midstream.Client, seed: int
) -> None:
    await check(server, uncut, seed, CUTS, ("reset", "close"))


async def test_so_it_does_when_the_line_goes_silent(server: Served, uncut: midstream.Client) -> None:
    await check(server, uncut, 5, max(CUTS // 4, 1), ("silence",))
