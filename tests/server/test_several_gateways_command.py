"""`midstream serve --gateways N`: gateways and engines that are kept running, behind one port."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
from contextlib import suppress
from pathlib import Path

import pytest

from tests.server.gateways import STEP, Serve
from tests.server.independent_client import client_of
from tests.server.server_process import PATIENCE_S, POLL_S, Served, run

PARAMS = {"ignore_eos": True, "temperature": 0, "max_tokens": 60}
KEPT = {"params": PARAMS, "on_disconnect": "continue", "credit": {"limit": 10_000}}


def free_ports(count: int) -> int:
    """The first of so many in a row."""
    while True:
        with socket.create_server(("127.0.0.1", 0)) as first:
            port: int = first.getsockname()[1]
            try:
                for number in range(1, count):
                    socket.create_server(("127.0.0.1", port + number)).close()
            except OSError:
                continue
            return port


def tell(served: Served, number: signal.Signals, what: str) -> None:
    """The process of the server that was started with that."""
    listed = ["ps", "-ww", "-o", "pid=,args=", "--ppid", str(served.process.pid)]
    rows = subprocess.run(listed, capture_output=True, text=True, check=True).stdout.splitlines()
    (pid,) = [int(row.split()[0]) for row in rows if what in row]
    os.kill(pid, number)


async def until(served: Served, said: str) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while said not in served.log():  # noqa: ASYNC110 - of another process
            await asyncio.sleep(POLL_S)


async def test_a_gateway_dies_and_its_streams_go_on_at_the_other_until_it_is_there_again(
    serve: Serve,
) -> None:
    own = free_ports(2)
    served = await asyncio.to_thread(serve, "--gateways", "2", "--own-port", str(own), *STEP)
    first = served.url.replace(str(served.port), str(own))
    async with client_of(first) as client:
        whole = await client.start("whole", **KEPT)
        await whole.rest()
        stream = await client.start("a", **KEPT)
        await stream.until_index(10)
        await asyncio.to_thread(tell, served, signal.SIGKILL, f"--own-port={own} ")
    await until(served, "gateway 0 has ended, with status -9; it is started anew")
    async with client_of(served.url) as client:  # which the other has, or the first again
        again = client.adopt(stream)
        await client.send("attach", request_id="a", after=stream.events[-1]["seq"])
        await again.next("snapshot")
        await again.next("attached")
        await again.rest()
        assert again.text == whole.text
    async with asyncio.timeout(PATIENCE_S):
        while True:
            try:
                async with client_of(first) as client:
                    await (await client.start("b", **KEPT)).rest()
                break
            except OSError:
                await asyncio.sleep(POLL_S)
    served.tell()
    assert served.ended() == 0
    assert "Traceback" not in served.log()


async def test_an_engine_that_dies_or_hangs_is_started_anew_and_streams_go_on(serve: Serve) -> None:
    served = await asyncio.to_thread(serve, "--gateways", "2", "--engine-silence-s", "2", *STEP)
    async with client_of(served.url) as client:
        whole = await client.start("whole", **KEPT)
        await whole.rest()
        for number in (signal.SIGKILL, signal.SIGSTOP):
            stream = await client.start(number.name, **KEPT)
            await stream.until_index(10)
            await asyncio.to_thread(tell, served, number, " engine ")
            assert (await stream.rest())["finish_reason"] == "length"
            assert stream.text == whole.text
    assert "engine 0 has said nothing for 2 s: it is ended" in served.log()


async def test_a_gateway_that_hangs_is_ended_and_started_anew(serve: Serve) -> None:
    own = free_ports(2)
    served = await asyncio.to_thread(
        serve, "--gateways", "2", "--own-port", str(own), "--engine-silence-s", "2", *STEP
    )
    await asyncio.to_thread(tell, served, signal.SIGSTOP, f"--own-port={own} ")
    await until(served, "gateway 0 has said nothing for 2 s: it is ended")
    await until(served, "gateway 0 has ended, with status -9; it is started anew")
    async with asyncio.timeout(PATIENCE_S):
        while True:
            with suppress(OSError):
                async with client_of(served.url.replace(str(served.port), str(own))) as client:
                    stream = await client.start("a", **KEPT)
                    assert (await stream.rest())["finish_reason"] == "length"
                    break
            await asyncio.sleep(POLL_S)
    served.tell()
    assert served.ended() == 0
    assert served.log().count("said nothing") == 1


async def test_whoever_is_served_may_finish_and_nothing_is_left(serve: Serve, tmp_path: Path) -> None:
    told = tmp_path / "address"
    served = await asyncio.to_thread(serve, "--gateways", "2", "--address-file", str(told), *STEP)
    assert told.read_text() == f"{served.host}:{served.port}\n"
    async with client_of(served.url) as client:
        stream = await client.start("a", **KEPT)
        await stream.next("token")
        served.tell(signal.SIGINT)
        assert (await client.next())["type"] == "going_away"
        assert (await stream.rest())["finish_reason"] == "length"
    assert served.ended() == 0


async def test_a_second_signal_ends_all_at_once(serve: Serve) -> None:
    served = await asyncio.to_thread(serve, "--gateways", "2", "--shutdown-grace-s", "3600", *STEP)
    async with client_of(served.url) as client:
        endless = {"params": PARAMS | {"max_tokens": 1_000_000}, "credit": {"limit": 1_000_000}}
        stream = await client.start("a", **endless)
        await stream.next("token")
        served.tell()
        assert (await client.next())["type"] == "going_away"
        served.tell()
        assert await asyncio.to_thread(served.ended) == 0


def test_what_cannot_start_says_why_in_a_line(tmp_path: Path) -> None:
    wrong = run("--gateways", "2", "--model", str(tmp_path))
    assert wrong.returncode == 1
    assert wrong.stderr.splitlines()[-1].startswith("midstream: the engine does not start: ")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        wrong = run("--gateways", "2", "--model", "toy", "--port", str(port))
        assert wrong.stderr == f"midstream: cannot listen on 127.0.0.1 port {port}: Address already in use\n"
    own = free_ports(2)
    with socket.create_server(("127.0.0.1", own + 1)):
        wrong = run("--gateways", "2", "--model", "toy", "--port", "0", "--own-port", str(own))
        assert (
            wrong.stderr == f"midstream: cannot listen on 127.0.0.1 port {own + 1}: Address already in use\n"
        )
    none = tmp_path / "none"
    wrong = run("--gateways", "2", "--model", "toy", "--keys-file", str(none))
    assert wrong.stderr == f"midstream: the key file {none} cannot be read: No such file or directory\n"
    wrong = run("--gateways", "2", "--model", "toy", "--address-file", str(none / "address"))
    assert (
        wrong.stderr == f"midstream: the file {none}/address cannot be written: No such file or directory\n"
    )
    os.mkfifo(pipe := tmp_path / "pipe")
    for words in (("--model", "toy", "--keys-file"), ("--models",)):
        wrong = run("--gateways", "2", *words, str(pipe))
        assert wrong.stderr == f"midstream: {pipe} is no file, and each of 2 gateways is to read it\n"
    models = tmp_path / "models.toml"
    models.write_text('[models.toy]\nsource = "toy"\nkeep_alive = "5m"\n')
    wrong = run("--gateways", "2", "--models", str(models))
    assert wrong.returncode == 1
    assert '"toy" has a keep_alive' in wrong.stderr


async def test_gateways_may_have_another_loop(serve: Serve) -> None:
    pytest.importorskip("uvloop")  # there is none for Windows
    served = await asyncio.to_thread(serve, "--gateways", "2", "--event-loop", "uvloop")
    async with client_of(served.url) as client:
        stream = await client.start("a", **KEPT)
        assert (await stream.rest())["finish_reason"] == "length"
    served.tell()
    assert served.ended() == 0
    assert "Traceback" not in served.log()
