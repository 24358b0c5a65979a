"""The log's writer: whatever becomes of who reads it, nobody waits, and what was lost is told."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from engine.log_writer import MOST_LINES, LogWriter
from tests.fakes.full_pipe import filled

LINE = "a line\n"


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    reads, writes = os.pipe()
    yield reads, writes
    for descriptor in (reads, writes):
        with suppress(OSError):
            os.close(descriptor)


def say(writer: LogWriter, times: int = 1) -> None:
    for _ in range(times):
        writer.handle(logging.makeLogRecord({"msg": "a line"}))


def test_a_line_is_there_when_who_said_it_goes_on(pipe: tuple[int, int]) -> None:
    reads, writes = pipe
    say(LogWriter(writes))
    os.set_blocking(reads, False)
    assert os.read(reads, 100).decode() == LINE


@pytest.mark.parametrize("blocking", [True, False])
def test_nobody_waits_for_a_reader_who_takes_nothing(pipe: tuple[int, int], *, blocking: bool) -> None:
    reads, writes = pipe
    full, writer = filled(writes), LogWriter(writes)
    os.set_blocking(writes, blocking)
    say(writer, MOST_LINES + 8)
    writer.flush()
    said = ""
    while said.count(LINE) < MOST_LINES:
        said += os.read(reads, 65536).decode()
    assert said[full:].replace(LINE, "") == "lines of the log were lost, since nobody took them: 8\n"


def test_the_last_lines_are_waited_for_where_somebody_takes_them(pipe: tuple[int, int]) -> None:
    """`logging.shutdown` holds the handler's lock meanwhile."""
    reads, writes = pipe
    full, writer = filled(writes), LogWriter(writes)
    say(writer, 8)
    writer.acquire()
    os.read(reads, full)
    writer.flush()
    os.set_blocking(reads, False)
    assert os.read(reads, 100).decode() == 8 * LINE


def test_a_machine_without_room_for_a_thread_ends_nobody_who_says_a_line(
    pipe: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    def cannot_start(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    reads, writes = pipe
    full, writer = filled(writes), LogWriter(writes)
    with monkeypatch.context() as short:
        short.setattr(threading.Thread, "start", cannot_start)
        say(writer)
    os.read(reads, full)
    say(writer)
    writer.flush()
    assert os.read(reads, 100).decode() == 2 * LINE


def test_what_a_full_disk_has_no_room_for_is_lost_alone() -> None:
    script = (
        "import logging, os; from engine.log_writer import log_handler\n"
        "logging.basicConfig(handlers=[log_handler()])\n"
        "logging.error('a line'); os.dup2(1, 2); logging.error('another')"
    )
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=full, text=True, check=False
        )
    assert (done.returncode, done.stdout.splitlines()) == (
        0,
        [
            "WARNING:engine.log_writer:lines of the log were lost, since nobody took them: 1",
            "ERROR:root:another",
        ],
    )


@pytest.mark.parametrize("closed", ["2>&-", "2>/dev/null"])
def test_a_log_that_goes_nowhere_stops_nobody(closed: str) -> None:
    script = (
        "import logging; from engine.log_writer import log_handler; "
        "logging.basicConfig(handlers=[log_handler()]); logging.error('a line'); print('and on')"
    )
    command = f'exec "$0" -c "$1" {closed}'
    done = subprocess.run(
        ["/bin/sh", "-c", command, sys.executable, script], stdout=subprocess.PIPE, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, "and on\n")


def test_a_program_ends_whose_log_nobody_takes(pipe: tuple[int, int]) -> None:
    _, writes = pipe
    filled(writes)
    script = (
        "import logging; from engine.log_writer import log_handler; "
        "logging.basicConfig(handlers=[log_handler()]); logging.error('a line')"
    )
    assert subprocess.run([sys.executable, "-c", script], stderr=writes, check=False).returncode == 0
