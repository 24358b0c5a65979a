"""Where the log goes: to standard error, which may be a pipe that nobody reads, or a terminal that was told
to stop. What there is room for is written at once; where there is none a thread waits for it, and nobody
else does. What finds no room there either is counted, and told when there is some again.
"""

from __future__ import annotations

import io
import logging
import os
import select
import sys
import threading
from contextlib import suppress
from queue import SimpleQueue

MOST_LINES = 4096  # that wait to be taken
LAST_S = 1.0  # for which they are waited for, at the end


def log_handler() -> logging.Handler:
    try:
        return LogWriter(sys.stderr.fileno(), sys.stderr.encoding)
    except (AttributeError, io.UnsupportedOperation):  # it was closed, or is no file
        return logging.StreamHandler()


class LogWriter(logging.Handler):
    """Each of its numbers is written by one side alone, by who has its lock or by its thread: at the end who
    has the lock waits for the thread."""

    def __init__(self, descriptor: int, encoding: str = "utf-8") -> None:
        super().__init__()
        self._descriptor = descriptor
        self._encoding = encoding
        self._room = select.poll()
        self._room.register(descriptor, select.POLLOUT)
        self._lines = SimpleQueue[bytes | threading.Event]()
        self._queued = self._taken = 0  # by its thread, when it was written
        self._lost = self._lost_by_thread = 0
        self._told = 0  # of those that were lost, by the thread while any line waits
        self._thread: threading.Thread | None = None

    def emit(self, record: logging.LogRecord) -> None:
        try:
            line = self._line(record)
        except Exception:  # noqa: BLE001 - as other handlers do
            self.handleError(record)
            return
        waiting, untold = self._waiting, self._untold
        data = self._saying(untold) + line
        if not waiting and len(data) <= select.PIPE_BUF and self._room.poll(0):
            if self._write(data):
                self._told += untold
            else:
                self._lost += 1
        elif waiting < MOST_LINES:
            self._queued += 1
            self._put(line)
        else:
            self._lost += 1

    def flush(self) -> None:
        """At the end."""
        if self._waiting:
            self._put(written := threading.Event())
            written.wait(LAST_S)

    @property
    def _waiting(self) -> int:
        """With the one that is being written."""
        return self._queued - self._taken

    @property
    def _untold(self) -> int:
        return self._lost + self._lost_by_thread - self._told

    def _put(self, line: bytes | threading.Event) -> None:
        self._lines.put(line)
        if self._thread is None or not self._thread.is_alive():  # a process that was copied has none
            self._thread = threading.Thread(target=self._keep_writing, name="log", daemon=True)
            with suppress(RuntimeError):  # there are as many as there may be: the next line tries again
                self._thread.start()

    def _keep_writing(self) -> None:
        while True:
            line = self._lines.get()
            if isinstance(line, threading.Event):
                line.set()
                continue
            untold = self._untold
            if self._write(self._saying(untold) + line):
                self._told += untold
            else:
                self._lost_by_thread += 1
            self._taken += 1

    def _write(self, data: bytes) -> bool:
        try:
            while data:
                try:
                    data = data[os.write(self._descriptor, data) :]
                except BlockingIOError:  # whoever has it, too, has made it such
                    select.select([], [self._descriptor], [])
        except OSError:  # a full disk, or nobody who reads: that ends nothing
            return False
        return True

    def _saying(self, lost: int) -> bytes:
        if not lost:
            return b""
        told = {"name": __name__, "levelno": logging.WARNING, "levelname": "WARNING"}
        words = {"msg": "lines of the log were lost, since nobody took them: %d", "args": (lost,)}
        return self._line(logging.makeLogRecord(told | words))

    def _line(self, record: logging.LogRecord) -> bytes:
        return f"{self.format(record)}\n".encode(self._encoding, "backslashreplace")
