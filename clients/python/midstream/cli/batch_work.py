"""A line of OpenAI's batch files as an HTTP request: sent as it is, and its result in the shape of theirs."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import msgspec
from msgspec import Struct

from midstream.cli.answer_view import AnswerView
from midstream.cli.first_of import first_of
from midstream.cli.http_post import HttpAnswer, post
from midstream.cli.jobs import JobError
from midstream.cli.request_file import BatchRequest
from midstream.cli.sanitize import sanitize
from midstream.client import Client
from midstream.errors import BY_CODE, RequestError
from midstream.protocol import ERRORS, Message
from midstream.spans import Call
from midstream.stream_core import Chunk
from midstream.url import http_url

OK = 200
LOOK_S = 5.0  # how often the server is looked after, while it answers
SKIPPED = JobError("request_cancelled", "it was skipped")


class BatchResponse(Struct):
    status_code: int
    request_id: str | None
    body: Any


class BatchResult(Struct, kw_only=True):
    """A line of the results. Of what the server refused there is a `response` too; `error` says why there is
    none."""

    id: str
    custom_id: str
    response: BatchResponse | None
    error: JobError | None


class Choice(Struct, kw_only=True):
    finish_reason: str | None = None
    message: Message | None = None
    text: str | None = None


class BodyUsage(Struct):
    completion_tokens: int = 0


class BodyError(Struct):
    message: str = ""
    code: str | None = None


class Body(Struct):
    """What is shown of an answer, whole or refused."""

    choices: list[Choice] = []
    usage: BodyUsage = msgspec.field(default_factory=BodyUsage)
    error: BodyError = msgspec.field(default_factory=BodyError)


class BatchWork:
    def __init__(self, request: BatchRequest, url: str, key: str | None) -> None:
        self._request = request
        self._url = http_url(url, request.url)
        self._key = key
        self._answer: HttpAnswer | None = None

    @property
    def title(self) -> str:
        return self._request.title

    async def do(self, client: Client, view: AnswerView, changed: asyncio.Event) -> None:
        await first_of(self._ask(), _until_lost(client))
        assert self._answer is not None, "else it was lost"
        if self._answer.status != OK:
            raise _refusal(self._answer)
        body = _body(self._answer)
        for index, choice in enumerate(body.choices):
            message = choice.message or Message(role="assistant", content=choice.text)
            view.add_chunk(Chunk(index, 1, "".join(message.texts)), time.monotonic())
            view.calls += [
                Call(
                    call_id=call.id,
                    name=call.function.name,
                    arguments=call.function.arguments,
                    index=index + 1,
                    end=index + 1,
                )
                for call in message.tool_calls or ()
            ]

    async def _ask(self) -> None:
        self._answer = await post(self._url, self._request.body, self._key)

    @property
    def summary(self) -> str | None:
        if self._answer is None:
            return None
        body = _body(self._answer)
        reasons = [sanitize(choice.finish_reason or "") for choice in body.choices]
        return " · ".join([f"{body.usage.completion_tokens} tokens", *reasons])

    def result(self, number: int, error: JobError | None) -> BatchResult:
        answer = self._answer
        return BatchResult(
            id=f"batch_req_{number}",
            custom_id=self._request.custom_id,
            response=None if answer is None else BatchResponse(answer.status, answer.request_id, answer.body),
            error=None if answer is not None else error or SKIPPED,
        )


async def _until_lost(client: Client) -> None:
    """Nothing says of an HTTP answer that it will never come, as where its server is gone: the client's own
    connection does."""
    while True:
        await asyncio.sleep(LOOK_S)
        await client.ping()


def _body(answer: HttpAnswer) -> Body:
    try:
        return msgspec.convert(answer.body, Body)
    except msgspec.ValidationError:
        return Body()


def _refusal(answer: HttpAnswer) -> RequestError:
    error = _body(answer).error
    code = error.code or "engine_error"
    message = error.message or f"HTTP {answer.status}"
    retryable = ERRORS.get(code, (answer.status, False))[1]
    return BY_CODE.get(code, RequestError)(message, code=code, status=answer.status, retryable=retryable)
