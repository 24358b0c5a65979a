"""Answers at a terminal: each is drawn while it is written, and keys skip it or leave."""

from __future__ import annotations

import asyncio
import time

from midstream.cli.answer_view import status
from midstream.cli.first_of import first_of
from midstream.cli.jobs import Job
from midstream.cli.key_bindings import LEAVING, RUN, RUN_HELP, Intent
from midstream.cli.terminal.answer_screen import Screen, say


class Live:
    def head(self, text: str) -> None:
        say([("interjection", f"▸ {text}")])

    def foot(self, text: str) -> None:
        say([("note", text)], [])

    async def show(self, job: Job, place: str) -> Intent | None:
        """Draw what comes of it until its end, or until the person wants to leave: then that is returned."""
        leaving: asyncio.Future[Intent] = asyncio.get_running_loop().create_future()

        def wanted(wish: Intent) -> None:
            if wish not in LEAVING:
                job.skip()
            elif not leaving.done():
                leaving.set_result(wish)

        def bar() -> tuple[str, tuple[str, ...]]:
            return f"{place}  {status(job.view, time.monotonic())}", RUN_HELP

        screen = Screen(job.view, RUN, wanted, bar)
        async with screen.drawn() as drawing:
            await first_of(_watch(job, screen), also=(leaving, drawing))
        return leaving.result() if leaving.done() else None


async def _watch(job: Job, screen: Screen) -> None:
    while not job.done.is_set():
        await job.news.wait()
        job.news.clear()
        screen.changed()
