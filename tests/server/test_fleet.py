"""Several engines under one real server: whichever dies, hangs or leaves, streams go on at others with the
text that they would have had, and the server takes new ones meanwhile."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import pytest

from bench.reliability.fleet_deaths import RESTARTS, restarts, whole
from engine.listening.grpc_door import GrpcDoor
from engine.listening.listener import Door, Listener
from engine.listening.socket_door import SocketDoor
from realtime.certificates import Certificates
from realtime.hub.engine_recovery import DEATHS, FEW
from tests.fakes.certificates import Authority
from tests.fakes.cutting_proxy import CuttingProxy
from tests.fakes.engine_links import HELLO
from tests.server.independent_client import Client, Stream, client_of
from tests.server.listening_engine import ListeningEngine, listening
from tests.server.server_process import PATIENCE_S, POLL_S, Served
from tests.server.streams_that_move import GREEDY, far, go_on_and_say_the_same, paused, started

Serve = Callable[..., Served]
STEP_MS = "20"
SILENCE_S = 1.0


async def ends(streams: list[Stream]) -> set[tuple[str, str]]:
    """What they come to."""
    return {((await stream.rest())["finish_reason"], stream.text) for stream in streams}


# -- engines of its own ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def three() -> Iterator[Served]:
    """Engines that say what they are told to, and a spare. One for all: it takes seconds to start."""
    kept = ("--engine-spare", "on", "--engine-silence-s", str(SILENCE_S))
    served = Served("--engines", "3", *kept, "--toy-step-ms", STEP_MS, scripted=True)
    yield served
    served.tell()
    assert served.ended() == 0, served.log()
    assert "Traceback" not in served.log()
    served.end()


@pytest.mark.parametrize("says", ["", "some words "], ids=["at once", "later"])
async def test_a_stream_that_kills_engines_is_found_and_changes_nobodys_text(
    three: Served, says: str
) -> None:
    await whole(three, 3)
    before = await restarts(three)
    async with client_of(three.url) as client:
        truth = await whole_text(client)
        others = await started(client, 59)
        for stream in others:
            await far(stream, 2 * FEW)  # else they would be suspected as well
        culprit = await client.start("culprit", prompt=f"⟦{says}☠⟧", params={"max_tokens": 80})
        final = await culprit.rest()
        assert final["finish_reason"] == "error"
        assert says.startswith(culprit.text), "its last word may die with an engine, each time"
        assert bool(culprit.text) == bool(says)
        assert await ends(others) == {("length", truth)}
    assert 1 < await restarts(three) - before <= DEATHS
    assert any(not paused(stream) for stream in others), "those of the other engines went on"
    if not says:  # else one more has died before it was suspected, and who was not there is not tried
        assert all(len(paused(stream)) <= 1 for stream in others), "and nobody was tried with it"


async def test_all_engines_may_die_at_once(three: Served) -> None:
    await whole(three, 3)
    while len(processes := await asyncio.to_thread(lambda: three.engines)) < 4:
        pass  # the spare is being replaced
    async with client_of(three.url) as client:
        truth = await whole_text(client)
        streams = await started(client, 6)
        await far(streams[-1], 5)
        for victim in processes[:3]:  # without the spare it would take seconds
            os.kill(victim, signal.SIGKILL)
        assert await ends(streams) == {("length", truth)}
        assert all(paused(stream) for stream in streams)


async def test_while_one_engine_is_gone_the_server_is_ready_and_takes_starts(three: Served) -> None:
    await whole(three, 3)
    before = await restarts(three)
    async with client_of(three.url) as client:
        streams = await started(client, 12)
        processes = three.engines
        for victim in (processes[0], processes[-1]):  # its spare too: another takes seconds
            os.kill(victim, signal.SIGKILL)
        metrics = await three.until(lambda now: now[RESTARTS] > before)
        assert metrics["midstream_engines"] < 3
        assert await three.ask("/readyz") == (200, '{"status":"ready"}')
        late = await client.start("late", params=GREEDY)
        ((reason, _),) = await ends([late, *streams])
        assert reason == "length"
        assert paused(late) == []
        assert any(not paused(stream) for stream in streams), "those of the others did not feel it"


async def whole_text(client: Client, name: str = "undisturbed") -> str:
    stream = await client.start(name, params=GREEDY)
    await stream.rest()
    return stream.text


# -- engines that others run -----------------------------------------------------------------------


class Fleet:
    """An engine by each kind of link: TCP and gRPC, behind networks that may fail, a path, and TLS."""

    def __init__(self, folder: Path) -> None:
        self.token, self.file = folder / "token", folder / "addresses"
        self.token.write_text("# of the fleet\nsesame\n")
        authority = Authority(folder / "authority")
        self.known, self.ours = str(authority.cert), list(map(str, authority.signed("gateway")))
        cert, key = map(str, authority.signed("engine"))
        self.certified = ("--tls-cert-file", cert, "--tls-key-file", key, "--tls-ca-file", self.known)
        shown = ("--token-file", str(self.token), "--toy-step-ms", "15")
        self.tcp = ListeningEngine(*shown)
        self.unix = ListeningEngine(*shown, listen=f"unix:{folder}/engine")
        self.tls = ListeningEngine(*shown, *self.certified)
        self.grpc = ListeningEngine(*shown, *self.certified, listen="grpc:127.0.0.1:0")
        self.far: list[str] = []  # where the first and the last are reached

    @property
    def engines(self) -> list[ListeningEngine]:
        return [self.tcp, self.unix, self.tls, self.grpc]

    def name(self, *addresses: str) -> None:
        """In the file that the server follows, at once whole."""
        written = self.file.with_suffix(".new")
        written.write_text("".join(f"{address}\n" for address in addresses))
        written.rename(self.file)

    def name_all(self) -> None:
        self.name(*self.far, self.unix.address, by_name(self.tls.address))

    @property
    def options(self) -> tuple[str, ...]:
        """Of a server."""
        cert, key = self.ours
        files = ("--engine-addresses-file", str(self.file), "--engine-token-file", str(self.token))
        certified = ("--engine-ca-file", self.known, "--engine-cert-file", cert, "--engine-key-file", key)
        return ("--fleet", "static", *files, *certified, "--engine-silence-s", str(SILENCE_S))


def by_name(address: str) -> str:
    """That is in certificates."""
    return address.replace("127.0.0.1", "localhost")


def port(address: str) -> int:
    return int(address.rpartition(":")[2])


@asynccontextmanager
async def static_fleet(folder: Path, serve: Serve) -> AsyncIterator[tuple[Fleet, list[CuttingProxy], Served]]:
    fleet = Fleet(folder)
    async with (
        listening(fleet.engines),
        CuttingProxy(port(fleet.tcp.address)) as tcp,
        CuttingProxy(port(fleet.grpc.address)) as grpc,
    ):
        fleet.far = [f"localhost:{port(tcp.url)}", f"grpc:tls:localhost:{port(grpc.url)}"]
        fleet.name_all()
        served = await asyncio.to_thread(serve, *fleet.options)
        await whole(served, 4)
        yield fleet, [tcp, grpc], served
        served.tell()
        assert served.ended() == 0, served.log()
        assert "Traceback" not in served.log()
        for engine in fleet.engines:
            engine.tell()
            assert engine.ended() == 0, engine.said
            assert "Traceback" not in "".join(engine.said)


@contextmanager
def with_another_token(fleet: Fleet) -> Iterator[list[str]]:
    """Where engines listen that have one, by a socket and by gRPC."""
    _, cert, _, key, _, known = fleet.certified
    pems = Certificates(known, cert, key).contents()
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as other:
        doors: list[Door] = [SocketDoor(one), GrpcDoor(other, pems)]
        listeners = [Listener(door, "another", HELLO, lambda commands: None) for door in doors]
        yield [by_name(door.address) for door in doors]
        for listener in listeners:
            listener.leave()


async def until_said(served: Served, words: str) -> None:
    try:
        async with asyncio.timeout(PATIENCE_S):
            while words not in served.log():  # noqa: ASYNC110 - of another process
                await asyncio.sleep(POLL_S)
    except TimeoutError:
        raise AssertionError(f"it never said {words!r}, but {served.log()}") from None


async def test_engines_of_others_are_used_left_and_upgraded_under_streams(
    tmp_path: Path, serve: Serve
) -> None:
    """One test for all, since engines take their time to start."""
    async with static_fleet(tmp_path, serve) as (fleet, proxies, served), client_of(served.url) as client:
        truth = await whole_text(client)

        long = await started(client, 12, max_tokens=4000)
        await far(long[-1], 5)
        fleet.name(fleet.unix.address)
        await served.until(lambda now: now["midstream_engines"] == 1)
        fleet.name_all()
        await whole(served, 4)
        for engine in fleet.engines:
            before = await restarts(served)
            engine.tell()
            assert await asyncio.to_thread(engine.ended) == 0
            engine.start()
            await whole(served, 4, before + 1)
        before = await restarts(served)
        for proxy in proxies:
            proxy.cut("reset")
        await whole(served, 4, before + 2)
        for proxy in proxies:
            proxy.cut("silence")  # and nobody hears that it was: engines have their gateway twice for a while
        await whole(served, 4, before + 4)
        await client.roundtrip()
        await go_on_and_say_the_same(client, long)
        assert all(stream.text.startswith(truth) for stream in long)
        assert any(len(paused(stream)) >= 2 for stream in long), "they had to move"

        with with_another_token(fleet) as addresses:
            fleet.name(fleet.unix.address, *addresses)
            for address in addresses:
                await until_said(served, f"{address} does not start: its token is not this engine's; trying")
        fleet.name(fleet.unix.address, "nowhere")
        await until_said(served, "has 'nowhere', which is no address")
        assert await whole_text(client, "again") == truth
        assert served.log().count("its token is not this engine's") == 2
