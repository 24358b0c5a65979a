"""The same befalls engines by each kind of link: pipes to children, TCP with a token, and gRPC with
certificates on both sides. Whatever dies, stops or leaves, streams that are steered go on at others with the
text that they would have had; and who shows another token is not let in."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryFile
from typing import NamedTuple

import pytest

import midstream
from bench.reliability.deaths import Deaths, crowd, nothing
from bench.reliability.fleet_deaths import ENGINES, restarts, whole
from bench.reliability.scoring import Score, keep_playing, quiet_run
from bench.reliability.trial_server import complaints
from tests.fakes.certificates import Authority
from tests.server.independent_client import Client, Stream, client_of
from tests.server.listening_engine import ListeningEngine
from tests.server.server_process import PATIENCE_S, POLL_S, Served, command, environment, said

LINKS = ("pipe", "tcp", "grpc")
listening = pytest.mark.parametrize("fleet", LINKS[1:], indirect=True, scope="module")
STEP = ("--toy-step-ms", "20")
SILENCE = ("--engine-silence-s", "1")
GREEDY = {"ignore_eos": True, "temperature": 0, "max_tokens": 100}
READERS = 6
SECRET = "sesame"


class Undisturbed(NamedTuple):
    """What everybody says whom nothing befalls."""

    score: Score
    tokens: list[int]


class Children:
    """Engines at the end of pipes, and a spare; whoever dies, the server has another in its place."""

    def __init__(self) -> None:
        self.undisturbed: Undisturbed | None = None
        self.served = Served("--engines", str(ENGINES), "--engine-spare", "on", *SILENCE, *STEP)

    async def strike(self, blow: signal.Signals) -> None:
        victim = await asyncio.to_thread(lambda: self.served.engines[0])
        os.kill(victim, blow)

    def end(self) -> None:
        pass


class Listeners:
    """Engines that listen by one kind of link; whoever dies is started again where it was."""

    def __init__(self, folder: Path, link: str) -> None:
        certified = link == "grpc"
        at = "grpc:127.0.0.1:0" if certified else "127.0.0.1:0"
        own: tuple[str, ...] = ()
        theirs: tuple[str, ...] = ()
        token = folder / "token"
        token.write_text(SECRET)
        if certified:
            authority = Authority(folder)
            own, theirs = (_certified(authority, name, name) for name in ("tls", "engine"))
        shown = ("--token-file", str(token), *STEP, *own)
        self.engines = [ListeningEngine(*shown, listen=at) for _ in range(ENGINES)]
        for engine in self.engines:
            engine.start()
        for engine in self.engines:
            asyncio.run(engine.until_ready())
        self.addresses = " ".join(engine.address for engine in self.engines).replace("127.0.0.1", "localhost")
        self.shown = theirs  # by gateways
        named = ("--engine-addresses", self.addresses, "--engine-token-file", str(token))
        self.served = Served("--fleet", "static", *named, *SILENCE, *theirs)
        self.undisturbed: Undisturbed | None = None
        self._struck = 0

    async def strike(self, blow: signal.Signals) -> None:
        """Each in its turn."""
        engine = self.engines[self._struck % ENGINES]
        self._struck += 1
        before = await restarts(self.served)
        engine.tell(blow)
        await self.served.until(
            lambda now: now["midstream_engines"] < ENGINES or now["midstream_engine_restarts_total"] > before
        )
        await asyncio.to_thread(engine.end if blow == signal.SIGSTOP else engine.ended)
        engine.start()
        await engine.until_ready()

    def end(self) -> None:
        for engine in self.engines:
            engine.end()


def _certified(authority: Authority, name: str, of: str) -> tuple[str, ...]:
    cert, key = map(str, authority.signed(name))
    return (f"--{of}-cert-file", cert, f"--{of}-key-file", key, f"--{of}-ca-file", str(authority.cert))


Fleet = Children | Listeners


@pytest.fixture(scope="module", params=LINKS)
def fleet(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """One of each kind for all: it takes seconds to start."""
    link = request.param
    fleet = Children() if link == "pipe" else Listeners(tmp_path_factory.mktemp(link), link)
    try:
        yield fleet
    finally:
        fleet.served.end()
        fleet.end()


async def begun(client: Client, name: str, limit: int = 1000) -> Stream:
    return await client.start(name, params=GREEDY, credit={"limit": limit}, return_tokens=True)


@pytest.mark.parametrize("blow", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
async def test_an_engine_may_die_under_streams_that_are_steered(fleet: Fleet, blow: signal.Signals) -> None:
    await struck(fleet, blow)


@listening
async def test_an_engine_may_be_told_to_end_under_streams_that_are_steered(fleet: Fleet) -> None:
    """A child is told nothing by others than its server."""
    await struck(fleet, signal.SIGTERM)


async def struck(fleet: Fleet, blow: signal.Signals) -> None:
    for _ in range(ENGINES):  # one of them may have had none of those that are read
        if await somebody_moves(fleet, blow):
            return
    raise AssertionError("nobody felt it")


async def undisturbed(fleet: Fleet) -> Undisturbed:
    """Seen once: it takes seconds."""
    if fleet.undisturbed is None:
        score = await quiet_run(fleet.served.http, range(1), crowd(nothing))
        async with client_of(fleet.served.url) as client:
            truth = await begun(client, "truth")
            await truth.rest()
        fleet.undisturbed = Undisturbed(score, truth.tokens)
    return fleet.undisturbed


async def somebody_moves(fleet: Fleet, blow: signal.Signals) -> bool:
    await whole(fleet.served, ENGINES)
    deaths, over = Deaths(), asyncio.Event()
    score, tokens = await undisturbed(fleet)
    async with (
        client_of(fleet.served.url) as client,
        midstream.connect(fleet.served.http) as steering,
        asyncio.TaskGroup() as group,
    ):
        group.create_task(keep_playing(steering, score, crowd(deaths.next), over.is_set))
        streams = [await begun(client, str(number), limit=1) for number in range(READERS)]
        for stream in streams:
            await stream.until("token")
        before = await restarts(fleet.served)
        for stream in streams:  # all at once, or the first might have ended before the blow
            await stream.send("credit", limit=1000)
        for stream in streams:
            await stream.until("token")
        await fleet.strike(blow)
        deaths.one()
        for stream in streams:
            assert (await stream.rest())["finish_reason"] == "length"
        await whole(fleet.served, ENGINES, before + 1)
        over.set()
        deaths.over()
    assert {tuple(stream.tokens) for stream in streams} == {tuple(tokens)}
    assert score.wrong + complaints(fleet.served) == []
    return any(event["type"] == "paused" for stream in streams for event in stream.events)


@listening
async def test_who_shows_another_token_is_not_let_in(fleet: Fleet, tmp_path: Path) -> None:
    assert isinstance(fleet, Listeners)
    token = tmp_path / "token"
    token.write_text("another")
    named = ("--engine-addresses", fleet.addresses, "--engine-token-file", str(token))
    asked = command("--model", "toy", "--port", "0", "--fleet", "static", *named, *fleet.shown)
    with TemporaryFile("w+") as log:  # a server without an engine does not say that it is there
        stranger = subprocess.Popen(  # noqa: ASYNC220 - it takes no time
            asked, stdout=subprocess.DEVNULL, stderr=log, env=environment()
        )
        try:
            async with asyncio.timeout(PATIENCE_S):
                while said(log).count("its token is not this engine's") < ENGINES:  # noqa: ASYNC110 - of another process
                    await asyncio.sleep(POLL_S)
        finally:
            stranger.kill()
            stranger.wait()
    assert (await fleet.served.metrics())["midstream_engines"] == ENGINES


async def test_a_server_that_is_told_to_end_lets_streams_finish(fleet: Fleet) -> None:
    """The last, since it is the server's end."""
    await whole(fleet.served, ENGINES)
    async with client_of(fleet.served.url) as client:
        streams = [await begun(client, str(number)) for number in range(READERS)]
        for stream in streams:
            await stream.until("token")
        fleet.served.tell()
        for stream in streams:
            assert (await stream.rest())["finish_reason"] == "length"
    assert await asyncio.to_thread(fleet.served.ended) == 0
    assert len({stream.text for stream in streams}) == 1
    assert complaints(fleet.served) == []
