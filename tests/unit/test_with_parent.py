"""A module that runs for as long as its parent lives, and an engine as its server."""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
from contextlib import suppress

import pytest

from engine.model.with_parent import with_this_process

# Starts a child that would run for ever, says its number, and waits to be killed.
PARENT = """
import subprocess, sys
from engine.model.with_parent import with_this_process
child = subprocess.Popen(with_this_process("http.server", "0", "--bind", "127.0.0.1"))
print(child.pid, flush=True)
sys.stdin.read()
"""


def test_it_is_run_as_by_python_itself() -> None:
    done = subprocess.run(
        with_this_process("json.tool", "--help"), capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout.split()[0]) == (0, "usage:")


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere it ends by itself")
def test_it_is_gone_when_its_parent_was_killed() -> None:
    command = [sys.executable, "-u", "-c", PARENT]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child = os.pidfd_open(int(parent.stdout.readline()))
        parent.kill()
    try:
        assert select.select([child], [], [], 60)[0], "a process that has ended can be read"
    finally:
        os.close(child)


# A server whose engine hangs as it is to load its model, in a call that lets no thread of it go on.
SERVER = """
import socket, subprocess, sys
ours, theirs = socket.socketpair()
command = [sys.executable, "-c", sys.argv[1], str(theirs.fileno()), "toy"]
print(subprocess.Popen(command, pass_fds=[theirs.fileno()]).pid, flush=True)
sys.stdin.read()
"""
HUNG = """
import ctypes, sys
from engine import __main__ as engine
engine._warm_up = lambda model: None
engine.wait_for_options = lambda pipe, may_copy: (pipe, None)
engine.PipeReader = lambda pipe: print("hangs", flush=True) or ctypes.PyDLL(None).pause()
engine.main(sys.argv)
"""
HUNG_RANK = """
import ctypes, sys
from engine.parallel import follower
follower.Pipe = lambda socket: print("hangs", flush=True) or ctypes.PyDLL(None).pause()
follower.main(sys.argv)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere nobody ends it")
@pytest.mark.parametrize("hung", [HUNG, HUNG_RANK], ids=["an engine", "another rank of it"])
def test_an_engine_that_has_hung_is_gone_when_its_server_was_killed(hung: str) -> None:
    """It does not notice that its pipe closes, and would keep its memory for ever."""
    command = [sys.executable, "-c", SERVER, hung]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        number = int(server.stdout.readline())
        engine = os.pidfd_open(number)
        assert server.stdout.readline() == "hangs\n"
        server.kill()
    try:
        assert select.select([engine], [], [], 60)[0], "a process that has ended can be read"
    finally:
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(engine, signal.SIGKILL)
        os.close(engine)


# An engine whose libraries take for ever to load.
LOADING = """
import sys, threading
from engine import __main__ as engine
engine._warm_up = lambda model: threading.Event().wait()
engine.main(sys.argv)
"""


def test_an_engine_that_loads_its_libraries_is_gone_when_its_server_is() -> None:
    server, theirs = socket.socketpair()
    command = [sys.executable, "-c", LOADING, str(theirs.fileno()), "toy"]
    with theirs, subprocess.Popen(command, pass_fds=[theirs.fileno()]) as engine:
        theirs.close()
        with server:
            assert server.recv(1), "it has begun"
        try:
            assert engine.wait(60) == 0
        finally:
            engine.kill()
