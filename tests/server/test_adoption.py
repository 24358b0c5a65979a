"""Streams that outlive their gateway: two gateways on one engine, each a server of its own. The first is
killed, and whoever comes to the second finds the stream as it was."""

from __future__ import annotations

import asyncio
import json
import signal
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import httpx2

from tests.server.gateways import STEP, Serve, gateways, static
from tests.server.independent_client import Client, Stream, client_of
from tests.server.listening_engine import ListeningEngine, listening
from tests.server.server_process import serving

KEPT: dict[str, Any] = {"on_disconnect": "continue", "return_tokens": True, "credit": {"limit": 10_000}}
PARAMS = {"ignore_eos": True, "temperature": 0, "max_tokens": 60}


async def come_back(client: Client, lost: Stream, name: str, **fields: Any) -> tuple[Stream, dict[str, Any]]:
    """Elsewhere: what is told of all that came before."""
    stream = client.adopt(lost)
    await client.send("attach", request_id=name, after=lost.events[-1]["seq"], **fields)
    snapshot = await stream.next("snapshot")
    return stream, snapshot


async def steered(stream: Stream) -> None:
    """It is paused, goes back, and something is put in."""
    await stream.until_index(12)
    await stream.ask("pause", "paused", ref="p")
    await stream.ask("rewind", "rewound", to=8, ref="r")
    await stream.ask("inject", "injected", text=" and then,", ref="i")


async def test_a_stream_goes_on_at_another_gateway(tmp_path: Path, serve: Serve) -> None:
    async with gateways(tmp_path, serve) as (first, second), AsyncExitStack() as clients:
        ours = await clients.enter_async_context(client_of(first.url))
        there = await clients.enter_async_context(client_of(second.url))
        whole = await there.start("whole", params=PARAMS, return_tokens=True)
        await whole.rest()
        stream = await ours.start("a", params=PARAMS, **KEPT)
        await stream.until_index(10)
        first.tell(signal.SIGKILL)
        again, snapshot = await come_back(there, stream, "a")
        assert snapshot["epoch"] == 1
        assert snapshot["text"].startswith(stream.text)
        final = await again.rest()
        assert final["finish_reason"] == "length"
        assert again.text == whole.text
        assert again.tokens == whole.tokens


async def test_every_frame_that_was_answered_has_effect_once(tmp_path: Path, serve: Serve) -> None:
    """The same is asked of two streams, at the same tokens; one of them changes its server in between."""
    async with gateways(tmp_path, serve) as (first, second), AsyncExitStack() as clients:
        ours = await clients.enter_async_context(client_of(first.url))
        there = await clients.enter_async_context(client_of(second.url))

        async def half(stream: Stream) -> None:
            await steered(stream)
            await stream.ask("adjust", "adjusted", params={"temperature": 0.7, "seed": 5}, ref="a")

        async def rest(stream: Stream) -> dict[str, Any]:
            await stream.ask("resume", "resumed")
            return await stream.rest()

        whole = await there.start("whole", params=PARAMS, **KEPT)
        await half(whole)
        truth = await rest(whole)
        stream = await ours.start("a", params=PARAMS, **KEPT)
        await half(stream)
        first.tell(signal.SIGKILL)
        again, snapshot = await come_back(there, stream, "a")
        assert (snapshot["index"], snapshot["paused"]) == (8, "client")
        assert snapshot["params"]["temperature"] == 0.7
        final = await rest(again)
        assert again.text == whole.text
        assert again.tokens == whole.tokens
        assert final["usage"]["injected_tokens"] == truth["usage"]["injected_tokens"] > 0


