"""The product on an ASGI server's own WebSocket: all but the positions of readers is the same there."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import uvicorn

from engine import api
from realtime.access.authentication import Credentials
from realtime.access.client_secrets import ClientSecrets
from realtime.access.connection_limits import OpenConnections
from realtime.app import Endpoints, application
from realtime.background_tasks import BackgroundTasks
from realtime.fleet.fleet import Fleet
from realtime.fleet.place import EnginePlace
from realtime.fleet.supervisor import Patience
from realtime.fleet.thread_link import ThreadLink
from realtime.hub.hub import Hub
from realtime.observability.listing import ListingObserver
from realtime.observability.metrics import Metrics
from realtime.websocket.connection import ConnectionLimits
from tests.server.independent_client import client_of

LIMITS = ConnectionLimits(
    max_message_bytes=2**20, streams_per_connection=10, auto_credit_window=64, ack_every=16
)


@asynccontextmanager
async def served_by_uvicorn() -> AsyncIterator[str]:
    metrics = Metrics()
    options = api.EngineOptions(model="toy", kv_tokens=4096)
    background = BackgroundTasks()
    place = EnginePlace("the engine", lambda hear, closed: ThreadLink(options, hear, closed))
    fleet = Fleet([place], metrics, background, patience=Patience(30.0))
    hub = fleet.hub = Hub(fleet.send, metrics, window=64, max_streams=10)
    await fleet.start()
    doors = Endpoints(
        hub,
        metrics,
        LIMITS,
        credentials=Credentials(ClientSecrets(hub.deposits)),
        connections=OpenConnections(10),
        listings=ListingObserver(),
        background=background,
        observer=metrics,
    )
    app = application(doors)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        server = uvicorn.Server(uvicorn.Config(app, ws="websockets-sansio", lifespan="off", log_config=None))
        task = asyncio.create_task(server.serve([listening]))
        try:
            yield f"ws://127.0.0.1:{listening.getsockname()[1]}/v1/realtime"
        finally:
            server.should_exit = True
            await task
            await fleet.stop()


@pytest.mark.parametrize("encoding", ["midstream.v1.json", "midstream.v1.msgpack"])
async def test_a_stream_runs_and_is_steered_all_the_same(encoding: str) -> None:
    async with served_by_uvicorn() as url, client_of(url, encoding) as client:
        read = await client.start("read", params={"ignore_eos": True, "max_tokens": 1000})
        steered = await client.start("steered", params={"ignore_eos": True}, credit={"limit": 10})
        await steered.until_index(10)
        assert (await steered.ask("pause", "paused"))["index"] == 10
        assert (await steered.ask("rewind", "rewound", to=4))["index"] == 4
        await steered.send("cancel")
        assert (await steered.rest())["finish_reason"] == "cancelled"
        assert (await read.rest())["index"] == 1000, "far beyond the window: what is sent counts as read"
