"""The jobs of `midstream run`: one for each request, run beside others or skipped, and its result.

Knows when a job has its turn, and not how it is done, nor who shows its text.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

import msgspec
from msgspec import Struct

from midstream.cli.answer_view import AnswerView
from midstream.cli.error_messages import error_message
from midstream.cli.first_of import first_of
from midstream.cli.sanitize import sanitize
from midstream.client import Client
from midstream.errors import MidstreamError, RequestError, StreamFailed

MAX_TITLE_LENGTH = 60


class JobError(Struct):
    code: str
    message: str


class Unattended(MidstreamError):
    """It waits for somebody to say whether it goes on, and nobody is here."""


class Work(Protocol):
    """How a request is answered."""

    @property
    def title(self) -> str: ...

    async def do(self, client: Client, view: AnswerView, changed: asyncio.Event) -> None:
        """Have it answered, and told to the view. Cancelled where nobody wants it any more."""

    @property
    def summary(self) -> str | None:
        """In one line, where there is an answer."""

    def result(self, number: int, error: JobError | None) -> Struct:
        """What is written of it. `number` counts the requests of the file from 1."""


class Job:
    def __init__(self, number: int, work: Work) -> None:
        self.number = number
        self.view = AnswerView()
        self.started = False
        self.done = asyncio.Event()
        self.changed = asyncio.Event()
        self._work = work
        self._error: MidstreamError | None = None
        self._mistake: Exception | None = None  # of ours
        self._skipped = asyncio.Event()

    async def run(self, client: Client, slots: asyncio.Semaphore) -> None:
        """Have it answered, when there is a place for it."""
        try:
            async with slots:
                if not self._skipped.is_set():
                    self.started = True
                    await first_of(self._work.do(client, self.view, self.changed), self._skipped.wait())
        except MidstreamError as error:
            self._error = error
        except Exception as mistake:  # noqa: BLE001 - whoever shows it raises it
            self._mistake = mistake
        finally:
            self.view.ended = True
            self.done.set()
            self.changed.set()

    def check(self) -> None:
        """Raises a mistake of ours, which is none of the request's."""
        if self._mistake is not None:
            raise self._mistake

    def skip(self) -> None:
        self._skipped.set()

    # -- what came of it -------------------------------------------------------------------------------

    @property
    def failed(self) -> bool:
        return self._error is not None

    @property
    def title(self) -> str:
        """The request in a few words."""
        words = sanitize(" ".join(self._work.title.split()))
        return words if len(words) <= MAX_TITLE_LENGTH else words[: MAX_TITLE_LENGTH - 1] + "…"

    def summary(self, url: str) -> str:
        if self._error is not None:
            return f"error: {error_message(self._error, url)}"
        return self._work.summary or "skipped"

    def line(self) -> bytes:
        """Its result, as a line of JSON."""
        return (
            msgspec.json.encode(self._work.result(self.number, _job_error(self._error or self._mistake)))
            + b"\n"
        )


def _job_error(error: Exception | None) -> JobError | None:
    if error is None:
        return None
    if not isinstance(error, MidstreamError):
        return JobError("client_error", repr(error))
    if isinstance(error, RequestError):
        return JobError(error.code, str(error))
    if isinstance(error, Unattended):
        return JobError("guard", str(error))
    return JobError("engine_error" if isinstance(error, StreamFailed) else "connection_lost", str(error))
