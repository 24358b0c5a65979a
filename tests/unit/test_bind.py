"""The address that a server listens at."""

from __future__ import annotations

import asyncio
import errno
import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from realtime.bind import StartupError, bind, check_tellable, end_on_hangup, welcome
from tests.fakes.full_pipe import filled


async def test_what_is_said_on_its_connections_leaves_at_once() -> None:
    """And not when the peer has acknowledged what was said before it, which may take 40 ms."""
    at_once: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        bare = writer.get_extra_info("socket")
        at_once.set_result(bare.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
        writer.close()

    listening = bind("127.0.0.1", 0)
    async with await asyncio.start_server(accept, sock=listening):
        _, writer = await asyncio.open_connection(*listening.getsockname())
        assert await at_once
        writer.close()
        await writer.wait_closed()


def test_an_address_of_a_kind_that_the_system_lacks_is_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where IPv6 is switched off: there is not even a socket."""

    def lacking(*_: object) -> socket.socket:
        raise OSError(errno.EAFNOSUPPORT, "")

    monkeypatch.setattr("socket.socket", lacking)
    with pytest.raises(StartupError, match="cannot listen on ::1 port 80: Address family not supported"):
        bind("::1", 80)


@pytest.mark.parametrize("host", ["ü..example", "\udcff"])
def test_a_name_that_cannot_be_spelt_as_one_is_no_address_of_this_machine(host: str) -> None:
    with pytest.raises(StartupError, match=f"cannot listen on {host}: no address of this machine"):
        bind(host, 0)


def test_a_server_without_keys_says_so_in_a_line() -> None:
    with bind("127.0.0.1", 0) as listening:
        open_to_all, locked = (welcome(listening, "toy", keyless=keyless) for keyless in (True, False))
    (line,) = set(open_to_all.splitlines()) - set(locked.splitlines())
    assert line == "It has no keys: whoever reaches it may use it, as an admin. See --keys-file."


def test_a_file_for_the_address_that_cannot_be_written_is_said_before_there_is_one(tmp_path: Path) -> None:
    check_tellable("")
    check_tellable(str(tmp_path / "address"))
    assert list(tmp_path.iterdir()) == [], "it is not there before the server is"
    for file, why in (
        (tmp_path / "none" / "address", "No such file or directory"),
        (tmp_path, "Is a directory"),
    ):
        with pytest.raises(StartupError, match=f"the file {re.escape(str(file))} cannot be written: {why}"):
            check_tellable(str(file))
    assert list(tmp_path.parent.glob("*.new")) == []


def test_what_is_no_file_is_not_replaced_by_one(tmp_path: Path) -> None:
    """As /dev/null would be by root, for everybody on the machine."""
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(StartupError, match=f"the file {tmp_path}/pipe cannot be written: it is no file"):
        check_tellable(str(tmp_path / "pipe"))


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="nothing here is always full")
def test_a_greeting_that_nobody_can_take_is_a_line_in_the_log() -> None:
    script = "from realtime.bind import greet; greet('hello'); print('and on')"
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-c", script], stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert (done.returncode, done.stderr) == (
        0,
        "standard output cannot be written: No space left on device\n",
    )


def test_where_standard_output_was_closed_before_nobody_is_greeted() -> None:
    """As where a server is started from a script with `>&-`: it had loaded its model, and ended in a
    traceback."""
    script = "from realtime.bind import greet; greet('hello')"
    closed = ["sh", "-c", '"$0" -c "$1" >&-', sys.executable, script]
    done = subprocess.run(closed, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_greeting_that_nobody_takes_now_is_waited_for_by_nobody() -> None:
    """As at a terminal that was told to stop: a server served nobody until somebody read it, and heard of no
    signal."""
    script = (
        "import sys; from realtime.bind import greet; "
        "greet('hello'); print('on', file=sys.stderr); sys.stdin.read()"
    )
    reads, writes = os.pipe()
    full = filled(writes)
    with (
        os.fdopen(reads, "rb") as out,
        subprocess.Popen(
            [sys.executable, "-c", script],
            stdin=subprocess.PIPE,
            stdout=writes,
            stderr=subprocess.PIPE,
        ) as greeting,
    ):
        assert greeting.stderr is not None
        assert greeting.stderr.readline() == b"on\n"
        os.close(writes)
        assert out.read(full + len("hello\n")).endswith(b".hello\n")
        greeting.communicate()
    assert greeting.returncode == 0


def test_whoever_is_to_outlive_the_terminal_is_let() -> None:
    """As `nohup` has it."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        end_on_hangup()
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)
