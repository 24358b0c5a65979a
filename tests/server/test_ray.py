"""Engines that Ray keeps on machines, under a gateway that knows no Ray: whatever dies, streams go on with
the text that they would have had, and the fleet is whole again.

The machines are booted once for all tests, which break them one after the other.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, nullcontext, suppress
from importlib.util import find_spec
from pathlib import Path
from shutil import which
from tempfile import TemporaryDirectory

import pytest
from websockets import ConnectionClosed, WebSocketException

from tests.fakes.paper_model import paper_folder
from tests.server.independent_client import Client, Stream, client_of
from tests.server.ray_fleet import ENGINES, POLL_S, TOY, Fleet, free_port, redis_server
from tests.server.server_process import PATIENCE_S, environment
from tests.server.streams_that_move import far, go_on_and_say_the_same, paused, started
from tests.server.test_several_gateways_command import KEPT

pytestmark = [
    pytest.mark.ray,
    pytest.mark.timeout(600),  # whatever it waits for is waited for with patience
    pytest.mark.skipif(find_spec("ray") is None, reason="it is about Ray, which is not installed"),
]
PART = {"credit": {"limit": 20}, "grace_ms": 600_000}  # of what it would say; Ray may take its time
HAS_REDIS = which("redis-server") is not None
ELASTIC = """
[models.elastic]
source = "toy"
replicas = {min = 1, max = 2, first_token = "0.5s"}
keep_alive = "2s"
threads = 1
toy_step_ms = 30

[models.cramped]
source = "toy"
keep_alive = "60s"
threads = 1
kv_tokens = 31
"""


@pytest.fixture(scope="module")
def fleet() -> Iterator[Fleet]:
    with TemporaryDirectory() as folder, redis_server() if HAS_REDIS else nullcontext("") as redis:
        fleet = Fleet(Path(folder), TOY + ELASTIC, redis)
        try:
            yield fleet
            fleet.served.tell()
            assert fleet.served.ended() == 0, fleet.served.log()
            assert "Traceback" not in fleet.served.log()
        finally:
            fleet.end()


@asynccontextmanager
async def streams_that_go_on(fleet: Fleet) -> AsyncIterator[None]:
    """Six are read all the while, and move on behind it; they say the same."""
    await fleet.until(ENGINES)
    async with client_of(fleet.served.url) as client:
        streams = await started(client, 6, max_tokens=4000)
        reading = asyncio.create_task(keep_reading(streams))
        yield
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
        assert reading.cancelled(), reading.exception()
        await go_on_and_say_the_same(client, streams)


async def keep_reading(streams: Sequence[Stream]) -> None:
    while True:
        for stream in streams:
            await far(stream, stream.index + 1)


async def in_a_thread(work: Callable[[], str]) -> str:
    return await asyncio.to_thread(work)


async def test_engines_are_placed_found_scaled_and_rolled_under_streams(fleet: Fleet) -> None:
    await fleet.until(ENGINES)
    said = await in_a_thread(lambda: fleet.told("status"))
    assert said.count(" ready ") == ENGINES
    assert "failed" not in said
    async with streams_that_go_on(fleet):
        await in_a_thread(lambda: fleet.told("scale", f"toy={ENGINES - 1}"))
        await fleet.until(ENGINES - 1)
        said = await in_a_thread(lambda: rolled_by_one_at_a_time(fleet))
        assert said.count("is started") == said.count("has handed over") - 1 == ENGINES - 2
        with half_ended(fleet) as is_free:
            said = await in_a_thread(lambda: fleet.told("scale", f"toy={ENGINES}"))
            assert said.count("is started") == 2
            assert is_free()
        said = await in_a_thread(lambda: scaled_behind_a_killed_roll(fleet))
        assert said.count("is ended") <= 1, "Ray may not have heard yet of the new engine"
        await fleet.until(ENGINES)
    assert (await in_a_thread(lambda: fleet.told("status"))).count(" ready ") == ENGINES


@contextmanager
def begun_roll(fleet: Fleet) -> Iterator[subprocess.Popen[str]]:
    """From when its first engine is started."""
    words = fleet.words("roll", "toy")
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=environment()) as roll:
        assert roll.stdout is not None
        assert "is started" in roll.stdout.readline()
        yield roll


def rolled_by_one_at_a_time(fleet: Fleet) -> str:
    """What it says behind its first line."""
    with begun_roll(fleet) as roll:
        other = fleet.tell("scale", "toy=1")
        assert other.returncode == 1
        assert f"midstream: `midstream fleet roll`, process {roll.pid} on " in other.stderr
        assert other.stderr.endswith(", is at work on this fleet: wait until it is done\n")
        assert "it is being rolled" in fleet.tell("status").stdout
        assert roll.stdout is not None
        said = roll.stdout.read()
    assert roll.returncode == 0
    return said


HALF_ENDED = """
import sys, time, ray
from keeper.ledger import NAMESPACE
from ray.util import list_named_actors, placement_group, get_placement_group
ray.init(sys.argv[1], namespace=NAMESPACE, log_to_driver=False)
placement_group([{"CPU": 1.0}], name="toy#99", lifetime="detached")
name = min(name for name in list_named_actors() if name.startswith("toy#"))
ray.get_actor(name).leave.remote()
while name in list_named_actors():
    time.sleep(0.05)
