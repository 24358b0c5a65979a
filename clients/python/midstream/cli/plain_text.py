"""The plain text display of `midstream run`, for a file or a pipe: no colours, no keys.

What is written stays: where some of it is taken back, as by a guard, a note says so, and its last line comes
again below it.
"""

from __future__ import annotations

from typing import TextIO

from midstream.cli.answer_view import REWOUND
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
        shown = ""
        while not job.done.is_set() or shown != _said(job):
            await job.changed.wait()
            job.changed.clear()
            said = _said(job)
            self._write_on(shown, said)
            shown = said
        return None

    def _write_on(self, shown: str, said: str) -> None:
        if said.startswith(shown):
            self._write(said[len(shown) :])
            return
        both = enumerate(zip(shown, said, strict=False))
        stands = next((at for at, (was, now) in both if was != now), len(said))
        line = said.rfind("\n", 0, stands) + 1
        self._write("\n" * self._in_line + f"{REWOUND}\n{said[line:]}")

    def _write(self, text: str) -> None:
        self._in_line = not text.endswith("\n") if text else self._in_line
        self._out.write(text)
        self._out.flush()


def _said(job: Job) -> str:
    """The text and the calls."""
    return "".join(text for kind, text in job.view.segments() if kind in ("text", "call"))
