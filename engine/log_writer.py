"""Where the log goes: to standard error, which may be a pipe that nobody reads, or a terminal that was told
to stop. A thread of its own writes it, and nobody else waits for that longer than a moment; what finds no
room is counted, and told when there is some again.
"""

from __future__ import annotations

import io
import logging
import os
import select
import sys
import threading
from queue import SimpleQueue

MOST_LINES = 4096  # that wait to be taken
A_MOMENT_S = 0.05  # for which a line is waited for: mostly it is written then, whatever happens next
LAST_S = 1.0  # for the rest, at the end


def log_handler() -> logging.Handler:
    try:
        return LogWriter(sys.stderr.fileno(), sys.stderr.encoding)
    except (AttributeError, io.UnsupportedOperation):  # it was closed, or is no file
        return logging.StreamHandler()


class LogWriter(logging.Handler):
    def __init__(self, descriptor: int, encoding: str = "utf-8") -> None:
        super().__init__()
        self._descriptor = descriptor
        self._encoding = encoding
        # What is found to be garbage may log in the midst of this: no lock may be one that it waits for.
        self._lines = SimpleQueue[tuple[bytes, threading.Lock]]()
        self._late = False  # whether lines wait to be taken, and nobody for them
        self._lost = 0
        self._counting = threading.RLock()
        threading.Thread(target=self._keep_writing, name="log", daemon=True).start()

    def emit(self, record: logging.LogRecord) -> None:
        try:
            line = self._line(record)
        except Exception:  # noqa: BLE001 - as other handlers do
            self.handleError(record)
            return
        if self._lines.qsize() >= MOST_LINES:
            self._count(1)
        else:
            self._put(line, 0.0 if self._late else A_MOMENT_S)

    def flush(self) -> None:
        """At the end."""
        self._put(b"", LAST_S)

    def _put(self, line: bytes, wait_s: float) -> None:
        written = threading.Lock()
        written.acquire()
        self._lines.put((line, written))
        if wait_s:
            self._late = not written.acquire(timeout=wait_s)

    def _keep_writing(self) -> None:
        while True:
            line, written = self._lines.get()
            lost = self._lost
            went = self._write(self._told(lost) + line)
            written.release()
            self._count(-lost if went else 1)
            if self._lines.empty():
                self._late = False

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

    def _count(self, lost: int) -> None:
        if lost:
            with self._counting:
                self._lost += lost

    def _told(self, lost: int) -> bytes:
        if not lost:
            return b""
        told = {"name": __name__, "levelno": logging.WARNING, "levelname": "WARNING"}
        words = {"msg": "lines of the log were lost, since nobody took them: %d", "args": (lost,)}
        return self._line(logging.makeLogRecord(told | words))

    def _line(self, record: logging.LogRecord) -> bytes:
        return f"{self.format(record)}\n".encode(self._encoding, "backslashreplace")
