"""One question to a server over HTTP, for commands that wait for its answer.

A key is sent to the server that was named and to no other: where that one says to look elsewhere, it is not
followed.
"""

from __future__ import annotations

import urllib.error
import urllib.request
from http.client import HTTPException
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from midstream.cli.http_body import read_body
from midstream.errors import UNREADABLE, ConnectionLost, MidstreamError, ProtocolError, from_code
from midstream.protocol import ERRORS
from midstream.url import http_url

TIMEOUT_S = 5.0  # for the connection, and for each piece of the answer
ANSWER_S = 60.0  # for all of it
MOST_BYTES = 64 * 2**20

T = TypeVar("T")


class _Error(Struct):
    code: str
    message: str


class _ErrorResponse(Struct):
    error: _Error


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        return None


_opener = urllib.request.build_opener(_NoRedirects())


def ask_server(
    url: str, path: str, key: str | None, answer: type[T], body: object = None, *, about: str
) -> T:
    """A GET, or with a `body` a POST. `about`: what is asked for, as errors say it."""
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    data = None if body is None else msgspec.json.encode(body)
    request = urllib.request.Request(http_url(url, path), data, headers)
    try:
        status, said = _ask(request)
    except (OSError, HTTPException) as error:
        cause = error.reason if isinstance(error, urllib.error.URLError) else error
        lost = ConnectionLost(f"no connection to {url}: {cause}", code=None, retryable=True)
        raise lost from (cause if isinstance(cause, BaseException) else None)
    if status is not None:
        raise _response_error(url, status, said)
    try:
        return msgspec.json.decode(said, type=answer)
    except UNREADABLE:
        raise ProtocolError(f"{url} does not {about} as Midstream does") from None


def _ask(request: urllib.request.Request) -> tuple[int | None, bytes]:
    """The status, where it is a refusal, and the body."""
    try:
        with _opener.open(request, timeout=TIMEOUT_S) as response:
            return None, read_body(response, MOST_BYTES, ANSWER_S)
    except urllib.error.HTTPError as refused:
        with refused:
            return refused.code, read_body(refused, MOST_BYTES, ANSWER_S)


def _response_error(url: str, status: int, body: bytes) -> MidstreamError:
    try:
        error = msgspec.json.decode(body, type=_ErrorResponse).error
    except UNREADABLE:
        return ProtocolError(f"{url} answered with HTTP {status}: is that a Midstream server?")
    if error.code not in ERRORS:
        return ProtocolError(f"{url} answered with HTTP {status}: {error.message}")
    return from_code(error.code, error.message)
