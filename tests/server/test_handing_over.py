"""Gateways that are told to end, over engines that others have as well: their streams go on at another, and
nobody is cancelled."""

from __future__ import annotations

import asyncio
import random
import signal
from pathlib import Path
from typing import Any

import httpx2
import pytest

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
    tmp_path: Path, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(random, "randrange", lambda servers: 0)  # the client begins with the first
    async with gateways(tmp_path, serve, *LONG) as (first, second):
        async with midstream.connect([first.http, second.http]) as client:
            asked: dict[str, Any] = {"prompt": "Once", "on_disconnect": "continue", **PARAMS}
            begun = [await client.start(**asked, window=8) for _ in range(9)]  # none ends unread
            assert streams(await first.metrics()) == len(begun)
            first.tell(signal.SIGTERM)
            assert await asyncio.to_thread(first.ended) == 0, "long before the grace is over"
            texts = {await read(stream) for stream in begun}
            assert texts == {await read(await client.start(**asked))}
        assert {stream.final.finish_reason for stream in begun if stream.final} == {"length"}
        assert streams(await second.metrics()) == 0


@pytest.mark.parametrize(
    ("options", "on_disconnect"),
    [((), "cancel"), (("--on-drain", "finish"), "continue")],
    ids=["what cannot be handed over", "who says so"],
)
async def test_streams_finish_where_they_are(
    tmp_path: Path, serve: Serve, options: tuple[str, ...], on_disconnect: str
) -> None:
    async with gateways(tmp_path, serve, *LONG, *options) as (first, _):
        async with client_of(first.url) as client:
            stream = await client.start("a", params=PARAMS, on_disconnect=on_disconnect)
            await stream.until_index(1)
            first.tell(signal.SIGTERM)
            assert (await stream.rest())["finish_reason"] == "length"
        assert await asyncio.to_thread(first.ended) == 0


async def test_a_start_meanwhile_is_taken_by_another_gateway(
    tmp_path: Path, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once what keeps the connection has ended: nobody is refused."""
    monkeypatch.setattr(random, "randrange", lambda servers: 0)  # the client begins with the first
    async with gateways(tmp_path, serve, *LONG) as (first, second):
        async with midstream.connect([first.http, second.http]) as client:
            stays = await client.start(prompt="Once", on_disconnect="cancel", window=8, **PARAMS)
            assert await stays.next()
            first.tell(signal.SIGTERM)
            while not client.draining:
                await client.ping()
            starting = asyncio.create_task(client.start(prompt="Once", **PARAMS))
            text = await read(stays)
            assert await read(await starting) == text
            assert await asyncio.to_thread(first.ended) == 0
        assert streams(await second.metrics()) == 0


async def test_so_is_a_fork_of_what_goes_on_there(
    tmp_path: Path, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which that gateway has to find first."""
    monkeypatch.setattr(random, "randrange", lambda servers: 0)  # the client begins with the first
    async with (
        gateways(tmp_path, serve, *LONG) as (first, second),
        midstream.connect([first.http, second.http]) as client,
    ):
        forked = await client.start(prompt="Once", on_disconnect="continue", window=8, **PARAMS)
        stays = await client.start(prompt="Once", on_disconnect="cancel", window=8, **PARAMS)
        assert await forked.next()
        first.tell(signal.SIGTERM)
        while not client.draining:
            await client.ping()
        starting = asyncio.create_task(client.fork(forked, at=1))
        text = await read(stays)
        assert await read(await starting) == text
        assert await read(forked) == text


async def test_what_shares_a_connection_with_it_goes_when_the_grace_is_over(
    tmp_path: Path, serve: Serve
) -> None:
    """And nobody has to say for it that it was cancelled."""
    async with gateways(tmp_path, serve, "--shutdown-grace-s", "0.2") as (first, second):
        async with client_of(first.url) as client:
            ours = await client.start("a", params=PARAMS, credit={"limit": 3}, on_disconnect="continue")
            other = await client.start("b", params=PARAMS, credit={"limit": 3}, on_disconnect="cancel")
            await ours.until_index(3)
            await other.until_index(3)
            first.tell(signal.SIGTERM)
            assert (await other.rest())["finish_reason"] == "cancelled"
            assert await asyncio.to_thread(first.ended) == 0
        async with client_of(second.url) as there:
            again = there.adopt(ours)
            await there.send("attach", request_id="a", after=ours.events[-1]["seq"])
            await there.send("credit", request_id="a", limit=1000)
            assert (await again.rest())["finish_reason"] == "length"


async def test_an_answer_over_http_finishes_or_is_told_to_come_again_and_goes_on_elsewhere(
    tmp_path: Path, serve: Serve
) -> None:
    async with gateways(tmp_path, serve, "--shutdown-grace-s", "0.2") as (first, second):
        body = {"model": "toy", "prompt": "Once", "request_id": "a", **PARAMS}
        async with (
            httpx2.AsyncClient(base_url=first.http) as client,
            client.stream("POST", "/v1/completions", json=body | {"stream": True}) as answer,
        ):
            lines = answer.aiter_lines()
            await anext(lines)
            first.tell(signal.SIGTERM)
            said = [line async for line in lines if line]
        assert "going away" in said[-1]
        assert await asyncio.to_thread(first.ended) == 0
        async with httpx2.AsyncClient(base_url=second.http, timeout=60) as client:
            answer = (await client.post("/v1/completions", json=body)).json()
        assert answer["choices"][0]["finish_reason"] == "length"
        assert answer["usage"]["completion_tokens"] == PARAMS["max_tokens"]
