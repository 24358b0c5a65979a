"""The static files against readers who read nothing, and what it costs to look for what is none of them."""

from __future__ import annotations

import asyncio
import re
from contextlib import suppress
from pathlib import Path
from typing import Any

import anyio.to_thread
import pytest
from starlette.applications import Starlette
from starlette.types import Message

from realtime.http import pages as pages_module
from realtime.http.pages import Folder
from realtime.http.pages import routes as pages
from realtime.http.request_work import RequestWork
from realtime.hub.observers import Caller
from realtime.refusal import Refusal
from realtime.work_budget import BURST_S
from tests.fakes.work_clock import a_millisecond_a_piece
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
    async with serving(Starlette(routes=pages(RequestWork()))) as server, raw_socket(server) as peer:
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
    async with serving(Starlette(routes=pages(RequestWork()))) as server, raw_socket(server) as peer:
        for path in (b"/" + b"a/" * 7000, b"/sdk/" + b"a/" * 7000):
            await peer.send(b"GET %b HTTP/1.1\r\nHost: localhost\r\n\r\n" % path)
            assert (await peer.read_response()).startswith(b"HTTP/1.1 404 ")
            await peer.read(len(b"Not Found"))
    assert looked_for == []


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/", 200),
        ("/main.js", 200),
        ("/style/", 404),
        ("/nothing", 404),
        ("/%00", 404),
        ("/" + "%f0%9f%99%82" * 64, 404),
    ],
)
async def test_no_thread_is_waited_for(monkeypatch: pytest.MonkeyPatch, path: str, status: int) -> None:
    """They cost several times what an answer counts as, and nobody would pay for what they do."""
    waited_for: list[object] = []
    begin = anyio.to_thread.run_sync

    async def noted(what: Any, *given: Any) -> Any:
        waited_for.append(what)
        return await begin(what, *given)

    async with serving(Starlette(routes=pages(RequestWork()))) as server, raw_socket(server) as peer:
        for _ in range(2):  # whether the folder is there is looked at once
            monkeypatch.setattr(anyio.to_thread, "run_sync", noted)
            waited_for.clear()
            await peer.send(b"GET %b HTTP/1.1\r\nHost: localhost\r\n\r\n" % path.encode())
            head = await peer.read_response()
            assert head.startswith(b"HTTP/1.1 %d " % status)
            length = re.search(rb"content-length: (\d+)", head)
            assert length is not None
            await peer.read(int(length[1]))
    assert waited_for == []


async def test_whoever_asks_for_a_file_pays_for_the_look(monkeypatch: pytest.MonkeyPatch) -> None:
    slept = a_millisecond_a_piece(monkeypatch)
    work = RequestWork()
    app = Starlette(routes=pages(work))
    asked = int(BURST_S * 1000) + 50
    for path in ["/main.js", "/nothing"] * (asked // 2):
        await answered(app, path)
    assert sum(slept) > 0, "what goes beyond a burst is waited for"
    assert work.of(Caller("http", address="10.0.0.1")).debt_s > 0


async def test_few_requests_wait_for_their_turn_and_who_owes_nothing_needs_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each that waits has a connection, and those of a few addresses would be all."""
    monkeypatch.setattr(pages_module, "MOST_WAITING", 1)
    work = RequestWork()
    app = Starlette(routes=pages(work))
    await answered(app, "/main.js", "10.0.0.2")  # whether the folder is there is looked at once, in a thread
    debtor = work.of(Caller("http", address="10.0.0.1"))
    debtor.owe(10_000)
    for _ in range(2):  # and when one of them is gone, there is room again
        waiting = asyncio.create_task(answered(app, "/main.js"))
        await asyncio.sleep(0)
        with pytest.raises(Refusal, match="its share") as caught:
            await answered(app, "/main.js")
        assert caught.value.code == "rate_limited"
        await answered(app, "/main.js", "10.0.0.2")
        waiting.cancel()
        with suppress(asyncio.CancelledError):
            await waiting


async def answered(app: Starlette, path: str, address: str = "10.0.0.1") -> None:
    scope = {
        "type": "http", "method": "GET", "path": path, "headers": [], "query_string": b"", "root_path": "",
        "client": (address, 1),
    }  # fmt: skip

    async def receive() -> Message:
        return {"type": "http.request"}

    async def send(message: Message) -> None:
        pass

    await app(scope, receive, send)
