"""Commands where not all is as it should be: streams that are closed or full, other encodings, Ctrl-C soon,
keys that are none. What is wrong is one sentence."""

from __future__ import annotations

import asyncio
import shlex
import signal
import socket
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.fakes.scripted_server import FakeServer, Responder
from tests.server.server_process import PATIENCE_S, environment


@pytest.fixture
async def url() -> AsyncIterator[str]:
    async with FakeServer(Responder()) as server:
        yield server.url


@pytest.fixture
def requests(tmp_path: Path) -> str:
    path = tmp_path / "requests.jsonl"
    path.write_text('{"prompt": "日本", "max_tokens": 3}')
    return str(path)


async def begun(*words: str, shell: str = "", **variables: str) -> Process:
    """`shell`: what a shell is to do with its streams."""
    command = shlex.join([sys.executable, "-m", "midstream", *words])
    env = environment() | variables
    return await asyncio.create_subprocess_shell(f"exec {command} {shell}", stdout=PIPE, stderr=PIPE, env=env)


async def ended(process: Process) -> tuple[int | None, str, str]:
    async with asyncio.timeout(PATIENCE_S):
        out, err = await process.communicate()
    return process.returncode, out.decode(), err.decode()


async def test_whoever_has_closed_its_streams_is_served(url: str, requests: str, tmp_path: Path) -> None:
    output = tmp_path / "results"
    run = ("run", "--url", url, "--input", requests, "--output", str(output))
    assert (await ended(await begun(*run, shell="<&- >&-")))[::2] == (0, "")
    assert '"text":"0 1 2 "' in output.read_text()
    for command in ("run", "replay"):
        file = ("--input", "-") if command == "run" else ("-",)
        _, _, said = await ended(await begun(command, "--url", url, *file, shell="<&-"))
        assert said.startswith("midstream: standard input: there ")
        assert said.count("\n") == 1


async def test_an_encoding_without_a_character_shows_what_it_is(url: str, requests: str) -> None:
    run = await begun("run", "--url", url, "--input", requests, PYTHONIOENCODING="ascii")
    status, out, err = await ended(run)
    assert (status, err) == (0, "")
    assert out.startswith("# 1/1 \\u65e5\\u672c\n0 1 2 \n")


@pytest.mark.parametrize(
    ("option", "name"), [("--output /dev/full", "/dev/full"), (">/dev/full", "standard output")]
)
async def test_what_is_full_is_named(url: str, requests: str, option: str, name: str) -> None:
    status, _, err = await ended(await begun("run", "--url", url, "--input", requests, shell=option))
    assert status
    assert err.startswith(f"midstream: {name}: No space left on device\n")


@pytest.mark.parametrize("words", ["top", "models list"])
async def test_ctrl_c_while_a_server_says_nothing_is_no_trouble(words: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.setblocking(False)
        process = await begun(*words.split(), "--url", f"http://127.0.0.1:{silent.getsockname()[1]}")
        async with asyncio.timeout(PATIENCE_S):
            called, _ = await asyncio.get_running_loop().sock_accept(silent)
        with called:
            process.send_signal(signal.SIGINT)
            assert await ended(process) == (130, "", "")


@pytest.mark.parametrize("key", ["k\n", "ключ"])
@pytest.mark.parametrize("words", ["top", "models list", "run"])
async def test_a_key_that_no_header_can_have_is_refused(
    url: str, requests: str, words: str, key: str
) -> None:
    more = ("--input", requests) if words == "run" else ()
    status, _, err = await ended(
        await begun(*words.split(), "--url", url, *more, MIDSTREAM_API_KEY=key, PYTHONUTF8="1")
    )
    assert status == 1
    assert err.startswith("midstream: MIDSTREAM_API_KEY: this API key has a line break, or ")
    assert err.count("\n") == 1