print(flush=True)
sys.stdin.readline()
try:
    get_placement_group("toy#99")
except ValueError:
    print("free", flush=True)
"""


@contextmanager
def half_ended(fleet: Fleet) -> Iterator[Callable[[], bool]]:
    """As by commands that were killed: an engine was told to leave and is waited for by nobody, and there is
    room for one that is nowhere. What is given tells whether that is free."""
    words = [sys.executable, "-c", HALF_ENDED, fleet.address]
    with subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment()
    ) as one:
        assert one.stdout is not None
        assert one.stdout.readline() == "\n"
        yield lambda: one.communicate("\n")[0] == "free\n"


def scaled_behind_a_killed_roll(fleet: Fleet) -> str:
    """It has the fleet in hand no more, and what it began is undone."""
    with begun_roll(fleet) as roll:
        roll.kill()
    done = fleet.tell("scale", f"toy={ENGINES}")  # Ray may not have heard yet that it is gone
    while "is at work" in done.stderr:
        done = fleet.tell("scale", f"toy={ENGINES}")
    assert done.returncode == 0, done.stderr
    assert "it is being rolled" not in fleet.tell("status").stdout
    return done.stdout


@asynccontextmanager
async def its_gateway(fleet: Fleet) -> AsyncIterator[str]:
    """One that Ray keeps, where it listens; gone behind it, however that ends: it has a processor that
    engines could have."""
    host, port = fleet.address.rpartition(":")[0], free_port()
    options = ("--port", str(port), "--insecure-open", "--engine-silence-s", "1")
    await in_a_thread(lambda: fleet.up("--gateways", "1", "--", *options))
    try:
        await until_open(f"ws://{host}:{port}/v1/realtime")
        yield f"{host}:{port}"
    finally:
        await in_a_thread(lambda: fleet.told("scale", "gateway=0"))
    assert not await asyncio.to_thread(fleet.gateways)


async def test_a_gateway_that_ray_keeps_may_die_and_be_replaced(fleet: Fleet) -> None:
    async with its_gateway(fleet) as address:
        url = f"ws://{address}/v1/realtime"
        async with client_of(url) as client:
            (whole,) = await started(client, 1, max_tokens=60)
            streams = [await client.start(f"{number}", **(KEPT | PART)) for number in range(4)]
            for stream in streams:
                await stream.until_index(10)
            await whole.rest()
            (gateway,) = await asyncio.to_thread(fleet.gateways)
            os.kill(gateway, signal.SIGKILL)
            with pytest.raises(ConnectionClosed):
                await client.next()  # which none is of: all are of streams
        await until_open(url)
        assert await where_its_gateway_is(fleet) == address
        said = await in_a_thread(lambda: fleet.told("roll", "gateway"))
        assert said.splitlines() == [
            "gateway#1 is started, and asks for 1 CPU",
            "gateway#0 has handed over, and is ended",
        ]
        async with client_of(url) as client:
            adopted = [client.adopt(stream) for stream in streams]
            for stream, lost in zip(adopted, streams, strict=True):
                await stream.send("attach", after=lost.events[-1]["seq"])
                await stream.send("credit", limit=1000)
            for stream in adopted:
                await stream.rest()
            assert {stream.text for stream in adopted} == {whole.text}


async def until_open(url: str) -> None:
    """To ask `midstream fleet` all the while would take the processor from what is waited for."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            with suppress(OSError, WebSocketException):
                async with client_of(url):
                    return
            await asyncio.sleep(POLL_S)


async def where_its_gateway_is(fleet: Fleet) -> str:
    """Once it is ready."""
    address = None
    while address is None:
        said = (await asyncio.to_thread(fleet.tell, "status")).stdout
        address = re.search(r"^gateway#\d+ +ready +(\S+)$", said, re.MULTILINE)
    return address[1]


async def prompts(url: str, worker: int) -> None:
    """One behind the other, each to be computed from its beginning."""
    async with client_of(url) as client:
        for number in itertools.count():
            await prompt(client, f"prompt {worker} {number}")


async def prompt(client: Client, name: str) -> None:
    params = {"max_tokens": 2, "ignore_eos": True}
    stream = await client.start(name, prompt=name * 150, model="elastic", params=params, credit={"limit": 9})
    assert (await stream.rest())["finish_reason"] == "length"


