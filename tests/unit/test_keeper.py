"""The keeper of engines, but for Ray: plans, what is done to follow them, and what is told of it."""

from __future__ import annotations

import asyncio
import itertools
import signal
import sys
import time
from asyncio.subprocess import PIPE
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from unittest.mock import MagicMock

import msgspec
import pytest

from engine.api import Outline
from keeper import addresses_file, command, fleet
from keeper.addresses_file import AddressesFileError
from keeper.agent import Agent
from keeper.autoscaler import Autoscaler
from keeper.fleet import Fleet
from keeper.gateways import Said
from keeper.plan import GIB, Kept, Machine, ModelPlan, Need, Plan, PlanError, Range, planned
from keeper.status import Seen
from realtime.backoff import Backoff
from realtime.bind import StartupError, tell
from realtime.config import Options, parse, parse_listening
from realtime.fleet import ray_agent
from realtime.fleet.models_file import entries
from realtime.fleet.place import PlaceError
from realtime.fleet.ray_agent import RayAgent
from realtime.hub.demand import NOWHERE, Demand, Wait
from realtime.hub.placement import Placement
from realtime.pieces import in_one
from tests.fakes.kept_engines import KeptEngines

ONE_CPU = Need(1, 0)


def plan(**counts: int) -> Plan:
    return Plan("sesame", {name: ModelPlan(count, [name], ONE_CPU) for name, count in counts.items()})


def of_file(folder: Path, text: str) -> Plan:
    file = folder / "models.toml"
    file.write_text(text)
    models = entries(Options(models=str(file)))
    outline = Outline("/models", 464, 8192, grammars=True, memory_bytes=3 * GIB)
    return planned(models, {entry.name: outline for entry in models}, "sesame")


def keeping(room: int = 100) -> tuple[Fleet, KeptEngines, list[str]]:
    engines, said = KeptEngines(room), list[str]()
    return Fleet(engines, engines, said.append), engines, said


def rolled(keeper: Fleet, models: list[str]) -> None:
    keeper.roll(models, begun=lambda: None)


# -- plans -----------------------------------------------------------------------------------------


def test_a_plan_says_what_each_engine_is_started_by_and_asks_for(tmp_path: Path) -> None:
    found = of_file(
        tmp_path,
        '[models.small]\nsource = "toy"\nreplicas = 3\ncontext = 512\nthreads = 4\n'
        '[models.large]\nsource = "/models/large"\ndevice = "cuda"\ndevices = 2\n',
    )
    small, large = found.models["small"], found.models["large"]
    assert (small.engines, small.need, large.engines) == (3, Need(4, 0, 3 * GIB), 1)
    assert str(small.need) == "4 CPUs and 3.0 GiB of memory"
    assert str(large.need) == "1 CPU, 2 GPUs and 3.0 GiB of memory"
    options = parse_listening([*large.arguments, "--listen", "unix:/a"], {})
    assert (options.model, options.model_name, options.devices) == ("/models/large", "large", 2)
    assert options.threads == 1, "it takes no more of a machine than it asks for"


def test_which_gpu_of_a_machine_is_not_for_the_file_to_say(tmp_path: Path) -> None:
    says = "which of a machine's GPUs an engine has is Ray's to say: make it \"cuda\""
    with pytest.raises(PlanError, match=says):
        of_file(tmp_path, '[models.small]\nsource = "toy"\ndevice = "cuda:1"\n')


def ranges(of: Plan) -> dict[str, tuple[int, int, int]]:
    return {name: (model.engines, model.least, model.most) for name, model in of.models.items()}


def test_a_plan_says_how_many_engines_there_may_be_and_which_models_sleep(tmp_path: Path) -> None:
    found = of_file(
        tmp_path,
        '[models.a]\nsource = "toy"\nreplicas = 2\n'
        '[models.b]\nsource = "toy"\nreplicas = {min = 2, max = 8, first_token = "3s"}\n'
        '[models.c]\nsource = "toy"\nreplicas = 3\nkeep_alive = "5m"\n',
    )
    assert ranges(found) == {"a": (2, 2, 2), "b": (2, 2, 8), "c": (0, 3, 3)}
    assert [model.scales for model in found.models.values()] == [False, True, True]
    assert (found.models["b"].first_token_s, found.models["c"].keep_alive_s) == (3.0, 300.0)
    grown = found.with_engines({"b": 5, "c": 3})
    assert ranges(found.going_on_from(grown)) == {"a": (2, 2, 2), "b": (5, 2, 8), "c": (3, 3, 3)}
    assert ranges(found.going_on_from(None)) == ranges(found)
    told = grown.ranged({"a": Range(1, 4), "b": Range(1, 3), "c": Range(0, 0)})
    assert ranges(told) == {"a": (2, 1, 4), "b": (3, 1, 3), "c": (0, 0, 0)}
    assert ranges(found.ranged({"c": Range(1, 4)}))["c"] == (0, 1, 4), "it sleeps on"


