"""Streams that nobody knows any more: the server that had them is killed with its engine, and the client
starts them again at another, where they go on behind what was read."""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import midstream
from midstream.protocol import Event, Injected, Message, Paused, Snapshot, Started, Token
from midstream.record_format import Lost, ToolResult
from tests.fakes.cutting_proxy import Cut, CuttingProxy
from tests.fakes.scripts import saying, spelt
from tests.server.gateways import Serve, gateways
from tests.server.independent_client import client_of
from tests.server.server_process import PATIENCE_S, Served, streams
from tests.server.test_tools import WEATHER, asking

PARIS, ROME = spelt({"city": "Paris"}), spelt({"city": "Rome"})
OPTIONS: dict[str, Any] = {
    "prompt": "Once upon a time",
    "seed": 11,
    "max_tokens": 120,
    "ignore_eos": True,
    "return_tokens": True,
}


@asynccontextmanager
async def doomed(first: Served, other: Served) -> AsyncIterator[tuple[midstream.Client, Callable[[], None]]]:
    """A client of a server that `kill` ends, with its engine; whoever comes back comes to the other."""
    async with CuttingProxy(first.port) as proxy, midstream.connect(proxy.url) as client:

        def kill() -> None:
            proxy.redirect(other.port)
            first.tell(signal.SIGKILL)
            first.process.wait(PATIENCE_S)

        yield client, kill


async def until(stream: midstream.Stream, index: int) -> None:
    """It has come so far, and no further."""
    stream.grant(index)
    while stream.consumed < index:
        assert await stream.next() is not None


async def whole(stream: midstream.Stream) -> tuple[str, list[int]]:
    async for _ in stream:
        pass
    return stream.text, stream.tokens


async def test_what_was_read_stands_and_the_rest_is_what_it_would_have_been(
    server: Served, serve: Serve
) -> None:
    async with midstream.connect(server.http) as quiet:
        expected = await whole(await quiet.start(**OPTIONS))
    async with doomed(serve(), server) as (client, kill):
        stream = await client.start(window=1, credit={"limit": 0}, **OPTIONS)
        await until(stream, 40)
        read = stream.text
        kill()
        chunks = [chunk async for chunk in stream]
        assert chunks[0].index == 40
        assert read + "".join(chunk.text for chunk in chunks) == stream.text
        assert (stream.text, stream.tokens) == expected
        assert stream.restarts == [midstream.Restarted(index=40, exact=True)]
        assert stream.final is not None
        assert stream.final.usage.inherited_tokens == 40


async def steer(stream: midstream.Stream) -> None:
    await until(stream, 10)
    await stream.adjust(temperature=0.4, seed=5)
    await stream.inject(text=" and so")
    await until(stream, 20)
    await stream.inject(messages=[Message(role="user", content="Go on.")])
    await until(stream, 30)
    await stream.rewind(25)
    await stream.inject(tokens=[5, 6, 7], at=22)
    await stream.adjust(temperature=1.3, grammar={"regex": "[a-m ]*"}, at=21)
    await stream.pause()


async def test_so_it_is_where_it_was_steered(server: Served, serve: Serve) -> None:
    async with midstream.connect(server.http) as quiet:
        stream = await quiet.start(window=1, credit={"limit": 0}, **OPTIONS)
        await steer(stream)
        await stream.resume()
        expected = await whole(stream)
        injected = stream.final and stream.final.usage.injected_tokens
    async with doomed(serve(), server) as (client, kill):
        stream = await client.start(window=1, credit={"limit": 0}, **OPTIONS)
        await steer(stream)
        stood = stream.index
        kill()
        await server.until(lambda now: streams(now, "paused") == 1)
        await client.ping()
        assert (stream.index, stream.pause_reason) == (stood, "client")
        await stream.resume()
        assert await whole(stream) == expected
        assert stream.final is not None
        assert stream.final.usage.injected_tokens == injected
        assert [restart.exact for restart in stream.restarts] == [True]


async def test_what_was_asked_and_not_answered_is_asked_again_once(server: Served, serve: Serve) -> None:
    async with doomed(serve(), server) as (client, kill):
        stream = await client.start(window=1, credit={"limit": 0}, **OPTIONS)
        stream.grant(20)
        events = stream.events()
        async for event in events:
            if isinstance(event, Token) and event.index == 19:
                break
        kill()
        assert await stream.inject(text=" but", at=12) == 12
        told: list[Event] = [event async for event in events]
        assert [event.index for event in told if isinstance(event, midstream.Restarted)] == [20]
        assert [event.index for event in told if isinstance(event, Injected)] == [12]
        assert not any(isinstance(event, Started | Snapshot) for event in told)


