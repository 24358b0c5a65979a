"""The server's own life: what a new user sees, what will not start, and how it ends."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import select
import shlex
import signal
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from websockets.exceptions import ConnectionClosed

from tests.fakes.tiny_models import tiny_folder
from tests.server.independent_client import Client, client_of
from tests.server.server_process import PATIENCE_S, Served, command, environment, run

LONG = {"ignore_eos": True, "temperature": 0}
Serve = Callable[..., Served]


# -- the beginning ---------------------------------------------------------------------------------


async def test_the_line_to_try_works_when_it_is_pasted(server: Served) -> None:
    line = re.search(r"Try it.*\n(.*)\n", server.greeting)
    assert line, server.greeting
    tried = await asyncio.to_thread(
        subprocess.run,
        shlex.split(line[1]),
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        env=environment(),
    )
    assert (tried.returncode, tried.stderr) == (0, "")
    assert tried.stdout.strip()


def test_a_port_that_is_taken() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        failed = run("--model", "toy", "--port", str(port))
    assert failed.returncode == 1
    assert failed.stderr == f"midstream: cannot listen on 127.0.0.1 port {port}: Address already in use\n"


def no_such_folder(tmp_path: Path) -> list[str]:
    return ["--model", str(tmp_path / "nothing")]


def torn_folder(tmp_path: Path) -> list[str]:
    folder = tiny_folder(tmp_path, "llama")
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    return ["--model", str(folder)]


def strange_folder(tmp_path: Path) -> list[str]:
    folder = tiny_folder(tmp_path, "llama")
    config = (folder / "config.json").read_text()
    (folder / "config.json").write_text(
        config.replace('"LlamaForCausalLM"', '"BambaForCausalLM"').replace('"llama"', '"bamba"')
    )
    return ["--model", str(folder)]


def little_memory(_: Path) -> list[str]:
    return ["--model", "toy", "--kv-tokens", "16"]


def no_such_host(_: Path) -> list[str]:
    return ["--model", "toy", "--insecure-open", "--host", "no-such-host.invalid"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (no_such_folder, ["no model", "nothing"]),
        (torn_folder, ["model.safetensors"]),
        (strange_folder, ["bamba", "llama"]),
        (little_memory, ["--kv-tokens is 16", "at least 32", "--block-size 16"]),
        (no_such_host, ["cannot listen on no-such-host.invalid", "no address of this machine"]),
    ],
)
def test_what_cannot_be_served_is_refused_in_a_line(
    tmp_path: Path, options: Callable[[Path], list[str]], words: list[str]
) -> None:
    failed = run(*options(tmp_path), "--port", "0")
    assert (failed.returncode, failed.stdout) == (1, "")
    assert re.fullmatch(r"midstream: [^\n]+\n", failed.stderr), failed.stderr
    assert all(word in failed.stderr for word in words), failed.stderr


def test_a_misspelt_variable_is_named_before_anything_else_is_said() -> None:
    failed = subprocess.run(
        command("--model", "toy", "--insecure-open", "--host", "no-such-host.invalid"),
        check=False,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        env=environment() | {"MIDSTREAM_KEY_FILE": "CANARY"},
    )
    first, last = failed.stderr.splitlines()
    assert "MIDSTREAM_KEY_FILE is none of this server's" in first
    assert "MIDSTREAM_KEYS_FILE" in first
    assert "CANARY" not in failed.stderr
    assert last.startswith("midstream: cannot listen on no-such-host.invalid")


def test_an_option_that_is_not_right_ends_it_with_status_2() -> None:
    failed = run("--port", "70000")
    assert failed.returncode == 2
    assert "--port is '70000'; it must be a whole number from 0 to 65535" in failed.stderr


async def test_a_variable_of_other_servers_is_none_of_ours(
    monkeypatch: pytest.MonkeyPatch, serve: Serve
) -> None:
    monkeypatch.setenv("WEB_CONCURRENCY", "many")
    served = await asyncio.to_thread(serve)
    served.tell()
    assert served.ended() == 0


# -- the end ---------------------------------------------------------------------------------------


async def closed_with(client: Client) -> int | None:
    """Read on until the server closes: its close code."""
    try:
        while True:
            await client.next("nobody")
    except ConnectionClosed as closed:
        return closed.rcvd.code if closed.rcvd else None


@pytest.mark.parametrize("gateways", [1, 2])
def test_the_service_manager_hears_that_it_serves_lives_and_ends(
    gateways: int, serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "told"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as told:
        told.bind(str(place))
        told.settimeout(PATIENCE_S)
        monkeypatch.setenv("NOTIFY_SOCKET", str(place))
        monkeypatch.setenv("WATCHDOG_USEC", "100000")
        served = serve("--gateways", str(gateways))
        words = [told.recv(100) for _ in range(4)]
        assert words == [b"READY=1", b"WATCHDOG=1", b"WATCHDOG=1", b"WATCHDOG=1"]
        served.tell()
        while (word := told.recv(100)) != b"STOPPING=1":
            assert word == b"WATCHDOG=1"
        assert served.ended() == 0


async def test_running_streams_finish_when_the_server_goes_away(serve: Serve) -> None:
    server = serve("--toy-step-ms", "10", "--shutdown-grace-s", "30", "--engine", "thread")
    async with client_of(server.url) as client, client_of(server.url) as other:
        stream = await client.start("running", params=LONG | {"max_tokens": 60}, credit={"limit": 6})
        await stream.until_index(5)
        server.tell()
        assert await other.next() == {"type": "going_away", "deadline_ms": 30_000}
        assert (await client.next())["type"] == "going_away"
        await other.start_blindly("too late")
        error = await other.next("too late")
        assert (error["status"], error["code"], error["retryable"]) == (503, "draining", True)
        assert await server.ask("/readyz") == (503, '{"status":"draining"}')
        assert await server.ask("/healthz") == (200, '{"status":"ok"}')
        await stream.send("credit", limit=60)  # before, it cannot have ended, however slow we are
        final = await stream.rest()
        assert (final["finish_reason"], final["index"]) == ("length", 60)
        assert await closed_with(client) == await closed_with(other) == 1001
    assert server.ended() == 0
    assert "Traceback" not in server.log()


@pytest.mark.parametrize("gateways", [1, 2])
async def test_streams_finish_where_the_terminal_closes(gateways: int, serve: Serve) -> None:
    """Which all of its processes hear, of the shell and of the system."""
    server = await asyncio.to_thread(serve, "--gateways", str(gateways), "--toy-step-ms", "10")
    async with client_of(server.url) as client:
        stream = await client.start("running", params=LONG | {"max_tokens": 60}, credit={"limit": 6})
        await stream.until_index(5)
        os.killpg(server.process.pid, signal.SIGHUP)
        assert (await client.next())["type"] == "going_away"
        os.killpg(server.process.pid, signal.SIGHUP)
        await stream.send("credit", limit=60)  # before, it cannot have ended, however slow we are
        final = await stream.rest()
        assert (final["finish_reason"], final["index"]) == ("length", 60)
        assert await closed_with(client) == 1001
    assert server.ended() == 0
    assert "Traceback" not in server.log()
    assert "engine has died" not in server.log()


async def test_past_the_grace_streams_are_cancelled_with_their_final(serve: Serve) -> None:
    server = serve("--toy-step-ms", "10", "--shutdown-grace-s", "0.2")
    async with client_of(server.url) as client:
        endless = await client.start("endless", params=LONG)
        paused = await client.start("paused", params=LONG)
        await paused.ask("pause", "paused")
        server.tell()
        assert (await endless.rest())["finish_reason"] == "cancelled"
        assert (await paused.rest())["finish_reason"] == "cancelled"
        assert await closed_with(client) == 1001
    assert server.ended() == 0
    assert "Traceback" not in server.log()


async def test_whoever_reads_nothing_of_an_answer_is_no_failure_of_a_server_that_ends(serve: Serve) -> None:
    server = serve("--shutdown-grace-s", "0")
    asked = b'{"prompt": "Once", "stream": true, "max_tokens": 3000, "ignore_eos": true, "logprobs": 20}'
    head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(asked)
    with socket.socket() as reader:
        reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        reader.connect((server.host, server.port))
        reader.sendall(head + asked)
        before, now = -1.0, 0.0
        while before < now:  # it is decoded no further than it is read
            metrics = await server.until(lambda metrics: metrics['midstream_streams{state="stalled"}'] == 1)
            before, now = now, metrics["midstream_tokens_total"]
        server.tell()
        assert server.ended() == 0
    assert "Traceback" not in server.log()
    assert "running task" not in server.log()


async def test_an_engine_that_has_hung_does_not_hold_up_the_end(serve: Serve) -> None:
    """It says nothing of what it was told to cancel; that is the end of the streams all the same."""
    server = serve("--toy-step-ms", "10", "--shutdown-grace-s", "0.2")
    async with client_of(server.url) as client:
        stream = await client.start("endless", params=LONG)
        await stream.until_index(5)
        os.kill(server.engine, signal.SIGSTOP)
        server.tell()
        assert (await stream.rest())["finish_reason"] == "cancelled"
        assert await closed_with(client) == 1001
    assert server.ended() == 0
    assert "Traceback" not in server.log()


@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGKILL, -9)]
)
def test_whoever_loads_a_model_goes_with_the_server(
    tmp_path: Path, number: signal.Signals, status: int
) -> None:
    """It reads a pipe for its model's configuration, into which nothing is ever written."""
    os.mkfifo(tmp_path / "config.json")
    said = command("--model", str(tmp_path), "--port", "0")
    server = subprocess.Popen(
        said, env=environment(), stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        with (tmp_path / "config.json").open("wb") as pipe:  # which waits for the reader
            readers = select.poll()
            readers.register(pipe, select.POLLERR)
            assert readers.poll(0) == []
            server.send_signal(number)
            _, errors = server.communicate(timeout=PATIENCE_S)
            assert (server.returncode, errors) == (status, "")
            assert readers.poll(PATIENCE_S * 1000), "it still reads"
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(server.pid, signal.SIGKILL)
        server.communicate()
