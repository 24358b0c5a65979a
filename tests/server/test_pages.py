"""The static files against readers who read nothing, of whom none keeps one open, and paths that are none."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path

import pytest
from starlette.applications import Starlette

from realtime.http.pages import Folder, routes
from tests.server.asgi_app_server import raw_socket, serving

pytestmark = pytest.mark.asyncio

WEB = Path(__file__).parents[2] / "web"
LARGE = "vendor/uplot/uPlot.esm.js"
MANY = 100


def open_files() -> list[str]:
    """Of the page."""
    paths = []
    for entry in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):
            paths.append(str(entry.readlink()))
    return [path for path in paths if path.startswith(str(WEB))]


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="lists open files by Linux's /proc")
async def test_whoever_reads_nothing_of_a_file_keeps_none_open() -> None:
    async with serving(Starlette(routes=routes())) as server, raw_socket(server) as peer:
        await peer.send(b"GET /%b HTTP/1.1\r\nHost: localhost\r\n\r\n" % LARGE.encode() * MANY)
        while not len(server.http.unread):  # noqa: ASYNC110 - a plain number, that tells nobody
            await asyncio.sleep(0)
        assert open_files() == []
        content = (WEB / LARGE).read_bytes()
        head = await peer.read_response()
        assert b"content-type: text/javascript; charset=utf-8" in head
        assert await peer.read(len(content)) == content


async def test_a_path_of_thousands_of_folders_is_not_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    looked_for: list[str] = []

    def nowhere(self: Folder, path: str) -> tuple[str, None]:
        looked_for.append(path)
        return "", None

    monkeypatch.setattr(Folder, "lookup_path", nowhere)
    async with serving(Starlette(routes=routes())) as server, raw_socket(server) as peer:
        for path in (b"/" + b"a/" * 7000, b"/sdk/" + b"a/" * 7000):
            await peer.send(b"GET %b HTTP/1.1\r\nHost: localhost\r\n\r\n" % path)
            assert (await peer.read_response()).startswith(b"HTTP/1.1 404 ")
            await peer.read(len(b"Not Found"))
    assert looked_for == []
