"""Several gateways over several engines: the same start at all of them at once is one stream, and whoever
attaches finds it at any of them. An engine that hangs keeps nobody waiting for long."""

from __future__ import annotations

import asyncio
import signal
from contextlib import AsyncExitStack
from pathlib import Path

from tests.server.gateways import STEP, Serve, gateways, static
from tests.server.independent_client import Client, Stream, client_of
from tests.server.listening_engine import ListeningEngine, listening
from tests.server.server_process import decoded

TOKENS = 40
PARAMS = {"ignore_eos": True, "temperature": 0, "max_tokens": TOKENS}
KEPT = {"params": PARAMS, "on_disconnect": "continue", "credit": {"limit": 10_000}}
NAMES = [f"stream {number}" for number in range(8)]


async def outcome(client: Client, stream: Stream) -> str:
    """How it ends for one of those who started it: what its last event says."""
    while True:
        event = await client.next(stream.request_id)
        if event["type"] == "final":
            return str(event["finish_reason"])
        if event["type"] == "error":
            return str(event["code"])


async def test_the_same_start_at_three_gateways_at_once_is_one_stream(tmp_path: Path, serve: Serve) -> None:
    async with (
        gateways(tmp_path, serve, count=3, engines=3) as served,
        AsyncExitStack() as entered,
    ):
        clients = [await entered.enter_async_context(client_of(one.url)) for one in served]
        for client in clients:
            client.mark = clients[0].mark
        for name in NAMES:
            streams = [await client.start_blindly(name, **KEPT) for client in clients]
            ends = [await outcome(client, stream) for client, stream in zip(clients, streams, strict=True)]
            # Whoever comes behind its end is told all of it, too. How many tokens were decoded says that
            # there was one.
            assert "length" in ends
            assert set(ends) <= {"length", "request_taken"}
        whole = await clients[0].start("whole", **KEPT)
        await whole.rest()
        wanted = TOKENS * (len(NAMES) + 1)
        assert decoded(await served[0].until(lambda now: decoded(now) >= wanted)) == wanted


async def test_a_start_of_another_content_elsewhere_is_refused_and_takes_nothing_from_whoever_reads(
    tmp_path: Path, serve: Serve
) -> None:
    async with gateways(tmp_path, serve) as (first, second), AsyncExitStack() as entered:
        ours = await entered.enter_async_context(client_of(first.url))
        there = await entered.enter_async_context(client_of(second.url))
        there.mark = ours.mark
        stream = await ours.start("a", **KEPT)
        await stream.until_index(1)
        other = await there.start_blindly("a", **KEPT | {"params": PARAMS | {"max_tokens": 7}})
        assert await outcome(there, other) == "request_conflict"
        assert (await stream.rest())["finish_reason"] == "length"


async def test_a_stream_is_found_at_any_gateway(tmp_path: Path, serve: Serve) -> None:
    async with (
        gateways(tmp_path, serve, count=3, engines=2) as served,
        AsyncExitStack() as entered,
    ):
        first, *others = [
            await entered.enter_async_context(client_of(one.url)) for one in (*served, served[0])
        ]
        truth = await first.start("truth", **KEPT)
        await truth.rest()
        stream = await first.start("a", **KEPT)
        for client in others:
            await stream.until_index(stream.index + 5)
            last = stream.events[-1]["seq"]
            stream, lost = client.adopt(stream), stream
            await client.send("attach", request_id="a", after=last)
            assert (await stream.next("snapshot"))["text"].startswith(lost.text)
            await stream.next("attached")
        await stream.rest()
        assert stream.text == truth.text


async def test_a_start_waits_for_no_engine_that_hangs(tmp_path: Path, serve: Serve) -> None:
    """Which is not found out otherwise: it has an hour for its next word."""
    engines = [ListeningEngine(*STEP, listen=f"unix:{tmp_path}/{number}") for number in range(2)]
    async with listening(engines):
        served = await asyncio.to_thread(serve, *static(engines), "--engine-silence-s", "3600")
        async with client_of(served.url) as client:
            await asyncio.to_thread(engines[0].hang)
            first = await client.start_blindly("first", **KEPT)
            assert await outcome(client, first) == "length"
            streams = [await client.start_blindly(name, **KEPT) for name in NAMES]
            assert [await outcome(client, one) for one in streams] == ["length"] * len(NAMES)


async def test_whoever_attaches_while_an_engine_hangs_may_come_again(tmp_path: Path, serve: Serve) -> None:
    engine = ListeningEngine(*STEP, listen=f"unix:{tmp_path}/engine")
    async with listening([engine]):
        served = [await asyncio.to_thread(serve, *static([engine])) for _ in range(2)]
        async with client_of(served[0].url) as ours, client_of(served[1].url) as theirs:
            stream = await ours.start("a", **KEPT)
            await stream.until_index(5)
            await asyncio.to_thread(engine.hang)
            theirs.mark = ours.mark
            for _ in range(2):  # the second waits for nobody
                await theirs.send("attach", request_id="a", after=-1)
                event = await theirs.next("a")
                assert (event["code"], event["retryable"]) == ("overloaded", True)
            engine.tell(signal.SIGCONT)
            while event["type"] == "error":
                await theirs.send("attach", request_id="a", after=-1)
                event = await theirs.next("a")
            assert event["type"] == "started"
