"""A request of `midstream run` as a stream: its answer, shown while it is written, and its result."""

from __future__ import annotations

import asyncio
import time

from msgspec import Struct

from midstream.cli.answer_view import AnswerView
from midstream.cli.jobs import JobError, Unattended
from midstream.cli.request_file import Request
from midstream.cli.summary import summary
from midstream.client import Client
from midstream.protocol import Final, MessageToolCall, Timing, Usage
from midstream.stream import Stream
from midstream.stream_core import Chunk

WHOLE_ANSWER_TOKENS = 4096  # tokens in a chunk of an answer that nobody sees before its end


class Result(Struct, kw_only=True):
    """A line of the results."""

    number: int
    request_id: str | None
    model: str | None
    text: str
    reasoning: str
    tool_calls: list[MessageToolCall]
    tokens: list[int] | None
    finish_reason: str | None
    stop_reason: str | None
    usage: Usage | None
    timing: Timing | None
    error: JobError | None


class StreamWork:
    def __init__(self, request: Request) -> None:
        self._request = request
        self._stream: Stream | None = None

    @property
    def title(self) -> str:
        return self._request.title

    async def do(self, client: Client, view: AnswerView, changed: asyncio.Event) -> None:
        options = self._request.options
        if not self._request.stream:
            options["stream_interval"] = WHOLE_ANSWER_TOKENS
        self._stream = await client.start(credit=None if self._request.stream else "auto", **options)
        async with self._stream as stream:
            try:
                while (chunk := await _next(stream)) is not None:
                    if self._request.stream:
                        view.add_chunk(chunk, time.monotonic())
                        view.thoughts, view.calls = stream.thoughts, stream.calls
                        changed.set()
            finally:
                if not self._request.stream:
                    view.add_chunk(Chunk(0, stream.consumed, stream.text), time.monotonic())
                view.truncate(stream.consumed)  # a guard may have taken back what nothing came behind
                view.thoughts, view.calls = stream.thoughts, stream.calls

    @property
    def _final(self) -> Final | None:
        return self._stream.final if self._stream is not None else None

    @property
    def summary(self) -> str | None:
        return summary(self._final) if self._final is not None else None

    def result(self, number: int, error: JobError | None) -> Result:
        stream, final = self._stream, self._final
        return Result(
            number=number,
            request_id=stream.request_id if stream is not None else self._request.request_id,
            model=stream.model if stream is not None else None,
            text=stream.text if stream is not None else "",
            reasoning=stream.reasoning if stream is not None else "",
            tool_calls=(stream.message.tool_calls or []) if stream is not None else [],
            tokens=stream.tokens if stream is not None and self._request.return_tokens else None,
            finish_reason=_finish_reason(final, error),
            stop_reason=final.stop_reason if final is not None else None,
            usage=final.usage if final is not None else None,
            timing=final.timing if final is not None else None,
            error=error,
        )


async def _next(stream: Stream) -> Chunk | None:
    """Raises Unattended where a guard has paused it."""
    while (chunk := stream.try_next()) is None and stream.final is None:
        if stream.pause_reason == "guard":
            acts = stream.channel.core.acts  # what a connection was lost with is told to nobody
            who = f'the guard "{acts[-1].name}"' if acts else "a guard"
            raise Unattended(f"{who} has paused it, and nobody is here to let it go on")
        await stream.channel.wait()
    return chunk


def _finish_reason(final: Final | None, error: JobError | None) -> str:
    if final is not None:
        return final.finish_reason
    return "cancelled" if error is None else "error"
