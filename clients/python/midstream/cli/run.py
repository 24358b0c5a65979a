"""`midstream run`: a file of requests, answered one after another or several at once.

Answers are shown in the order of the file. The first that is not finished is shown as it is written; those
that run beside it are kept until their turn. At a terminal keys skip and quit; elsewhere it is plain text.
"""

from __future__ import annotations

import asyncio
import os
import sys
from argparse import ArgumentParser, Namespace
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

import midstream
from midstream.cli.arguments import add_url, api_key, number
from midstream.cli.error_messages import sentence
from midstream.cli.first_of import end
from midstream.cli.jobs import Job, line
from midstream.cli.key_bindings import LEAVING, Intent
from midstream.cli.plain_text import Plain
from midstream.cli.request_file import BadRequests, Request, read
from midstream.errors import MidstreamError

PARALLEL_MOST = 1000


class Page(Protocol):
    """Where answers are shown."""

    def head(self, text: str) -> None: ...

    def foot(self, text: str) -> None: ...

    async def show(self, job: Job, place: str) -> Intent | None:
        """Show it until its end; or return why the person leaves before."""


def main(argv: Sequence[str]) -> int:
    arguments = _parser().parse_args(argv)
    try:
        requests = _requests(arguments.input)
        with _results(arguments.output) as record:
            return asyncio.run(_run(arguments, requests, record))
    except BrokenPipeError:  # whoever read our output has enough: so nothing more is written, at exit either
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except BadRequests as bad:
        problem = f"{_name(arguments.input)}: {bad}"
    except OSError as error:
        problem = f"{error.filename}: {error.strerror}"
    except MidstreamError as error:
        problem = sentence(error, arguments.url)
    except KeyboardInterrupt:
        return 130
    print(f"midstream: {problem}", file=sys.stderr)
    return 1


def _parser() -> ArgumentParser:
    parser = ArgumentParser(
        prog="midstream run",
        description="Have a file of requests answered: a JSON array, or one request a line.",
        epilog="The exit status is 0 if every request that was not skipped has been answered, and 1 if not.",
    )
    add_url(parser)
    parser.add_argument("--input", required=True, metavar="FILE", help="the requests; - reads standard input")
    parser.add_argument("--output", metavar="FILE", help="where to write one JSON object a request")
    parser.add_argument(
        "--parallel", type=number(int, 1, PARALLEL_MOST), default=1, metavar="N", help="how many at once"
    )
    return parser


def _name(file: str) -> str:
    return "standard input" if file == "-" else file


def _requests(file: str) -> list[Request]:
    try:
        return read(sys.stdin.read() if file == "-" else Path(file).read_text("utf-8"))
    except UnicodeDecodeError as error:
        raise BadRequests(f"byte {error.start} is not UTF-8") from None


@contextmanager
def _results(file: str | None) -> Iterator[Callable[[Job], None]]:
    """Where what came of a job is written, as soon as it is known."""
    if file is None:
        yield lambda _: None
        return
    with Path(file).open("wb", buffering=0) as output:

        def record(job: Job) -> None:
            output.write(line(job.result()))

        yield record


def _page() -> Page:
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        return Plain(sys.stdout)
    from midstream.cli.terminal.live import Live  # brings the terminal's library with it

    return Live()


async def _run(arguments: Namespace, requests: list[Request], record: Callable[[Job], None]) -> int:
    """Answer all, and show each in its turn: the exit status."""
    page = _page()
    jobs = [Job(number, request) for number, request in enumerate(requests, 1)]
    waiting = deque(jobs)

    def told(state: str) -> None:
        for job in jobs:
            job.view.away = state == "reconnecting"

    async with midstream.connect(arguments.url, api_key=api_key(), on_state=told) as client:
        slots = asyncio.Semaphore(arguments.parallel)
        working = [asyncio.create_task(job.work(client, slots)) for job in jobs]
        try:
            wish = await _show(waiting, page, arguments.url, record)
        finally:
            await end(working)
            for job in waiting:
                if job.begun:
                    record(job)
    return LEAVING[wish] if wish is not None else int(any(job.failed for job in jobs))


async def _show(waiting: deque[Job], page: Page, url: str, record: Callable[[Job], None]) -> Intent | None:
    """Each in its turn, and into the results. Returns the wish to leave, where there was one."""
    most = len(waiting)
    while waiting:
        job = waiting[0]
        place = f"{job.number}/{most}"
        page.head(f"{place} {job.title}")
        wish = await page.show(job, place)
        if wish is not None:
            return wish
        page.foot(job.footer(url))
        record(waiting.popleft())
    return None
