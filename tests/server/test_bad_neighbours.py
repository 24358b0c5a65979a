"""Slow, silent and vanished clients, and what they cost: nothing, to anybody else."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Callable
from contextlib import AsyncExitStack

from websockets.frames import Opcode

from tests.server.asgi_app_server import masked, upgrade
from tests.server.independent_client import Client, client_of
from tests.server.server_process import Metrics, Served, decoded, streams, used

LONG = {"ignore_eos": True, "temperature": 0}
WINDOW = 64


async def silent(server: Served, request_id: str) -> socket.socket:
    """A client that starts a stream and reads nothing. Its kernel's buffers are as they are."""
    loop = asyncio.get_running_loop()
    peer = socket.socket()
    peer.setblocking(False)
    await loop.sock_connect(peer, (server.host, server.port))
    frame = {"type": "start", "request_id": request_id, "prompt": "Hello", "params": LONG}
    await loop.sock_sendall(peer, upgrade("/v1/realtime"))
    await loop.sock_recv(peer, 4)  # a client may not speak before it was answered
    await loop.sock_sendall(peer, masked(Opcode.TEXT, json.dumps(frame).encode()))
    return peer


async def test_a_client_that_never_reads_stops_its_own_decoding_and_nobody_elses(server: Served) -> None:
    before = decoded(await server.metrics())
    with await silent(server, "unread"):
        stalled = await server.until(lambda now: streams(now, "stalled") == 1)
        assert decoded(stalled) - before == WINDOW
        async with client_of(server.url) as client:
            stream = await client.start("read", params=LONG | {"max_tokens": 500})
            assert (await stream.rest())["index"] == 500
        assert decoded(await server.metrics()) - before == WINDOW + 500
    after = await server.until_idle()
    assert decoded(after) - before == WINDOW + 500


async def test_many_silent_clients_are_each_stopped_at_the_window(server: Served) -> None:
    before = decoded(await server.metrics())
    peers = [await silent(server, f"unread {n}") for n in range(10)]
    try:
        stalled = await server.until(lambda now: streams(now, "stalled") == 10)
        assert decoded(stalled) - before == 10 * WINDOW
    finally:
        for peer in peers:
            peer.close()


async def test_a_stream_ends_with_its_connection(server: Served) -> None:
    async with client_of(server.url) as client:
        for number in range(3):
            stream = await client.start(f"left {number}", params=LONG, credit={"limit": 10})
            await stream.until_index(10)
        now = await server.until(lambda now: streams(now, "stalled") == 3)
        assert used(now) > 0
        client.websocket.transport.abort()
    now = await server.until_idle()
    assert (streams(now), used(now)) == (0, 0)


async def test_a_stream_in_full_run_ends_with_its_connection(slow: Served) -> None:
    before = decoded(await slow.metrics())
    async with client_of(slow.url) as client:
        stream = await client.start("left", params=LONG)
        await stream.until_index(3)
        client.websocket.transport.abort()
    after = decoded(await slow.until_idle())
    assert after - before < WINDOW, "it was cancelled, and not run to the window"


async def test_a_cancel_ends_a_stream_in_its_queue_and_in_its_prefill(slow: Served) -> None:
    before = decoded(await slow.metrics())
    async with client_of(slow.url) as client:
        for number in range(2):
            prompt = [7 + number] * 6000  # nearly fifty steps
            stream = await client.start(f"early {number}", prompt=prompt, params=LONG)
            if number:
                await slow.until(lambda now: streams(now, "running") == 1)
            await stream.send("cancel")
            final = await stream.rest()
            assert (final["finish_reason"], final["index"], final["timing"]["ttft_ms"]) == (
                "cancelled",
                0,
                None,
            )
    assert decoded(await slow.until_idle()) == before


async def test_a_pause_holds_a_stream_in_its_prefill(slow: Served) -> None:
    async with client_of(slow.url) as client:
        stream = await client.start("held", prompt=[9] * 1500, params=LONG | {"max_tokens": 2})
        assert (await stream.ask("pause", "paused"))["index"] == 0
        beside = await client.start("beside", prompt=[8] * 10, params=LONG | {"max_tokens": 20})
        await beside.rest()
        await client.roundtrip()
        assert client.heard("held") == []
        await stream.ask("resume", "resumed")
        assert (await stream.rest())["index"] == 2


