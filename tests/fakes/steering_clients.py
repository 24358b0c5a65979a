"""Steering clients: each reads one stream through the Python client, and steers it on the way.

What one does depends on its seed alone, and so does what it comes to: whatever happens to connections,
engines and neighbours meanwhile, its `Outcome` is that of a quiet run. It knows nothing of what happens.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

import midstream

LENGTH = 60
_numbers = itertools.count()


class Outcome(NamedTuple):
    """All that a stream has come to, but for its name and its times."""

    text: str
    tokens: list[int]
    taken: str  # what the chunks say
    steered: list[int]
    finish_reason: str | None


SteeringClient = Callable[[midstream.Client, int], Awaitable[Outcome]]


def options(kind: str, seed: int) -> midstream.options.StartOptions:
    return {
        "prompt": f"Once upon {seed}",
        "seed": seed,
        "max_tokens": LENGTH,
        "ignore_eos": True,
        "return_tokens": True,
        "request_id": f"{kind}-{next(_numbers)}",
    }


async def started(client: midstream.Client, kind: str, seed: int, window: int) -> midstream.Stream:
    """A server without an engine says when to come again."""
    while True:
        try:
            return await client.start(window=window, **options(kind, seed))
        except midstream.Overloaded as error:
            await asyncio.sleep((error.retry_after_ms or 0) / 1000)


async def read(client: midstream.Client, seed: int) -> Outcome:
    return await to_the_end(await started(client, "read", seed, 64))


async def pull(client: midstream.Client, seed: int) -> Outcome:
    """One token at a time; so every frame about the stream takes effect where it has been read to."""
    stream = await started(client, "pull", seed, 1)
    taken, steered = "", list[int]()
    for _ in range(8):
        chunk = await stream.next()
        taken += chunk.text if chunk is not None else ""
        steered += [await stream.pause(kv="release"), await stream.resume()]
    steered.append(await stream.adjust(temperature=0.3))
    steered.append(await stream.inject(text=" and then"))
    return await to_the_end(stream, taken, steered)


async def steer(client: midstream.Client, seed: int) -> Outcome:
    """Decoded far ahead, and steered from what was read; several frames are under way at once."""
    stream = await started(client, "steer", seed, 32)
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
    return await to_the_end(stream, "", steered)


async def whole(client: midstream.Client, seed: int) -> Outcome:
    """At the server's credit, which follows the reading."""
    while True:
        try:
            done = await client.complete(**options("whole", seed))
        except midstream.Overloaded as error:
            await asyncio.sleep((error.retry_after_ms or 0) / 1000)
        else:
            return Outcome(done.text, done.tokens, done.text, [], done.finish_reason)


STEERING_CLIENTS: tuple[SteeringClient, ...] = (read, pull, steer, whole)


def pausing(until: Callable[[], Awaitable[object]]) -> SteeringClient:
    """One that is paused in the middle until something has happened."""

    async def pause(client: midstream.Client, seed: int) -> Outcome:
        stream = await started(client, "pause", seed, 1)
        chunk = await stream.next()
        assert chunk is not None
        steered = [await stream.pause()]
        await until()
        steered.append(await stream.resume())
        return await to_the_end(stream, chunk.text, steered)

    return pause


def stalling(until: Callable[[], Awaitable[object]]) -> SteeringClient:
    """One that takes nothing in the middle until something has happened, and has no credit left by then."""

    async def stall(client: midstream.Client, seed: int) -> Outcome:
        stream = await started(client, "stall", seed, 16)
        chunk = await stream.next()
        assert chunk is not None
        await until()
        return await to_the_end(stream, chunk.text)

    return stall


async def to_the_end(stream: midstream.Stream, taken: str = "", steered: Sequence[int] = ()) -> Outcome:
    async for chunk in stream:
        taken += chunk.text
    assert stream.final is not None
    assert stream.consumed == stream.index == stream.final.index
    return Outcome(stream.text, stream.tokens, taken, list(steered), stream.final.finish_reason)


async def run_all(
    client: midstream.Client, seed: int, steering_clients: Sequence[SteeringClient]
) -> list[Outcome]:
    return await asyncio.gather(*(run(client, seed) for run in steering_clients))
