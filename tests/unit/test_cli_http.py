"""What a command asks a server over HTTP: of an answer so much is taken, and no more."""

from __future__ import annotations

import asyncio

import pytest

from midstream.cli import http_post
from midstream.errors import ConnectionLost, ProtocolError

MOST = 2**20


async def answered(body: bytes, *, endless: bool = False, length: int | None = None) -> object:
    """What comes of a POST that is answered so."""
    gone = asyncio.Event()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        told = "" if length is None else f"Content-Length: {length}\r\n"
        writer.write(f"HTTP/1.1 200 OK\r\n{told}\r\n".encode() + body)
        try:
            while endless:
                await writer.drain()
                writer.write(body)
        except ConnectionError:
            pass
        writer.close()
        gone.set()

    async with await asyncio.start_server(answer, "127.0.0.1") as server:
        port = server.sockets[0].getsockname()[1]
        try:
            return (await http_post.post(f"http://127.0.0.1:{port}/v1/completions", {}, None)).body
        finally:
            await gone.wait()


async def test_an_answer_is_read_to_its_end() -> None:
    assert await answered(b'{"text": "ab"}') == {"text": "ab"}


async def test_one_that_has_no_end_is_read_no_further(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_post, "MOST_BYTES", MOST)
    with pytest.raises(ProtocolError, match="is that a Midstream server"):
        await answered(b'"' + b"x" * 2**16, endless=True)


async def test_one_that_breaks_off_is_no_answer() -> None:
    with pytest.raises(ConnectionLost, match="no answer"):
        await answered(b'{"text": "ab"}', length=100)
