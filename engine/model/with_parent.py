"""A Python module run for as long as its parent lives: `python -m engine.model.with_parent PID MODULE ...`.

A process that is killed has no time to end those that it started. Where the system is Linux it does that; the
call is made in the child, behind its start, because between fork and exec nothing is safe in a process with
threads.
"""

from __future__ import annotations

import ctypes
import os
import runpy
import signal
import sys

PR_SET_PDEATHSIG = 1


def with_this_process(module: str, *arguments: str) -> list[str]:
    """The command that runs it no longer than the process that calls this; elsewhere than on Linux, to its
    end."""
    return [sys.executable, "-m", "engine.model.with_parent", str(os.getpid()), module, *arguments]


def end_with_parent() -> None:
    """From now on, whoever that is, and also where this process hangs, and hears of nothing."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def main(argv: list[str]) -> None:
    _, parent, module, *arguments = argv
    end_with_parent()
    if sys.platform == "linux" and os.getppid() != int(parent):  # it had ended before
        sys.exit(1)
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main(sys.argv)
