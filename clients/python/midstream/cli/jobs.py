"""The jobs of `midstream run`: one for each request, run beside others or skipped, and its result.

Knows a stream, and not who shows its text.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

import msgspec
from msgspec import Struct

from midstream.cli.answer_view import AnswerView
from midstream.cli.error_messages import error_message
from midstream.cli.first_of import first_of
from midstream.cli.request_file import Request
from midstream.cli.sanitize import sanitize
from midstream.cli.summary import summary
from midstream.client import Client
from midstream.errors import MidstreamError, RequestError, StreamFailed
from midstream.protocol import Final, Timing, Usage
from midstream.stream import Stream
from midstream.stream_core import Chunk

MAX_TITLE_LENGTH = 60
WHOLE_ANSWER_TOKENS = 4096  # tokens in a chunk of an answer that nobody sees before its end


class JobError(Struct):
    code: str
    message: str


class Result(Struct, kw_only=True):
    """A line of the results. `number` counts the requests of the file from 1."""

    number: int
    request_id: str | None
    model: str | None
    text: str
    tokens: list[int] | None
    finish_reason: str | None
    stop_reason: str | None
    usage: Usage | None
    timing: Timing | None
    error: JobError | None


class Job:
    def __init__(self, number: int, request: Request) -> None:
        self.number = number
        self.view = AnswerView()
        self.started = False
        self.done = asyncio.Event()
        self.changed = asyncio.Event()
        self._request = request
        self._stream: Stream | None = None
        self._error: MidstreamError | None = None
        self._skipped = asyncio.Event()

    async def run(self, client: Client, slots: asyncio.Semaphore) -> None:
        """Have it answered, when there is a place for it."""
        try:
            async with slots:
                if not self._skipped.is_set():
                    self.started = True
                    await self._answer(client)
        except MidstreamError as error:
            self._error = error
        finally:
            self.view.ended = True
            self.done.set()
            self.changed.set()

    def skip(self) -> None:
        self._skipped.set()

    async def _answer(self, client: Client) -> None:
        options = self._request.options
        if not self._request.stream:
            options["stream_interval"] = WHOLE_ANSWER_TOKENS
        self._stream = await client.start(credit=None if self._request.stream else "auto", **options)
        async with self._stream as stream:
            try:
                await first_of(self._read(stream), self._skipped.wait())
            finally:
                if not self._request.stream:
                    self.view.add_chunk(Chunk(0, stream.consumed, stream.text), time.monotonic())

    async def _read(self, stream: Stream) -> None:
        while (chunk := await stream.next()) is not None:
            if self._request.stream:
                self.view.add_chunk(chunk, time.monotonic())
                self.changed.set()

    # -- what came of it -------------------------------------------------------------------------------

    @property
    def failed(self) -> bool:
        return self._error is not None

    @property
    def _final(self) -> Final | None:
        return self._stream.final if self._stream is not None else None

    @property
    def title(self) -> str:
        """The request in a few words."""
        words = sanitize(" ".join(self._request.title.split()))
        return words if len(words) <= MAX_TITLE_LENGTH else words[: MAX_TITLE_LENGTH - 1] + "…"

    def summary(self, url: str) -> str:
        if self._error is not None:
            return f"error: {error_message(self._error, url)}"
        return summary(self._final) if self._final is not None else "skipped"

    def result(self) -> Result:
        stream, final = self._stream, self._final
        return Result(
            number=self.number,
            request_id=stream.request_id if stream is not None else self._request.request_id,
            model=stream.model if stream is not None else None,
            text=stream.text if stream is not None else "",
            tokens=stream.tokens if stream is not None and self._request.return_tokens else None,
            finish_reason=_finish_reason(final, self._error),
            stop_reason=final.stop_reason if final is not None else None,
            usage=final.usage if final is not None else None,
            timing=final.timing if final is not None else None,
            error=_job_error(self._error),
        )


def _finish_reason(final: Final | None, error: MidstreamError | None) -> str:
    if final is not None:
        return final.finish_reason
    return "cancelled" if error is None else "error"


def _job_error(error: MidstreamError | None) -> JobError | None:
    if error is None:
        return None
    if isinstance(error, RequestError):
        return JobError(error.code, str(error))
    return JobError("engine_error" if isinstance(error, StreamFailed) else "connection_lost", str(error))


def json_line(result: Result) -> bytes:
    """As a line of JSON."""
    encoded: Any = msgspec.json.encode(result)
    return bytes(encoded) + b"\n"