async def test_texts_that_are_refused_keep_no_other_client_s_waiting(server: Served) -> None:
    async with AsyncExitStack() as stack:
        client, *crowd = [await stack.enter_async_context(client_of(server.url)) for _ in range(5)]
        # Half as much again would be refused by its length. This is refused when it is tokenized.
        long = "a1" * 7 * client.limits["context"]
        before = refused(await server.metrics())
        throwing = [asyncio.create_task(throw(each, long, 24)) for each in crowd]
        await server.until(lambda now: refused(now) > before)
        stream = await client.start("prompt", prompt=600 * "word ", params=LONG | {"max_tokens": 5})
        assert not any(thrown.done() for thrown in throwing), "others, that came before, still wait"
        await asyncio.gather(*throwing)
        told = [event for each in crowd for n in range(24) for event in each.heard(f"refused {n}")]
        assert {event["code"] for event in told} == {"context_too_long"}
        assert (await stream.rest())["index"] == 5
        certain = await client.start_blindly("certain", prompt=2 * long)
        assert "has at least" in (await client.next(certain.request_id))["message"]


def refused(metrics: Metrics) -> float:
    return sum(count for name, count in metrics.items() if 'code="context_too_long"' in name)


async def throw(client: Client, prompt: str, count: int) -> None:
    """So many starts, which the server has read in the end."""
    for number in range(count):
        await client.start_blindly(f"refused {number}", prompt=prompt)
    await client.roundtrip()


async def test_a_timeout_ends_a_stream_that_runs(slow: Served) -> None:
    async with client_of(slow.url) as client:
        stream = await client.start("late", params=LONG, timeout_ms=150)
        final = await stream.rest()
        assert (final["finish_reason"], final["stop_reason"]) == ("length", "timeout")
        assert final["index"] == stream.index > 0


async def test_streams_that_do_not_fit_take_turns_and_lose_nothing(serve: Callable[..., Served]) -> None:
    server = serve("--kv-tokens", "256", "--streams-per-connection", "6")
    params = LONG | {"max_tokens": 100}
    async with client_of(server.url) as client:
        assert client.limits["context"] == 256, "no stream can be longer than the memory"
        alone = await client.start("alone", params=params, return_tokens=True)
        await alone.rest()
        crowd = [await client.start_blindly(f"n {n}", params=params, return_tokens=True) for n in range(6)]
        await client.start_blindly("one too many")
        error = await client.next("one too many")
        assert (error["status"], error["code"], error["retryable"]) == (429, "too_many_streams", True)
        assert error["retry_after_ms"] > 0
        assert "6" in error["message"]
        for stream in crowd:
            await stream.rest()
            assert stream.tokens == alone.tokens
        again = await client.start("one too many", params=params)
        await again.rest()
    now = await server.until_idle()
    taken = now["midstream_preemptions_total"] + now["midstream_kv_evictions_total"]
    assert taken > 0, "they did not fit"
    server.tell()
    assert server.ended() == 0


async def test_the_server_refuses_more_streams_and_connections_than_it_may_have(
    serve: Callable[..., Served],
) -> None:
    server = serve("--max-streams", "2", "--max-connections", "2", "--max-message-bytes", "1024")
    async with client_of(server.url) as client, client_of(server.url) as other:
        for number in range(2):
            await client.start(f"kept {number}", credit={"limit": 0})
        await other.start_blindly("more")
        error = await other.next("more")
        assert (error["status"], error["code"], error["retryable"]) == (503, "overloaded", True)
        assert "2 streams" in error["message"]
        assert (await server.ask("/healthz"))[0] == 200
        refused = await refusal(server)
        assert refused.startswith(b"HTTP/1.1 503 ")
        assert b"retry-after" in refused.lower()


async def refusal(server: Served) -> bytes:
    reader, writer = await asyncio.open_connection(server.host, server.port)
    writer.write(upgrade("/v1/realtime"))
    answer = await reader.read(4096)
    writer.close()
    await writer.wait_closed()
    return answer
