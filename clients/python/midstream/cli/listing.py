"""The listing of a server's live streams: fetched over HTTP, once a call. It blocks, and draws nothing.

A key is sent to the server that was named and to no other: where that one says to look elsewhere, it is not
followed.
"""

from __future__ import annotations

import urllib.error
import urllib.request
from collections.abc import Mapping
from http.client import HTTPException
from typing import Any

import msgspec
from msgspec import Struct

from midstream.errors import ConnectionLost, MidstreamError, ProtocolError, from_code
from midstream.protocol import ERRORS
from midstream.url import http_url

MAX_STREAMS = 1000  # streams that a server lists at once
TIMEOUT_S = 5.0


class Listed(Struct):
    """A stream: what is drawn of it. Words that a newer server has are drawn as they are."""

    request_id: str
    tenant: str
    route: str
    state: str
    paused: str | None
    age_s: float
    tokens: int
    tokens_per_s: float
    credit: int
    context_tokens: int


class Totals(Struct):
    """The whole server, as an admin may see it."""

    models: list[str]
    engine: bool
    connections: int
    batch_rows: int
    tokens_per_s: float
    kv_used_tokens: int
    kv_cached_tokens: int
    kv_free_tokens: int


class Listing(Struct):
    """`streams` are the youngest of `total`."""

    streams: list[Listed]
    total: int
    states: dict[str, int]
    server: Totals | None


class _Error(Struct):
    code: str
    message: str


class _ErrorResponse(Struct):
    error: _Error


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        return None


_opener = urllib.request.build_opener(_NoRedirects())


def fetch_listing(url: str, key: str | None) -> Listing:
    """The streams that whoever holds `key` may see."""
    headers: Mapping[str, str] = {} if key is None else {"Authorization": f"Bearer {key}"}
    request = urllib.request.Request(
        f"{http_url(url, '/v1/streams')}?limit={MAX_STREAMS}", headers=dict(headers)
    )
    try:
        with _opener.open(request, timeout=TIMEOUT_S) as response:
            return msgspec.json.decode(response.read(), type=Listing)
    except urllib.error.HTTPError as refused:
        with refused:
            raise _response_error(url, refused.code, refused.read()) from None
    except (OSError, HTTPException) as error:
        raise ConnectionLost(f"no connection to {url}: {error}", code=None, retryable=True) from None
    except msgspec.DecodeError:
        raise ProtocolError(f"{url} does not list its streams as Midstream does") from None


def _response_error(url: str, status: int, body: bytes) -> MidstreamError:
    try:
        error = msgspec.json.decode(body, type=_ErrorResponse).error
    except (msgspec.DecodeError, UnicodeDecodeError):
        return ProtocolError(f"{url} answered with HTTP {status}: is that a Midstream server?")
    if error.code not in ERRORS:
        return ProtocolError(f"{url} answered with HTTP {status}: {error.message}")
    return from_code(error.code, error.message)
