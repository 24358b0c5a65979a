"""A server that is given its first engine: a process that has loaded what the toy needs, and awaits its pipe.

It begins as that process's copy, and becomes `python -m tests.server.given_engine FD PID WORD...`: that is
`python -m midstream WORD...`, but for that it starts its first engine by sending the engine's end of the pipe
to its child PID, through the socket FD. Any other engine it starts as it always does.
"""

from __future__ import annotations

import os
import runpy
import socket
import sys
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NoReturn


def become_server(
    words: list[str],
    environ: dict[str, str],
    writes_to: tuple[Connection, Connection],
    loaded: bool,
    scripts: str,
) -> None:
    """In a copy of a loaded process. `loaded`: whether another copy is to be its engine, which begins with
    what the file `scripts` does to one."""
    # A process group of its own: what outlives it can be found. But no session: Linux gives each as much of
    # a busy processor, and who is to have idle time alone would have as much as a server of another session.
    os.setpgrp()
    for number, connection in enumerate(writes_to, start=1):
        os.dup2(connection.fileno(), number)
        connection.close()
    if not loaded:
        _execute("midstream", *words, environ=environ)
    ours, theirs = socket.socketpair()
    if not (pid := os.fork()):
        ours.close()
        os.environ.clear()
        os.environ.update(environ)
        os._exit(_become_engine(theirs, scripts))
    _execute(__name__, str(ours.fileno()), str(pid), *words, environ=environ, keep=ours.fileno())


def _execute(module: str, *words: str, environ: dict[str, str], keep: int = 2) -> NoReturn:
    """In this process, which keeps no more open than what it writes to and `keep`."""
    for descriptor in [int(entry.name) for entry in Path("/dev/fd").iterdir()]:
        if descriptor > 2:
            with suppress(OSError):  # one was the listing's
                os.set_inheritable(descriptor, descriptor == keep)
    os.execve(sys.executable, [sys.executable, "-m", module, *words], environ)


def _become_engine(waiting: socket.socket, scripts: str) -> int:
    import torch

    from engine.__main__ import main

    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))  # which is looked at once, when it is loaded
    if scripts:
        runpy.run_path(scripts)["follow_scripts"]()
    _, descriptors, _, _ = socket.recv_fds(waiting, 1, 1)
    return main(["engine", str(descriptors[0]), "toy"]) if descriptors else 0


def _give(waiting: socket.socket, pid: int) -> None:
    from realtime.fleet.forked_spares import AdoptedProcess
    from realtime.fleet.process_link import ProcessLink

    start = ProcessLink._start

    async def give(link: ProcessLink, theirs: socket.socket) -> AdoptedProcess:
        setattr(ProcessLink, "_start", start)  # noqa: B010 - a method is not assigned to, says mypy
        with waiting:
            socket.send_fds(waiting, [b"!"], [theirs.fileno()])
        return AdoptedProcess(pid)

    setattr(ProcessLink, "_start", give)  # noqa: B010 - likewise


if __name__ == "__main__":
    _, descriptor, pid, *words = sys.argv
    os.set_inheritable(int(descriptor), False)
    _give(socket.socket(fileno=int(descriptor)), int(pid))
    sys.argv = ["midstream", *words]
    runpy.run_module("midstream", run_name="__main__", alter_sys=True)
