"""A request that is given up at any of its waits leaves nothing behind, no stream, no connection, nothing
that is counted or locked; and nobody else feels it."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Generator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from starlette.types import Message

from bench.reliability.growth_world import PLAIN, World
from realtime.access.connection_limits import OpenConnections
from realtime.app import Endpoints, application
from realtime.background_tasks import BackgroundTasks
from realtime.observability.listing import ListingObserver
from realtime.observability.metrics import Metrics
from realtime.tenants.allowance import LOCAL
from realtime.websocket.connection import ConnectionLimits
from tests.fakes.credentials import credentials

LIMITS = ConnectionLimits(
    max_message_bytes=1 << 20, streams_per_connection=10, auto_credit_window=64, ack_every=16
)
TOKENS = 3  # of each answer
LONG = "Again and again. " * 200  # more than is tokenized at once
ANSWER = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "integer"}}}
BODIES: dict[str, dict[str, Any]] = {
    "stream": {"stream": True},
    "whole": {},
    "long": {"prompt": LONG, "stream": True},
    "choices": {"prompt": ["a", LONG], "n": 2, "stream": True},
    "named": {"request_id": "a", "on_disconnect": "cancel"},
    "grammar": {"messages": [{"role": "user", "content": "a"}], "response_format": ANSWER, "stream": True},
    "log probabilities": {"logprobs": 2},
}


class Waits:
    """A coroutine's, each of which is counted, and at one something is done."""

    def __init__(self, coroutine: Any, at: int, then: Callable[[], object]) -> None:
        self._coroutine = coroutine
        self._at = at
        self._then = then
        self.count = 0

    def __await__(self) -> Generator[Any, Any, Any]:
        step: tuple[Callable[[Any], Any], Any] = self._coroutine.send, None
        while True:
            act, given = step
            try:
                waits_for = act(given)
            except StopIteration as end:
                return end.value
            if self.count == self._at:
                self._then()
            self.count += 1
            try:
                step = self._coroutine.send, (yield waits_for)
            except BaseException as error:  # noqa: BLE001 - it is told of whatever comes of its wait
                step = self._coroutine.throw, error


class Server:
    """With room for one connection; somebody else's stream goes on beside."""

    def __init__(self, world: World) -> None:
        self._world = world
        observer = Metrics()
        self._connections = OpenConnections(1)
        doors = Endpoints(
            world.hub,
            observer,
            LIMITS,
            credentials=credentials(),
            connections=self._connections,
            listings=ListingObserver(),
            background=BackgroundTasks(),
            observer=observer,
        )
        self._app = application(doors)
        self._bystander = world.stream.number

    async def run_engine(self) -> None:
        """Whoever runs has a token each time, and a few in all; but for the bystander, who has no end."""
        had: dict[int, int] = {}
        while True:
            await asyncio.sleep(0)
            if self._world.engine.is_asked:
                await self._world.answer()
            for number in [stream.number for stream in self._world.streams]:
                had[number] = had.get(number, 0) + 1
                if number != self._bystander and had[number] > TOKENS:
                    await self._world.hear(self._world.engine.end(number))
                else:
                    await self._world.hear(*self._world.engine.write(number, [ord("x")]))

    async def ask(self, body: dict[str, Any], *, kind: str = "", at: int = -1) -> tuple[bool, bytes]:
        """Whether it had so many waits, and what was answered."""
        is_chat = "messages" in body
        asked = {"model": "toy"} | ({} if is_chat else {"prompt": "a"}) | body
        parts = [{"type": "http.request", "body": json.dumps(asked).encode()}]
        gone, answered = asyncio.Event(), bytearray()

        async def receive() -> Message:
            await asyncio.sleep(0)
            if not (parts or gone.is_set()):
                await gone.wait()
            return {"type": "http.disconnect"} if gone.is_set() else parts.pop()

        async def send(message: Message) -> None:
            await asyncio.sleep(0)
            answered.extend(message.get("body", b""))

        scope = {
            "type": "http",
            "method": "POST",
            "path": "/v1/chat/completions" if is_chat else "/v1/completions",
            "query_string": b"",
            "headers": [(b"host", b"localhost")],
            "client": ("127.0.0.1", 1),
        }

        async def serve() -> None:
            await waits

        waits = Waits(
            self._app(scope, receive, send), at, lambda: task.cancel() if kind == "cancelled" else gone.set()
        )
        task = asyncio.create_task(serve())
        await asyncio.wait([task])
        assert task.cancelled() or task.exception() is None
        return waits.count > at, bytes(answered)

    async def until_alone(self) -> None:
        """With the bystander."""
        hub = self._world.hub
        while len(hub.streams) > 1 or hub._long_texts.keys:  # noqa: ASYNC110 - each turn may end one
            await asyncio.sleep(0)

    async def check_as_before(self) -> None:
        hub, heard = self._world.hub, len(self._world.listener.heard)
        account = hub.accounts.of_tenant[LOCAL]
        assert (account.held, account.promised) == (0, 0)
        assert not hub._awaited.count()
        assert not self._connections.full
        _, answer = await self.ask({})
        assert json.loads(answer)["usage"]["completion_tokens"] == TOKENS + 1
        assert len(self._world.listener.heard) > heard
        assert not self._world.listener.errors


@asynccontextmanager
async def served() -> AsyncIterator[Server]:
    server = Server(await World(PLAIN).begin())
    engine = asyncio.create_task(server.run_engine())
    try:
        async with asyncio.timeout(20):
            yield server
    finally:
        engine.cancel()


async def each_wait(check: Callable[[int], Awaitable[bool]]) -> int:
    for at in itertools.count():
        if not await check(at):
            return at
    raise AssertionError("there is no end of them")


@pytest.mark.parametrize("kind", ["gone", "cancelled"])
@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
async def test_a_request_that_is_given_up_at_any_wait_leaves_nothing_behind(
    body: dict[str, Any], kind: str
) -> None:
    async def given_up(at: int) -> bool:
        async with served() as server:
            was_there, _ = await server.ask(body, kind=kind, at=at)
            await server.until_alone()
            await server.check_as_before()
        return was_there

    assert await each_wait(given_up) > 5
