"""The command `midstream`, which is installed with the client and finds the server where that is, too."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

import msgspec
import pytest
import websockets

import midstream
from midstream.__main__ import COMMANDS, INTERRUPTED, NO_SERVER, NO_TERMINAL_LIBRARY, main

ROOT = Path(__file__).parents[2]


class FakeCommand(ModuleType):
    """Stands where a module of the server would be, and keeps what its `main` was called with."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.argv: Sequence[str] = ()

    def main(self, argv: Sequence[str]) -> int:
        self.argv = argv
        return 7


@pytest.fixture
def client_alone(tmp_path: Path) -> Path:
    """A folder with the client and what it requires, as where the server is not installed."""
    for package in (midstream, msgspec, websockets):
        (tmp_path / package.__name__).symlink_to(Path(str(package.__file__)).parent)
    metadata = tmp_path / "midstream-0.1.0.dist-info" / "METADATA"
    metadata.parent.mkdir()
    metadata.write_text("Metadata-Version: 2.1\nName: midstream\nVersion: 0.1.0\n")
    return tmp_path


def midstream_in(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The command, in an interpreter that has nothing but this folder."""
    command = [sys.executable, "-S", "-m", "midstream", *arguments]
    return subprocess.run(command, cwd=folder, env={}, capture_output=True, text=True, check=False)


FIRST = """
import os, signal, sys
from midstream.cli.first_process import end_when_told

os.getpid = lambda: int(sys.argv[1])
end_when_told()
signal.raise_signal(signal.SIGTERM)
"""


@pytest.mark.parametrize(("number", "status"), [("1", 128 + signal.SIGTERM), ("2", -signal.SIGTERM)])
def test_sigterm_ends_the_first_process_of_a_container_from_the_beginning_on(
    number: str, status: int
) -> None:
    """The kernel would keep from it a signal that it has no handler for."""
    done = subprocess.run([sys.executable, "-c", FIRST, number], check=False)
    assert done.returncode == status


def test_whatever_the_command_it_sees_to_that_before_it_loads_it(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = list[str]()
    monkeypatch.setattr("midstream.__main__.end_when_told", lambda: seen.append("told"))
    monkeypatch.setattr("midstream.__main__.server_command", seen.append)
    assert main(["engine"]) == 1
    assert seen == ["told", "engine"]


@pytest.mark.parametrize(
    ("command", "module"),
    [
        ("serve", "realtime.__main__"),
        ("engine", "realtime.engine_command"),
        ("keys", "realtime.keys_command"),
    ],
)
def test_the_servers_commands_get_the_rest_of_the_line(
    monkeypatch: pytest.MonkeyPatch, command: str, module: str
) -> None:
    """By the entry points of the server that is installed here."""
    fake = FakeCommand(module)
    monkeypatch.setitem(sys.modules, module, fake)
    assert main([command, "--port", "0", "--help", "--version"]) == 7
    assert fake.argv == ["--port", "0", "--help", "--version"]


def test_ctrl_c_while_the_server_is_imported_is_no_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(name: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("midstream.__main__.server_command", interrupted)
    assert main(["serve"]) == INTERRUPTED


@pytest.mark.parametrize("command", ["serve", "engine", "keys"])
def test_without_the_server_its_commands_say_how_to_get_it(client_alone: Path, command: str) -> None:
    done = midstream_in(client_alone, command, "--help")
    assert (done.returncode, done.stdout, done.stderr) == (1, "", NO_SERVER + "\n")


def test_help_lists_every_command_with_the_server_and_without(
    client_alone: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    assert COMMANDS in capsys.readouterr().out
    assert COMMANDS in midstream_in(client_alone, "--help").stdout
    assert re.findall(r"^  (\w+)", COMMANDS, re.MULTILINE) == [
        *("serve", "engine", "fleet", "keys", "chat", "run", "replay", "top", "models")
    ]


def test_chat_without_the_library_for_terminals_says_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delitem(sys.modules, "midstream.cli.chat", raising=False)
    monkeypatch.setitem(sys.modules, "prompt_toolkit", None)
    assert main(["chat"]) == 1
    assert capsys.readouterr().err == NO_TERMINAL_LIBRARY + "\n"


@pytest.mark.parametrize(
    "wanted", ["midstream", "midstream.cli.run", "midstream.cli.replay", "midstream.cli.top"]
)
def test_neither_the_client_nor_a_command_in_a_pipe_loads_the_library_for_terminals(wanted: str) -> None:
    asks = f"import sys, {wanted}; print('prompt_toolkit' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", asks], capture_output=True, text=True, check=False)
    assert (done.stderr, done.stdout) == ("", "False\n")


def test_version_is_that_of_the_client(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        main(["--version"])
    assert exit_.value.code == 0
    assert capsys.readouterr().out.startswith("midstream 0.")


def told_to_install() -> list[str]:
    """What follows `pip install` wherever we say it: to users, and in documents."""
    folders = ("realtime", "engine", "keeper", "clients/python/midstream", "docs")
    files = [ROOT / "README.md", *(path for folder in folders for path in (ROOT / folder).rglob("*.*"))]
    texts = (path.read_text() for path in files if path.suffix in (".py", ".md"))
    return [said for text in texts for said in re.findall(r"pip install ([^`\n#]*[^`\n# \")])", text)]


@pytest.mark.parametrize("said", sorted(set(told_to_install())))
def test_what_is_to_be_installed_lies_in_a_clone_and_asks_no_index_for_what_it_does_not_have(
    said: str,
) -> None:
    _, constraint, wanted_here = said.rpartition("-c requirements.lock")
    assert not constraint or (ROOT / "requirements.lock").exists()
    named = [word.strip("'").partition("[") for word in wanted_here.split()]
    places = [place for place in named if place[0].startswith(".")]
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"].values()
    others = {re.split("[<>=[]", line)[0] for extra in extras for line in extra}
    assert {name for name, _, _ in named if not name.startswith(".")} <= others
    projects = [
        tomllib.loads((ROOT / place / "pyproject.toml").read_text())["project"] for place, _, _ in places
    ]
    for project, (_, _, extra) in zip(projects, places, strict=True):
        assert extra.rstrip("]") in {"", *project["optional-dependencies"]}
    installed = {project["name"] for project in projects}
    ours = {"midstream", "midstream-server"}
    wanted = {re.split("[<>=[]", line)[0] for project in projects for line in project["dependencies"]}
    assert wanted & ours <= installed


@pytest.mark.parametrize("argv", [[], ["sing"]], ids=str)
def test_what_is_no_command_is_refused(capsys: pytest.CaptureFixture[str], argv: list[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        main(argv)
    assert exit_.value.code == 2
    assert "command" in capsys.readouterr().err
