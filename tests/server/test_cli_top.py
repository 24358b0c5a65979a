"""The command `midstream top`: at a terminal drawn anew, with keys, and in a pipe printed once."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from realtime.keys_command import main as keys
from tests.fakes.pseudo_terminal import CTRL_C, CTRL_D, Terminal
from tests.server.independent_client import client_of
from tests.server.server_process import PATIENCE_S, Served, environment

ENDLESS: dict[str, Any] = {"ignore_eos": True, "temperature": 0}


@pytest.fixture(scope="module")
def toy() -> Iterator[Served]:
    served = Served("--toy-step-ms", "20")
    yield served
    served.end()


@asynccontextmanager
async def top(served: Served, **size: int) -> AsyncIterator[Terminal]:
    terminal = Terminal("top", "--url", served.http, **size)
    try:
        yield terminal
    finally:
        await terminal.end()


async def piped(url: str, key: str | None = None) -> subprocess.CompletedProcess[str]:
    return await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-m", "midstream", "top", "--url", url],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        env=environment() | {"PYTHONUTF8": "1"} | ({} if key is None else {"MIDSTREAM_API_KEY": key}),
    )


async def test_streams_come_change_and_go_while_it_is_looked_at(toy: Served) -> None:
    async with top(toy) as terminal, client_of(toy.url) as client:
        await terminal.until("0 streams", "q quit")
        stalled = await client.start("stalled", params=ENDLESS, credit={"limit": 3})
        paused = await client.start("paused", params=ENDLESS)
        await paused.send("pause")
        await terminal.until("2 streams", "○ stalled", "‖ paused (client)", "stalled of", "paused of")
        await stalled.send("credit", limit=4000)
        await terminal.until_so(lambda seen: "● running" in seen and "1 in the batch" in seen)
        await stalled.send("cancel")
        await paused.send("cancel")
        await terminal.until("0 streams")
        terminal.type("q")
        assert await terminal.ended() == 0


async def test_keys_sort_it(toy: Served) -> None:
    async with client_of(toy.url) as client:
        for name, limit in (("oldest", 3), ("longest", 9)):
            stream = await client.start(name, params=ENDLESS, credit={"limit": limit})
            await stream.until_index(limit)
        async with top(toy) as terminal:
            for key, word, first in (
                ("t", "tokens", "longest"),
                ("a", "age", "oldest"),
                ("c", "context", "longest"),
            ):
                terminal.type(key)
                await terminal.until_so(
                    lambda seen, word=word, first=first: (
                        f" by {word} " in seen.splitlines()[-1]  # type: ignore[misc]
                        and seen.splitlines()[4].startswith(first)
                    )
                )


async def test_what_does_not_fit_is_counted(toy: Served) -> None:
    async with client_of(toy.url) as client:
        for number in range(9):
            await client.start(f"stream {number}", params=ENDLESS, credit={"limit": 1})
        async with top(toy, columns=60, lines=9) as terminal:
            await terminal.until("9 streams", "… and 6 more")


@pytest.mark.parametrize(("keys_", "status"), [("q", 0), (CTRL_D, 0), (CTRL_C, 130)])
async def test_ways_to_leave(toy: Served, keys_: str, status: int) -> None:
    async with top(toy) as terminal:
        await terminal.until("q quit")
        terminal.type(keys_)
        assert await terminal.ended() == status


async def test_a_server_that_goes_away_is_said_and_leaving_is_not_held_up(
    serve: Callable[..., Served],
) -> None:
    served = serve()
    async with top(served) as terminal:
        await terminal.until("0 streams")
        served.end()
        await terminal.until("! no server answers at")
        terminal.type("q")
        assert await terminal.ended() == 0


# -- in a pipe -------------------------------------------------------------------------------------


async def test_in_a_pipe_it_is_said_once_without_colours(toy: Served) -> None:
    async with client_of(toy.url) as client:
        stream = await client.start("mine", params=ENDLESS, credit={"limit": 3})
        await stream.until_index(3)
        said = await piped(toy.http)
    assert (said.returncode, said.stderr) == (0, "")
    server, count, columns, row = said.stdout.splitlines()
    assert server.startswith("toy · ")
    assert count == "1 stream: 0 queued, 0 running, 0 paused, 1 stalled"
    assert columns.split()[:3] == ["request", "tenant", "state"]
    assert row.startswith("mine of ")
    assert "\x1b" not in said.stdout


async def test_where_no_server_is_it_says_what_to_do() -> None:
    said = await piped("http://127.0.0.1:1")
    assert (said.returncode, said.stdout) == (1, "")
    assert said.stderr == (
        "midstream: no server answers at http://127.0.0.1:1: start one with `midstream serve`, "
        "or name another with --url\n"
    )


async def test_keys_decide_what_is_seen(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], serve: Any
) -> None:
    file, held = tmp_path / "keys.toml", {}
    for words in (["alice"], ["root", "--admin"]):
        assert keys(["add", *words, "--file", str(file)], {}) == 0
        held[words[0]] = capsys.readouterr().out.strip()
    served = serve("--keys-file", str(file))
    headers = {"Authorization": f"Bearer {held['root']}"}
    async with client_of(served.url, additional_headers=headers) as client:
        await client.start("the admin's", params=ENDLESS, credit={"limit": 3})
        nobody, alice, root = [await piped(served.http, key) for key in (None, held["alice"], held["root"])]
    assert nobody.returncode == 1
    assert "put your key into the environment variable MIDSTREAM_API_KEY" in nobody.stderr
    assert alice.stdout.splitlines()[0] == "0 streams: 0 queued, 0 running, 0 paused, 0 stalled"
    assert "the admin's" in root.stdout
    assert "toy · " in root.stdout


class OtherServer:
    """Something that is no Midstream server: it answers as it is told, and keeps what it was asked."""

    def __init__(self) -> None:
        self.answer: tuple[int, dict[str, str], bytes] = (200, {}, b"")
        self.asked: list[str] = []
        server = self

        class RequestHandler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                server.asked.append(self.path)
                status, headers, body = server.answer
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002 - the library's name for it
                pass

        self.server = HTTPServer(("127.0.0.1", 0), RequestHandler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        self.thread = threading.Thread(target=self.server.serve_forever)
        self.thread.start()


@pytest.fixture
def other_server() -> Iterator[OtherServer]:
    other = OtherServer()
    yield other
    other.server.shutdown()
    other.thread.join()
    other.server.server_close()


STREAM = {"request_id": "a", "tenant": "", "route": "ws", "state": "running", "paused": None, "age_s": 1}
VAST = json.dumps(  # a number that no float has
    {
        "streams": [STREAM | {"tokens": 1, "tokens_per_s": 1, "credit": 10**400, "context_tokens": 1}],
        "total": 1,
        "states": {},
        "server": None,
    }
).encode()


async def test_a_key_is_carried_to_no_other_place(other_server: OtherServer) -> None:
    other_server.answer = (302, {"Location": f"{other_server.url}/trap"}, b"")
    said = await piped(other_server.url, "ms_secret")
    assert (said.returncode, said.stdout) == (1, "")
    assert "answered with HTTP 302: is that a Midstream server?" in said.stderr
    assert other_server.asked == ["/v1/streams?limit=1000"]


@pytest.mark.parametrize(
    ("status", "body", "words"),
    [
        (404, b"<html>", "answered with HTTP 404: is that a Midstream server?"),
        (200, b"<html>", "does not list its streams as Midstream does"),
        (200, b'{"streams": 1}', "does not list its streams as Midstream does"),
        (200, VAST, "does not list its streams as Midstream does"),
        (418, b'{"error": {"code": "teapot", "message": "\\u001b[2J"}}', "answered with HTTP 418: ␛[2J"),
    ],
)
async def test_what_is_no_midstream_is_said_to_be_none(
    other_server: OtherServer, status: int, body: bytes, words: str
) -> None:
    other_server.answer = (status, {}, body)
    said = await piped(other_server.url)
    assert (said.returncode, said.stdout) == (1, "")
    assert words in said.stderr
    assert len(said.stderr.splitlines()) == 1


async def test_one_that_speaks_no_tls_is_not_said_to_be_away(other_server: OtherServer) -> None:
    said = await piped(other_server.url.replace("http:", "https:"))
    assert (said.returncode, said.stdout) == (1, "")
    assert said.stderr.startswith("midstream: no connection to https://127.0.0.1:")
    assert "[SSL" in said.stderr


@pytest.mark.parametrize(
    ("status", "headers", "body"),
    [
        (200, {}, b'{"streams": [{"request_id": "\xff"}]}'),
        (200, {}, b'{"more": ' + b"[" * 100_000),
        (200, {"Content-Length": "100"}, b"{}"),
        (500, {"Content-Length": "100"}, b"{}"),
        (500, {}, b'{"more": ' + b"[" * 100_000),
    ],
    ids=["no text", "endless", "cut", "a refusal that is cut", "a refusal that is endless"],
)
async def test_an_answer_that_makes_no_sense_is_one_sentence(
    other_server: OtherServer, status: int, headers: dict[str, str], body: bytes
) -> None:
    other_server.answer = (status, headers, body)
    said = await piped(other_server.url)
    assert (said.returncode, said.stdout) == (1, "")
    assert said.stderr.startswith("midstream: ")
    assert said.stderr.count("\n") == 1
