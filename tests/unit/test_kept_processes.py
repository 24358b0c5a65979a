"""Whoever keeps a process keeps it also where the system lacks for a while what one takes."""

from __future__ import annotations

import asyncio
import errno
import os
import re
import signal
import sys
from pathlib import Path
from queue import SimpleQueue
from threading import Event
from typing import Any, cast

import pytest

from engine import api
from keeper import kept_process
from keeper.kept_process import KeptProcess, Place
from keeper.plan import Kept as Told
from realtime import several_gateways
from realtime.__main__ import main
from realtime.config import ListenOptions, ModelOptions, Options
from realtime.fleet.long_start import STILL_S
from realtime.fleet.models_file import ModelEntry
from realtime.fleet.outlines import outlines
from realtime.fleet.watched_engine import EngineFailed
from realtime.several_gateways import Kept, KeptEngine, NotStartedError, SeveralGateways
from tests.ops.shutdown import AFTER_GRACE_S


class Context:
    gcs_address = "127.0.0.1:1"

    def get_node_id(self) -> str:
        return "m0"


LACKING = OSError(errno.EAGAIN, "Resource temporarily unavailable")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "the engine does not start: the machine lacks what it takes: {}"),
        (["--gateways", "2"], "engine 0 cannot be started: {}"),
        (
            ["--gateways", "2", "--fleet", "static", "--engine-addresses", "unix:/none"],
            "gateway 0 cannot be started: {}",
        ),
    ],
)
def test_where_no_process_can_be_started_at_all_that_is_said_in_a_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    async def lacking(*_: object, **__: object) -> None:
        raise LACKING

    monkeypatch.setattr("asyncio.create_subprocess_exec", lacking)
    assert main([*words, "--model", "toy", "--port", "0", "--engine-spare", "off"]) == 1
    assert capsys.readouterr().err.endswith(f"midstream: {said.format(LACKING.strerror)}\n")


