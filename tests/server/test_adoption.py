"""Streams that outlive their gateway: two gateways on one engine, each a server of its own. The first is
killed, and whoever comes to the second finds the stream as it was."""

from __future__ import annotations

import signal
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from tests.server.independent_client import Client, Stream, client_of
from tests.server.server_process import Served
from tests.server.test_several_gateways import two_gateways

Serve = Callable[..., Served]
KEPT: dict[str, Any] = {"on_disconnect": "continue", "return_tokens": True, "credit": {"limit": 10_000}}
PARAMS = {"ignore_eos": True, "temperature": 0, "max_tokens": 60}


async def come_back(client: Client, lost: Stream, name: str, **fields: Any) -> tuple[Stream, dict[str, Any]]:
    """Elsewhere: what is told of all that came before."""
    stream = client.adopt(lost)
    await client.send("attach", request_id=name, after=lost.events[-1]["seq"], **fields)
    snapshot = await stream.next("snapshot")
    return stream, snapshot


async def test_a_stream_goes_on_at_another_gateway(tmp_path: Path, serve: Serve) -> None:
    async with two_gateways(tmp_path, serve) as (first, second), AsyncExitStack() as clients:
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
