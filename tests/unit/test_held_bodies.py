"""What may be held of the bodies of short requests."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from realtime.access.authentication import Credentials
from realtime.access.client_secrets import ClientSecrets
from realtime.access.connection_limits import OpenConnections
from realtime.http.bodies_and_headers import read_body
from realtime.http.guard import CALLER, HOLDER
from realtime.http.held_bodies import MANY, SMALL, held_body, holding_bodies
from realtime.http.openai.completion_in_progress import CompletionSource
from realtime.http.openai.routes import MANY_ASKED
from realtime.http.openai.routes import routes as openai
from realtime.http.request_work import RequestWork
from realtime.http.sse import SseTimeouts
from realtime.hub.observers import Caller
from realtime.refusal import Refusal
from realtime.tenants.allowance import Holder
from tests.fakes.simulated_client import SIZE
from tests.fakes.simulated_server import SimulatedServer

MOST = 2 * SMALL


class Steering:
    """A route whose answers wait until they may come."""

    def __init__(self) -> None:
        self.answered = asyncio.Event()
        self.read: list[int] = []
        self.unread: list[bytes] = []  # of the last body
        self.route = holding_bodies(MOST, Route("/", self._endpoint, methods=["POST"]))

    async def _endpoint(self, request: Request) -> Response:
        self.read.append(len(await read_body(request, MOST, held_body(request.scope).grow)))
        await self.answered.wait()
        return Response()

    async def ask(self, tenant: str, *parts: bytes) -> None:
        self.unread = unread = list(parts)
        scope = {"type": "http", "method": "POST", "path": "/", "headers": [], HOLDER: Holder(tenant, "key")}

        async def receive() -> dict[str, Any]:
            part = unread.pop(0)
            return {"type": "http.request", "body": part, "more_body": bool(unread)}

        async def send(message: Any) -> None:
            pass

        await self.route.app(scope, receive, send)

    async def waiting(self, tenant: str, *parts: bytes) -> asyncio.Task[None]:
        """One that is read, and not answered."""
        task = asyncio.create_task(self.ask(tenant, *parts))
        for _ in range(3 + len(parts)):
            await asyncio.sleep(0)
        assert not task.done()
        return task


async def test_a_tenant_may_have_so_much_under_way_and_a_small_body_always() -> None:
    steering = Steering()
    tasks = [await steering.waiting("alice", b"x" * SMALL, b"x" * SMALL) for _ in range(MANY)]
    assert steering.read == [MOST] * MANY
    with pytest.raises(Refusal) as refused:
        await steering.ask("alice", b"x" * SMALL, b"x", b"x")
    assert not steering.unread, "it is heard out"
    assert (refused.value.code, refused.value.status) == ("rate_limited", 429)
    tasks.append(await steering.waiting("alice", b"x" * SMALL))
    tasks.append(await steering.waiting("bob", b"x" * MOST))
    steering.answered.set()
    await asyncio.gather(*tasks)
    await steering.ask("alice", b"x" * MOST)
    assert steering.read[MANY:] == [SMALL, MOST, MOST]


async def test_too_large_a_body_is_heard_out_and_holds_nothing() -> None:
    steering = Steering()
    steering.answered.set()
    for _ in range(2 * MANY):
        with pytest.raises(Refusal) as refused:
            await steering.ask("alice", b"x" * MOST, b"x", b"x")
        assert refused.value.code == "too_large"
        assert not steering.unread
    await steering.ask("alice", b"x" * MOST)
    assert steering.read == [MOST]


@pytest.mark.parametrize("whole", [False, True])
async def test_what_asks_for_completions_is_held_within_bounds_until_that_is_started(
    monkeypatch: pytest.MonkeyPatch, whole: bool
) -> None:
    async def begin(self: CompletionSource) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(CompletionSource, "begin", begin)
    most = SMALL + 1
    work = RequestWork()
    hub = SimulatedServer(SIZE).hub
    credentials = Credentials(ClientSecrets(hub.deposits))
    routes = openai(hub, credentials, OpenConnections(99), work, most, SseTimeouts())
    asking = next(route for route in routes if route.path == "/v1/completions")
    body = b'{"prompt": "x"}'.ljust(most)
    unread: list[int] = []

    async def ask(*, whole: bool) -> None:
        coming = [body]

        async def receive() -> dict[str, Any]:
            if not coming:
                unread.append(1)
                await asyncio.Event().wait()
            return {"type": "http.request", "body": coming.pop(), "more_body": not whole}

        async def send(message: Any) -> None:
            pass

        caller = Caller("http", tenant="alice")
        scope = {"type": "http", "method": "POST", "path": "/", "headers": [], CALLER: caller}
        await asking.app(scope | {HOLDER: Holder("alice")}, receive, send)

    tasks = [asyncio.create_task(ask(whole=whole)) for _ in range(MANY_ASKED)]
    while len(unread) < MANY_ASKED:  # noqa: ASYNC110 - a plain number, that tells nobody
        await asyncio.sleep(0)
    assert not any(task.done() for task in tasks)
    with pytest.raises(Refusal, match="of requests under way"):
        await ask(whole=True)
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
