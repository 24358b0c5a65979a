"""The unit of ops/systemd, as systemd itself reads and rates it, and beside what the server does."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from realtime.config import parse
from realtime.transport.http_protocol import HttpLimits
from tests.ops.shutdown import longest_s

ROOT = Path(__file__).parents[2]
UNIT, USERS = ROOT / "ops/systemd/midstream.service", ROOT / "ops/systemd/midstream.sysusers.conf"
OPERATIONS = (ROOT / "docs/operations.md").read_text()
INSTALLED = "/opt/midstream/bin/midstream"
EXPOSURE = 15  # in tenths: 1.5 of 10. Most units of a distribution have 9, and systemd calls 1.9 "OK"
KEYS = "/etc/midstream/keys.toml"


def found(program: str) -> str:
    place = shutil.which(program)
    if place is None:
        pytest.skip(f"{program} was not found: install it (Debian, Ubuntu: apt install systemd)")
    return place


def run(program: str, *words: str) -> str:
    """What it said, if that was all."""
    done = subprocess.run([found(program), *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def settings(key: str) -> Iterator[str]:
    """The values of a key, which may stand more than once."""
    return (found[1] for found in re.finditer(rf"^{key}=(.*)$", UNIT.read_text(), re.MULTILINE))


def setting(key: str) -> str:
    (value,) = settings(key)
    return value


def environment() -> dict[str, str]:
    return dict(assignment.split("=", 1) for assignment in settings("Environment"))


def test_systemd_understands_every_line(tmp_path: Path) -> None:
    ours = Path(sys.executable).with_name("midstream")
    unit = tmp_path / UNIT.name
    unit.write_text(UNIT.read_text().replace(INSTALLED, str(ours)))
    assert run("systemd-analyze", "verify", "--man=no", str(unit)) == ""


def test_systemd_finds_little_that_the_service_could_harm() -> None:
    run("systemd-analyze", "security", "--offline=yes", f"--threshold={EXPOSURE}", str(UNIT))


def test_its_user_is_made(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("users are made by root alone, in a folder too")
    (tmp_path / "etc").mkdir()
    run("systemd-sysusers", f"--root={tmp_path}", str(USERS))
    made = {row.split(":")[0]: row.split(":") for row in (tmp_path / "etc/passwd").read_text().splitlines()}
    home, shell = made[setting("User")][5:]
    assert home == f"/var/cache/{setting('CacheDirectory')}", "the only folder that it may write to"
    assert shell.endswith("nologin")


def test_its_command_and_variables_are_the_servers() -> None:
    installed, command, *argv = setting("ExecStart").split()
    assert (installed, command) == (INSTALLED, "serve")
    options = parse(argv, environment())
    assert options.keys_file == KEYS, "never open"
    assert options.host == "127.0.0.1"
    assert environment()["XDG_CACHE_HOME"] == f"/var/cache/{setting('CacheDirectory')}"


def test_an_end_is_waited_for_and_the_engine_is_left_to_the_server() -> None:
    assert float(setting("TimeoutStopSec")) == longest_s(environment())
    assert setting("KillMode") == "mixed", "else the engine would have the signal first"
    assert int(setting("SuccessExitStatus")) == 128 + signal.SIGTERM, "while it starts"


def test_what_cannot_become_right_is_not_tried_again(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as refused:
        parse(["--port", "none"], {})
    assert str(refused.value.code) == setting("RestartPreventExitStatus")
    assert "--port" in capsys.readouterr().err


def test_there_are_descriptors_for_all_connections() -> None:
    limits = HttpLimits(handshake_timeout_s=1, send_timeout_s=1)
    assert int(setting("LimitNOFILE")) > 10 * (parse([], {}).max_connections + limits.pending_limit)


def test_the_documents_install_what_is_there() -> None:
    commands = OPERATIONS.partition("## As a service of systemd")[2].split("```")[1]
    named = re.findall(r"ops/\S+", commands)
    assert {UNIT, USERS} == {ROOT / name for name in named}
    assert f"--file {KEYS}" in commands
    assert f"chown root:{setting('User')} {KEYS}" in commands
    assert setting("EnvironmentFile").removeprefix("-") in OPERATIONS
