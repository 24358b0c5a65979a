"""The plain text display of `midstream run`, for a file or a pipe: no colours, no keys."""

from __future__ import annotations

from typing import TextIO

from midstream.cli.jobs import Job
from midstream.cli.key_bindings import Intent


class PlainTextDisplay:
    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._in_line = False

    def show_title(self, text: str) -> None:
        self._write(f"# {text}\n")

    def show_summary(self, text: str) -> None:
        end = "\n" if self._in_line else ""
        self._write(f"{end}# {text}\n\n")

    async def show_answer(self, job: Job, position: str) -> Intent | None:
        """Write what comes of it until its end. Nobody is here to want anything else."""
        shown = 0
        while not job.done.is_set() or shown < len(_said(job)):
            await job.changed.wait()
            job.changed.clear()
            said = _said(job)
            self._write(said[shown:])
            shown = len(said)
        return None

    def _write(self, text: str) -> None:
        self._in_line = not text.endswith("\n") if text else self._in_line
        self._out.write(text)
        self._out.flush()


def _said(job: Job) -> str:
    """The text and the calls: it only grows, as nobody here rewinds anything."""
    return "".join(text for kind, text in job.view.segments() if kind in ("text", "call"))
