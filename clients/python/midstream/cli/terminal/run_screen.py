"""The live display of `midstream run`, at a terminal: draws each answer as it is written, and heeds keys."""

from __future__ import annotations

import asyncio
import time

from midstream.cli.answer_view import status_line
from midstream.cli.first_of import first_of
from midstream.cli.jobs import Job
from midstream.cli.key_bindings import EXIT_STATUS, RUN_HELP, RUN_KEYS, Intent
from midstream.cli.terminal.answer_screen import AnswerScreen, print_lines


class LiveDisplay:
    def show_title(self, text: str) -> None:
        print_lines([("interjection", f"▸ {text}")])

    def show_summary(self, text: str) -> None:
        print_lines([("note", text)], [])

    async def show_answer(self, job: Job, position: str) -> Intent | None:
        """Draw what comes of it until its end, or until the person wants to leave: then that is returned."""
        leaving: asyncio.Future[Intent] = asyncio.get_running_loop().create_future()

        def on_intent(intent: Intent) -> None:
            if intent not in EXIT_STATUS:
                job.skip()
            elif not leaving.done():
                leaving.set_result(intent)

        def bar() -> tuple[str, tuple[str, ...]]:
            return f"{position}  {status_line(job.view, time.monotonic())}", RUN_HELP

        screen = AnswerScreen(job.view, RUN_KEYS, on_intent, bar)
        async with screen.running() as drawing:
            await first_of(_watch(job, screen), also=(leaving, drawing))
        return leaving.result() if leaving.done() else None


async def _watch(job: Job, screen: AnswerScreen) -> None:
    while not job.done.is_set():
        await job.changed.wait()
        job.changed.clear()
        screen.redraw()
