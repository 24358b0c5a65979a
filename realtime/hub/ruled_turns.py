"""The turns of work that has grammars, its own or those of tools: one turn where all of them are known, and
before it, for each that is not, one in which that is compiled."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from realtime.hub.tokenizing_pool import Line, TokenizingPool
from realtime.text.grammar import NotKnownError, Unknown

T = TypeVar("T")


async def ruled(
    pool: TokenizingPool,
    tenant: str,
    client: object,
    size: int,
    work: Callable[[], Awaitable[T]],
    wanted: Callable[[], bool],
) -> T | None:
    """What comes of it; None where it is not `wanted` any more. It raises `NotKnownError` where a grammar
    would have to be compiled: then it is begun again."""
    while wanted():
        try:
            async with pool.turn(tenant, client, size, Line.RULED):
                return await work()
        except NotKnownError as error:
            unknown: Unknown | None = error.unknown
        while unknown is not None and wanted():
            async with pool.turn(tenant, client, 1, Line.COMPILED):
                unknown = await pool.run(unknown.find_out) if wanted() else None
    return None
