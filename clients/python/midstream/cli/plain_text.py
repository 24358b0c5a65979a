"""Answers as plain text, for a file or a pipe: no colours, no keys."""

from __future__ import annotations

from typing import TextIO

from midstream.cli.jobs import Job
from midstream.cli.key_bindings import Intent
from midstream.cli.sanitize import inert


class Plain:
    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._in_line = False

    def head(self, text: str) -> None:
        self._write(f"# {text}\n")

    def foot(self, text: str) -> None:
        end = "\n" if self._in_line else ""
        self._write(f"{end}# {text}\n\n")

    async def show(self, job: Job, place: str) -> Intent | None:
        """Write what comes of it until its end. Nobody is here to want anything else."""
        shown = 0
        while not job.done.is_set() or shown < len(job.view.text):
            await job.news.wait()
            job.news.clear()
            self._write(inert(job.view.text[shown:]))
            shown = len(job.view.text)
        return None

    def _write(self, text: str) -> None:
        self._in_line = not text.endswith("\n") if text else self._in_line
        self._out.write(text)
        self._out.flush()
