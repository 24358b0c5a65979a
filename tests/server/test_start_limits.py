"""Limits of what starts may ask for, from outside: nobody locks others out, and `/readyz` says what is."""

from __future__ import annotations

import asyncio
import json
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Any

from tests.server.independent_client import Client, client_of
from tests.server.server_process import PATIENCE_S, Served

HOUR_MS, DAY_MS = 3_600_000, 86_400_000
WAITING: dict[str, Any] = {"credit": {"limit": 0}, "on_disconnect": "pause", "grace_ms": HOUR_MS}


async def refusal(client: Client, request_id: str, **start: Any) -> dict[str, Any]:
    await client.start_blindly(request_id, **start)
    event = await client.next(request_id)
    assert event["type"] == "error", event
    return event


async def test_streams_that_nobody_reads_lock_nobody_out(serve: Callable[..., Served]) -> None:
    server = serve("--max-streams", "4")
    async with client_of(server.url) as other:
        async with client_of(server.url) as hoarder:
            error = await refusal(hoarder, "0", **WAITING | {"grace_ms": DAY_MS})
            assert error["code"] == "invalid_params"
            assert f"`grace_ms` is {DAY_MS}; this server's limit is {HOUR_MS}" in error["message"]
            for request_id in "1234":
                await hoarder.start(request_id, **WAITING)
            assert (await refusal(other, "mine"))["code"] == "overloaded"
            assert await server.ask("/readyz") == (503, '{"status":"at its limit of streams"}')
        async with asyncio.timeout(PATIENCE_S):
            while (await server.ask("/readyz"))[0] != 200:
                pass
        mine = [await other.start(request_id, params={"max_tokens": 1}) for request_id in ("a", "b")]
        for stream in mine:
            await stream.rest()
        other.mark = hoarder.mark
        for request_id in "34":
            await other.send("cancel", request_id=request_id)
    await server.until_idle()


async def test_the_limits_are_told_and_hold_over_http_too(serve: Callable[..., Served]) -> None:
    server = serve("--max-grace-s", "5", "--max-timeout-s", "2")
    async with client_of(server.url) as client:
        assert (client.limits["max_grace_ms"], client.limits["max_timeout_ms"]) == (5000, 2000)
        assert "`timeout_ms`" in (await refusal(client, "a", timeout_ms=2001))["message"]
        stream = await client.start("b", credit={"limit": 0})
        assert (await stream.rest())["stop_reason"] == "timeout", "its start says nothing of that"
    body = {"prompt": "Once", "max_tokens": 1, "request_id": "named"}
    assert (await asyncio.to_thread(posted, server, body))[0] == 200, (
        "what it does not ask for is within them"
    )
    status, answer = await asyncio.to_thread(posted, server, body | {"request_id": "c", "grace_ms": 5001})
    assert (status, answer["error"]["code"], answer["error"]["param"]) == (400, "invalid_params", "grace_ms")


def posted(server: Served, body: dict[str, Any]) -> tuple[int, Any]:
    request = urllib.request.Request(server.http + "/v1/completions", json.dumps(body).encode())
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as refused:
        with refused:
            return refused.code, json.load(refused)
