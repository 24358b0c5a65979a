"""Through a real nginx with the configuration of ops/: tokens one by one, silence, WebSockets, and ends."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx2
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus
from websockets.typing import Origin

from tests.server.keyed_server import Keyed
from tests.server.server_process import PATIENCE_S, Served, streams

CONFIGURATION = Path(__file__).parents[2] / "ops/nginx.conf"
PLACES = os.environ.get("PATH", "") + ":/usr/sbin:/usr/local/sbin"
ENDLESS = {"prompt": "Once", "stream": True, "max_tokens": 4000, "ignore_eos": True}

# What a distribution's main file has around such a configuration.
AROUND = """
daemon off;
master_process off;
pid {folder}/nginx.pid;
error_log {folder}/error.log;
events {{ worker_connections 64; }}
http {{
    access_log off;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    gzip on;
    include {folder}/midstream.conf;
}}
"""


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> str:
    found = shutil.which("nginx", path=PLACES) or debians(tmp_path_factory.mktemp("nginx"))
    if found is None:
        pytest.skip("nginx was not found: install it (Debian, Ubuntu: apt install nginx)")
    return found


def debians(folder: Path) -> str | None:
    """Debian's package, unpacked and not installed: that would start a server on port 80."""
    if not shutil.which("apt-get"):
        return None

    def run(*command: str) -> bool:
        return subprocess.run(command, cwd=folder, capture_output=True, check=False).returncode == 0

    run("apt-get", "update")
    if not run("apt-get", "download", "nginx"):
        return None
    run("dpkg", "-x", *(path.name for path in folder.glob("nginx_*.deb")), ".")
    found = str(folder / "usr/sbin/nginx")
    return found if run(found, "-v") else None


@pytest.fixture
def keyed(tmp_path: Path) -> Iterator[Keyed]:
    keyed = Keyed(tmp_path, "--toy-step-ms", "15", "--sse-heartbeat-s", "0.05")
    yield keyed
    keyed.served.end()


@pytest.fixture
def served(keyed: Keyed) -> Served:
    return keyed.served


@pytest.fixture
def proxy(program: str, served: Served, tmp_path: Path) -> Iterator[str]:
    with in_front_of(served, program, tmp_path) as address:
        yield address


@contextmanager
def in_front_of(served: Served, program: str, tmp_path: Path) -> Iterator[str]:
    """Its address, `127.0.0.1:PORT`, in front of the server."""
    address = free_address()
    text = CONFIGURATION.read_text().replace("127.0.0.1:8000", f"{served.host}:{served.port}")
    (tmp_path / "midstream.conf").write_text(text.replace("listen 80;", f"listen {address};"))
    (tmp_path / "nginx.conf").write_text(AROUND.format(folder=tmp_path))
    command = [program, "-p", str(tmp_path), "-c", str(tmp_path / "nginx.conf")]
    tested = subprocess.run([*command, "-t"], capture_output=True, text=True, check=False)
    assert tested.returncode == 0, tested.stderr
    process = subprocess.Popen(command)
    try:
        until_open(address, process)
        yield address
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(PATIENCE_S)


def free_address() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


def until_open(address: str, process: subprocess.Popen[bytes]) -> None:
    host, port = address.split(":")
    while process.poll() is None:
        with socket.socket() as probe:
            if probe.connect_ex((host, int(port))) == 0:
                return
    raise AssertionError("nginx ended")


@pytest.fixture
def client(proxy: str, keyed: Keyed) -> httpx2.AsyncClient:
    headers = {"Authorization": f"Bearer {keyed.admin}"}
    return httpx2.AsyncClient(base_url=f"http://{proxy}", timeout=PATIENCE_S, headers=headers)


