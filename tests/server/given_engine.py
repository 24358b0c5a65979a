"""A server that begins as a copy of a process that has loaded what it needs, and so does its first engine.

It runs what `python -m midstream WORD...` runs, but for that it starts its first engine, where that is the
toy by a pipe, by sending the engine's end of the pipe to its child. Any other engine it starts as it always
does.
"""

from __future__ import annotations

import atexit
import gc
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
    gives: bool,
    scripts: str,
) -> None:
    """In a copy of a loaded process. `loaded`: whether it stays one; else it begins anew, as a user's.
    `gives`: whether another copy is to be its engine, which begins with what the file `scripts` does to
    one."""
    # A process group of its own: what outlives it can be found. But no session: Linux gives each as much of
    # a busy processor, and who is to have idle time alone would have as much as a server of another session.
    os.setpgrp()
    for number, connection in enumerate(writes_to, start=1):
        os.dup2(connection.fileno(), number)
        connection.close()
    os.environ.clear()
    os.environ.update(environ)
    if not loaded:
        _execute("midstream", *words)
    for descriptor in _descriptors():
        with suppress(OSError):  # one was the listing's
            os.close(descriptor)
    gc.freeze()  # what the engine alone needs is no garbage of the server's to look for
    if gives:
        _give_engine(scripts)
    for name, number in ("stdout", 1), ("stderr", 2):
        setattr(sys, name, open(number, "w", buffering=1, closefd=False))  # noqa: SIM115 - until it ends
    from midstream.__main__ import main

    try:
        sys.exit(main(words))
    finally:
        atexit._run_exitfuncs()  # as in a process that begins anew: multiprocessing leaves it out


def _descriptors() -> set[int]:
    """Those that are open, but for what every process has."""
    return {descriptor for entry in Path("/dev/fd").iterdir() if (descriptor := int(entry.name)) > 2}


def _execute(module: str, *words: str) -> NoReturn:
    """In this process, which keeps no more open than what it writes to."""
    for descriptor in _descriptors():
        with suppress(OSError):  # one was the listing's
            os.set_inheritable(descriptor, False)
    os.execv(sys.executable, [sys.executable, "-m", module, *words])


def _become_engine(waiting: socket.socket, scripts: str) -> int:
    import torch

    from engine.__main__ import main

    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))  # which is looked at once, when it is loaded
    if scripts:
        runpy.run_path(scripts)["follow_scripts"]()
    _, descriptors, _, _ = socket.recv_fds(waiting, 1, 1)
    return main(["engine", str(descriptors[0]), "toy"]) if descriptors else 0


def _give_engine(scripts: str) -> None:
    ours, theirs = socket.socketpair()
    if pid := os.fork():
        theirs.close()
        _give(ours, pid)
    else:
        ours.close()
        os._exit(_become_engine(theirs, scripts))


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
