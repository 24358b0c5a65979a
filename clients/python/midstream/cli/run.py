"""The command `midstream run`: a file of requests, answered one after another or several at once.

Answers are shown in the order of the file. The first that is not finished is shown as it is written; those
that run beside it are kept until their turn. At a terminal keys skip and quit; elsewhere it is plain text.
"""

from __future__ import annotations

import asyncio
import sys
from argparse import ArgumentParser, Namespace
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Protocol

import midstream
from midstream.cli.arguments import add_grammar, add_url, api_key, grammar, number
from midstream.cli.batch_work import BatchWork
from midstream.cli.exit_status import exit_status
from midstream.cli.first_of import cancel_all
from midstream.cli.jobs import Job, Work
from midstream.cli.key_bindings import EXIT_STATUS, Intent
from midstream.cli.plain_text import PlainTextDisplay
from midstream.cli.request_file import AnyRequest, BatchRequest, RequestFileError, parse_requests
from midstream.cli.stream_work import StreamWork
from midstream.protocol import Grammar

MAX_PARALLEL = 1000
Record = Callable[[Job], None]  # writes what came of a job


class Display(Protocol):
    """Where answers are shown."""

    def show_title(self, text: str) -> None: ...

    def show_summary(self, text: str) -> None: ...

    async def show_answer(self, job: Job, position: str) -> Intent | None:
        """Show it until its end; or return why the person leaves before."""


def main(argv: Sequence[str]) -> int:
    arguments = _parser().parse_args(argv)

    def work() -> int:
        requests = _requests(arguments.input, grammar(arguments))
        with _results(arguments.output) as record:
            return asyncio.run(_run(arguments, requests, record))

    file, url = arguments.input, arguments.url
    return exit_status(work, file=file, wrong_file=RequestFileError, url=url, trouble=1)


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
        "--record", metavar="FILE", help="where to record what came and how, for `midstream replay`"
    )
    parser.add_argument(
        "--parallel", type=number(int, 1, MAX_PARALLEL), default=1, metavar="N", help="how many at once"
    )
    add_grammar(parser)
    return parser


def _requests(file: str, grammar: Grammar | None) -> list[AnyRequest]:
    try:
        text = sys.stdin.read() if file == "-" else Path(file).read_text("utf-8")
        return parse_requests(text, grammar)
    except UnicodeDecodeError as error:
        raise RequestFileError(f"byte {error.start} is not UTF-8") from None


@contextmanager
def _results(file: str | None) -> Iterator[Record]:
    """Where what came of a job is written, as soon as it is known."""
    if file is None:
        yield lambda _: None
        return
    with Path(file).open("wb", buffering=0) as output:

        def record(job: Job) -> None:
            try:
                output.write(job.line())
            except OSError as error:
                error.filename = file
                raise

        yield record


def _display() -> Display:
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        return PlainTextDisplay(sys.stdout)
    from midstream.cli.terminal.run_screen import LiveDisplay  # brings the terminal's library with it

    return LiveDisplay()


async def _run(arguments: Namespace, requests: list[AnyRequest], record: Record) -> int:
    """Answer all, and show each in its turn: the exit status."""
    display = _display()

    def work(request: AnyRequest) -> Work:
        if isinstance(request, BatchRequest):
            return BatchWork(request, arguments.url, api_key())
        return StreamWork(request)

    jobs = [Job(number, work(request)) for number, request in enumerate(requests, 1)]
    waiting = deque(jobs)

    def on_state(state: str) -> None:
        for job in jobs:
            job.view.disconnected = state == "reconnecting"

    async with midstream.connect(arguments.url, api_key=api_key(), on_state=on_state) as client:
        with nullcontext() if arguments.record is None else client.record(arguments.record):
            slots = asyncio.Semaphore(arguments.parallel)
            running = [asyncio.create_task(job.run(client, slots)) for job in jobs]
            try:
                intent = await _show(waiting, display, arguments.url, record)
            finally:
                await cancel_all(running)
                for job in waiting:
                    if job.started:
                        record(job)
    return EXIT_STATUS[intent] if intent is not None else int(any(job.failed for job in jobs))


async def _show(waiting: deque[Job], display: Display, url: str, record: Record) -> Intent | None:
    """Each in its turn, and into the results. Returns the intent to leave, where there was one."""
    total = len(waiting)
    while waiting:
        job = waiting[0]
        position = f"{job.number}/{total}"
        display.show_title(f"{position} {job.title}")
        intent = await display.show_answer(job, position)
        if intent is not None:
            return intent
        job.check()
        display.show_summary(job.summary(url))
        record(waiting.popleft())
    return None
