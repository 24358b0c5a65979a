"""A server with keys, from outside: who comes in, who is turned out, and that no secret is ever told on."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import signal
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from websockets.asyncio.client import connect
from websockets.datastructures import Headers
from websockets.exceptions import InvalidStatus
from websockets.typing import Origin, Subprotocol

import midstream
from realtime.keys_command import main
from tests.server.independent_client import Client, client_of
from tests.server.server_process import PATIENCE_S, Served

CANARY = "CANARY"


class Keyed:
    """A server with a key file, and the keys of two tenants."""

    def __init__(
        self, folder: Path, capsys: pytest.CaptureFixture[str], serve: Callable[..., Served]
    ) -> None:
        self.file = folder / "keys.toml"
        self._capsys = capsys
        self.alice = self.add("alice", "--max-streams", "2", "--max-connections", "3")
        self.bob = self.add("bob", "--tokens-per-minute", "50", "--priority", "3")
        self.admin = self.add("root", "--admin")
        options = ("--keys-file", str(self.file), "--connections-per-address", "4", "--log-level", "debug")
        self.served = serve(*options)

    def add(self, *words: str) -> str:
        assert main(["add", *words, "--file", str(self.file)], {}) == 0
        return self._capsys.readouterr().out.strip()

    def revoke(self, name: str) -> None:
        assert main(["revoke", name, "--file", str(self.file)], {}) == 0

    def client(self, key: str) -> Any:
        return client_of(self.served.url, additional_headers={"Authorization": f"Bearer {key}"})

    def ask(self, path: str, key: str, body: bytes | None = None) -> tuple[int, str]:
        """What an HTTP request is answered; it is a POST if it has a body."""
        headers = {"Authorization": f"Bearer {key}"}
        request = urllib.request.Request(self.served.http + path, body, headers)
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as refused:
            with refused:
                return refused.code, refused.read().decode()


@pytest.fixture
def keyed(tmp_path: Path, capsys: pytest.CaptureFixture[str], serve: Callable[..., Served]) -> Keyed:
    return Keyed(tmp_path, capsys, serve)


def bearer(key: str) -> Subprotocol:
    return Subprotocol("bearer." + base64.urlsafe_b64encode(key.encode()).decode().rstrip("="))


async def refused(url: str, **options: Any) -> tuple[int, Headers, str]:
    """Status, headers and body with which an upgrade is answered."""
    with pytest.raises(InvalidStatus) as caught:
        async with connect(url, **options):
            pass
    response = caught.value.response
    return response.status_code, response.headers, response.body.decode()


async def closed(client: Client) -> int | None:
    async with asyncio.timeout(PATIENCE_S):
        await client.websocket.wait_closed()
    return client.websocket.close_code


async def errors(client: Client, request_id: str, **start: Any) -> dict[str, Any]:
    await client.start_blindly(request_id, **start)
    event = await client.next(request_id)
    assert event["type"] == "error", event
    return event


# -- coming in -------------------------------------------------------------------------------------


async def test_the_python_client_comes_in_with_a_key_and_not_without(keyed: Keyed) -> None:
    async with midstream.connect(keyed.served.url, api_key=keyed.alice) as client:
        stream = await client.start(prompt="Once", max_tokens=3, ignore_eos=True)
        assert [chunk.text async for chunk in stream]
    for key in ("ms_wrong", None):
        with pytest.raises(midstream.Unauthenticated):
            async with midstream.connect(keyed.served.url, api_key=key):
                pass


async def test_a_page_comes_in_with_a_secret_that_is_never_echoed(keyed: Keyed) -> None:
    origin = Origin(keyed.served.http)
    status, body = keyed.ask("/v1/realtime/client_secrets", keyed.alice, b"{}")
    assert status == 200
    secret = bearer(json.loads(body)["secret"])
    offered = [Subprotocol("midstream.v1.json"), secret]
    async with connect(keyed.served.url, subprotocols=offered, origin=origin) as websocket:
        assert websocket.subprotocol == "midstream.v1.json"
        assert json.loads(await websocket.recv())["type"] == "ready"
    status, headers, body = await refused(keyed.served.url, subprotocols=[secret], origin=origin)
    assert (status, headers["WWW-Authenticate"]) == (401, "Bearer")
    assert json.loads(body)["error"]["code"] == "unauthenticated"


async def test_connections_beyond_a_tenants_or_an_addresss_most_are_refused(keyed: Keyed) -> None:
    async with keyed.client(keyed.alice), keyed.client(keyed.alice), keyed.client(keyed.alice):
        await crowded_out(keyed, keyed.alice, "your key's tenant")
        async with keyed.client(keyed.bob):
            await crowded_out(keyed, keyed.bob, "your address")


async def crowded_out(keyed: Keyed, key: str, whose: str) -> None:
    headers = {"Authorization": f"Bearer {key}"}
    status, answered, body = await refused(keyed.served.url, additional_headers=headers)
    assert (status, answered["Retry-After"]) == (429, "1")
    error = json.loads(body)["error"]
    assert (error["code"], error["retryable"]) == ("rate_limited", True)
    assert whose in error["message"]


# -- what a tenant may take ------------------------------------------------------------------------


async def test_quotas_refuse_a_start_and_nothing_that_runs(keyed: Keyed) -> None:
    async with keyed.client(keyed.alice) as alice, keyed.client(keyed.bob) as bob:
        first = await alice.start("1", credit={"limit": 2})
        await alice.start("2", credit={"limit": 2})
        error = await errors(alice, "3")
        assert (error["status"], error["code"]) == (429, "too_many_streams")
        await first.send("cancel")
        await first.rest()
        await alice.start("3", credit={})

        error = await errors(bob, "x", priority=4)
        assert (error["status"], error["code"]) == (403, "forbidden")
        long = await bob.start("1", priority=3, params={"ignore_eos": True, "max_tokens": 300})
        await long.until_index(100)
        error = await errors(bob, "2")
        assert (error["status"], error["code"]) == (429, "rate_limited")
        assert error["retry_after_ms"] > 50_000, "it has taken two minutes' tokens"
        assert (await long.ask("pause", "paused"))["index"] >= 100
        await long.ask("resume", "resumed")
        assert (await long.rest())["index"] == 300


async def test_replace_ends_a_connection_of_ones_own_tenant_only(keyed: Keyed) -> None:
    async with connected_as(keyed, keyed.alice) as (alice, session_id):
        async with keyed.client(keyed.bob) as bob:
            await bob.send("replace", session_id=session_id)
            await bob.roundtrip()
        await alice.roundtrip()
        async with keyed.client(keyed.alice) as again:
            await again.send("replace", session_id=session_id)
            assert await closed(alice) == 4409


@asynccontextmanager
async def connected_as(keyed: Keyed, key: str) -> AsyncIterator[tuple[Client, str]]:
    headers = {"Authorization": f"Bearer {key}"}
    async with connect(keyed.served.url, additional_headers=headers) as websocket:
        client = Client(websocket)
        yield client, (await client.next())["session_id"]


# -- being turned out ------------------------------------------------------------------------------


async def test_a_revoked_key_opens_nothing_and_its_connections_end(keyed: Keyed) -> None:
    async with keyed.client(keyed.alice) as alice, keyed.client(keyed.bob) as bob:
        await alice.start("a", on_disconnect="continue", grace_ms=3_600_000, credit={})
        keyed.revoke("alice")
        status, _, _ = await refused(
            keyed.served.url, additional_headers={"Authorization": f"Bearer {keyed.alice}"}
        )
        assert status == 401
        assert await closed(alice) == 4401
        stream = await bob.start("b", params={"max_tokens": 1})
        await stream.rest()
    await until_idle(keyed)


async def until_idle(keyed: Keyed) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while True:
            _, text = await asyncio.to_thread(keyed.ask, "/metrics", keyed.admin)
            live = [line for line in text.splitlines() if line.startswith("midstream_streams{")]
            if live and all(line.endswith(" 0.0") for line in live):
                return


# -- nothing is told on ----------------------------------------------------------------------------


async def test_no_key_secret_or_text_reaches_the_log_or_anybody_else(keyed: Keyed) -> None:
    """Every mistake that comes to mind, each with a word in it that must not be seen again."""
    served = keyed.served
    said = [await wrong_ways_in(keyed)]
    async with keyed.client(keyed.bob) as witness:
        async with keyed.client(keyed.alice) as alice:
            await mistakes(alice)
            stream = await alice.start("long", prompt=f"{CANARY} " * 400, credit={"limit": 4})
            await stream.until_index(1)
            await stream.ask("inject", "injected", text=f"I am {CANARY}")
            os.kill(served.engine, signal.SIGKILL)
            await until_said(served, "engine")
            await stream.send("cancel")
            await stream.rest()
            await alice.websocket.send(b"\xff" + CANARY.encode())
            assert (await alice.next())["code"] == "invalid_frame"
        await witness.roundtrip()
        said += [json.dumps(event) for event in witness.heard()]
    keyed.revoke("alice")
    keyed.file.write_text(f"[keys]\n{CANARY} = '{CANARY}'\n")
    await until_said(served, "still hold")
    served.tell()
    assert served.ended() == 0
    said += [served.greeting, served.output.read(), served.log()]
    assert "engine" in said[-1], "the log was worth a look"
    everything = "\n".join(said)
    for secret in (CANARY, keyed.alice, keyed.bob, keyed.admin, "mss_", *encoded(keyed)):
        assert secret not in everything


def encoded(keyed: Keyed) -> Iterator[str]:
    for key in (keyed.alice, keyed.bob, keyed.admin, CANARY):
        yield bearer(key).removeprefix("bearer.")[:-2]


async def until_said(served: Served, words: str) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while words not in served.log():
            await served.ask("/healthz")


async def wrong_ways_in(keyed: Keyed) -> str:
    """All that is answered to whoever is not let in."""
    url = keyed.served.url
    evil = Origin(f"https://{CANARY}.example")
    key = {"Authorization": f"Bearer {keyed.alice}"}
    answers = [
        await refused(url, additional_headers={"Authorization": f"Bearer {CANARY}"}),
        await refused(url, additional_headers={"Authorization": f"{CANARY} {CANARY}"}),
        await refused(url, subprotocols=[bearer(CANARY)]),
        await refused(url, subprotocols=[Subprotocol(f"bearer.{CANARY}"), Subprotocol(CANARY)]),
        await refused(f"{url}?key={CANARY}&key={keyed.alice}"),
        await refused(url, origin=evil, additional_headers=key),
    ]
    told = [body for _, _, body in answers]
    told += [
        (await asyncio.to_thread(keyed.ask, path, CANARY))[1] for path in (f"/x?key={CANARY}", "/metrics")
    ]
    path = "/v1/realtime/client_secrets"
    bodies = [f'{{"origin": "https://{CANARY}.example"}}', CANARY, CANARY * 1000]
    told += [(await asyncio.to_thread(keyed.ask, path, keyed.bob, body.encode()))[1] for body in bodies]
    reader, writer = await asyncio.open_connection(keyed.served.host, keyed.served.port)
    writer.write(f"{CANARY} {CANARY}\r\n{CANARY}\r\n\r\n".encode())
    told.append((await reader.read()).decode())
    writer.close()
    return "\n".join(told)


async def mistakes(client: Client) -> None:
    """Each is answered by an error, to its sender."""
    texts = [
        CANARY,
        f'{{"type":"{CANARY}"}}',
        f'{{"type":"start","request_id":"e","prompt":"{CANARY}","params":{{"temperature":"{CANARY}"}}}}',
        f'{{"type":"start","request_id":"e","prompt":"{CANARY}","model":"{CANARY}"}}',
        f'{{"type":"start","request_id":"e","prompt":"{CANARY} \\ud800"}}',
        f'{{"type":"start","request_id":"e","prompt":"{CANARY}\\ud800{" x" * 3000}"}}',
        f'{{"type":"start","request_id":"e","messages":[{{"role":"{CANARY}","content":"{CANARY}"}}]}}',
        f'{{"type":"start","request_id":"e","messages":[{{"role":"user","content":[{{"type":"{CANARY}"}}]}}]}}',
        f'{{"type":"start","request_id":"e","prompt":"{CANARY}","priority":7}}',
        f'{{"type":"start","request_id":"e","prompt":"{CANARY * 20000}"}}',
        f'{{"type":"inject","request_id":"none","text":"{CANARY}"}}',
        f'{{"type":"attach","request_id":"{CANARY}","after":3}}',
    ]
    for text in texts:
        await client.websocket.send(text)
        async with asyncio.timeout(PATIENCE_S):
            answer = json.loads(await client.websocket.recv())
        assert answer["type"] in ("error", "started"), answer
        if answer["type"] == "started":
            await client.websocket.send('{"type":"cancel","request_id":"e"}')
            while json.loads(await client.websocket.recv())["type"] != "final":
                pass
