"""A pseudo-terminal: the real command runs on it, and a test types its keys and reads its screen."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import pty
import signal
import struct
import subprocess
import sys
import termios
from collections.abc import Callable

import pyte

from tests.server.server_process import PATIENCE_S, environment

UP, DOWN, ENTER, ESCAPE, CTRL_C, CTRL_D = "\x1b[A", "\x1b[B", "\r", "\x1b", "\x03", "\x04"
HISTORY = 1000


class _Screen(pyte.HistoryScreen):
    """Answers where its cursor is, as terminals do."""

    def __init__(self, columns: int, lines: int, answer: Callable[[bytes], object]) -> None:
        super().__init__(columns, lines, history=HISTORY)
        self._answer = answer

    def write_process_input(self, data: str) -> None:
        self._answer(data.encode())

    def everything(self) -> str:
        """The screen, below all that was scrolled away."""
        scrolled = ["".join(row[x].data for x in range(self.columns)) for row in self.history.top]
        return "\n".join(line.rstrip() for line in [*scrolled, *self.display])


class Terminal:
    """`midstream` with these arguments, from its start until `end`. Within a running event loop."""

    def __init__(self, *arguments: str, columns: int = 110, lines: int = 30) -> None:
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        self.process = subprocess.Popen(
            [sys.executable, "-m", "midstream", *arguments],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env=environment() | {"TERM": "xterm-256color", "PYTHONUTF8": "1"},
            start_new_session=True,
        )
        os.close(slave)
        self.screen = _Screen(columns, lines, self._send)
        self._parser = pyte.ByteStream(self.screen)
        self._changed = asyncio.Event()
        self._hung_up = False
        self._closed = False
        asyncio.get_running_loop().add_reader(self._master, self._read)

    def _send(self, data: bytes) -> None:
        os.write(self._master, data)

    def _read(self) -> None:
        try:
            data = os.read(self._master, 65536)
        except OSError as error:
            if error.errno != errno.EIO:  # how Linux tells that nobody has the other side open any more
                raise
            data = b""
        if data:
            self._parser.feed(data)
        else:
            self._leave()
        self._changed.set()

    def _leave(self) -> None:
        asyncio.get_running_loop().remove_reader(self._master)
        self._hung_up = True

    # -- keys and the screen ---------------------------------------------------------------------

    def type(self, keys: str) -> None:
        self._send(keys.encode())

    async def until(self, *words: str) -> str:
        """Look until all of these stand there: then, all that can be seen, with what was scrolled away."""
        return await self.until_so(lambda seen: all(word in seen for word in words), f"{words}")

    async def until_so(self, holds: Callable[[str], object], what: str = "what was waited for") -> str:
        try:
            async with asyncio.timeout(PATIENCE_S):
                while not holds(self.screen.everything()):
                    assert not self._hung_up, f"it ended before {what}:\n{self.screen.everything()}"
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            raise AssertionError(f"{what} never came:\n{self.screen.everything()}") from None
        return self.screen.everything()

    async def ended(self) -> int:
        """Wait until it ends by itself: its exit status."""
        await self.until_so(lambda _: self._hung_up, "its end")
        return await asyncio.to_thread(self.process.wait, PATIENCE_S)

    def vanish(self) -> None:
        """The window is closed, and nobody is told."""
        self._closed = True
        self._leave()
        os.close(self._master)

    async def end(self) -> None:
        """Close the window: whatever state the program is in, it ends by itself. Again is no mistake."""
        if self._closed:
            return
        self._closed = True
        if not self._hung_up:
            self._leave()
        os.close(self._master)
        try:
            await asyncio.to_thread(self.process.wait, PATIENCE_S)
        finally:
            if self.process.poll() is None:
                os.killpg(self.process.pid, signal.SIGKILL)
