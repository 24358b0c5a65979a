"""Dialing: opens a WebSocket and waits for the server's `ready`, or says why there is no connection.

Knows addresses, handshakes and HTTP's answers to them. Of several servers each has its turn; whether to try
again is not decided here.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Sequence
from ssl import SSLContext
from typing import Any, Literal, cast

from websockets.asyncio.client import connect as open_socket
from websockets.exceptions import InvalidProxyStatus, InvalidStatus, WebSocketException
from websockets.http11 import Response
from websockets.typing import Subprotocol

from midstream.connection import Connection, Socket
from midstream.errors import ConnectionLost, MidstreamError, RequestError, from_code
from midstream.protocol import JSON_SUBPROTOCOL, MAX_MILLISECONDS, MSGPACK_SUBPROTOCOL
from midstream.url import websocket_urls

Encoding = Literal["json", "msgpack"]

# A snapshot carries a whole output in one message. The server is trusted this far, and not without end.
MAX_EVENT_BYTES = 64 * 2**20

# At the level of debugging the library tells of the handshake, with the key, and of what is sent.
_library_log = logging.getLogger("midstream.websocket")
_library_log.setLevel(logging.INFO)

_ERROR_CODES = {401: "unauthenticated", 403: "forbidden", 429: "rate_limited", 503: "overloaded"}
# A proxy may want a package that is not here, and a redirect lead to what is no address.
_NO_HANDSHAKE = (OSError, WebSocketException, ImportError, ValueError)


def check_key(key: str | None) -> None:
    """Raises ValueError where it cannot stand in a header: one that was read from a file may end its line."""
    if key is not None and not (key.isascii() and key.isprintable()):
        raise ValueError("this API key has a line break, or a character that is not ASCII: no key has one")


class Dialer:
    """Addresses of servers any of which will do, and how to connect to them."""

    def __init__(
        self,
        url: str | Sequence[str],
        *,
        api_key: str | None,
        encoding: Encoding,
        open_timeout: float | None,
        silence_s: float | None,
        ssl: SSLContext | None,
    ) -> None:
        if encoding not in ("json", "msgpack"):
            raise ValueError(f"encoding must be 'json' or 'msgpack', not {encoding!r}")
        check_key(api_key)
        self._urls = websocket_urls(url)
        self._next = random.randrange(len(self._urls))  # clients begin anywhere, and so divide
        self._timeout_s = open_timeout
        # A third to the next ping, a third for an answer, or for anything else that comes, and a third for a
        # close that nobody answers.
        third = None if silence_s is None else silence_s / 3
        self._options: dict[str, Any] = {
            "subprotocols": [Subprotocol(JSON_SUBPROTOCOL if encoding == "json" else MSGPACK_SUBPROTOCOL)],
            "additional_headers": {"Authorization": f"Bearer {api_key}"} if api_key else {},
            **({} if ssl is None else {"ssl": ssl}),
            "ping_interval": third,
            "ping_timeout": None,  # that would count pongs alone
            "close_timeout": third or 10,
        }

    async def dial_any(self) -> Connection:
        """Each server once, until one is there."""
        for _ in self._urls[1:]:
            try:
                return await self.dial()
            except (ConnectionLost, RequestError) as error:
                if not error.retryable:
                    raise
        return await self.dial()

    async def dial(self) -> Connection:
        """The server whose turn it is. Raises a RequestError if it refuses, and ConnectionLost if there is
        none to be had."""
        url = self._urls[self._next]
        self._next = (self._next + 1) % len(self._urls)
        try:
            async with asyncio.timeout(self._timeout_s):
                return await _wait_ready(await self._handshake(url))
        except TimeoutError:
            message = f"{url} did not answer within {self._timeout_s} s"
            raise ConnectionLost(message, code=None, retryable=True) from None

    async def _handshake(self, url: str) -> Socket:
        # Token frames are small: compressing them costs a context of memory a connection and gains nothing.
        try:
            socket = await open_socket(
                url,
                compression=None,
                max_size=MAX_EVENT_BYTES,
                open_timeout=None,
                create_connection=Socket,
                logger=_library_log,
                **self._options,
            )
            return cast(Socket, socket)
        except InvalidStatus as refusal:
            raise _refusal(url, refusal.response) from refusal
        except _NO_HANDSHAKE as error:
            raise ConnectionLost(
                f"no connection to {url}: {error}", code=None, retryable=_is_transient(error)
            ) from error


async def _wait_ready(socket: Socket) -> Connection:
    connection = Connection(socket)
    try:
        await connection.receive_ready()
    except BaseException:
        socket.transport.abort()  # a peer that did not say `ready` need not be waited for to close
        raise
    return connection


def _is_transient(error: Exception) -> bool:
    """The network's troubles may pass, and those of a server that a proxy tells of; a peer that speaks no
    WebSocket will not learn to."""
    if isinstance(error, InvalidProxyStatus):
        return error.response.status_code >= 500
    return isinstance(error, OSError) or isinstance(error.__cause__, OSError | EOFError)


def _refusal(url: str, response: Response) -> MidstreamError:
    status = response.status_code
    if status in _ERROR_CODES:
        message = f"{url} refused the connection with HTTP {status}"
        return from_code(_ERROR_CODES[status], message, retry_after_ms=_retry_after_ms(response))
    return ConnectionLost(f"{url} answered with HTTP {status}", code=None, retryable=status >= 500)


def _retry_after_ms(response: Response) -> int | None:
    seconds = response.headers.get("Retry-After", "")
    if not seconds.isdecimal():  # as a date it is of no use to us
        return None
    return int(min(float(seconds) * 1000, MAX_MILLISECONDS))  # it may have thousands of digits
