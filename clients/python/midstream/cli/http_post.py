"""One POST, sent in a thread, which whoever waits for it may give up.

A key is sent to the server that was named and to no other: where that one says to look elsewhere, it is not
followed. Where the asking is given up the connection is cut, which ends the work in the engine; one that is
still being made cannot be, and its thread is waited for no longer.
"""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import Any
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct

from midstream.cli.http_body import read_body
from midstream.daemon_thread import in_thread
from midstream.errors import UNREADABLE, ConnectionLost, ProtocolError

MOST_BYTES = 512 * 2**20  # of 128 choices, with 20 log probabilities at each token


class HttpAnswer(Struct, frozen=True):
    status: int
    request_id: str | None
    body: Any


async def post(url: str, body: object, key: str | None) -> HttpAnswer:
    """Ask, and wait for the whole answer. Raises ConnectionLost where there is none, or only a part of
    one."""
    asking, data = _Asking(url, key), msgspec.json.encode(body)
    try:
        return await in_thread(lambda: asking.ask(data))
    except asyncio.CancelledError:
        asking.give_up()
        raise


class _Asking:
    def __init__(self, url: str, key: str | None) -> None:
        self._url = url
        self._headers = {"Content-Type": "application/json"}
        if key is not None:
            self._headers["Authorization"] = f"Bearer {key}"
        parts = urlsplit(url)
        kind = HTTPSConnection if parts.scheme == "https" else HTTPConnection
        self._connection = kind(parts.netloc)
        self._path = parts.path
        self._given_up = False

    def ask(self, body: bytes) -> HttpAnswer:
        connection = self._connection
        try:
            connection.connect()
            if self._given_up:
                raise ConnectionError("it was given up")
            connection.request("POST", self._path, body, self._headers)
            with connection.getresponse() as response:
                read = msgspec.json.decode(read_body(response, MOST_BYTES))
                return HttpAnswer(response.status, response.headers["x-request-id"], read)
        except (OSError, HTTPException) as error:
            raise ConnectionLost(f"no answer from {self._url}: {error}", code=None, retryable=False) from None
        except UNREADABLE:
            raise ProtocolError(f"{self._url} did not answer in JSON: is that a Midstream server?") from None
        finally:
            connection.close()

    def give_up(self) -> None:
        self._given_up = True
        if self._connection.sock is not None:
            with suppress(OSError):  # it has just ended
                self._connection.sock.shutdown(socket.SHUT_RDWR)
