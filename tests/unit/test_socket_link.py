"""The link to an engine that listens, over real sockets: what it tells of who is there, and who is not."""

from __future__ import annotations

import asyncio
import re
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path

import pytest

from engine import api
from realtime.fleet import socket_link
from realtime.fleet.socket_link import Address, SocketLink
from realtime.fleet.watched_engine import EngineFailed, WatchedEngine
from tests.fakes.certificates import self_signed
from tests.fakes.engine_links import HELLO

Answer = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def answering(answer: Answer, tls: ssl.SSLContext | None = None) -> AsyncIterator[str]:
    """At an address, whoever answers so."""

    over = list[asyncio.Event]()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        over.append(asyncio.Event())
        await answer(reader, writer)
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()
        over[-1].set()

    server = await asyncio.start_server(serve, "127.0.0.1", ssl=tls)
    host, port = server.sockets[0].getsockname()
    try:
        yield f"{host}:{port}"
    finally:
        server.close()
        for each in over:
            await each.wait()


async def opened(address: str, certificates: str | None = None) -> api.Hello:
    engine = WatchedEngine(partial(SocketLink, Address(address), "sesame", certificates))
    try:
        async with asyncio.timeout(10):
            return await engine.open(
                lambda output: None, lambda engine: None, answer_s=1000, start_silence_s=1000
            )
    finally:
        await engine.close()


async def test_it_shows_its_token_and_hears_what_is_served() -> None:
    shown = list[bytes]()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        shown.append(await reader.read(100))
        for part in (api.encoded(HELLO)[:7], api.encoded(HELLO)[7:]):
            writer.write(part)
            await writer.drain()
        await reader.read()

    async with answering(answer) as address:
        assert await opened(address) == HELLO
    assert shown == [api.encoded(api.Join("sesame"))]


async def test_why_it_is_refused_is_passed_on() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(100)
        writer.write(api.encoded(api.Failed("its token is not this engine's")))

    async with answering(answer) as address:
        with pytest.raises(EngineFailed, match="its token is not this engine's"):
            await opened(address)


@pytest.mark.parametrize("said", [api.framed(b"\xc1"), api.encoded(api.Join("x")), b"\0\0\0\2{}"])
async def test_who_is_no_engine_is_said_to_be_none(said: bytes) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(said)
        with suppress(ConnectionError):
            await reader.read()

    async with answering(answer) as address:
        with pytest.raises(EngineFailed, match="what it says is no message of an engine"):
            await opened(address)


async def test_who_hangs_up_is_heard_to() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(100)

    async with answering(answer) as address:
        with pytest.raises(EngineFailed, match="ended before it was ready"):
            await opened(address)


async def test_where_nobody_listens_the_error_says_so() -> None:
    async with answering(None) as address:  # type: ignore[arg-type]
        pass
    with pytest.raises(OSError, match=re.escape("Connect call failed")):
        await opened(address)


async def test_who_does_not_answer_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket_link, "CONNECT_S", 0.01)
    monkeypatch.setattr(SocketLink, "_connect", lambda self: asyncio.Event().wait())
    with pytest.raises(OSError, match=r"nothing answered there for 0.01 s"):
        await opened("10.255.255.1:7000")


async def test_an_encrypted_engine_is_known_by_its_certificate(tmp_path: Path) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(api.encoded(HELLO))
        await reader.read()

    cert, key = self_signed(tmp_path)
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(cert, key)
    async with answering(answer, tls) as address:
        port = address.rpartition(":")[2]
        assert await opened(f"tls:localhost:{port}", str(cert)) == HELLO
        with pytest.raises(OSError, match="certificate verify failed"):
            await opened(f"tls:localhost:{port}")
        with pytest.raises(OSError, match=r"not valid for '127.0.0.1'"):
            await opened(f"tls:127.0.0.1:{port}", str(cert))
