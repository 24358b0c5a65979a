"""The client: connects to a server, starts streams, and attaches to those that were started elsewhere."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from ssl import SSLContext
from types import TracebackType
from typing import Any, Literal, Self, TypeVar, Unpack

from msgspec import Struct

from midstream.agent import Agent, Run
from midstream.dial import Dialer, Encoding
from midstream.options import (
    DEFAULT_WINDOW,
    CreditLike,
    MessageLike,
    StartOptions,
    explicit_credit,
    frame,
    start_frame,
)
from midstream.protocol import (
    MAX_MILLISECONDS,
    Attach,
    Attached,
    Event,
    Final,
    Fork,
    Message,
    Ping,
    Pong,
    Ready,
    Start,
    Started,
    Timing,
    TokenLogprob,
    Usage,
)
from midstream.reconnecting import ClientState, Reconnecting
from midstream.record_format import Record
from midstream.recording import Recording
from midstream.replay import Replay, replay
from midstream.schemas import answer_of
from midstream.spans import Call, answer_message
from midstream.stream import Stream
from midstream.stream_channel import Channel
from midstream.stream_core import StreamCore

T = TypeVar("T")

RECONNECT_S = 60.0
SILENCE_S = 30.0


class Completion(Struct, frozen=True, kw_only=True):
    """A whole answer, and how it came about. Calls that were cut off are not among its `tool_calls`."""

    text: str
    reasoning: str
    tool_calls: list[Call]
    tokens: list[int]
    logprobs: list[TokenLogprob]
    model: str | None
    final: Final

    @property
    def message(self) -> Message:
        """The answer as a turn of the conversation, calls and all."""
        return answer_message(self.text, self.tool_calls)

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
    """A client of a server. Any number of streams may run on it at once, and they outlive its connections."""

    def __init__(self, reconnecting: Reconnecting, reconnect_s: float) -> None:
        self._reconnecting = reconnecting
        self._session = reconnecting.session
        self._reconnect_s = reconnect_s
        self._recording: Recording | None = None

    @property
    def ready(self) -> Ready:
        """What the server said of itself in its last `ready`: `models`, `limits`, `session_id`."""
        return self._reconnecting.connection.ready

    @property
    def state(self) -> ClientState:
        """ "open", "reconnecting" or "closed": for ever, by `close` or because it could not be helped."""
        return self._reconnecting.state

    @property
    def draining(self) -> bool:
        """Whether the server has said that it is going away: running streams go on, new ones are refused."""
        return self._session.draining

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
        window = _positive(window)
        start = self._with_grace(start_frame(options), options)
        start.credit = None if credit == "auto" else explicit_credit(credit, window, start.stream_interval)
        core = StreamCore(None if credit == "auto" else window, start.stream_interval, start.credit)
        recording = self._recording  # another thread may close it meanwhile
        recorder = None if recording is None else recording.recorder(start)
        kept = "on_disconnect" in options
        channel = Channel(self._session, start.request_id, core, start, kept=kept, recorder=recorder)
        return await self._open(channel, start, Started)

    def _with_grace(self, start: Start, options: StartOptions) -> Start:
        """Where we come back after a loss, the stream waits for us as long as we try, or as it may there."""
        if self._reconnect_s > 0 and "on_disconnect" not in options:
            start.on_disconnect = "pause"
            if start.grace_ms is None:
                limit_ms = self.ready.limits.get("max_grace_ms", MAX_MILLISECONDS)
                start.grace_ms = math.ceil(min(self._reconnect_s * 1000, limit_ms))  # which may be for ever
        return start

    async def attach(
        self, request_id: str, *, window: int = DEFAULT_WINDOW, credit: Literal["auto"] | None = None
    ) -> Stream:
        """Take over a stream that was started elsewhere: by another process, or before a restart of this one.

        It gives the stream from its first token on, and whoever had it loses it. It must have been started
        with on_disconnect="pause" or "continue" to outlive its starter; it is as before when this client
        closes. credit="auto" if it was started so. A stream that ended can be had for some minutes, too. To
        give up attaching cancels nothing.

        Raises UnknownRequest or RequestExpired if the server knows nothing of it.
        """
        core = StreamCore(None if credit == "auto" else _positive(window))
        channel = Channel(self._session, request_id, core, None, kept=True)
        return await self._open(channel, frame(Attach, request_id=request_id, after=-1), Attached)

    async def fork(
        self,
        stream: Stream | str,
        *,
        at: int | None = None,
        window: int = DEFAULT_WINDOW,
        credit: CreditLike | None = None,
        **options: Unpack[StartOptions],
    ) -> Stream:
        """A stream that begins as another one stands before output token `at`, or behind all that has come of
        it, and is one of its own from there; the other notices nothing, and may have ended.

        It has the other's parameters, but for those given, and a seed of its own: with the same seed it is
        the same text. Its first chunk is what it begins with.
        """
        if isinstance(stream, str):
            options["fork"] = Fork(request_id=stream, at=at)
        else:
            options["fork"] = Fork(request_id=stream.request_id, at=stream.index if at is None else at)
        return await self.start(window=window, credit=credit, **options)

    async def _open(self, channel: Channel, first_frame: Start | Attach, answer: type[Event]) -> Stream:
        channel = self._session.add(channel)
        try:
            await channel.request(first_frame, answer)
        except BaseException:
            channel.abandon()
            raise
        channel.ours = True
        return Stream(channel)

    async def complete(self, **options: Unpack[StartOptions]) -> Completion:
        """Start a stream, wait for its end and return the whole. Raises StreamFailed if that is an error."""
        logprobs: list[TokenLogprob] = []
        async with await self.start(credit="auto", **options) as stream:
            async for chunk in stream:
                logprobs.extend(chunk.logprobs or ())
        assert stream.final is not None  # an iteration that ends has seen it
        return Completion(
            text=stream.text,
            reasoning=stream.reasoning,
            tool_calls=[call for call in stream.calls if call.whole],
            tokens=stream.tokens,
            logprobs=logprobs,
            model=stream.model,
            final=stream.final,
        )

    async def parse(self, kind: type[T], **options: Unpack[StartOptions]) -> T:
        """Have it answered by a value of this type, whose JSON schema the output is held to: a struct, a
        dataclass, a TypedDict, a pydantic model, a list of these, whatever JSON can spell.

        Raises ParseError if there is no such value in the end, as where `max_tokens` is too few.
        """
        options["grammar"] = kind
        answer = await self.complete(**options)
        return answer_of(answer.text, kind, answer.finish_reason)

    async def run(
        self,
        agent: Agent,
        question: str | Sequence[MessageLike],
        *,
        window: int = DEFAULT_WINDOW,
        credit: CreditLike | None = None,
        **options: Unpack[StartOptions],
    ) -> Run:
        """Have an agent answer: its tools run as the model calls them, while the run is read.

        A conversation goes on with `[*run.messages, another]` as the next question. `options` are as those
        of `start`, and go before the agent's own; but its tools, what they wait for, and its `output` stand.
        """
        messages = agent.messages(question)
        started = agent.start_options(options)
        started["messages"] = messages
        return Run(self, agent, await self.start(window=window, credit=credit, **started), messages)

    def record(self, file: str | Path) -> Recording:
        """Record every stream started from now on to a file, with whatever steers it, for `replay`:

            with client.record("misstep.jsonl"):
                stream = await client.start(prompt="Once upon a time")

        Until the end of the block, or `close` of what this returns. The chunks of these streams have token
        ids and log probabilities.
        """
        if self._recording is not None:
            raise ValueError("the client is recording already: close that first")
        self._recording = Recording(file, self._stop_recording)
        return self._recording

    def _stop_recording(self) -> None:
        self._recording = None

    async def replay(self, record: Record) -> Replay:
        """Play a record (see `midstream.read_records`) on this server, each control at the very index at
        which it took effect, and say whether the same tokens come."""
        return await replay(self, record)

    async def ping(self) -> None:
        """Ask the server for a sign of life, and wait for it."""
        await self._session.request(Ping(), Pong)

    async def close(self) -> None:
        """Close the connection. Streams still running end in ConnectionLost here.

        There they are cancelled, but for those that were started with `on_disconnect` or taken over.
        """
        await self._reconnecting.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


class connect:  # noqa: N801 - used as the verb that it is
    """Connect to a server: `async with midstream.connect(url) as client`, or `client = await connect(url)`.

    `url` may be ws, wss, http or https, with or without the path. It may also be a list, of servers that have
    the same engines: each client begins with any of them, and goes on to the next when its connection is
    lost. `api_key` is sent in a header. `encoding`
    is that of the frames. `open_timeout` is in seconds; `ssl` replaces the default TLS settings.

    A connection that is lost is made anew for up to `reconnect_s` seconds, and its streams go on as if
    nothing had been; 0 turns that off. A server that says nothing at all for `silence_s` seconds counts as
    lost. `on_state` is called with the client's state whenever that has changed, in its event loop.

    Raises Unauthenticated, Forbidden, RateLimited or Overloaded if the server refuses, and ConnectionLost
    if there is none to be had: the first connection is tried once, at each server.
    """

    def __init__(
        self,
        url: str | Sequence[str],
        *,
        api_key: str | None = None,
        encoding: Encoding = "json",
        open_timeout: float | None = 10,
        reconnect_s: float = RECONNECT_S,
        silence_s: float | None = SILENCE_S,
        on_state: Callable[[ClientState], object] | None = None,
        ssl: SSLContext | None = None,
    ) -> None:
        if not reconnect_s >= 0:  # as what is no number is not
            raise ValueError(f"reconnect_s must be 0 or more, not {reconnect_s}")
        if silence_s is not None and not silence_s > 0:
            raise ValueError(f"silence_s must be more than 0, or None for no limit, not {silence_s}")
        self._reconnect_s = reconnect_s
        self._on_state = on_state
        self._dialer = Dialer(
            url, api_key=api_key, encoding=encoding, open_timeout=open_timeout, silence_s=silence_s, ssl=ssl
        )
        self._client: Client

    async def _open(self) -> Client:
        connection = await self._dialer.dial_any()
        return Client(
            Reconnecting(self._dialer, connection, self._reconnect_s, self._on_state), self._reconnect_s
        )

    def __await__(self) -> Generator[Any, None, Client]:
        return self._open().__await__()

    async def __aenter__(self) -> Client:
        self._client = await self._open()
        return self._client

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._client.close()


def _positive(window: object) -> int:
    if not isinstance(window, int) or window < 1:
        raise ValueError(f"window must be an integer of at least 1, not {window!r}")
    return window