async def test_a_model_comes_grows_shrinks_and_goes_with_its_load(fleet: Fleet) -> None:
    async with client_of(fleet.served.url) as client:
        params = {"max_tokens": 4000, "ignore_eos": True, "temperature": 0}
        reader = await client.start("reader", model="elastic", params=params, credit={"limit": 8000})
        assert (await reader.until("paused"))["reason"] == "loading"
        await far(reader, 5)
        load = [asyncio.create_task(prompts(fleet.served.url, worker)) for worker in range(16)]
        await fleet.until(2, "elastic")
        for task in load:
            task.cancel()
        await asyncio.gather(*load, return_exceptions=True)
        assert all(task.cancelled() for task in load), "each prompt had its whole answer until then"
        await fleet.until(1, "elastic")
        await far(reader, reader.index + len(client.heard("reader")) + 5)
        await reader.send("cancel")
        await reader.rest()
        assert paused(reader)[0] == "loading"
        assert set(paused(reader)[1:]) <= {"engine"}
        await fleet.until(0, "elastic")


async def test_one_that_has_gone_comes_again_and_nobody_waits_for_one_that_cannot_start(fleet: Fleet) -> None:
    params = {"max_tokens": 5, "ignore_eos": True}
    async with client_of(fleet.served.url) as client:
        late, stream = [
            await client.start(model, model=model, params=params, credit={"limit": 9})
            for model in ("elastic", "cramped")
        ]
        assert (await late.rest())["finish_reason"] == "length"
        assert paused(late) == ["loading"]
        final = await stream.rest()
        assert (paused(stream), final["finish_reason"]) == (["loading"], "error")
        assert final["stop_reason"] == "the model could not be loaded"
    await fleet.until(0, "elastic")
    seen = await asyncio.to_thread(fleet.tell, "status")
    assert "cramped#0  failed: the engine does not start: --kv-tokens is 31; it must be" in seen.stdout
    assert "cramped#0 does not start: " in fleet.served.log()
    await in_a_thread(lambda: fleet.told("scale", "cramped=0"))


async def test_what_no_machine_has_is_told_and_an_engine_may_die_meanwhile(
    fleet: Fleet, tmp_path: Path
) -> None:
    greedy = tmp_path / "models.toml"
    wide = f'[models.wide]\nsource = "{paper_folder(tmp_path)}"\nkv_tokens = {10**9}\n'
    greedy.write_text(TOY + '[models.big]\nsource = "toy"\ndevice = "cuda"\ndevices = 8\n' + wide)
    token = tmp_path / "token"
    token.write_text("sesame")
    words = ("up", "--models", str(greedy), "--token-file", str(token))
    async with streams_that_go_on(fleet):
        up = asyncio.create_task(in_a_thread(lambda: fleet.told(*words)))
        await fleet.struck(fleet.actors()[:1], signal.SIGKILL)
        await up
    seen = await asyncio.to_thread(fleet.tell, "status")
    assert seen.returncode == 1
    assert "big#0   waits: no machine has 1 CPU, 8 GPUs and 0.4 GiB of memory" in seen.stdout
    assert "wide#0  waits: no machine has 1 CPU and 715.6 GiB of memory" in seen.stdout
    gone = await in_a_thread(lambda: fleet.told("scale", "big=0", "wide=0"))
    assert sorted(gone.splitlines()) == [f"{one}#0 had no machine, and is ended" for one in ("big", "wide")]
    assert (await in_a_thread(lambda: fleet.told("status"))).count(" ready ") == ENGINES


async def test_a_machine_may_die(fleet: Fleet) -> None:
    async with streams_that_go_on(fleet):
        await fleet.struck(fleet.machine(), signal.SIGKILL)


async def test_a_machine_may_freeze(fleet: Fleet) -> None:
    async with streams_that_go_on(fleet):
        frozen = fleet.machine()
        try:
            await fleet.struck(frozen, signal.SIGSTOP)
        finally:
            for process in frozen:
                os.kill(process, signal.SIGKILL)


@pytest.mark.skipif(not HAS_REDIS, reason="it is about Redis: install redis-server")
async def test_a_gcs_that_has_what_it_knows_in_redis_comes_back_to_its_fleet(fleet: Fleet) -> None:
    async with streams_that_go_on(fleet):
        for process in (fleet.gcs, fleet.actors()[0]):
            os.kill(process, signal.SIGKILL)
        await fleet.until_felt()
        await asyncio.to_thread(fleet.do, "head again")
        await fleet.until(ENGINES)
    said = await in_a_thread(lambda: fleet.told("status"))
    assert said.count(" ready ") == ENGINES


async def test_ray_may_die_and_streams_go_on_and_new_ones_are_taken(fleet: Fleet) -> None:
    async with streams_that_go_on(fleet):
        os.kill(fleet.gcs, signal.SIGKILL)
        async with client_of(fleet.served.url) as client:
            (late,) = await started(client, 1)
            assert (await late.rest())["finish_reason"] == "length"
    seen = await asyncio.to_thread(fleet.tell, "status")
    assert seen.returncode == 1
    assert seen.stderr.startswith(f"midstream: there is no Ray at {fleet.address}: ")
