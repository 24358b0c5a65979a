"""The Python client and the server, and between them a proxy that cuts: nothing is lost and nothing repeated.

MIDSTREAM_CUTS says how many cuts each seed makes.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable

import pytest

import midstream
from bench.reliability.cuts import cut
from bench.reliability.scoring import quiet_run
from tests.fakes.cutting_proxy import CutKind, CuttingProxy
from tests.fakes.steering_clients import STEERING_CLIENTS
from tests.server.server_process import Served

CUTS = int(os.environ.get("MIDSTREAM_CUTS", "12"))


async def check(server: Served, seed: int, count: int, kinds: tuple[CutKind, ...]) -> None:
    """Run clients until every cut has come about: each time they come to the same."""
    score = await quiet_run(server.http, [seed], STEERING_CLIENTS)
    assert await cut(server, score, seed, count, kinds) > count
    assert score.wrong == []


@pytest.mark.parametrize("seed", range(4))
async def test_whatever_is_cut_it_comes_to_the_same(server: Served, seed: int) -> None:
    await check(server, seed, CUTS, ("reset", "close"))


@pytest.mark.parametrize("kind", ["silence", "stall"])
async def test_so_it_does_when_the_connection_goes_silent_or_stalls(server: Served, kind: CutKind) -> None:
    await check(server, 5, max(CUTS // 4, 1), (kind,))


# -- another server, another client --------------------------------------------------------------------

ENDLESS: midstream.options.ParamOptions = {"ignore_eos": True, "max_tokens": 4000}


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
async def test_a_server_started_again_is_found_but_its_streams_are_not(
    server: Served, serve: Callable[..., Served], number: signal.Signals
) -> None:
    first = serve("--shutdown-grace-s", "0")
    async with CuttingProxy(first.port) as proxy:
        client = await midstream.connect(proxy.url)
        stream = await client.start(window=4, prompt="Once", **ENDLESS)
        assert await stream.next()
        proxy.redirect(server.port)
        first.tell(number)
        if number == signal.SIGKILL:
            with pytest.raises(midstream.ConnectionLost, match="started again"):
                [chunk async for chunk in stream]
        else:
            assert [chunk async for chunk in stream]
            assert stream.final is not None
            assert stream.final.finish_reason == "cancelled"
            assert await asyncio.to_thread(first.ended) == 0  # until then it refuses what is new
        assert (await client.complete(prompt="Hi", max_tokens=3)).final.index == 3
        await client.close()


async def test_a_stream_goes_from_one_client_to_another(server: Served) -> None:
    async with midstream.connect(server.http) as one, midstream.connect(server.http) as other:
        mine = await one.start(window=8, on_disconnect="continue", prompt="Once", **ENDLESS)
        chunk = await mine.next()
        theirs = await other.attach(mine.request_id, window=8)
        with pytest.raises(midstream.RequestTaken):
            [chunk async for chunk in mine]
        assert chunk is not None
        assert theirs.text.startswith(chunk.text)
        while theirs.consumed < 100:
            assert await theirs.next()
        assert await theirs.cancel() == theirs.index


async def test_closing_a_client_cancels_its_streams_but_those_that_are_to_be_kept(server: Served) -> None:
    async with midstream.connect(server.http) as client:
        dropped = await client.start(window=4, prompt="Once", **ENDLESS)
        kept = await client.start(window=4, on_disconnect="pause", prompt="Once", **ENDLESS)
    async with midstream.connect(server.http) as client:
        assert (await (await client.attach(kept.request_id)).cancel()) <= 68
        gone = await client.attach(dropped.request_id, credit="auto")
        assert gone.final is not None
        assert (gone.final.finish_reason, gone.final.stop_reason) == ("cancelled", None)


async def test_a_stream_is_taken_up_again_without_async_and_await(server: Served) -> None:
    def script() -> str:
        with midstream.sync.connect(server.http) as client:
            stream = client.start(prompt="Hi", max_tokens=20, on_disconnect="pause", ignore_eos=True)
        with midstream.sync.connect(server.http) as client:
            assert client.state == "open"
            return "".join(chunk.text for chunk in client.attach(stream.request_id))

    assert await asyncio.to_thread(script)