@pytest.mark.parametrize(
    "options",
    [
        {"return_tokens": False},
        {"on_disconnect": "cancel"},
        {"guards": [{"name": "a", "do": "tell", "regex": "b"}]},
    ],
    ids=["whose tokens are not known", "that was to end", "that guards have read"],
)
async def test_a_stream_is_lost_that_cannot_be_said_again(
    server: Served, serve: Serve, options: dict[str, Any]
) -> None:
    async with doomed(serve(), server) as (client, kill):
        stream = await client.start(window=1, credit={"limit": 0}, **{**OPTIONS, **options})
        await until(stream, 5)
        kill()
        with pytest.raises(midstream.ConnectionLost, match="could not be taken up again"):
            await whole(stream)
        assert stream.restarts == []


async def test_calls_and_their_results_stand_and_so_does_what_waited_for_others(scripted: Served) -> None:
    first = Served(scripted=True)
    answers = (PARIS, ROME + PARIS, "Mild there, hot here.")
    asked: Any = {"messages": asking(*answers), "tools": [WEATHER], "on_tool_call": "pause"}
    try:
        async with doomed(first, scripted) as (client, kill):
            stream = await client.start(return_tokens=True, seed=3, **asked)
            reading = stream.tool_calls()
            await stream.tool_result(await anext(reading), error="no such place")
            calls = [await anext(reading), await anext(reading)]
            await stream.tool_result(calls[1], "hot")  # which waits for the other
            kill()
            await stream.tool_result(calls[0], "mild")
            with pytest.raises(StopAsyncIteration):
                await anext(reading)
            assert stream.text == answers[-1]
            assert len(stream.restarts) == 1
            assert stream.final is not None
            injected = stream.final.usage.injected_tokens
        async with midstream.connect(scripted.http) as quiet:
            stream = await quiet.start(seed=3, **asked)
            reading = stream.tool_calls()
            await stream.tool_result(await anext(reading), error="no such place")
            calls = [await anext(reading), await anext(reading)]
            await stream.tool_result(calls[1], "hot")
            await stream.tool_result(calls[0], "mild")
            async for _ in reading:
                pass
            assert stream.final is not None
            assert stream.final.usage.injected_tokens == injected
    finally:
        first.end()


async def test_a_call_that_was_made_again_has_its_id_elsewhere_and_no_other_has_one_of_before(
    scripted: Served,
) -> None:
    first = Served(scripted=True)
    asked: Any = {"messages": asking(PARIS, ROME, "Mild."), "tools": [WEATHER], "on_tool_call": "pause"}
    try:
        async with doomed(first, scripted) as (client, kill):
            stream = await client.start(return_tokens=True, seed=3, **asked)
            reading = stream.tool_calls()
            ids = [(await anext(reading)).call_id]
            for _ in range(2):
                await stream.rewind(0)
                ids.append((again := await anext(reading)).call_id)
            kill()
            await stream.tool_result(again, "mild")
            ids.append((other := await anext(reading)).call_id)
            assert len(set(ids)) == len(ids)
            await stream.tool_result(other, "hot")
            await whole(stream)
            assert (stream.text, len(stream.restarts)) == ("Mild.", 1)
            assert [call.call_id for call in stream.calls] == ids[-2:]
    finally:
        first.end()


async def test_what_waits_for_results_waits_elsewhere_whatever_was_put_in_meanwhile(
    scripted: Served,
) -> None:
    first = Served(scripted=True)
    asked: Any = {"messages": asking(PARIS, "Mild."), "tools": [WEATHER], "on_tool_call": "pause"}
    try:
        async with doomed(first, scripted) as (client, kill):
            stream = await client.start(return_tokens=True, seed=3, **asked)
            told = stream.events()
            await anext(event async for event in told if isinstance(event, Paused))
            await stream.inject(text="So")
            kill()
            await anext(event async for event in told if isinstance(event, midstream.Restarted))
            assert stream.pause_reason == "tool_call"
            await stream.tool_result(stream.calls[0], "mild")
            await whole(stream)
            assert (stream.text, len(stream.restarts)) == ("Mild.", 1)
    finally:
        first.end()