def test_scaling_a_model_that_is_not_there_is_refused() -> None:
    with pytest.raises(PlanError, match='no model "c" in this fleet; there is a, b'):
        plan(a=1, b=1).ranged({"c": Range(2, 2)})


# -- what is done ----------------------------------------------------------------------------------


def test_a_plan_is_followed_with_as_little_as_it_takes() -> None:
    keeper, engines, said = keeping()
    keeper.follow(plan(a=2, b=1))
    keeper.follow(plan(a=3))
    keeper.follow(plan(a=1))
    assert engines.done == ["+a#0", "+a#1", "+b#0", "-b#0", "+a#2", "-a#2", "-a#1"]
    assert said[0] == "a#0 is started, and asks for 1 CPU"
    assert said[3] == "b#0 has handed over, and is ended"


def test_other_options_are_told_to_need_a_roll_which_gives_them() -> None:
    keeper, engines, said = keeping()
    keeper.follow(plan(a=2))
    keeper.follow(Plan("sesame", {"a": ModelPlan(2, ["other"], ONE_CPU)}))
    assert (
        said[-1]
        == 'engines of "a" that run have their former options: `midstream fleet roll` gives them these'
    )
    rolled(keeper, [])
    assert engines.done[2:] == ["+a#2", "-a#0", "+a#3", "-a#1"], "one by one, and the new one first"
    assert engines.started == {"a#2": ["other"], "a#3": ["other"]}


def test_where_there_is_no_room_for_both_the_old_engine_goes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet, "PLACED_WITHIN_S", 0.0)
    keeper, engines, said = keeping(room=1)
    keeper.follow(plan(a=1))
    rolled(keeper, ["a"])
    assert engines.done == ["+a#0", "+a#1", "-a#0"]
    assert "no machine has room for a#1 beside the others: a#0 goes first" in said


def test_a_roll_stops_at_the_first_engine_that_does_not_start() -> None:
    keeper, engines, _ = keeping()
    keeper.follow(plan(a=2))
    engines.fails = "the model is not there"
    with pytest.raises(
        PlanError, match="a#2 does not start, and the others stay as they are: the model is not"
    ):
        rolled(keeper, [])
    assert set(engines.started) == {"a#0", "a#1", "a#2"}


