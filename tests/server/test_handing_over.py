"""Gateways that are told to end, over engines that others have as well: their streams go on at another, and
nobody is cancelled."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path
from typing import Any

import midstream
from tests.server.gateways import Serve, gateways
from tests.server.independent_client import client_of
from tests.server.server_process import streams

PARAMS: dict[str, Any] = {"ignore_eos": True, "temperature": 0, "max_tokens": 80}
LONG = ("--shutdown-grace-s", "600")


async def read(stream: midstream.Stream) -> str:
    async for _ in stream:
        pass
    return stream.text


async def test_streams_go_on_at_another_gateway_when_theirs_is_told_to_end(
    tmp_path: Path, serve: Serve
) -> None:
    async with gateways(tmp_path, serve, *LONG) as (first, second):
        async with midstream.connect([first.http, second.http]) as client:
            asked: dict[str, Any] = {"prompt": "Once", "on_disconnect": "continue", **PARAMS}
            begun = [await client.start(**asked, window=8) for _ in range(9)]  # none ends unread
            here = streams(await first.metrics()) > 0
            ours, other = (first, second) if here else (second, first)
            assert streams(await ours.metrics()) == len(begun)
            ours.tell(signal.SIGTERM)
            assert await asyncio.to_thread(ours.ended) == 0, "long before the grace is over"
            texts = {await read(stream) for stream in begun}
            assert texts == {await read(await client.start(**asked))}
        assert {stream.final.finish_reason for stream in begun if stream.final} == {"length"}
        assert streams(await other.metrics()) == 0


async def test_what_cannot_be_handed_over_finishes_first(tmp_path: Path, serve: Serve) -> None:
    async with gateways(tmp_path, serve, *LONG) as (first, _):
        async with client_of(first.url) as client:
            stream = await client.start("a", params=PARAMS, on_disconnect="cancel")
            await stream.until_index(1)
            first.tell(signal.SIGTERM)
            assert (await stream.rest())["finish_reason"] == "length"
        assert await asyncio.to_thread(first.ended) == 0


async def test_who_says_so_has_streams_finish_where_they_are(tmp_path: Path, serve: Serve) -> None:
    async with gateways(tmp_path, serve, *LONG, "--on-drain", "finish") as (first, _):
        async with client_of(first.url) as client:
            stream = await client.start("a", params=PARAMS, on_disconnect="continue")
            await stream.until_index(1)
            first.tell(signal.SIGTERM)
            assert (await stream.rest())["finish_reason"] == "length"
        assert await asyncio.to_thread(first.ended) == 0
