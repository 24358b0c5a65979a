"""The checker of grammars: whether they can be followed, as a process of its own has found.

The compiler counts its own work, but not all of it: of expressions that are to hold at once a single step may
make more than there is time for, and of a number that is to be a multiple there is a state for each
remainder. A thread cannot be stopped from outside, and a process can be, by the processor's time that it
took: so what is refused hangs on its work, and not on who else keeps the machine busy. Where one ends, for
whatever reason, another is begun. This knows no grammar, and is quick to import.
"""

from __future__ import annotations

import atexit
import json
import logging
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from io import BufferedRWPair
from threading import Lock

log = logging.getLogger(__name__)

MOST_S, BRIEFLY_S = 1.0, 0.1  # of a processor's time, for one grammar
PATIENCE_S = 60.0  # after which an answer is not waited for: whoever asks holds a thread
TOO_LONG, FAILED = "it takes too long to compile", "its compiler failed"


class NoAnswerError(Exception):
    """Its process was killed, gave no answer for very long, or could not be begun: which no grammar did."""


class Checker:
    """One grammar at a time: whoever asks waits."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._process: subprocess.Popen[bytes] | None = None  # begun when it is needed
        self._lines: BufferedRWPair | None = None  # to it, and from it
        atexit.register(self.close)

    def problem_of(self, source: str, most_s: float = MOST_S) -> str:
        """Why a grammar cannot be followed, or nothing. Raises NoAnswerError."""
        with self._lock:
            if self._process is not None and self._process.poll() is not None:
                self._end()  # which nobody's grammar did
            try:
                lines = self._lines or self._begin()
            except OSError as error:
                log.error("the compiler of grammars cannot be begun: %s", error)
                raise NoAnswerError from None
            try:
                lines.write(json.dumps([most_s, source]).encode() + b"\n")
                lines.flush()
                answer = lines.readline()
            except OSError:
                answer = b""
            return str(json.loads(answer)) if answer else _reason(self._end())

    def _begin(self) -> BufferedRWPair:
        """Raises OSError, where the system has no memory, process or descriptor for another."""
        ours, theirs = socket.socketpair()
        with ours, theirs:
            command = [sys.executable, "-m", "engine.structure.checker_process"]
            self._process = subprocess.Popen(command, stdin=theirs.fileno(), stdout=theirs.fileno())
            ours.settimeout(PATIENCE_S)
            lines = self._lines = ours.makefile("rwb")
        return lines

    def _end(self) -> int:
        """As what it ended."""
        process, lines = self._process, self._lines
        self._process = self._lines = None
        if process is None or lines is None:
            return 0
        process.kill()
        with suppress(OSError):  # what it was to be told is lost
            lines.close()
        return process.wait()

    def close(self) -> None:
        """Also where it hangs: whoever waits for its answer has none."""
        if (process := self._process) is not None:
            process.kill()
        with self._lock:
            self._end()


def _reason(ended_as: int) -> str:
    """Why there was no answer: what the system or an operator kills says nothing of a grammar, and neither
    does what ends by itself, as where there is no memory for it to begin."""
    if ended_as == -signal.SIGKILL:
        log.error("the compiler of grammars was killed")
        raise NoAnswerError
    if ended_as >= 0:
        log.error("the compiler of grammars has ended with status %d", ended_as)
        raise NoAnswerError
    return TOO_LONG if ended_as == -signal.SIGPROF else FAILED