async def test_what_models_are_cannot_be_read_where_no_process_can_be_started(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def lacking(*_: object, **__: object) -> None:
        raise LACKING

    monkeypatch.setattr("asyncio.create_subprocess_exec", lacking)
    with pytest.raises(EngineFailed, match="reads what models are: Resource temporarily unavailable"):
        await outlines({"toy": api.EngineOptions(model="toy")})


async def test_a_gateway_that_cannot_be_started_anew_at_once_is_later(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(several_gateways, "FIRST_WAIT_S", 0.0)
    kept = Kept("gateway 0", [sys.executable, "-c", ""])
    await kept.start()
    start, tries, started = kept.start, list[None](), asyncio.Event()

    async def lacking(**more: Any) -> Any:
        tries.append(None)
        if len(tries) == 1:
            raise LACKING
        process = await start(**more)
        started.set()
        return process

    monkeypatch.setattr(kept, "start", lacking)
    keeping = asyncio.create_task(kept.keep())
    await asyncio.wait_for(started.wait(), 30)
    keeping.cancel()
    await kept.ended()
    assert f"gateway 0 cannot be started: {LACKING}; trying again" in caplog.text


async def test_whoever_keeps_one_and_dies_is_told_of_and_begins_anew(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    """As where no thread is to be had that waits for a process."""
    monkeypatch.setattr(several_gateways, "FIRST_WAIT_S", 0.0)
    several = SeveralGateways(Options(fleet="static", gateways=1), [], tmp_path, 0)
    (gateway,) = several._gateways
    gateway._command = [sys.executable, "-c", ""]
    await gateway.start()
    start, tries, started = gateway.start, list[None](), asyncio.Event()

    async def lacking(**more: Any) -> Any:
        tries.append(None)
        if len(tries) == 1:
            raise RuntimeError("can't start new thread")
        started.set()
        return await start(**more)

    monkeypatch.setattr(gateway, "start", lacking)
    several._keep(gateway)
    await asyncio.wait_for(started.wait(), 30)
    await several.stop()
    assert "the keeper of gateway 0 has died; it is started anew" in caplog.text


async def test_one_that_is_killed_before_it_is_ready_is_told_of(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As where memory is short: it has no time to say why."""
    several = SeveralGateways(Options(fleet="static", gateways=1), [], tmp_path, 0)
    several._gateways[0]._command = [sys.executable, "-c", "import os; os.kill(os.getpid(), 9)"]
    with pytest.raises(NotStartedError, match=r"^gateway 0 has been ended, with status -9$"):
        await several.start()
    await several.stop()


def hanging(says: str = "") -> list[str]:
    """The command of one that also hears no SIGTERM."""
    hangs = f"import signal; signal.pthread_sigmask(signal.SIG_BLOCK, [15]); {says}signal.pause()"
    return [sys.executable, "-c", hangs]


@pytest.mark.parametrize(("fleet", "which"), [("embedded", 'engine 0 of "toy"'), ("static", "gateway 0")])
async def test_one_that_hangs_as_it_starts_is_told_of_and_ended_with_the_others(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, fleet: Any, which: str
) -> None:
    monkeypatch.setattr(several_gateways, "STILL_S", 0.0)
    monkeypatch.setattr(several_gateways, "ENGINE_END_S", 0.0)
    told, said = asyncio.Event(), list[str]()

    def warning(line: str, *values: object) -> None:
        said.append(line % values)
        told.set()

    monkeypatch.setattr(several_gateways.log, "warning", warning)
    options = Options(fleet=fleet, gateways=1, models="models.toml", engine_silence_s=0.2)
    several = SeveralGateways(options, [ModelEntry("toy", ModelOptions(model="toy"), "auto")], tmp_path, 0)
    for kept in (*several._engines, *several._gateways):
        kept._command = hanging()
    starting = asyncio.create_task(several.start())
    await asyncio.wait_for(told.wait(), 30)
    starting.cancel()
    await asyncio.wait_for(several.stop(), 30)
    assert re.fullmatch(rf"{which} does not serve yet, \d+ s after it was started", said[0])


async def test_why_an_engine_cannot_be_asked_is_told_once_for_many_tries(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    monkeypatch.setattr(several_gateways, "LOOK_S", 0.0)
    monkeypatch.setattr(several_gateways, "SAID_EVERY_S", 3600.0)
    many, tries = asyncio.Event(), list[None]()

    def turn_away(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()
        tries.append(None)
        if len(tries) == 10:
            many.set()

    place = tmp_path / "engine"
    engine = KeptEngine("engine 0", ListenOptions(listen=f"unix:{place}"))
    async with await asyncio.start_unix_server(turn_away, place):
        watching = asyncio.create_task(engine.watch(30.0))
        await asyncio.wait_for(many.wait(), 30)
        watching.cancel()
    why = "it ends the connection before it says anything"
    assert caplog.messages == [f"engine 0 cannot be asked whether it lives: {why}; trying again"]


@pytest.mark.parametrize(
    ("is_told_to", "problem"), [(False, FileNotFoundError()), (True, EngineFailed("it ends the connection"))]
)
async def test_of_an_engine_that_goes_it_is_not_said_that_it_does_not_serve_yet(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    is_told_to: bool,
    problem: EngineFailed | OSError,
) -> None:
    """It is missed before its process has ended, which is said by whoever keeps that."""
    engine, missed = KeptEngine("engine 0", ListenOptions(listen="unix:engine")), asyncio.Event()
    engine._command = hanging()
    await engine.start()
    engine._waited_for_s -= 2 * STILL_S  # long ago

    class AskedOnce:
        def __init__(self, _: object) -> None:
            self.closed = asyncio.Event()
            self.closed.set()

        async def open(self, *_: object, **__: object) -> None:
            if engine.ready.is_set():
                asyncio.get_running_loop().call_soon(missed.set)
                raise problem

        async def answers(self, _: float) -> bool:
            return True

        async def close(self) -> None:
            if is_told_to:
                engine.tell(signal.SIGTERM)

    monkeypatch.setattr(several_gateways, "WatchedEngine", AskedOnce)
    watching = asyncio.create_task(engine.watch(30.0))
    await asyncio.wait_for(missed.wait(), 30)
    watching.cancel()
    engine.kill()
    await engine.ended()
    assert engine.name not in caplog.text


async def test_one_that_hangs_does_not_keep_the_others_from_ending(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    monkeypatch.setattr(several_gateways, "END_S", 0.0)
    several = SeveralGateways(Options(fleet="static", gateways=1, shutdown_grace_s=0), [], tmp_path, 0)
    several._gateways[0]._command = hanging("print('.\\n', flush=True); ")
    await several.start()
    several.drain()
    await asyncio.wait_for(several.drained(), 30)
    await several.stop()
    assert "gateway 0 does not end: it is ended" in caplog.text


async def test_one_that_cannot_be_killed_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As where it waits for a device, in the system."""

    class Stuck:
        returncode = None

        def kill(self) -> None: ...

        async def wait(self) -> None:
            await asyncio.get_running_loop().create_future()

    monkeypatch.setattr(several_gateways, "KILLED_S", 0.0)
    kept = Kept("engine 0", [])
    kept._process = cast(Any, Stuck())
    async with asyncio.timeout(10):
        await kept.ended(0.0)
    assert caplog.messages[-1] == "engine 0 does not end, though it was killed"


@pytest.mark.parametrize("fleet", ["embedded", "static"])
async def test_whatever_hangs_they_end_within_the_time_that_one_server_takes_at_most(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, fleet: Any
) -> None:
    """Who stops a service waits for no longer, and kills all of it then."""
    options = Options(fleet=fleet, gateways=2, shutdown_grace_s=7)
    several = SeveralGateways(options, [ModelEntry("toy", ModelOptions(model="toy"), "auto")], tmp_path, 0)
    waited: dict[str, list[float]] = {}

    async def ended(kept: Kept, within_s: float) -> None:
        waited.setdefault(kept.name, []).append(within_s)

    monkeypatch.setattr(Kept, "ended", ended)
    await several.drained()
    drained_s = max(waits[0] for waits in waited.values())
    await several.stop()
    engines_s = max([waits[0] for name, waits in waited.items() if name.startswith("engine")], default=0.0)
    assert (drained_s > 7, drained_s + engines_s) == (True, 7 + AFTER_GRACE_S)


async def test_one_that_is_told_to_end_while_it_waits_is_not_started_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kept, started = Kept("gateway 0", [sys.executable, "-c", ""]), list[Any]()
    await kept.start()

    def told_to_end() -> float:
        kept.tell(signal.SIGTERM)
        return 0.0

    monkeypatch.setattr(kept._backoff, "next_s", told_to_end)
    monkeypatch.setattr("asyncio.create_subprocess_exec", started.append)
    await asyncio.wait_for(kept.keep(), 30)
    assert started == []


def test_an_engine_on_a_machine_that_lacks_something_is_tried_again_and_that_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("ray")
    from keeper import process_actor

    told, tries, again = list[Any](), list[None](), Event()

    class Telling:
        def __init__(self, tell: object) -> None:
            pass

        def tell(self, kept: object) -> None:
            told.append(kept)

    def lacking(*arguments: object) -> None:
        tries.append(None)
        if len(tries) == 2:
            again.set()
        raise LACKING

    monkeypatch.setattr(process_actor, "FIRST_WAIT_S", 0.0)
    monkeypatch.setattr(process_actor, "Telling", Telling)
    monkeypatch.setattr(process_actor, "KeptProcess", lacking)
    monkeypatch.setattr("ray.get_runtime_context", Context)
    monkeypatch.setattr("ray.util.get_node_ip_address", lambda: "127.0.0.1")
    monkeypatch.setattr(process_actor, "exit_actor", lambda: None)
    actor = process_actor.ProcessActor("toy#0", [], "sesame")
    assert again.wait(30)
    actor.leave()
    assert [kept.state for kept in told[:2]] == ["loading", "failed"]
    assert told[1].why == str(LACKING)


@pytest.mark.parametrize("dies", ["the keeper", "the teller"])
def test_where_what_keeps_an_engine_dies_its_process_does(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, dies: str
) -> None:
    """Ray starts another; by itself the actor would be there, with nobody who starts an engine."""
    pytest.importorskip("ray")
    from keeper import process_actor

    statuses, ended = list[int](), Event()

    def end(status: int) -> None:
        statuses.append(status)
        ended.set()

    def failing(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("os._exit", end)
    if dies == "the teller":
        process_actor.Telling(failing).tell(Told("loading", "m0"))
    else:
        monkeypatch.setattr(process_actor.ProcessActor, "_keep", failing)
        monkeypatch.setattr("ray.get_runtime_context", Context)
        monkeypatch.setattr("ray.util.get_node_ip_address", lambda: "127.0.0.1")
        process_actor.ProcessActor("toy#0", [], "sesame")
    assert ended.wait(30)
    assert statuses == [1]
    assert "has died, and its process ends; another is to take its place" in caplog.text


HANGS = """
import os, signal, socket, sys
from pathlib import Path

assert "WATCHDOG_PID" not in os.environ
telling = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
telling.connect(os.environ["NOTIFY_SOCKET"])
for _ in range(3):
    telling.send(b"WATCHDOG=1")
Path(sys.argv[1] + ".new").write_text("127.0.0.1:1")
os.rename(sys.argv[1] + ".new", sys.argv[1])
signal.pause()
"""


@pytest.mark.parametrize(("silence_s", "ended_by"), [(0.1, "SIGKILL"), (3600.0, "SIGTERM")])
def test_a_gateway_that_hangs_is_ended(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, silence_s: float, ended_by: str
) -> None:
    """Nobody else would notice; its actor starts another. One that is told to end first is none."""
    monkeypatch.setattr(kept_process, "SILENCE_S", silence_s)
    monkeypatch.setenv("WATCHDOG_PID", "1")  # as where systemd has started Ray
    monkeypatch.setattr(
        kept_process, "with_this_process", lambda *command: [sys.executable, "-c", HANGS, command[-1]]
    )
    kept = KeptProcess("gateway#0", [], Place("127.0.0.1", "127.0.0.1:1"), "sesame")
    assert kept.address() == "127.0.0.1:1"
    if ended_by == "SIGTERM":
        kept.leave()
    assert kept.wait() == f"it was ended by {ended_by}"
    assert ("gateway#0 has said nothing for 0.1 s: it is ended" in caplog.text) == (ended_by == "SIGKILL")


def test_last_words_are_heard_behind_what_is_no_text(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    says = "import sys; sys.stderr.buffer.write(b'\\xff\\xfe\\nmidstream: no room\\n'); sys.exit(1)"
    monkeypatch.setattr(kept_process, "with_this_process", lambda *command: [sys.executable, "-c", says])
    kept = KeptProcess("toy#0", [], Place("127.0.0.1", ""), "sesame")
    assert kept.address() == ""
    assert kept.wait() == "no room"
    assert "midstream: no room" in capsys.readouterr().err


def test_who_has_ended_is_not_waited_for_as_long_as_what_it_left_behind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nobody would start another in its place."""
    says = (
        "import subprocess, sys; left = subprocess.Popen(['sleep', '600']); print(left.pid, file=sys.stderr)"
    )
    monkeypatch.setattr(kept_process, "with_this_process", lambda *command: [sys.executable, "-c", says])
    monkeypatch.setattr(kept_process, "LAST_WORDS_S", 0.01)
    logged = SimpleQueue[str]()
    monkeypatch.setattr("sys.stderr.write", logged.put)
    process = KeptProcess("toy#0", [], Place("127.0.0.1", ""), "sesame")
    left = int(logged.get(timeout=30))
    try:
        process.wait()
        assert Path(f"/proc/{left}").exists()
    finally:
        os.kill(left, signal.SIGKILL)


def test_last_words_are_heard_where_nobody_can_log_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a full disk."""
    says = "import sys; print('a line', file=sys.stderr); print('midstream: no room', file=sys.stderr)"
    monkeypatch.setattr(kept_process, "with_this_process", lambda *command: [sys.executable, "-c", says])

    class Full:
        def write(self, _: str) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("sys.stderr", Full())
    assert KeptProcess("toy#0", [], Place("127.0.0.1", ""), "sesame").wait() == "no room"


@pytest.mark.parametrize(
    ("words", "what"),
    [(["--gateways", "2"], "sockets"), (["--fleet", "ray", "--ray", "127.0.0.1:1"], "addresses")],
)
def test_where_no_folder_can_be_made_that_is_said_in_a_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: list[str], what: str
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("tempfile.mkdtemp", full)
    assert main([*words, "--model", "toy", "--port", "0"]) == 1
    said = f"midstream: no folder can be made for engines' {what}: No space left on device\n"
    assert capsys.readouterr().err.endswith(said)


def test_where_the_folder_is_too_deep_for_a_socket_that_is_said_in_a_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (deep := tmp_path / ("x" * 120)).mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(deep))
    assert main(["--gateways", "2", "--model", "toy", "--port", "0"]) == 1
    said = capsys.readouterr().err.splitlines()[-1]
    assert said.startswith(f"midstream: no socket can be made at {deep}/")
    assert said.endswith(": AF_UNIX path too long; TMPDIR may name another folder")