async def test_a_fork_that_is_asked_for_meanwhile_waits_for_its_stream(server: Served, serve: Serve) -> None:
    async with doomed(serve(), server) as (client, kill):
        stream = await client.start(window=1, credit={"limit": 0}, **OPTIONS)
        await until(stream, 20)
        kill()
        fork = await client.fork(stream, at=15, seed=11, return_tokens=True)
        expected = await whole(stream)
        assert await whole(fork) == expected
        assert [restart.index for restart in stream.restarts] == [20]


@pytest.mark.parametrize("lost", [b"tool_call", b"tool_arguments", b"tool_call_done"])
async def test_a_call_whose_tokens_had_come_is_told_elsewhere(
    scripted: Served, tmp_path: Path, lost: bytes
) -> None:
    """The server is lost between them and what they say: a tool runs once, with all of its arguments."""
    ran: list[str] = []

    def weather(city: str) -> str:
        """Say the weather of a city."""
        ran.append(city)
        return f"mild in {city}"

    agent, first = midstream.Agent(tools=[weather]), Served(scripted=True)
    try:
        async with (
            CuttingProxy(first.port, [Cut(within=lost)]) as proxy,
            midstream.connect(proxy.url) as client,
        ):
            proxy.redirect(scripted.port)
            with client.record(tmp_path / "record"):
                run = await client.run(agent, saying(ROME, PARIS, "Mild."), return_tokens=True)
                assert await run.answer() == "Mild."
        assert ran == ["Rome", "Paris"]
        assert len(run.stream.restarts) == 1
        (record,) = midstream.read_records(tmp_path / "record")
        results = [(line.call, line.content) for line in record.lines if isinstance(line, ToolResult)]
        assert results == [(0, "mild in Rome"), (1, "mild in Paris")]
        assert not any(isinstance(line, Lost) for line in record.lines)
    finally:
        first.end()


async def test_arguments_of_which_the_end_alone_had_told_stand_where_that_is_lost(scripted: Served) -> None:
    written, first = PARIS[: PARIS.index("Paris")] + "é", Served(scripted=True)
    try:
        async with (
            CuttingProxy(first.port, [Cut(within=b'"final"')]) as proxy,
            midstream.connect(proxy.url) as client,
        ):
            proxy.redirect(scripted.port)
            most = len(written.encode()) - 1
            asked: Any = {"messages": asking(written), "tools": [WEATHER], "max_tokens": most}
            stream = await client.start(return_tokens=True, **asked)
            await whole(stream)
            assert stream.calls[0].arguments.endswith("\ufffd")
            assert stream.final is not None
            assert (stream.final.index, stream.final.finish_reason) == (most, "length")
            assert [restart.index for restart in stream.restarts] == [most]
    finally:
        first.end()


async def test_a_past_that_its_grammar_does_not_allow_ends_its_stream_alone(server: Served) -> None:
    async with midstream.connect(server.http) as client, client_of(server.url) as raw:
        tokens = (await whole(await client.start(**OPTIONS)))[1]
        params = {"grammar": {"choice": ["yes", "no"]}}
        stream = await raw.start("b", params=params, past={"tokens": tokens[:30]})
        final = await stream.rest()
        assert (final["finish_reason"], final["index"]) == ("error", 30)
        assert (await whole(await client.start(**OPTIONS)))[1] == tokens


async def test_a_stream_that_was_started_again_is_adopted_too(tmp_path: Path, serve: Serve) -> None:
    async with gateways(tmp_path, serve) as (first, second), AsyncExitStack() as clients:
        ours = await clients.enter_async_context(client_of(first.url))
        async with client_of(second.url) as there:
            params = {key: OPTIONS[key] for key in ("seed", "max_tokens", "ignore_eos")}
            kept: Any = {"on_disconnect": "continue", "return_tokens": True, "params": params}
            other = await there.start("whole", **kept)
            final = await other.rest()
            steering = [{"type": "inject", "index": 20, "text": " so"}]
            past = {"tokens": other.tokens[:40], "steering": steering}
            stream = await ours.start("a", past=past, credit={"limit": 50}, **kept)
            await stream.next("snapshot")
            await stream.until_index(50)
            first.tell(signal.SIGKILL)
            again = there.adopt(stream)
            await there.send("attach", request_id="a", after=stream.events[-1]["seq"])
            snapshot = await again.next("snapshot")
            assert (snapshot["index"], snapshot["tokens"][:40]) == (50, other.tokens[:40])
            await there.send("credit", request_id="a", limit=1000)
            final = await again.rest()
            assert final["usage"]["injected_tokens"] > 0
            assert final["usage"]["inherited_tokens"] == 40
