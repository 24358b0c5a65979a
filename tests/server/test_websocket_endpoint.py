"""The door: the greeting, the encodings, many streams on a connection, and what HTTP tells of the server."""

from __future__ import annotations

import json

import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosedError, InvalidStatus
from websockets.typing import Origin

from tests.server.independent_client import Client, client_of, connected
from tests.server.server_process import Served, decoded, streams, used

JSON, MSGPACK = "midstream.v1.json", "midstream.v1.msgpack"


async def test_the_first_message_says_what_is_served(server: Served) -> None:
    async with connected(server.url) as client, connected(server.url) as other:
        ready = await client.next()
        assert ready == {
            "type": "ready",
            "protocol": 1,
            "session_id": ready["session_id"],
            "models": ["toy"],
            "fingerprint": ready["fingerprint"],
            "catalog": [
                {
                    "name": "toy",
                    "state": "ready",
                    "context": 8192,
                    "fingerprint": ready["fingerprint"],
                    "pinned": True,
                }
            ],
            "limits": {
                "max_message_bytes": 2**20,
                "streams_per_connection": 1000,
                "auto_credit_window": 64,
                "ack_every": 16,
                "max_grace_ms": 3_600_000,
                "max_timeout_ms": 86_400_000,
                "context": 8192,
            },
            "exact": True,
        }
        beside = await other.next()
        assert ready["session_id"] != beside["session_id"]
        assert ready["fingerprint"] == beside["fingerprint"]
        assert ready["fingerprint"].startswith("fp_")


@pytest.mark.parametrize(
    ("offered", "taken"),
    [
        ([], None),
        ([JSON], JSON),
        ([MSGPACK], MSGPACK),
        ([MSGPACK, JSON], JSON),
        (["midstream.v9.json", "bearer.c2VjcmV0", MSGPACK], MSGPACK),
        (["midstream.v9.json", "soap"], None),
    ],
)
async def test_the_server_takes_the_first_of_its_own_subprotocols(
    server: Served, offered: list[str], taken: str | None
) -> None:
    async with connected(server.url, offered) as client:
        assert client.websocket.subprotocol == taken
        assert (await client.next())["type"] == "ready"
        stream = await client.start("mine", params={"max_tokens": 2, "ignore_eos": True})
        assert (await stream.rest())["finish_reason"] == "length"


async def test_both_encodings_say_the_same(server: Served) -> None:
    said = []
    for encoding in (JSON, MSGPACK):
        async with client_of(server.url, encoding) as client:
            stream = await client.start(
                "same", params={"temperature": 0, "max_tokens": 60}, return_tokens=True
            )
            final = await stream.rest()
            said.append((stream.text, stream.tokens, final["finish_reason"], sorted(final)))
    assert said[0] == said[1]


async def test_compression_is_not_negotiated(server: Served) -> None:
    async with connect(server.url, compression="deflate") as websocket:
        assert websocket.response is not None
        assert "Sec-WebSocket-Extensions" not in websocket.response.headers


async def test_many_streams_share_a_connection(client: Client) -> None:
    params = {"max_tokens": 20, "ignore_eos": True}
    running = [await client.start_blindly(f"stream {n}", params=params | {"seed": n}) for n in range(50)]
    finals = [await stream.rest() for stream in running]
    assert [final["usage"]["completion_tokens"] for final in finals] == [20] * 50
    assert len({stream.text for stream in running}) == 50, "each has its own text"


async def test_a_message_that_is_too_large_closes_the_connection_with_1009(server: Served) -> None:
    async with client_of(server.url) as client:
        await client.websocket.send(json.dumps({"type": "ping", "ref": "x" * 2**20}))
        with pytest.raises(ConnectionClosedError) as closed:
            await client.next()
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1009


async def test_text_that_is_not_utf8_closes_the_connection_with_1007(server: Served) -> None:
    async with client_of(server.url) as client:
        await client.websocket.send(b'{"type": "ping", "ref": "\xff"}', text=True)
        with pytest.raises(ConnectionClosedError) as closed:
            await client.next()
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1007


# -- over HTTP -------------------------------------------------------------------------------------


async def test_health_and_readiness(server: Served) -> None:
    assert await server.ask("/healthz") == (200, '{"status":"ok"}')
    assert await server.ask("/readyz") == (200, '{"status":"ready"}')
    assert (await server.ask("/nowhere"))[0] == 404


async def test_the_metrics_have_their_names_and_move(server: Served) -> None:
    before = await server.metrics()
    async with client_of(server.url) as client:
        stream = await client.start("counted", credit={"limit": 10}, params={"ignore_eos": True})
        await stream.until_index(10)
        assert streams(await server.until(lambda now: streams(now, "stalled") == 1)) == 1
        await stream.ask("pause", "paused")
        now = await server.until(lambda now: streams(now, "paused") == 1)
        assert used(now) > 0
        await stream.ask("rewind", "rewound", to=4)
        await stream.send("cancel")
        await stream.rest()
    after = await server.until_idle()
    assert decoded(after) - decoded(before) == 10
    grown = {name for name, value in after.items() if value > before.get(name, 0)}
    assert {
        "midstream_step_seconds_count",
        "midstream_step_seconds_sum",
        "midstream_tokens_total",
        "midstream_tokens_discarded_total",
        'midstream_control_steps_count{frame="pause"}',
        'midstream_control_steps_count{frame="rewind"}',
        'midstream_control_steps_count{frame="cancel"}',
        'midstream_streams_finished_total{finish_reason="cancelled"}',
    } <= grown
    states = {f'midstream_streams{{state="{state}"}}' for state in ("queued", "running", "paused", "stalled")}
    blocks = {f'midstream_kv_blocks{{state="{state}"}}' for state in ("used", "cached", "free")}
    assert states | blocks <= set(after)
    assert sum(after[name] for name in blocks) == sum(before[name] for name in blocks), "blocks are conserved"
    _, text = await server.ask("/metrics")
    assert "counted" not in text, "no request's name is a label"


async def test_a_page_from_elsewhere_is_refused_before_the_upgrade(server: Served) -> None:
    for origin in ("http://evil.example", "null"):
        with pytest.raises(InvalidStatus) as refused:
            await connect(server.url, origin=Origin(origin))
        assert refused.value.response.status_code == 403
    async with connect(server.url, origin=Origin(server.http)) as ours:
        assert json.loads(await ours.recv())["type"] == "ready"
