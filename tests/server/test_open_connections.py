"""Answers over HTTP are connections: counted with the WebSockets, refused in the form of their endpoint, and
ended with the key that they were asked for by."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import httpx2
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from realtime.keys_command import main
from tests.server.server_process import PATIENCE_S, Served

TEXTS = "/v1/completions"
LONG: dict[str, Any] = {"prompt": "Once", "max_tokens": 4000, "ignore_eos": True, "stream": True}


class Caller:
    """Somebody who asks a server over HTTP, with a key or without."""

    def __init__(self, server: Served, key: str | None = None) -> None:
        self.server = server
        self.headers = {} if key is None else {"Authorization": f"Bearer {key}"}

    def http(self) -> httpx2.AsyncClient:
        return httpx2.AsyncClient(base_url=self.server.http, timeout=PATIENCE_S, headers=self.headers)

    async def ask(self, path: str, body: dict[str, Any] | None = None) -> httpx2.Response:
        async with self.http() as client:
            return await (client.get(path) if body is None else client.post(path, json=body))

    async def control(self, name: str, kind: str) -> None:
        assert (await self.ask(f"/v1/streams/{name}/control", {"type": kind})).status_code == 200

    @asynccontextmanager
    async def answer(self, name: str, **fields: Any) -> AsyncIterator[AsyncIterator[str]]:
        """The lines of an answer that has begun."""
        body = LONG | {"request_id": name} | fields
        async with self.http() as client, client.stream("POST", TEXTS, json=body) as response:
            assert response.status_code == 200
            lines = response.aiter_lines()
            assert (await anext(lines)).startswith("data: ")
            yield lines

    async def refused_websocket(self) -> int:
        with pytest.raises(InvalidStatus) as caught:
            async with connect(self.server.url, additional_headers=self.headers):
                pass
        return caught.value.response.status_code


# -- counted ---------------------------------------------------------------------------------------


async def test_an_answer_takes_the_place_of_a_connection_for_as_long_as_it_lasts(
    serve: Callable[..., Served],
) -> None:
    caller = Caller(serve("--max-connections", "1", "--toy-step-ms", "15"))
    async with caller.answer("a") as lines:
        for stream in (True, False):
            refused = await caller.ask(TEXTS, LONG | {"stream": stream})
            assert (refused.status_code, refused.headers["Retry-After"]) == (503, "1")
            assert refused.headers["X-Should-Retry"] == "true", "it is OpenAI's form here"
            assert "limit of 1 connections" in refused.json()["error"]["message"]
        followed = await caller.ask("/v1/streams/a")
        assert (followed.status_code, followed.json()["error"]["code"]) == (503, "overloaded")
        assert await caller.refused_websocket() == 503
        assert (await caller.ask("/readyz")).json() == {"status": "at its limit of connections"}
        assert (await caller.ask("/v1/models")).status_code == 200, "short requests need no room"
        await caller.control("a", "pause")
        await caller.control("a", "resume")
        await caller.control("a", "cancel")
        assert [line async for line in lines if line][-1] == "data: [DONE]"
    async with connect(caller.server.url), asyncio.timeout(PATIENCE_S):
        while (await caller.ask(TEXTS, LONG | {"max_tokens": 1})).status_code != 503:
            pass
    async with asyncio.timeout(PATIENCE_S):
        while (await caller.ask(TEXTS, LONG | {"max_tokens": 1})).status_code != 200:
            pass


# -- of a tenant, and of a key ---------------------------------------------------------------------


class Keys:
    """A key file, and a server that reads it."""

    def __init__(self, folder: Path, serve: Callable[..., Served]) -> None:
        self._file = str(folder / "keys.toml")
        self._serve = serve

    def add(self, *words: str) -> str:
        with redirect_stdout(StringIO()) as told:
            assert main(["add", *words, "--file", self._file], {}) == 0
        return told.getvalue().strip()

    def revoke(self, name: str) -> None:
        assert main(["revoke", name, "--file", self._file], {}) == 0

    def serve(self, *options: str) -> Served:
        return self._serve("--keys-file", self._file, "--toy-step-ms", "15", *options)


@pytest.fixture
def keys(tmp_path: Path, serve: Callable[..., Served]) -> Keys:
    return Keys(tmp_path, serve)


async def test_a_tenants_answers_count_with_its_connections_and_not_with_anothers(keys: Keys) -> None:
    alice, bob = keys.add("alice", "--max-connections", "2"), keys.add("bob")
    server = keys.serve()
    caller, other = Caller(server, alice), Caller(server, bob)
    async with caller.answer("a"), connect(server.url, additional_headers=caller.headers):
        refused = await caller.ask(TEXTS, LONG)
        assert (refused.status_code, refused.headers["Retry-After"]) == (429, "1")
        assert refused.json()["error"]["code"] == "rate_limit_exceeded"
        assert await caller.refused_websocket() == 429
        async with other.answer("b"):
            pass


async def test_answers_end_with_the_key_that_they_were_asked_for_by(keys: Keys) -> None:
    first, second = keys.add("first", "--tenant", "t"), keys.add("second", "--tenant", "t")
    scraper = keys.add("scraper", "--metrics")
    server = keys.serve()
    caller, other = Caller(server, first), Caller(server, second)
    async with AsyncExitStack() as stack:
        chunks = await stack.enter_async_context(caller.answer("a", on_disconnect="continue"))
        theirs = await stack.enter_async_context(other.answer("b"))
        whole = asyncio.create_task(caller.ask(TEXTS, LONG | {"stream": False, "request_id": "whole"}))
        followed = await stack.enter_async_context(other.answer("c", on_disconnect="continue"))
        http = await stack.enter_async_context(caller.http())
        following = await stack.enter_async_context(http.stream("POST", "/v1/streams/c"))
        async with asyncio.timeout(PATIENCE_S):
            while not _live(await other.ask("/v1/streams"), {"a", "b", "c", "whole"}):
                pass
        keys.revoke("first")
        async with asyncio.timeout(PATIENCE_S):
            assert "request_taken" in (await _rest(followed))[-1]
            last = json.loads((await _rest(chunks))[-1].removeprefix("data: "))
            assert (last["error"]["code"], last["error"]["status"]) == ("invalid_api_key", 401)
            assert (await whole).status_code == 401
            assert '"unauthenticated"' in (await _rest(following.aiter_lines()))[-1]
            counted, prometheus = 'stream_disconnects_total{cause="revoked"} 3.0', Caller(server, scraper)
            while counted not in (await prometheus.ask("/metrics")).text:
                pass
        await other.control("b", "cancel")
        assert (await _rest(theirs))[-1] == "data: [DONE]"


async def test_who_reads_a_large_answer_slowly_does_not_stay_when_the_key_is_revoked(keys: Keys) -> None:
    only_one = ("--tenant", "t", "--max-connections", "1")
    first, second = keys.add("first", *only_one), keys.add("second", *only_one)
    server = keys.serve("--send-timeout-s", "600")
    many = LONG | {"stream": False, "max_tokens": 40, "n": 32, "logprobs": 20}  # megabytes
    reader, writer = await whole_answer(server, first, many)
    head = await reader.readuntil(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 ")
    other, brief = Caller(server, second), LONG | {"max_tokens": 1}
    assert (await other.ask(TEXTS, brief)).status_code == 429
    keys.revoke("first")
    async with asyncio.timeout(PATIENCE_S):
        while (await other.ask(TEXTS, brief)).status_code == 429:
            pass
    writer.transport.abort()
    assert "Traceback" not in server.log()


async def whole_answer(
    server: Served, key: str, body: dict[str, Any]
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """As somebody asks for it who takes little of it at a time."""
    connected = socket.socket()
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connected.connect(("127.0.0.1", server.port))
    reader, writer = await asyncio.open_connection(sock=connected, limit=4096)
    asked = json.dumps(body).encode()
    head = f"POST {TEXTS} HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {key}\r\nContent-Length: {len(asked)}"
    writer.write(head.encode() + b"\r\n\r\n" + asked)
    return reader, writer


def _live(listing: httpx2.Response, names: set[str]) -> bool:
    return {stream["request_id"] for stream in listing.json()["streams"]} == names


async def _rest(lines: AsyncIterator[str]) -> list[str]:
    return [line async for line in lines if line.startswith("data: ")]