def answers(events: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """To frames, by their refs."""
    told = ("type", "index", "count", "text_length", "reason")
    return {
        event["ref"]: {name: event[name] for name in told if name in event}
        for event in events
        if event.get("ref") and event["type"] in ("paused", "rewound", "injected", "adjusted")
    }


async def test_whoever_has_lost_answers_is_told_them_again(tmp_path: Path, serve: Serve) -> None:
    async with gateways(tmp_path, serve) as (first, second), AsyncExitStack() as clients:
        ours = await clients.enter_async_context(client_of(first.url))
        there = await clients.enter_async_context(client_of(second.url))
        stream = await ours.start("a", params=PARAMS, **KEPT)
        await steered(stream)
        told = answers(stream.events)
        first.tell(signal.SIGKILL)
        _, snapshot = await come_back(there, stream, "a")
        assert answers(snapshot["answered"]) == told
        assert told.keys() == {"p", "r", "i"}
        assert snapshot["injected_tokens"] == told["i"]["count"]


async def test_forks_go_on_too_and_forks_of_them(tmp_path: Path, serve: Serve) -> None:
    """Of a stream that was steered, and goes its own way behind."""
    async with gateways(tmp_path, serve) as (first, second), AsyncExitStack() as clients:
        ours = await clients.enter_async_context(client_of(first.url))
        there = await clients.enter_async_context(client_of(second.url))
        sampled = {"temperature": 1.3, "seed": 5}

        async def forked(client: Client, mark: str) -> list[Stream]:
            stem = await client.start(f"stem{mark}", params=PARAMS, **KEPT)
            await steered(stem)
            streams = [stem]
            for name, at in (("fork", 8), ("twig", 20)):
                of = {"request_id": f"{streams[-1].request_id}{client.mark}", "at": at}
                fork = await client.start(f"{name}{mark}", prompt=None, fork=of, params=sampled, **KEPT)
                await fork.next("snapshot")
                await fork.until_index(24)
                await fork.ask("pause", "paused")
                streams.append(fork)
            await stem.ask("cancel", "final")
            return streams[1:]

        whole = await forked(there, "1")
        finals = [await stream.ask("resume", "final") for stream in whole]
        streams = await forked(ours, "2")
        first.tell(signal.SIGKILL)
        for stream, truth, final, name in zip(streams, whole, finals, ("fork2", "twig2"), strict=True):
            again, snapshot = await come_back(there, stream, name)
            assert snapshot["injected_tokens"] > 0
            usage = (await again.ask("resume", "final"))["usage"]
            assert usage["inherited_tokens"] == final["usage"]["inherited_tokens"] > 0
            assert again.tokens == truth.tokens


async def test_all_choices_of_an_answer_are_the_same_where_it_is_asked_for_again(
    tmp_path: Path, serve: Serve
) -> None:
    """Those behind the first are forks of it, and say no seed."""
    body = {"prompt": "Once", "n": 3, "max_tokens": 40, "ignore_eos": True, "request_id": "a"}
    async with gateways(tmp_path, serve) as (first, second):
        async with (
            httpx2.AsyncClient(base_url=first.http) as client,
            client.stream("POST", "/v1/completions", json=body | {"stream": True}) as answer,
        ):
            begun = ["", "", ""]
            async for line in answer.aiter_lines():
                for choice in json.loads(line.removeprefix("data: "))["choices"] if line else ():
                    begun[choice["index"]] += choice["text"]
                if all(begun):
                    break
        async with httpx2.AsyncClient(base_url=second.http, timeout=60) as client:
            choices = (await client.post("/v1/completions", json=body)).json()["choices"]
        assert all(choice["text"].startswith(text) for choice, text in zip(choices, begun, strict=True))
        assert {choice["finish_reason"] for choice in choices} == {"length"}


async def test_a_fork_that_went_elsewhere_by_itself_is_found_there(tmp_path: Path, serve: Serve) -> None:
    """Its stream has stayed where both began."""
    async with gateways(tmp_path, serve) as (first, second), AsyncExitStack() as clients:
        ours = await clients.enter_async_context(client_of(first.url))
        there = await clients.enter_async_context(client_of(second.url))
        stem = await ours.start("stem", params=PARAMS, **KEPT)
        await stem.until_index(3)
        forks = {"prompt": None, "fork": {"request_id": f"stem{ours.mark}", "at": 2}, **KEPT}
        fork = await ours.start("fork", params=PARAMS, **forks)
        await fork.next("snapshot")
        await fork.next("token")
        await come_back(there, fork, "fork")
        assert (await ours.next("fork"))["code"] == "request_taken"
        await ours.start_blindly("fork", params=PARAMS, **forks)
        while (event := await there.next("fork"))["type"] not in ("error", "final"):
            pass
        assert event.get("code") == "request_taken", "it is the one that is read there"


async def test_so_it_has_where_its_engine_died_before_and_another_goes_on_with_it(
    tmp_path: Path, serve: Serve
) -> None:
    """The second engine has heard nothing of what was before it, but from the gateway that is killed then."""
    engine = ListeningEngine(*STEP, listen=f"unix:{tmp_path}/engine")
    async with listening([engine]), AsyncExitStack() as clients:
        first, second = [await asyncio.to_thread(serve, *static([engine])) for _ in range(2)]
        ours = await clients.enter_async_context(client_of(first.url))
        there = await clients.enter_async_context(client_of(second.url))

        async def behind(stream: Stream) -> None:
            await stream.ask("adjust", "adjusted", params={"temperature": 0.7, "seed": 5}, ref="a")
            await stream.ask("resume", "resumed")
            await stream.until_index(20)
            await stream.ask("rewind", "rewound", to=16)

        whole = await there.start("whole", params=PARAMS, **KEPT)
        await steered(whole)
        await behind(whole)
        truth = await whole.rest()
        stream = await ours.start("a", params=PARAMS, **KEPT)
        await steered(stream)
        await asyncio.to_thread(engine.end)
        engine.start()
        await engine.until_ready()
        await behind(stream)
        await second.until(lambda now: now["midstream_engines"] == 1)  # it looks every two seconds
        first.tell(signal.SIGKILL)
        again, snapshot = await come_back(there, stream, "a")
        assert snapshot["index"] >= 16
        assert snapshot["params"]["temperature"] == 0.7
        final = await again.rest()
        assert again.text == whole.text
        assert again.tokens == whole.tokens
        assert final["usage"]["injected_tokens"] == truth["usage"]["injected_tokens"] > 0


async def test_each_gateway_that_goes_on_with_it_counts_its_events_anew(tmp_path: Path, serve: Serve) -> None:
    engine = ListeningEngine(*STEP, listen=f"unix:{tmp_path}/engine")
    async with listening([engine]), AsyncExitStack() as clients:
        first, second, third = [await asyncio.to_thread(serve, *static([engine])) for _ in range(3)]
        stream = await (await clients.enter_async_context(client_of(first.url))).start(
            "a", params=PARAMS, **KEPT
        )
        await stream.until_index(10)
        await stream.ask("pause", "paused")
        first.tell(signal.SIGKILL)
        there = await clients.enter_async_context(client_of(second.url))
        stream, snapshot = await come_back(there, stream, "a")
        assert snapshot["epoch"] == 1
        await asyncio.to_thread(engine.end)
        engine.start()
        await engine.until_ready()
        await stream.ask("adjust", "adjusted", params={"seed": 5})
        await third.until(lambda now: now.get(serving("toy"), 0) == 1)
        second.tell(signal.SIGKILL)
        last = await clients.enter_async_context(client_of(third.url))
        stream, snapshot = await come_back(last, stream, "a", epoch=1)
        assert snapshot["epoch"] == 2
        await stream.ask("resume", "resumed")
        assert (await stream.rest())["finish_reason"] == "length"


async def test_a_stream_of_a_server_that_lives_is_handed_over(tmp_path: Path, serve: Serve) -> None:
    async with gateways(tmp_path, serve) as (first, second), AsyncExitStack() as clients:
        ours = await clients.enter_async_context(client_of(first.url))
        there = await clients.enter_async_context(client_of(second.url))
        stream = await ours.start("a", params=PARAMS, **KEPT)
        await stream.until_index(10)
        again, _ = await come_back(there, stream, "a")
        assert (await again.rest())["finish_reason"] == "length"
        while (event := await ours.next("a"))["type"] != "error":
            assert event["type"] == "token"
        assert event["code"] == "request_taken"
        assert again.text.startswith(stream.text)


async def test_a_start_that_runs_elsewhere_is_found_and_so_is_what_has_ended(
    tmp_path: Path, serve: Serve
) -> None:
    async with gateways(tmp_path, serve) as (first, second), AsyncExitStack() as clients:
        ours = await clients.enter_async_context(client_of(first.url))
        there = await clients.enter_async_context(client_of(second.url))
        there.mark = ours.mark
        stream = await ours.start("a", params=PARAMS, **KEPT)
        final = await stream.rest()
        first.tell(signal.SIGKILL)
        again = await there.start("a", params=PARAMS, **KEPT)
        assert (await again.rest())["usage"] == final["usage"]
        assert again.text == stream.text
        await there.send("start", request_id="a", prompt="Something else", **KEPT)
        assert (await there.next("a"))["type"] == "attached"
        assert (await there.next("a"))["code"] == "request_conflict"


async def test_an_event_source_that_has_had_it_all_is_told_so_at_each_gateway(
    tmp_path: Path, serve: Serve
) -> None:
    """It comes again by itself, to whichever, and each that takes the stream over counts its events anew."""
    asked = {"prompt": "Once", "max_tokens": 2, "request_id": "tale", "on_disconnect": "continue"}
    async with gateways(tmp_path, serve) as (first, second), httpx2.AsyncClient() as client:
        assert (await client.post(f"{first.http}/v1/completions", json=asked)).status_code == 200
        for gateway in (second, first):
            path = f"{gateway.http}/v1/streams/tale"
            told = await client.get(path, headers={"last-event-id": "-1"})
            assert '"type":"final"' in told.text
            last = [line.removeprefix("id: ") for line in told.text.splitlines() if line.startswith("id: ")]
            for other in (first, second):
                again = await client.get(f"{other.http}/v1/streams/tale", headers={"last-event-id": last[-1]})
                assert (again.status_code, again.content) == (204, b"")
