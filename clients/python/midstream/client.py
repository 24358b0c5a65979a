"""Connecting, and starting streams."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from ssl import SSLContext
from types import TracebackType
from typing import Any, Literal, Self, Unpack

from msgspec import Struct
from websockets.asyncio.client import ClientConnection
from websockets.asyncio.client import connect as open_socket
from websockets.exceptions import InvalidStatus, WebSocketException
from websockets.typing import Subprotocol

from midstream.channel import Channel
from midstream.connection import Connection
from midstream.errors import ConnectionLost, MidstreamError, from_code
from midstream.handle import Stream
from midstream.options import DEFAULT_WINDOW, CreditLike, StartOptions, explicit_credit, start_frame
from midstream.protocol import (
    JSON_SUBPROTOCOL,
    MSGPACK_SUBPROTOCOL,
    Final,
    Ping,
    Pong,
    Ready,
    Started,
    Timing,
    TokenLogprob,
    Usage,
)
from midstream.stream import StreamCore
from midstream.url import websocket_url

Encoding = Literal["json", "msgpack"]

# A snapshot carries a whole output in one message. The server is trusted this far, and not without end.
MAX_EVENT_BYTES = 64 * 2**20

_REFUSALS = {401: "unauthenticated", 403: "forbidden", 429: "rate_limited", 503: "overloaded"}


class Completion(Struct, frozen=True, kw_only=True):
    """A whole answer, and how it came about."""

    text: str
    tokens: list[int]
    logprobs: list[TokenLogprob]
    model: str | None
    final: Final

    @property
    def finish_reason(self) -> str:
        return self.final.finish_reason

    @property
    def usage(self) -> Usage:
        return self.final.usage

    @property
    def timing(self) -> Timing:
        return self.final.timing


class Client:
    """A connection to a server. Any number of streams may run on it at once."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    @property
    def ready(self) -> Ready:
        """What the server said of itself: `models`, `limits`, `session_id`."""
        return self._connection.ready

    @property
    def draining(self) -> bool:
        """Whether the server has said that it is going away: running streams go on, new ones are refused."""
        return self._connection.draining

    async def start(
        self,
        *,
        window: int = DEFAULT_WINDOW,
        credit: CreditLike | None = None,
        **options: Unpack[StartOptions],
    ) -> Stream:
        """Start a stream: the fields of `start` and the sampling parameters as keywords (see `StartOptions`).

        `window` is how many tokens may be decoded ahead of the chunks taken; window=1 is pure pull: one
        token is decoded for each one asked for, the first not before it is. `credit` gives the credit to
        begin with; credit="auto" leaves it to the server, which then decodes as fast as this connection is
        read, whether or not chunks are taken.

        Raises one of the RequestErrors if the server, or the definition of the protocol, refuses it.
        """
        if window < 1:
            raise ValueError(f"window must be at least 1, not {window}")
        start = start_frame(options)
        start.credit = None if credit == "auto" else explicit_credit(credit, window, start.stream_interval)
        core = StreamCore(None if credit == "auto" else window, start.stream_interval, start.credit)
        channel = Channel(self._connection, start.request_id, core)
        self._connection.add(channel)
        try:
            await channel.request(start, Started)
        except BaseException:
            channel.abandon()
            raise
        return Stream(channel)

    async def complete(self, **options: Unpack[StartOptions]) -> Completion:
        """Start a stream, wait for its end and return the whole. Raises StreamFailed if that is an error."""
        logprobs: list[TokenLogprob] = []
        async with await self.start(credit="auto", **options) as stream:
            async for chunk in stream:
                logprobs.extend(chunk.logprobs or ())
        assert stream.final is not None  # an iteration that ends has seen it
        return Completion(
            text=stream.text, tokens=stream.tokens, logprobs=logprobs, model=stream.model, final=stream.final
        )

    async def ping(self) -> None:
        """Ask the server for a sign of life, and wait for it."""
        await self._connection.request(Ping(), Pong)

    async def close(self) -> None:
        """Close the connection. Streams still running end in ConnectionLost here, and are cancelled there."""
        await self._connection.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


class connect:  # noqa: N801 - used as the verb that it is
    """Connect to a server: `async with midstream.connect(url) as client`, or `client = await connect(url)`.

    `url` may be ws, wss, http or https, with or without the path. `api_key` is sent in a header. `encoding`
    is how frames are written on the wire. `open_timeout` is in seconds; `ssl` replaces the default TLS
    settings.

    Raises Unauthenticated, Forbidden, RateLimited or Overloaded if the server refuses, and ConnectionLost
    if there is none to be had.
    """

    def __init__(
        self,
        url: str,
        *,
        api_key: str | None = None,
        encoding: Encoding = "json",
        open_timeout: float | None = 10,
        ssl: SSLContext | None = None,
    ) -> None:
        if encoding not in ("json", "msgpack"):
            raise ValueError(f"encoding must be 'json' or 'msgpack', not {encoding!r}")
        self._url = websocket_url(url)
        self._timeout_s = open_timeout
        self._options: dict[str, Any] = {
            "subprotocols": [Subprotocol(JSON_SUBPROTOCOL if encoding == "json" else MSGPACK_SUBPROTOCOL)],
            "additional_headers": {"Authorization": f"Bearer {api_key}"} if api_key else {},
            "ssl": ssl,
        }
        self._client: Client

    async def _open(self) -> Client:
        try:
            async with asyncio.timeout(self._timeout_s):
                return Client(await _greet(await self._handshake()))
        except TimeoutError:
            message = f"{self._url} did not answer within {self._timeout_s} s"
            raise ConnectionLost(message, code=None, retryable=True) from None

    async def _handshake(self) -> ClientConnection:
        # Token frames are small: compressing them costs a context of memory a connection and gains nothing.
        try:
            return await open_socket(
                self._url, compression=None, max_size=MAX_EVENT_BYTES, open_timeout=None, **self._options
            )
        except InvalidStatus as refusal:
            raise _refused(self._url, refusal.response.status_code) from refusal
        except (OSError, WebSocketException) as error:
            # An OSError may be a matter of the moment; a peer that speaks no WebSocket will not learn to.
            retryable = isinstance(error, OSError)
            raise ConnectionLost(
                f"no connection to {self._url}: {error}", code=None, retryable=retryable
            ) from error

    def __await__(self) -> Generator[Any, None, Client]:
        return self._open().__await__()

    async def __aenter__(self) -> Client:
        self._client = await self._open()
        return self._client

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._client.close()


async def _greet(socket: ClientConnection) -> Connection:
    connection = Connection(socket)
    try:
        await connection.open()
    except BaseException:
        socket.transport.abort()  # a peer that did not greet need not be waited for to part
        raise
    return connection


def _refused(url: str, status: int) -> MidstreamError:
    if status in _REFUSALS:
        return from_code(_REFUSALS[status], f"{url} refused the connection with HTTP {status}")
    return ConnectionLost(f"{url} answered with HTTP {status}", code=None, retryable=status >= 500)
