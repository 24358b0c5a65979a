"""The WebSocket opening handshake as values: an upgrade request becomes an ASGI scope, an app's answer a
response.

It knows HTTP headers and the ASGI websocket messages that precede the first frame. It knows no transport, no
timer and no state of a connection, and it logs nothing: the request carries keys.
"""

from __future__ import annotations

from collections.abc import Iterable, MutableMapping
from email.utils import formatdate
from http.client import responses as phrases
from typing import Any
from urllib.parse import unquote

from websockets.datastructures import Headers
from websockets.http11 import Request, Response

Message = MutableMapping[str, Any]
RawHeaders = Iterable[tuple[bytes, bytes]]


def request_scope(request: Request, *, root_path: str) -> dict[str, Any]:
    """The part of an ASGI websocket scope that stands in the request."""
    raw_path, _, query = request.path.partition("?")
    return {
        "type": "websocket",
        "http_version": "1.1",
        "root_path": root_path,
        "path": root_path + unquote(raw_path),
        "raw_path": root_path.encode() + raw_path.encode("ascii"),
        "query_string": query.encode("ascii"),
        "headers": [(_raw(name.lower()), _raw(value)) for name, value in request.headers.raw_items()],
        "subprotocols": _subprotocols(request),
    }


def _raw(text: str) -> bytes:
    # websockets decodes stray bytes as Latin-1, older versions as surrogates: both come back as they were.
    return text.encode("latin-1", "surrogateescape")


def _subprotocols(request: Request) -> list[str]:
    offered = ",".join(request.headers.get_all("Sec-WebSocket-Protocol"))
    return [name for part in offered.split(",") if (name := part.strip())]


def complete_acceptance(response: Response, accept: Message, defaults: RawHeaders) -> None:
    """Add what the app and the server's settings want to the 101 that the protocol's core has drawn up."""
    del response.headers["Date"]  # the server's own is among the defaults, where it is wanted
    _add(response.headers, defaults)
    _add(response.headers, accept.get("headers", ()))
    if subprotocol := accept.get("subprotocol"):
        response.headers["Sec-WebSocket-Protocol"] = subprotocol


def plain_response(status: int, text: str) -> Response:
    headers = Headers({"Content-Type": "text/plain; charset=utf-8"})
    return _response(status, headers, text.encode())


class Denial:
    """The HTTP response with which an app refuses the upgrade.

    It is kept until it is whole: an app that fails halfway has not spoilt the connection for a clean 500.
    """

    def __init__(self, start: Message, defaults: RawHeaders) -> None:
        self._status: int = start["status"]
        self._headers = Headers()
        self._body = bytearray()
        _add(self._headers, defaults)
        _add(self._headers, start.get("headers", ()))

    def add(self, body: Message) -> Response | None:
        """Take a part of the body; the last part makes the response."""
        self._body += body.get("body", b"")
        return None if body.get("more_body") else _response(self._status, self._headers, bytes(self._body))


def _response(status: int, headers: Headers, body: bytes) -> Response:
    headers.setdefault("Date", formatdate(usegmt=True))
    headers.setdefault("Connection", "close")
    headers.setdefault("Content-Length", str(len(body)))
    return Response(status, phrases.get(status, ""), headers, body)


def _add(headers: Headers, more: RawHeaders) -> None:
    for name, value in more:
        headers[name.decode("latin-1")] = value.decode("latin-1")