async def test_tokens_come_one_by_one_and_heartbeats_pass(client: httpx2.AsyncClient, served: Served) -> None:
    body = ENDLESS | {"request_id": "slow"}
    async with client, client.stream("POST", "/v1/completions", json=body) as response:
        assert "content-encoding" not in response.headers
        lines = response.aiter_lines()
        texts = 0
        # Each is read while the next is not there yet: what is held up would never come to be paused.
        while texts < 5:
            texts += (await anext(lines)).startswith("data: ")
        paused = await client.post("/v1/streams/slow/control", json={"type": "pause"})
        assert paused.json()["index"] < 100
        comments = 0
        while comments < 3:
            comments += (await anext(lines)).startswith(":")
        await served.until(lambda now: streams(now, "paused") == 1)
        await client.post("/v1/streams/slow/control", json={"type": "cancel"})
    await served.until_idle()


async def test_whoever_goes_away_from_the_proxy_frees_its_work(
    client: httpx2.AsyncClient, served: Served
) -> None:
    async with client, client.stream("POST", "/v1/completions", json=ENDLESS) as response:
        await anext(response.aiter_lines())
    after = await served.until_idle()
    assert after["midstream_tokens_total"] < 4000


async def test_a_whole_answer_an_error_and_a_large_body_pass(client: httpx2.AsyncClient) -> None:
    async with client:
        whole = await client.post("/v1/completions", json={"prompt": "a " * 100_000, "max_tokens": 2})
        assert (whole.status_code, whole.json()["error"]["code"]) == (400, "context_length_exceeded")
        large = await client.post("/v1/completions", json={"prompt": "a" * (2**20 + 1)})
        assert (large.status_code, large.json()["error"]["code"]) == (413, "too_large")
        answer = await client.post(
            "/v1/completions", json={"prompt": "a", "max_tokens": 3, "ignore_eos": True}
        )
        assert answer.json()["usage"]["completion_tokens"] == 3


async def test_a_websocket_passes_both_ways_and_pages_are_known_by_their_origin(
    proxy: str, keyed: Keyed
) -> None:
    key = {"Authorization": f"Bearer {keyed.admin}"}
    async with connect(
        f"ws://{proxy}/v1/realtime", origin=Origin(f"http://{proxy}"), additional_headers=key
    ) as websocket:

        async def until(kind: str) -> None:
            while json.loads(await asyncio.wait_for(websocket.recv(), PATIENCE_S))["type"] != kind:
                pass

        await until("ready")
        start = {"type": "start", "request_id": "x", "prompt": "Once", "params": {"ignore_eos": True}}
        await websocket.send(json.dumps(start))
        await until("token")
        await websocket.send(json.dumps({"type": "pause", "request_id": "x"}))
        await until("paused")
        await websocket.send(json.dumps({"type": "cancel", "request_id": "x"}))
        await until("final")


async def test_a_server_without_keys_is_not_made_public_by_a_proxy(
    program: str, serve: Callable[..., Served], tmp_path: Path
) -> None:
    served = serve()
    with in_front_of(served, program, tmp_path) as proxy:
        async with httpx2.AsyncClient(base_url=f"http://{proxy}", timeout=PATIENCE_S) as client:
            for path in ("/metrics", "/v1/streams", "/v1/models"):
                error = (refused := await client.get(path)).json()["error"]
                assert (refused.status_code, error["code"]) == (403, "forbidden")
                assert "--keys-file" in error["message"]
            assert (await client.get("/healthz")).status_code == 200
        with pytest.raises(InvalidStatus, match="403"):
            async with connect(f"ws://{proxy}/v1/realtime"):
                pass
    assert "It has no keys" in served.greeting


async def test_whoever_wants_that_says_so(program: str, serve: Callable[..., Served], tmp_path: Path) -> None:
    served = serve("--insecure-open", "--allowed-hosts", "llm.example")
    with in_front_of(served, program, tmp_path) as proxy:
        async with httpx2.AsyncClient(base_url=f"http://{proxy}", timeout=PATIENCE_S) as client:
            for host, status in (("llm.example", 200), ("evil.example", 403)):
                assert (await client.get("/v1/models", headers={"Host": host})).status_code == status
