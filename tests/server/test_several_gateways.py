"""Several gateways on one engine, each a server of its own: what one has computed others of the same tenant
find, streams of the same number do not meet, and one that dies leaves the others' as they were."""

from __future__ import annotations

import asyncio
import base64
import json
import secrets
import signal
from contextlib import AsyncExitStack, redirect_stdout
from http import HTTPStatus
from io import StringIO
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

from websockets import InvalidStatus, Origin, Subprotocol, connect

from realtime.keys_command import main as keys
from tests.server.gateways import Serve, gateways
from tests.server.independent_client import Client, client_of
from tests.server.server_process import Served, used

GREEDY = {"ignore_eos": True, "temperature": 0, "max_tokens": 60}
LONG = "word " * 100


def key(file: Path, *words: str) -> str:
    with redirect_stdout(StringIO()) as told:
        assert keys(["add", *words, "--file", str(file)], {}) == 0
    return told.getvalue().strip()


def showing(known: str) -> dict[str, Any]:
    return {"additional_headers": {"Authorization": f"Bearer {known}"}}


async def cached(client: Client, name: str) -> int:
    """Of a long prompt, how many tokens were found computed."""
    stream = await client.start(name, prompt=LONG, params=GREEDY | {"max_tokens": 2})
    tokens: int = (await stream.rest())["usage"]["cached_tokens"]
    return tokens


async def test_a_tenant_finds_its_own_at_each_gateway_and_nobody_elses(tmp_path: Path, serve: Serve) -> None:
    file = tmp_path / "keys.toml"
    ours, theirs = key(file, "ann"), key(file, "bob")
    async with (
        gateways(tmp_path, serve, "--keys-file", str(file)) as (first, second),
        client_of(first.url, **showing(ours)) as ann,
        client_of(second.url, **showing(theirs)) as bob,
        client_of(second.url, **showing(ours)) as ann_again,
    ):
        assert await cached(ann, "the first of all at this gateway") == 0
        assert await cached(bob, "the first of all at the other") == 0
        assert await cached(ann_again, "the second there") > 0
        assert await cached(ann, "again") > 0


async def test_a_tenants_limits_hold_over_both_while_both_live(tmp_path: Path, serve: Serve) -> None:
    file = tmp_path / "keys.toml"
    ours = key(file, "ann", "--max-streams", "1")
    async with (
        gateways(tmp_path, serve, "--keys-file", str(file), engines=2) as (first, second),
        client_of(first.url, **showing(ours)) as here,
        client_of(second.url, **showing(ours)) as there,
    ):
        endless = await here.start("endless", params={"ignore_eos": True, "max_tokens": 100_000})
        await endless.next("token")
        await until_refused(there)
        await endless.send("cancel")
        await endless.rest()
        await until_accepted(there)
        endless = await here.start("again", params={"ignore_eos": True, "max_tokens": 100_000})
        await endless.next("token")
        await until_refused(there)
        first.tell(signal.SIGKILL)
        await until_accepted(there)


async def until_refused(client: Client) -> None:
    while await short_answer(client) != "too_many_streams":
        pass


async def until_accepted(client: Client) -> None:
    while await short_answer(client) != "length":
        pass


async def short_answer(client: Client) -> str:
    """Why it ended, or was refused."""
    stream = await client.start_blindly(secrets.token_hex(4), params={"ignore_eos": True, "max_tokens": 1})
    while (event := await stream.next())["type"] not in ("final", "error"):
        pass
    told: str = event["finish_reason"] if event["type"] == "final" else event["code"]
    return told


async def test_a_pages_secret_works_once_at_whichever_gateway_the_page_comes_to(
    tmp_path: Path, serve: Serve
) -> None:
    file = tmp_path / "keys.toml"
    ours = key(file, "ann")
    async with gateways(tmp_path, serve, "--keys-file", str(file), engines=2) as (first, second):
        for place, other in ((second, first), (first, second)):
            secret = await asyncio.to_thread(secret_of, first, ours)
            assert [await comes_in(at, secret) for at in (place, place, other)] == [True, False, False]


def secret_of(served: Served, known: str) -> str:
    asking = Request(f"{served.http}/v1/realtime/client_secrets", b"{}", showing(known)["additional_headers"])
    with urlopen(asking) as answer:
        secret: str = json.load(answer)["secret"]
    return secret


async def comes_in(served: Served, secret: str) -> bool:
    """As a browser connects, for a page of this server."""
    shown = "bearer." + base64.urlsafe_b64encode(secret.encode()).decode().rstrip("=")
    offered = [Subprotocol("midstream.v1.json"), Subprotocol(shown)]
    try:
        async with connect(served.url, subprotocols=offered, origin=Origin(served.http)) as websocket:
            assert json.loads(await websocket.recv())["type"] == "ready"
            return True
    except InvalidStatus as refused:
        if refused.response.status_code != HTTPStatus.UNAUTHORIZED:
            raise
        return False


async def test_streams_of_two_gateways_run_side_by_side_and_one_may_die(tmp_path: Path, serve: Serve) -> None:
    async with gateways(tmp_path, serve) as (first, second), AsyncExitStack() as clients:
        dying = await clients.enter_async_context(client_of(first.url))
        living = await clients.enter_async_context(client_of(second.url))
        both = [
            [await client.start(f"{number}", params=GREEDY | {"seed": number}) for number in range(6)]
            for client in (dying, living)
        ]
        assert [(await one.rest())["finish_reason"] for streams in both for one in streams] == ["length"] * 12
        assert [one.text for one in both[0]] == [one.text for one in both[1]]
        truth = both[0][0].text

        endless = {"ignore_eos": True, "temperature": 0, "max_tokens": 100_000}
        left = [
            await dying.start(f"left {number}", params=endless, credit={"limit": 100_000})
            for number in range(4)
        ]
        going_on = await living.start("going on", params=endless, credit={"limit": 100_000})
        for stream in (*left, going_on):
            await stream.next("token")
        with_all = used(await second.until(lambda now: used(now) > 20))
        first.tell(signal.SIGKILL)
        await second.until(lambda now: used(now) < with_all / 2)
        await living.roundtrip()
        before = going_on.index + len(living.heard("going on"))
        while going_on.index < before + 20:
            assert (await going_on.next())["type"] == "token"
        assert going_on.text.startswith(truth)
        await going_on.send("cancel")
        await going_on.rest()
