"""Engines that die or hang under a real server: streams wait, go on with the text they would have had, and
meanwhile the server says the truth about itself."""

from __future__ import annotations

import asyncio
import os
import re
import resource
import signal
import socket
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from bench.reliability import deaths
from tests.server.independent_client import Client, Stream, client_of
from tests.server.server_process import POLL_S, Served, used

Serve = Callable[..., Served]
GREEDY = {"ignore_eos": True, "temperature": 0, "max_tokens": 80}


async def whole(client: Client, name: str) -> Stream:
    """The same stream, undisturbed."""
    stream = await client.start(name, params=GREEDY)
    await stream.rest()
    return stream


async def test_streams_that_are_paused_stalled_and_steered_outlive_many_engines(serve: Serve) -> None:
    served = serve("--engine-spare", "on", "--toy-step-ms", "10")
    score, watched = await deaths.strike(served, signal.SIGKILL, 3, range(100, 150))
    assert len(watched.resumed_s) == 3
    assert score.wrong == []


async def test_an_engine_that_hangs_is_ended_and_replaced(serve: Serve) -> None:
    served = serve("--toy-step-ms", "10", "--engine-silence-s", "0.5")
    async with client_of(served.url) as client:
        stream = await client.start("stopped", params=GREEDY)
        await stream.until_index(5)
        os.kill(served.engine, signal.SIGSTOP)
        assert (await stream.until("paused"))["reason"] == "engine"
        await stream.until("resumed")
        assert (await stream.rest())["index"] == 80
        assert stream.text == (await whole(client, "whole")).text
    assert used(await served.until_idle()) == 0


async def test_meanwhile_nothing_starts_and_the_server_is_not_ready(serve: Serve) -> None:
    served = serve("--toy-step-ms", "10")
    async with client_of(served.url) as client:
        stalled = await client.start("stalled", params=GREEDY, credit={"limit": 3})
        running = await client.start("running", params=GREEDY)
        await stalled.until_index(3)
        os.kill(served.engine, signal.SIGKILL)
        assert (await running.until("paused"))["reason"] == "engine"
        await client.start_blindly("too soon")
        error = await client.next("too soon")
        assert (error["status"], error["code"], error["retryable"]) == (503, "overloaded", True)
        assert await served.ask("/readyz") == (503, '{"status":"engine not ready"}')
        await running.until("resumed")
        assert (await served.ask("/readyz"))[0] == 200
        await stalled.send("credit", limit=80)
        finals = await running.rest(), await stalled.rest()
        assert [final["finish_reason"] for final in finals] == ["length", "length"]
        assert running.text == stalled.text == (await whole(client, "whole")).text
        metrics = await served.until_idle()
        assert metrics["midstream_engine_restarts_total"] == 1
        assert metrics["midstream_tokens_total"] >= 3 * 80, "counters never fall"
    served.tell()
    assert served.ended() == 0


async def test_a_spare_stands_ready_and_takes_the_place_of_a_killed_engine(serve: Serve) -> None:
    served = serve("--engine-spare", "on")
    first, spare = await engines(served, 2)
    async with client_of(served.url) as client:
        os.kill(first, signal.SIGKILL)
        await until_ready_again(served)
        assert served.engine == spare
        await whole(client, "on the spare")
        assert (await engines(served, 2))[0] == spare, "and another stands ready behind it"
    served.tell()
    assert served.ended() == 0


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a spare loads everything anew")
async def test_each_spare_shares_what_it_has_loaded_with_its_engine(serve: Serve) -> None:
    served = serve("--engine-spare", "on")
    for times in (1, 2, 3):
        await until_said(served, "a spare engine stands ready", times)
        engine, spare = await engines(served, 2)
        shared, own = shared_and_own_kb(spare)
        assert own < 0.4 * shared
        os.kill(engine, signal.SIGKILL)
    await until_said(served, "a spare engine stands ready", times=4)
    served.tell()
    assert served.ended() == 0


def shared_and_own_kb(pid: int) -> tuple[int, int]:
    """Memory of a process that is not a file's."""
    text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    kb = {name: int(number) for name, number in re.findall(r"^(\w+): +(\d+) kB", text, re.MULTILINE)}
    return kb["Shared_Dirty"], kb["Private_Dirty"]


async def test_a_spare_that_dies_first_is_missed_by_nobody(serve: Serve) -> None:
    served = serve("--engine-spare", "on", "--toy-step-ms", "10")
    both = await engines(served, 2)
    async with client_of(served.url) as client:
        stream = await client.start("running", params=GREEDY)
        await stream.until_index(5)
        for process in reversed(both):
            os.kill(process, signal.SIGKILL)
        await stream.rest()
        assert stream.text == (await whole(client, "whole")).text


async def test_a_spare_that_dies_is_replaced_and_one_that_hangs_holds_up_nobody(serve: Serve) -> None:
    served = serve("--engine-spare", "on")
    first, spare = await engines(served, 2)
    await until_said(served, "a spare engine stands ready")
    os.kill(spare, signal.SIGKILL)
    await until_said(served, "the spare engine has died; another is prepared")
    second = (await engines(served, 2))[1]
    assert second != spare
    await until_said(served, "a spare engine stands ready", times=2)
    async with client_of(served.url) as client:
        os.kill(second, signal.SIGSTOP)
        os.kill(first, signal.SIGKILL)
        await until_ready_again(served)
        await whole(client, "on another")


async def test_an_engine_is_replaced_while_connections_take_all_descriptors_that_they_get(
    serve: Serve,
) -> None:
    served = serve("--toy-step-ms", "10", "--handshake-timeout-s", "60")
    async with client_of(served.url) as client:
        stream = await client.start("stalled", params=GREEDY, credit={"limit": 5})
        await stream.until_index(5)
        resource.prlimit(served.process.pid, resource.RLIMIT_NOFILE, (80, 80))
        crowd = [socket.create_connection((served.host, served.port)) for _ in range(200)]
        await until_said(served, "whoever connects now has to wait")
        os.kill(served.engine, signal.SIGKILL)
        await stream.send("credit", limit=80)
        await stream.rest()
        for each in crowd:
            each.close()
        assert stream.text == (await whole(client, "whole")).text
        assert await served.ask("/healthz") == (200, '{"status":"ok"}')
    served.tell()
    assert served.ended() == 0
    assert served.log().count("whoever connects now has to wait") == 1
    assert "Traceback" not in served.log()


async def until_said(served: Served, words: str, times: int = 1) -> None:
    async with asyncio.timeout(30):
        while served.log().count(words) < times:  # noqa: ASYNC110 - of another process
            await asyncio.sleep(POLL_S)


async def engines(served: Served, count: int) -> list[int]:
    """Its processes, once there are so many."""
    async with asyncio.timeout(30):
        while len(found := await asyncio.to_thread(lambda: served.engines)) < count:  # noqa: ASYNC110 - likewise
            await asyncio.sleep(POLL_S)
    return found


async def until_ready_again(served: Served) -> None:
    async with asyncio.timeout(30):
        await served.until(lambda now: now["midstream_engine_restarts_total"] >= 1)
        while (await served.ask("/readyz"))[0] != 200:  # noqa: ASYNC110 - of another process
            await asyncio.sleep(POLL_S)
