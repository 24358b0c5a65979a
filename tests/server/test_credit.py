"""Credit: no token beyond it, no step spent on one, and automatic credit for those who just read."""

from __future__ import annotations

from tests.server.independent_client import Client, Stream, client_of
from tests.server.server_process import Metrics, Served, decoded, streams

LONG = {"ignore_eos": True, "temperature": 0}


async def stalled(server: Served, count: int = 1) -> Metrics:
    return await server.until(lambda now: streams(now, "stalled") == count)


async def run_beside(server: Served, tokens: int) -> None:
    """Whatever the engine would do of itself in so many steps, it has done when this returns."""
    async with client_of(server.url) as client:
        stream = await client.start("beside", params=LONG | {"max_tokens": tokens})
        assert (await stream.rest())["index"] == tokens


async def assert_nothing_comes(server: Served, client: Client, stream: Stream) -> None:
    before = decoded(await stalled(server))
    await run_beside(server, 50)
    await client.roundtrip()
    assert client.heard(stream.request_id) == []
    assert decoded(await server.metrics()) == before + 50


async def test_exactly_the_limit_comes_and_then_nothing_until_the_next_grant(
    server: Served, client: Client
) -> None:
    stream = await client.start("measured", credit={"limit": 10}, params=LONG)
    await stream.until_index(10)
    await assert_nothing_comes(server, client, stream)
    await stream.send("credit", limit=25)
    await stream.until_index(25)
    await assert_nothing_comes(server, client, stream)
    assert stream.index == 25


async def test_grants_are_absolute_and_never_shrink(server: Served, client: Client) -> None:
    stream = await client.start("repeated", credit={"limit": 5}, params=LONG)
    for limit in (20, 20, 3, 12):
        await stream.send("credit", limit=limit)
    await stream.until_index(20)
    await assert_nothing_comes(server, client, stream)


async def test_without_any_credit_the_prompt_is_prepared_and_no_more(server: Served, client: Client) -> None:
    before = await server.metrics()
    stream = await client.start("ready", credit={"limit": 0}, params=LONG | {"max_tokens": 4})
    assert decoded(await stalled(server)) == decoded(before)
    await assert_nothing_comes(server, client, stream)
    await stream.send("credit", limit=4)
    assert (await stream.rest())["index"] == 4


async def test_prefetched_tokens_wait_for_their_credit(server: Served, client: Client) -> None:
    before = await server.metrics()
    stream = await client.start("ahead", credit={"limit": 5, "prefetch": 7}, params=LONG)
    await stream.until_index(5)
    now = await server.until(lambda now: decoded(now) - decoded(before) == 12)
    await assert_nothing_comes(server, client, stream)
    assert decoded(now) - decoded(before) == 12
    await stream.send("credit", limit=6)
    await stream.until_index(6)
    assert stream.index == 6


async def test_the_end_waits_for_the_credit_of_what_was_prefetched(server: Served, client: Client) -> None:
    stream = await client.start("owed", credit={"limit": 2, "prefetch": 10}, params=LONG | {"max_tokens": 6})
    await stream.until_index(2)
    before = decoded(await server.until(lambda now: now["midstream_batch_rows"] <= 1))
    await run_beside(server, 20)
    assert decoded(await server.metrics()) >= before + 20
    await client.roundtrip()
    assert client.heard("owed") == []
    await stream.send("credit", limit=6)
    assert (await stream.rest())["finish_reason"] == "length"
    assert stream.index == 6


async def test_max_tokens_within_the_credit_need_no_grant(client: Client) -> None:
    stream = await client.start("short", credit={"limit": 8}, params=LONG | {"max_tokens": 8})
    assert (await stream.rest())["finish_reason"] == "length"


async def test_control_needs_no_credit(server: Served, client: Client) -> None:
    stream = await client.start("steered", credit={"limit": 3}, params=LONG)
    await stream.until_index(3)
    for kind, answer, fields in (
        ("pause", "paused", {}),
        ("adjust", "adjusted", {"params": {"temperature": 0.5}}),
        ("inject", "injected", {"text": "Well"}),
        ("resume", "resumed", {}),
    ):
        assert (await stream.ask(kind, answer, **fields))["index"] == 3
    await assert_nothing_comes(server, client, stream)
    await stream.send("cancel")
    assert (await stream.rest())["finish_reason"] == "cancelled"


async def test_whoever_just_reads_is_granted_all_it_reads(client: Client) -> None:
    stream = await client.start("read", params=LONG | {"max_tokens": 2000})
    assert (await stream.rest())["index"] == 2000


async def test_an_interval_never_withholds_what_the_credit_allows(client: Client) -> None:
    stream = await client.start("both", credit={"limit": 10}, stream_interval=8, params=LONG)
    await stream.until_index(10)
    await stream.send("credit", limit=11)
    await stream.until_index(11)
