"""The stream object that a user holds: iterate it, steer it, drop it.

Knows when a stream is no longer wanted. What its events mean is the core's, how frames are sent the
session's.
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any, Generic, Literal, Self, TypeVar, Unpack, cast

from midstream.errors import ConnectionLost, StreamFailed
from midstream.options import MessageLike, ParamOptions, check_names, frame, plain_params
from midstream.protocol import (
    Adjust,
    Adjusted,
    Amend,
    AnyPauseReason,
    Approve,
    Approved,
    Cancel,
    Event,
    Final,
    Grant,
    Inject,
    Injected,
    Message,
    Params,
    Pause,
    Paused,
    Resume,
    Resumed,
    Rewind,
    Rewound,
    SnapshotCall,
    StreamEvent,
    ToolResult,
)
from midstream.schemas import result_text
from midstream.spans import Call, Thought, answer_message
from midstream.stream_channel import Channel
from midstream.stream_core import Chunk, Restarted, State

T = TypeVar("T")

DETACHED = "the stream was cancelled, because its connection was lost and nobody came back to it in time"


class Stream:
    """A running stream of output, made by `Client.start`.

    It is lazy: the server decodes as chunks are asked for, up to the window ahead. It is cancelled as soon
    as it is no longer wanted, and each of these says so:

    * leaving an `async for` over it before its end, by `break`, `return`, an exception or a task's
      cancellation;
    * leaving an `async with` block of it, which also waits until the server, if it can be reached, has
      confirmed the end;
    * dropping the last reference to it.

    The first and the last hang on Python freeing an object. CPython does so at once, unless the object is
    part of a reference cycle; where that is not good enough, use `async with`. To read a part and go on
    later, use `next`, which says nothing about what is wanted after it.

    Each method that steers waits for the server's acknowledgement and returns the exact index of the output
    token from which on it holds. It raises RequestFinished if the stream ends first, and ConnectionLost if
    the connection does. To steer from what was read rather than from what was decoded ahead, pass
    `at=chunk.end`.
    """

    def __init__(self, channel: Channel) -> None:
        self.channel = channel  # the package's own
        self._core = channel.core
        _cancel_when_freed(self, channel)

    def __repr__(self) -> str:
        return f"<Stream {self.request_id!r} {self.state} at {self.index}>"

    # -- what is known of it ---------------------------------------------------------------------------

    @property
    def request_id(self) -> str:
        """Its name in the protocol."""
        return self.channel.request_id

    @property
    def model(self) -> str | None:
        """The model that answers."""
        return self._core.model

    @property
    def prompt_tokens(self) -> int | None:
        """The length of the prompt."""
        return self._core.prompt_tokens

    @property
    def fingerprint(self) -> str | None:
        """Of what computes it now: equal ones promise equal tokens for the same start, steered the same."""
        return self._core.fingerprint

    @property
    def params(self) -> Params:
        """The sampling parameters in force, as the server resolved them."""
        return self._core.params

    @property
    def text(self) -> str:
        """All text received that still stands. It may be ahead of the chunks taken; `rewind` shortens it."""
        return self._core.text

    @property
    def reasoning(self) -> str:
        """What the model has said to itself, of what still stands: it is in no chunk."""
        return self._core.spans.reasoning

    @property
    def thoughts(self) -> list[Thought]:
        """The same, at which tokens it stands: each stretch of it on its own."""
        return list(self._core.spans.thoughts)

    @property
    def calls(self) -> list[Call]:
        """The calls of tools that still stand; the last may be incomplete: see `Call.whole`."""
        return self._core.spans.calls

    @property
    def message(self) -> Message:
        """What has come and still stands, as a turn of the conversation: the text, and the calls that are
        whole."""
        return answer_message(self.text, self.calls)

    @property
    def tokens(self) -> list[int]:
        """The ids of all tokens received that still stand, if it was started with `return_tokens=True`."""
        return list(self._core.tokens)

    @property
    def index(self) -> int:
        """How many output tokens were received and still stand; `consumed` of them were taken."""
        return self._core.index

    @property
    def consumed(self) -> int:
        """The index after the last token taken: where the next chunk begins."""
        return self._core.consumed

    @property
    def restarts(self) -> list[Restarted]:
        """Each time that nobody knew it any more, and it was started again from what had come: where it went
        on. They stand among `events()`, too."""
        return list(self._core.restarts)

    @property
    def state(self) -> State:
        """ "running", "paused" or "finished"."""
        return self._core.state

    @property
    def pause_reason(self) -> AnyPauseReason | None:
        """Why it is paused: "client" (somebody asked), "tool_call" (it waits for results), "guard",
        "memory", "engine" (it failed), "loading" (its model is) or "detached"."""
        return self._core.pause_reason

    @property
    def final(self) -> Final | None:
        """How it ended, with usage and timing; None until it has."""
        return self._core.final

    # -- reading ---------------------------------------------------------------------------------------

    def __aiter__(self) -> Reading[Chunk]:
        return Reading(self.next, self.channel)

    def events(self) -> Reading[StreamEvent]:
        """Everything that happens, as `midstream.protocol` has it: `Token`, `Reasoning`, `ToolCall`,
        `ToolArguments`, `ToolCallDone`, `Rewound` and their like, up to `Final`. One of a kind that is not
        known there is a bare `StreamEvent`.

        To read an event takes the chunk that it brought, and to take a chunk all events up to it: a stream is
        read in one of the two ways.
        """
        return cast("Reading[StreamEvent]", Reading(self.next_event, self.channel))  # a run alone notes more

    def tool_calls(self) -> Reading[Call]:
        """The calls of tools, each once, as soon as it is whole. One that was rewound into, or amended, comes
        again when it is, under the same id.

        It reads the stream, as iterating over it does: what it says beside them is in `text` and `reasoning`.
        """
        given: dict[int, SnapshotCall] = {}

        async def next_call() -> Call | None:
            while (call := self._core.spans.next_whole(given)) is None:
                if await self.next_event() is None:
                    break
            return call

        return Reading(next_call, self.channel)

    async def next(self, *, timeout: float | None = None) -> Chunk | None:  # noqa: ASYNC109 - for polling
        """The next chunk, or None at the end. Raises TimeoutError if none comes for `timeout` seconds.

        Raises StreamFailed if the stream ended in an error, and ConnectionLost if the connection broke: after
        the chunks that came before.
        """
        async with asyncio.timeout(timeout):
            while (chunk := self.try_next()) is None and self.final is None:
                await self.channel.wait()
            return chunk

    def try_next(self) -> Chunk | None:
        """The next chunk if it is here already; None if it is not, or the stream has ended: see `final`."""
        return self._take(self._core.take)

    async def next_event(self, stopped: Callable[[], bool] = lambda: False) -> Event | None:
        """The next of everything that happens, and of what is noted in between: see `events`. None at the
        end, and where it is stopped, of which `Channel.wake` tells."""
        while (event := self._take(self._core.take_event)) is None and self.final is None and not stopped():
            await self.channel.wait()
        return event

    def _take(self, take: Callable[[], T | None]) -> T | None:
        if not self.channel.ended:
            self.channel.check_loop()  # credit that is counted here must reach the server
        limit = self._core.extend_credit()
        if limit is not None and not self.channel.failed:
            self.channel.send(Grant(request_id=self.request_id, limit=limit))
        taken = take()
        if taken is None:
            self._check_end()
        return taken

    def grant(self, limit: int) -> None:
        """Let it decode up to the token at index `limit`, and none behind it, however many chunks are taken.

        With window=1 the stream then stands at exactly that index, until a chunk behind it is asked for. What
        was granted cannot be taken back.
        """
        granted = frame(Grant, request_id=self.request_id, limit=limit)
        self._core.grant(limit)
        self.channel.send(granted)

    def _check_end(self) -> None:
        self.channel.check()
        if self.final is None:
            return
        if self.final.finish_reason == "error":
            raise StreamFailed(self.final)
        if (self.final.finish_reason, self.final.stop_reason) == ("cancelled", "detached"):
            raise ConnectionLost(DETACHED, code=None, retryable=False)

    # -- steering --------------------------------------------------------------------------------------

    async def pause(self, *, kv: Literal["hold", "release"] = "hold") -> int:
        """Stop decoding. With kv="release" its memory is given up at once, to be rebuilt on `resume`."""
        return (await self.channel.request(frame(Pause, request_id=self.request_id, kv=kv), Paused)).index

    async def resume(self) -> int:
        """Go on after a pause."""
        return (await self.channel.request(Resume(request_id=self.request_id), Resumed)).index

    async def adjust(self, *, at: int | None = None, **params: Unpack[ParamOptions]) -> int:
        """Change sampling parameters: the token at the index returned is the first sampled with them."""
        check_names("adjust", params, ParamOptions.__annotations__)
        change = frame(Adjust, request_id=self.request_id, params=plain_params(params), at=at)
        return (await self.channel.request(change, Adjusted)).index

    async def inject(
        self,
        *,
        text: str | None = None,
        messages: Sequence[MessageLike] | None = None,
        tokens: Sequence[int] | None = None,
        at: int | None = None,
        grammar: Literal["fit", "anew"] = "fit",
    ) -> int:
        """Put text, messages or tokens into the context, before the output token at the index returned.

        `text` and `tokens` continue the model's own turn; `messages` close it, and open a new one after them.
        Where the stream has a grammar they fit into it, or it begins anew behind them.
        """
        content = {"text": text, "messages": messages, "tokens": tokens}
        put = frame(Inject, request_id=self.request_id, **content, at=at, grammar=grammar)
        return (await self.channel.request(put, Injected)).index

    async def tool_result(self, call: Call | str, content: object = None, *, error: str | None = None) -> int:
        """Tell the model what came of a call, or the error that it ended with. What is no text is told as
        JSON.

        For a stream that was started with on_tool_call="pause" or "continue". Results of one turn go in
        together: the stream goes on with the last of them.
        """
        said = None if content is None and error is not None else result_text(content)
        call_id = _id_of(call)
        result = frame(ToolResult, request_id=self.request_id, call_id=call_id, content=said, error=error)
        return (await self.channel.request(result, Injected)).index

    async def approve(self, call: Call | str) -> int:
        """Say yes to a call that waits for it (`approvals` of the start), and return its first token's index.
        A no is a `tool_result` with an `error`."""
        yes = frame(Approve, request_id=self.request_id, call_id=_id_of(call))
        return (await self.channel.request(yes, Approved)).index

    async def amend(
        self, call: Call | str, arguments: Mapping[str, Any] | str, *, partial: bool = False
    ) -> int:
        """Change a call's arguments: from the first token that changes on they are written anew, and the
        model closes the call. `partial`: `arguments` is the beginning of their JSON, and the model writes on
        from there. What was approved of it is not any more."""
        call_id, said = _id_of(call), result_text(arguments)
        change = frame(Amend, request_id=self.request_id, call_id=call_id, arguments=said, partial=partial)
        return (await self.channel.request(change, Injected)).index

    async def rewind(self, to: int) -> int:
        """Forget the output from token `to` on, and go on from there. `text` and `tokens` follow."""
        return (await self.channel.request(frame(Rewind, request_id=self.request_id, to=to), Rewound)).index

    async def cancel(self) -> int:
        """End it now, if it has not ended, and return the length of its output. May be called again."""
        final = self.final or await self.channel.request(Cancel(request_id=self.request_id), Final)
        return final.index

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self.channel.attached:
            self.channel.abandon()  # it is cancelled when the connection is back, or by the server
            return
        with suppress(ConnectionLost):  # then nothing is left to cancel: the server saw the connection go
            await self.cancel()


def _id_of(call: Call | str) -> str:
    return call if isinstance(call, str) else call.call_id


class Reading(Generic[T]):
    """One reading of a stream to its end. Where it is dropped before, the stream is cancelled."""

    def __init__(self, take: Callable[[], Awaitable[T | None]], channel: Channel) -> None:
        self._take = take
        self._channel = channel
        _cancel_when_freed(self, channel)

    def __aiter__(self) -> Reading[T]:
        return self

    async def __anext__(self) -> T:
        try:
            taken = await self._take()
        except BaseException:
            # The loop is over; but the traceback holds this frame, and would keep us from being freed.
            self._channel.abandon()
            raise
        if taken is None:
            raise StopAsyncIteration
        return taken

    async def aclose(self) -> None:
        """Say now that nobody reads on, as dropping it does: for `contextlib.aclosing`."""
        self._channel.abandon()


def _cancel_when_freed(owner: Stream | Reading[T], channel: Channel) -> None:
    """Tie the stream to the life of an object. When the whole program ends, the connection goes anyway."""
    weakref.finalize(owner, channel.abandon).atexit = False
