"""The command `midstream`, which is installed with the client and finds the server only when it is there."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from types import ModuleType

import pytest

from midstream.__main__ import NO_SERVER, NO_TERMINAL_LIBRARY, main


class Server(ModuleType):
    """Stands where `realtime.__main__` would be, and keeps what it was called with."""

    def __init__(self) -> None:
        super().__init__("realtime.__main__")
        self.argv: Sequence[str] = ()

    def main(self, argv: Sequence[str]) -> int:
        self.argv = argv
        return 7


def test_serve_gives_the_rest_of_the_line_to_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server()
    monkeypatch.setitem(sys.modules, "realtime.__main__", server)
    assert main(["serve", "--port", "0", "--help", "--version"]) == 7
    assert server.argv == ["--port", "0", "--help", "--version"]


def test_serve_without_the_server_says_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delitem(sys.modules, "realtime.__main__", raising=False)
    monkeypatch.setitem(
        sys.modules, "realtime", None
    )  # an import of it now fails as if it were not installed
    assert main(["serve"]) == 1
    assert capsys.readouterr().err == NO_SERVER + "\n"


def test_keys_gives_the_rest_of_the_line_to_the_server_and_says_when_there_is_none(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    server = Server()
    monkeypatch.setitem(sys.modules, "realtime.keys_command", server)
    assert main(["keys", "add", "alice", "--help"]) == 7
    assert server.argv == ["add", "alice", "--help"]
    monkeypatch.delitem(sys.modules, "realtime.keys_command")
    monkeypatch.setitem(sys.modules, "realtime", None)
    assert main(["keys", "list"]) == 1
    assert capsys.readouterr().err == NO_SERVER + "\n"


def test_chat_without_the_library_for_terminals_says_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delitem(sys.modules, "midstream.cli.chat", raising=False)
    monkeypatch.setitem(sys.modules, "prompt_toolkit", None)
    assert main(["chat"]) == 1
    assert capsys.readouterr().err == NO_TERMINAL_LIBRARY + "\n"


@pytest.mark.parametrize("wanted", ["midstream", "midstream.cli.run", "midstream.cli.top"])
def test_neither_the_client_nor_a_command_in_a_pipe_loads_the_library_for_terminals(wanted: str) -> None:
    asks = f"import sys, {wanted}; print('prompt_toolkit' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", asks], capture_output=True, text=True, check=False)
    assert (done.stderr, done.stdout) == ("", "False\n")


def test_version_is_that_of_the_client(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        main(["--version"])
    assert exit_.value.code == 0
    assert capsys.readouterr().out.startswith("midstream 0.")


@pytest.mark.parametrize("argv", [[], ["sing"]], ids=str)
def test_what_is_no_command_is_refused(capsys: pytest.CaptureFixture[str], argv: list[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        main(argv)
    assert exit_.value.code == 2
    assert "command" in capsys.readouterr().err
