"""The command `midstream models`, and the endpoint behind it: what is loaded, and how an admin changes
that."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from realtime.keys_command import main as keys
from tests.server.independent_client import client_of
from tests.server.server_process import PATIENCE_S, POLL_S, Served, environment, serving_models

FILE = """
[models.large]
source = "toy"

[models.small]
source = "toy"
aliases = ["s"]
keep_alive = "1h"
toy_step_ms = 20
"""


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving_models(tmp_path_factory.mktemp("models"), FILE) as served:
        yield served


async def command(served: Served, *words: str, key: str = "") -> subprocess.CompletedProcess[str]:
    return await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-m", "midstream", "models", *words, "--url", served.http],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        env=environment() | ({"MIDSTREAM_API_KEY": key} if key else {}),
    )


async def said(served: Served, *words: str) -> str:
    done = await command(served, *words)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


async def until(served: Served, name: str, state: str) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while f'"state":"{state}"' not in (await served.ask(f"/v1/models/{name}"))[1]:  # noqa: ASYNC110
            await asyncio.sleep(POLL_S)


@pytest.fixture
async def cold(served: Served) -> AsyncIterator[Served]:
    """A server whose small model is not loaded. The command would take a second each time."""
    await tell(served, "unpin")
    await until(served, "small", "cold")
    yield served
    await tell(served, "unpin")
    await tell(served, "unload")


async def tell(served: Served, what: str) -> None:
    """Of the small model."""
    request = urllib.request.Request(f"{served.http}/v1/models/small", json.dumps({"do": what}).encode())
    with await asyncio.to_thread(urllib.request.urlopen, request) as answer:
        assert answer.status == 200


async def test_it_lists_loads_and_unloads(cold: Served) -> None:
    header, large, small = (await said(cold, "list")).splitlines()
    assert header.split() == ["NAME", "STATE", "PINNED", "CONTEXT", "ALIASES", "FINGERPRINT"]
    assert large.split()[:3] == ["large", "ready", "yes"]
    assert small.split() == ["small", "cold", "no", "8192", "s", "-"]
    await said(cold, "load", "s")
    await until(cold, "small", "ready")
    await said(cold, "unload", "small")
    await until(cold, "small", "cold")


async def test_what_runs_is_not_cut_and_what_starts_waits(cold: Served) -> None:
    params = {"ignore_eos": True, "max_tokens": 60}
    async with client_of(cold.url) as client:
        first = await client.start("first", model="small", params=params)
        await first.until("token")
        assert await said(cold, "unload", "small") == "small: unloading\n"
        second = await client.start("second", model="small", params=params)
        assert (await second.until("paused"))["reason"] == "loading"
        assert (await first.rest())["finish_reason"] == "length"
        assert [event for event in first.events if event["type"] == "paused"][1:] == []
        assert (await second.rest())["finish_reason"] == "length"


async def test_what_is_pinned_stays(cold: Served) -> None:
    await said(cold, "pin", "small")
    await until(cold, "small", "ready")
    refused = await command(cold, "unload", "small")
    assert refused.returncode == 1
    assert refused.stderr == 'midstream: The model "small" is pinned: unpin it first\n'
    assert (await said(cold, "unpin", "small")) == "small: ready\n"
    assert (await said(cold, "unload", "small")).startswith("small: ")


async def test_an_unknown_model_and_a_body_that_is_none_are_refused(served: Served) -> None:
    unknown = await command(served, "load", "gpt-9")
    assert unknown.returncode == 1
    assert 'There is no model "gpt-9"; this server has "large", "small"' in unknown.stderr
    no_text = await command(served, "load", "gpt-\udcff")
    assert no_text.returncode == 1
    assert no_text.stderr.startswith('midstream: There is no model "gpt-')
    for body in (b'{"do": "dance"}', b'{"do": "load", "pinned": true}'):
        request = urllib.request.Request(served.http + "/v1/models/small", body)
        with pytest.raises(urllib.error.HTTPError) as refused:
            await asyncio.to_thread(urllib.request.urlopen, request)
        with refused.value:
            assert refused.value.code == 400


async def test_it_takes_an_admins_key(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "keys.toml"
    for name, more in (("boss", ["--admin"]), ("ann", [])):
        assert keys(["add", name, *more, "--file", str(file)]) == 0
    boss, ann = capsys.readouterr().out.split()
    served = Served("--keys-file", str(file), "--engine-spare", "off")
    try:
        done = await command(served, "unload", "toy", key=ann)
        assert (done.returncode, "an admin's key" in done.stderr) == (1, True)
        done = await command(served, "unload", "toy", key=boss)
        assert 'The model "toy" is pinned' in done.stderr
        assert (await command(served, "list", key=ann)).stdout.splitlines()[1].split()[:2] == ["toy", "ready"]
    finally:
        served.end()
