"""How a command ends that reads a file: its status, and one line on standard error."""

from __future__ import annotations

import io
from collections.abc import Callable

import pytest

from midstream.cli import replay, run


@pytest.mark.parametrize(
    ("main", "words", "status"),
    [(replay.main, ["-"], 2), (run.main, ["--input", "-"], 1)],
    ids=["replay", "run"],
)
def test_bytes_that_are_no_text_are_told_by_their_place(
    main: Callable[[list[str]], int],
    words: list[str],
    status: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"ab\xff"), "utf-8"))
    assert main(words) == status
    assert capsys.readouterr().err == "midstream: standard input: byte 2 is not UTF-8\n"


def test_what_is_quoted_of_a_file_is_shown_and_not_obeyed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(r'{"record": 1, "type": "start\u001b[31m", "stream": 1}'))
    assert replay.main(["-"]) == 2
    said = capsys.readouterr().err
    assert "start␛[31m" in said
    assert "\x1b" not in said