def test_a_roll_ends_what_one_that_was_killed_has_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would have the room for which the next one waits."""
    monkeypatch.setattr(fleet, "PLACED_WITHIN_S", 0.0)
    keeper, engines, _ = keeping(room=2)
    keeper.follow(plan(a=1, b=1))
    engines.start("a#1", ONE_CPU, ["a"], "")
    engines.start("a#2", ONE_CPU, ["a"], "")
    rolled(keeper, ["a"])
    assert engines.done[4:] == ["-a#2 which was nowhere", "-a#1 which was nowhere", "+a#1", "-a#0"]


def test_a_fleet_that_goes_is_forgotten_and_then_there_is_none() -> None:
    keeper, engines, _ = keeping(room=1)
    keeper.follow(plan(a=2))
    keeper.down()
    assert engines.done[2:] == ["-a#0", "-a#1"]
    for told in (keeper.plan, lambda: rolled(keeper, [])):
        with pytest.raises(PlanError, match="no fleet here yet: `midstream fleet up` brings one up"):
            told()


# -- gateways beside them --------------------------------------------------------------------------


def test_gateways_are_kept_as_engines_are_and_stay_where_nothing_is_said_of_them() -> None:
    keeper, engines, said = keeping()
    keeper.follow(plan(a=1).with_gateways(2, ["--port", "8000"]))
    keeper.follow(plan(a=2).going_on_from(keeper.plan()))
    assert engines.done == ["+a#0", "+gateway#0", "+gateway#1", "+a#1"]
    assert engines.started["gateway#0"] == ["--port", "8000", "--share-port", "true"]
    keeper.follow(plan(a=2).with_gateways(2, ["--port", "9000"]).going_on_from(keeper.plan()))
    assert said[-1] == (
        "gateways that run have their former options: `midstream fleet roll` gives them these"
    )
    rolled(keeper, ["gateway"])
    assert engines.done[4:] == ["+gateway#2", "-gateway#0", "+gateway#3", "-gateway#1"]
    keeper.follow(keeper.plan().ranged({"gateway": Range(1, 1)}))
    keeper.down()
    assert engines.done[8:] == ["-gateway#3", "-gateway#2", "-a#0", "-a#1"], "nobody comes to those that go"


def test_how_many_gateways_there_are_is_said_and_no_model_has_their_name(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match="of gateways there are as many as is said"):
        plan(a=1).with_gateways(2, []).ranged({"gateway": Range(1, 4)})
    with pytest.raises(PlanError, match='a model of such a fleet cannot be called "gateway"'):
        of_file(tmp_path, '[models.gateway]\nsource = "toy"\n')


# -- more and fewer, as gateways feel it -----------------------------------------------------------


def said(count: int, streams: int = 0, work_s: float = 0.0) -> Said:
    waits = {NOWHERE: Wait(work_s)} if work_s else {}
    return Said(count, {"a": Demand(streams, work_s, waits)})


def test_engines_come_and_go_as_gateways_say() -> None:
    _, engines, lines = keeping()
    engines.set_plan(Plan("sesame", {"a": ModelPlan(0, [], ONE_CPU, 1, 3, keep_alive_s=5.0)}))
    autoscaler = Autoscaler(engines, lines.append)
    for now in (0.0, 100.0):
        autoscaler.look(engines, now)
    assert not lines, "no gateway says anything"
    engines.gateways = {"g": said(0), "h": said(0, streams=1)}
    autoscaler.look(engines, 101.0)
    assert engines.done == ["+a#0"]
    assert lines[0] == '"a" is to have 1 instead of 0'
    engines.gateways = {"g": said(1), "h": said(1)}
    for now in (102.0, 106.0):
        autoscaler.look(engines, now)
    assert list(engines.started) == ["a#0"]
    autoscaler.look(engines, 107.0)
    assert engines.done == ["+a#0", "-a#0"]


def test_a_model_that_is_rolled_does_not_scale_meanwhile_and_others_do() -> None:
    keeper, engines, _ = keeping()
    scaled = ModelPlan(1, [], ONE_CPU, 1, 3, keep_alive_s=5.0)
    asleep = ModelPlan(0, [], ONE_CPU, 1, 3, keep_alive_s=5.0)
    engines.set_plan(Plan("sesame", {"a": scaled, "b": asleep}))
    engines.start("a#0", ONE_CPU, [], "")
    autoscaler, needed = Autoscaler(engines, lambda line: None), Demand(1)
    seen = list[str]()

    def start(name: str, need: Need, arguments: list[str], token: str) -> None:
        KeptEngines.start(engines, name, ONE_CPU, [], "")
        if name.startswith("a"):
            engines.gateways = {"g": Said(0, {"a": Demand(), "b": needed})}
            for now in (0.0, 50.0, 100.0):
                engines.gateways["g"] = Said(int(now), {"a": Demand(), "b": needed})
                autoscaler.look(engines, now)
            seen.extend(engines.done)

    engines.start = start  # type: ignore[method-assign]
    engines.is_in_hand = True
    rolled(keeper, ["a"])
    assert seen == ["+a#0", "+a#1", "+b#0"], "nobody needs a, and it stays; b is woken"
    assert engines.done[3:] == ["-a#0"]
    assert keeper.plan().models["a"].scales, "again"


def test_a_model_scales_again_when_whoever_rolled_it_was_killed() -> None:
    keeper, engines, _ = keeping()
    scaled = Plan("sesame", {"a": ModelPlan(1, [], ONE_CPU, 1, 3)})
    engines.set_plan(scaled.rolled(["a"]))
    autoscaler = Autoscaler(engines, lambda line: None)
    engines.is_in_hand = True
    autoscaler.look(engines, 0.0)
    assert keeper.plan().models["a"].is_rolled
    engines.is_in_hand = False
    autoscaler.look(engines, 1.0)
    assert keeper.plan() == scaled


def test_a_roll_whose_engine_somebody_else_ends_says_so() -> None:
    keeper, engines, _ = keeping(room=0)
    engines.start("a#0", ONE_CPU, [], "")
    engines.set_plan(plan(a=1))
    engines.start = lambda *arguments: None  # type: ignore[method-assign]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fleet, "PLACED_WITHIN_S", 0.0)
        with pytest.raises(PlanError, match="a#1 is gone: somebody else has ended it"):
            rolled(keeper, [])
    assert not keeper.plan().models["a"].is_rolled


def test_a_gateways_word_holds_for_a_while_after_it_has_gone_silent() -> None:
    _, engines, _ = keeping()
    engines.set_plan(Plan("sesame", {"a": ModelPlan(1, [], ONE_CPU, 1, 1, keep_alive_s=5.0)}))
    autoscaler = Autoscaler(engines, lambda line: None)
    engines.start("a#0", ONE_CPU, [], "")
    engines.gateways = {"g": said(0, streams=1), "h": said(0)}
    for now in range(60):
        engines.gateways["h"] = said(now)
        autoscaler.look(engines, now)
    assert (list(engines.started), list(engines.gateways)) == (["a#0"], ["g", "h"])
    for now in range(60, 70):
        engines.gateways["h"] = said(now)
        autoscaler.look(engines, now)
    assert (list(engines.started), list(engines.gateways)) == ([], ["h"])


def test_an_agent_tells_what_its_gateway_says_where_models_scale_and_shows_what_is_new(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, engines, _ = keeping()
    agent = Agent(tmp_path / "engines", "g")
    agent.look(engines)
    assert not capsys.readouterr().out, "there is no fleet"
    engines.set_plan(plan(a=1))
    engines.start("a#0", ONE_CPU, [], "")
    line = msgspec.json.encode(said(0, streams=2, work_s=1.0).demands).decode()
    agent.hear([line])
    agent.look(engines)
    assert not engines.gateways, "nobody would read it"
    shown = msgspec.json.decode(capsys.readouterr().out, type=Placement)
    assert [(one.name, one.state, one.machine) for one in shown.engines] == [("a#0", "ready", "gpu1 m0")]
    engines.set_plan(Plan("sesame", {"a": ModelPlan(1, [], ONE_CPU, 1, 3)}))
    agent.hear([line, line])
    for _ in range(4):
        agent.look(engines)
    assert engines.gateways == {"g": said(1, streams=2, work_s=1.0)}
    (shown,) = (msgspec.json.decode(line, type=Placement) for line in capsys.readouterr().out.splitlines())
    assert [(one.least, one.most) for one in shown.models] == [(1, 3)]
    engines.start("gateway#0", ONE_CPU, [], "")
    agent.look(engines)
    assert (tmp_path / "engines").read_text() == "10.0.0.7:7000\n", "no gateway among them"


async def test_a_gateway_and_its_agent_talk_and_another_agent_takes_the_place_of_one_that_ends(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    monkeypatch.setattr(ray_agent, "AGENT", "tests.fakes.talking_agent")
    monkeypatch.setattr(ray_agent, "find_spec", lambda name: True)
    waits = list[str]()

    class Backoff:
        def __init__(self, **_: float) -> None:
            pass

        def next_s(self) -> float:
            waits.append("waits")
            return 0.0

        def reset(self) -> None:
            waits.append("it went well")

    monkeypatch.setattr(ray_agent, "Backoff", Backoff)
    told = asyncio.Queue[Placement]()
    agent = RayAgent("127.0.0.1:1", tmp_path / "engines")
    looks = itertools.count(1)
    talking = asyncio.create_task(
        agent.keep_running(lambda: in_one(lambda: {"a": Demand(next(looks))}), told.put_nowait)
    )
    async with asyncio.timeout(30):
        first, second = [(await told.get()).models[0] for _ in range(2)]
    talking.cancel()
    await asyncio.wait([talking])
    assert (first.name, first.engines) == ("a", 1)
    assert second.engines > 1
    assert "something else" in caplog.messages
    assert "caf\ufffd" in caplog.messages, "what is no text ends nobody"
    assert "" not in caplog.messages
    assert (
        "the process that asks Ray for engines has ended with status 0; it is started anew" in caplog.messages
    )
    assert waits[:3] == ["it went well", "waits", "it went well"], "by what is no news it did not"


async def test_an_agent_that_has_hung_is_ended_and_another_takes_its_place(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    """Its file of engines would stay as it was, whichever there are."""
    hung = [sys.executable, "-c", "import sys; sys.stdin.read()"]
    monkeypatch.setattr(ray_agent, "with_this_process", lambda *command: hung)
    monkeypatch.setattr(ray_agent, "find_spec", lambda name: True)
    monkeypatch.setattr(ray_agent, "SILENCE_S", 0.05)
    ended = asyncio.Event()

    def next_s(_: Backoff) -> float:
        ended.set()
        return 600.0

    monkeypatch.setattr(Backoff, "next_s", next_s)
    agent = RayAgent("127.0.0.1:1", tmp_path / "engines")
    keeping = asyncio.create_task(agent.keep_running(lambda: in_one(dict), lambda _: None))
    async with asyncio.timeout(30):
        await ended.wait()
    keeping.cancel()
    await asyncio.wait([keeping])
    which = "the process that asks Ray for engines"
    assert f"{which} has said nothing for 0.05 s: it is ended" in caplog.messages
    assert f"{which} has ended with status -9; it is started anew" in caplog.messages


async def test_an_agent_has_not_hung_where_its_gateway_was_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_agent, "SILENCE_S", 0.02)
    loop, stdout = asyncio.get_running_loop(), asyncio.StreamReader()
    process = MagicMock(stdout=stdout)
    loop.call_soon(time.sleep, 2 * ray_agent.SILENCE_S)
    # What it says is due by then, as is its time, and comes to us by another turn of the loop.
    loop.call_later(0.0, loop.call_soon, stdout.feed_data, b"\n")
    assert await ray_agent._next_line(process) == b"\n"
    process.kill.assert_not_called()


@pytest.mark.parametrize(
    ("said", "status", "why"),
    [
        (b'{"a": 7}\n', 1, "what hears the gateway has died, and its process ends"),
        (b"\xff\xfe\n", 1, "what hears the gateway has died, and its process ends"),
        (b"", 0, "there is no Ray at 127.0.0.1:1"),
    ],
)
async def test_an_agent_that_does_not_hear_its_gateway_any_more_ends(
    tmp_path: Path, said: bytes, status: int, why: str
) -> None:
    pytest.importorskip("ray")
    command = [sys.executable, "-m", "keeper.agent", "127.0.0.1:1", str(tmp_path / "engines"), "g"]
    agent = await asyncio.create_subprocess_exec(*command, stdin=PIPE, stdout=PIPE)
    assert agent.stdin is not None
    assert agent.stdout is not None
    if not said:
        await agent.stdout.readuntil(why.encode())
        await agent.stdout.readuntil(b"\n\n\n")  # it has nothing more to say, and lives
        agent.stdin.close()
    else:
        agent.stdin.write(said)
    async with asyncio.timeout(60):
        lines = await agent.stdout.read()
        assert await agent.wait() == status
    assert not said or why in lines.decode()


# -- what is told ----------------------------------------------------------------------------------


def test_the_status_names_machines_engines_and_what_nobody_has() -> None:
    a = ModelPlan(4, [], ONE_CPU, 2, 4, keep_alive_s=60.0)
    wanted = Plan("sesame", {"a": a, "b": ModelPlan(1, [], Need(1, 2, 48 * GIB))})
    seen = Seen(
        wanted,
        {"0123456789": Machine("gpu1", 8, 4, 32 * GIB), "abcdefabcd": Machine("gpu2", 8, 0, 64 * GIB)},
        {"a#0": True, "a#1": True, "a#2": False, "b#0": False},
        {
            "a#0": Kept("ready", "0123456789", "10.0.0.7:7000"),
            "a#1": Kept("failed", "abcdefabcd", why="the model is not there"),
        },
    )
    assert seen.lines() == [
        "MACHINE      CPUS  GPUS  MEMORY    RUNS",
        "gpu1 012345  8     4     32.0 GiB  a#0",
        "gpu2 abcdef  8     0     64.0 GiB  a#1",
        "",
        "ENGINE  STATE                                                       ADDRESS",
        "a#0     ready                                                       10.0.0.7:7000",
        "a#1     failed: the model is not there                              -",
        "a#2     waits for a machine with 1 CPU to spare                     -",
        "b#0     waits: no machine has 1 CPU, 2 GPUs and 48.0 GiB of memory  -",
        "",
        "MODEL  ENGINES  IS TO HAVE  MAY HAVE",
        "a      1        4           2 to 4, or none",
        "b      0        1           1",
    ]
    assert not seen.is_whole
    whole = Seen(plan(a=1), seen.machines, {"a#0": True}, seen.kept)
    assert whole.is_whole
    assert not whole._replace(placed={"a#0": False}).is_whole, "its machine has died"


def test_gateways_are_shown_beside_engines_and_are_none() -> None:
    seen = Seen(
        plan(a=1).with_gateways(2, []),
        {"0123456789": Machine("gpu1", 8, 4, 32 * GIB)},
        {"a#0": True, "gateway#0": True, "gateway#1": False},
        {
            "a#0": Kept("ready", "0123456789", "10.0.0.7:7000"),
            "gateway#0": Kept("ready", "0123456789", "10.0.0.7:8000"),
        },
    )
    assert seen.lines() == [
        "MACHINE      CPUS  GPUS  MEMORY    RUNS",
        "gpu1 012345  8     4     32.0 GiB  a#0, gateway#0",
        "",
        "ENGINE  STATE  ADDRESS",
        "a#0     ready  10.0.0.7:7000",
        "",
        "MODEL  ENGINES  IS TO HAVE  MAY HAVE",
        "a      1        1           1",
        "",
        "GATEWAY    STATE                                    ADDRESS",
        "gateway#0  ready                                    10.0.0.7:8000",
        "gateway#1  waits for a machine with 1 CPU to spare  -",
    ]
    assert not seen.is_whole
    assert [one.name for one in seen.placement.engines] == ["a#0"]
    assert [one.name for one in seen.placement.models] == ["a"]


def test_addresses_are_written_where_they_change_and_as_a_whole(tmp_path: Path) -> None:
    file = tmp_path / "engines"
    addresses_file.write(file, ["10.0.0.7:7000", "10.0.0.8:7000"])
    assert file.read_text() == "10.0.0.7:7000\n10.0.0.8:7000\n"
    before = file.stat().st_ino
    addresses_file.write(file, ["10.0.0.7:7000", "10.0.0.8:7000"])
    assert file.stat().st_ino == before
    file.write_bytes(b"\xff")
    addresses_file.write(file, [])
    assert (file.read_text(), list(tmp_path.iterdir())) == ("", [file])


def test_a_file_of_addresses_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    file = tmp_path / "none" / "engines"
    with pytest.raises(AddressesFileError, match=f"the file {file} cannot be written: No such file"):
        addresses_file.write(file, ["10.0.0.7:7000"])


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["status"], "no Ray was named: say --ray HOST:PORT, or set MIDSTREAM_RAY"),
        (["status", "--ray", "here"], "'here' is no address; it must be HOST:PORT, such as 10.0.0.7:6379"),
        (["scale", "a"], "'a' is none; it must be MODEL=N, with N from 0 to 1024, or MODEL=N..M, with N"),
        (["scale", "a=1025"], "'a=1025' is none"),
        (["scale", "a=3..2"], "'a=3..2' is none"),
        (["scale", "a=0..2"], "'a=0..2' is none"),
    ],
)
def test_what_is_wrong_on_the_command_line_is_said(
    capsys: pytest.CaptureFixture[str], arguments: list[str], says: str
) -> None:
    with pytest.raises(SystemExit):
        command.main(arguments, {})
    assert says in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--port", "8000"], "midstream: --port 8000 is for gateways: say how many, by --gateways N"),
        (["--gateways", "0"], "'0' is none; it must be a number from 1 to 1024"),
        (["--gateways", "2", "--", "--prt", "8000"], "unrecognized arguments: --prt 8000"),
        (["--gateways", "2"], "there are no keys: give --keys-file"),
    ],
)
def test_what_is_wrong_with_gateways_options_is_said_before_any_starts(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, arguments: list[str], says: str
) -> None:
    pytest.importorskip("ray")
    (tmp_path / "token").write_text("sesame")
    files = ["--models", str(tmp_path / "none"), "--token-file", str(tmp_path / "token")]
    options = arguments if "--gateways" in arguments else ["--", *arguments]
    with suppress(SystemExit):
        assert command.main(["up", "--ray", "127.0.0.1:1", *files, *options], {}) == 1
    assert says in capsys.readouterr().err


def test_a_command_where_no_machine_of_rays_is_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    ray = pytest.importorskip("ray")
    from keeper.ray_cluster import driver_of

    def nowhere(*_: object, **__: object) -> None:
        raise ConnectionError("Failed to connect to Ray cluster at 10.0.0.7:6379")

    monkeypatch.setattr(ray, "init", nowhere)
    says = "no machine of the Ray at 10.0.0.7:6379 is here, and `midstream fleet up` has to be said on one"
    with pytest.raises(PlanError, match=says), driver_of("10.0.0.7:6379", "`midstream fleet up`"):
        raise AssertionError


def test_a_command_that_hears_sigterm_gives_the_fleet_out_of_hand_and_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ray = pytest.importorskip("ray")
    from keeper import ray_cluster

    done = list[str]()

    @contextmanager
    def in_hand(who: str) -> Iterator[None]:
        try:
            yield
        finally:
            done.append("it is in hand no more")

    monkeypatch.setattr(ray, "init", lambda *_, **__: None)
    monkeypatch.setattr(ray, "shutdown", lambda: done.append("Ray is left"))
    monkeypatch.setattr(ray_cluster, "_in_hand", in_hand)
    before = signal.getsignal(signal.SIGTERM)
    try:
        with pytest.raises(SystemExit) as ended, ray_cluster.driver_of("10.0.0.7:6379", "a command"):
            signal.raise_signal(signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert ended.value.code == 143
    assert done == ["it is in hand no more", "Ray is left"]


def test_where_ray_is_said_to_be_is_a_name_of_a_machine_or_the_command_says_so(
    capsys: pytest.CaptureFixture[str],
) -> None:
    pytest.importorskip("ray")
    assert command.main(["status", "--ray", "gpu1..example:6379"], {}) == 1
    said = capsys.readouterr().err
    assert said.startswith("midstream: there is no Ray at gpu1..example:6379: ")
    assert "(its host is no name of a machine)" in said


def test_in_a_job_of_rays_it_is_the_jobs_own(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("ray")
    assert command.main(["status"], {"RAY_ADDRESS": "127.0.0.1:1"}) == 1
    assert "there is no Ray at 127.0.0.1:1: " in capsys.readouterr().err
    for another in ("auto", "http://127.0.0.1:8265"):  # what drivers, and those who submit jobs, have there
        with pytest.raises(SystemExit):
            command.main(["status"], {"RAY_ADDRESS": another})
        assert "no Ray was named" in capsys.readouterr().err


def test_where_ray_is_missing_both_sides_say_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    for module in ("ray", "keeper.ledger"):
        monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.setattr(ray_agent, "find_spec", lambda name: None)
    assert command.main(["status", "--ray", "127.0.0.1:1"], {}) == 1
    assert command.main(["try"], {}) == 1
    needs = "needs Ray; in a clone of Midstream, install it with: pip install ./clients/python '.[ray]'"
    assert capsys.readouterr().err == f"midstream: `midstream fleet` {needs}\n" * 2
    with pytest.raises(PlaceError) as refused:
        RayAgent("127.0.0.1:1", tmp_path / "engines")
    assert str(refused.value) == f"--fleet ray {needs}"


@pytest.mark.parametrize(
    "options",
    [["--fleet", "ray"], ["--ray", "a:1"], ["--fleet", "ray", "--ray", "a:1", "--engine-addresses", "b:2"]],
)
def test_a_gateway_has_ray_say_where_all_engines_are_or_none(
    capsys: pytest.CaptureFixture[str], options: list[str]
) -> None:
    with pytest.raises(SystemExit):
        parse(options, {})
    assert "--fleet ray and --ray belong together" in capsys.readouterr().err


def test_an_engine_writes_where_it_listens_and_says_where_it_cannot(tmp_path: Path) -> None:
    tell(str(tmp_path / "address"), "10.0.0.7:7000")
    assert (tmp_path / "address").read_text() == "10.0.0.7:7000\n"
    nowhere = tmp_path / "none" / "address"
    with pytest.raises(StartupError, match=f"{nowhere} cannot be written: No such file or directory"):
        tell(str(nowhere), "10.0.0.7:7000")
