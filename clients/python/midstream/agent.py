"""Agents: functions that a model may call, and runs of them, each one stream from the question to the answer.

A run reads its stream. What is done about calls is `tool_tasks`'s; how a stream is started is the client's.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, Unpack

import msgspec

from midstream.errors import LimitReached
from midstream.options import MessageLike, StartOptions
from midstream.protocol import Event, Message
from midstream.schemas import answer_of
from midstream.spans import Call, answer_message
from midstream.stream import Reading, Stream
from midstream.told import Place
from midstream.tool_tasks import REFUSED, ToolOutcome, ToolTasks

if TYPE_CHECKING:
    from midstream.client import Client


Verdict = bool | str | Mapping[str, Any]
Approve = Callable[[Call], Verdict | Awaitable[Verdict]]


class Agent:
    """Tools, and how a model is to use them: what is the same in every run. It knows no server.

    `tools` are functions, which are run as the model calls them: async ones as they are, others in threads,
    several at once. One of which only a schema is given waits for `Run.give`. What a tool raises the model
    is told. With on_tool_call="continue" it writes on while tools run. `system` is what the model is told
    first, `output` the type that the answer is to have. `approve` is asked for each call that waits for a
    yes, of the tools that `approvals` names, or of all: it returns True, False or a text that says why not,
    or other arguments, with which the call is made. A run that makes more than `max_calls` calls, with
    those that are taken back, raises LimitReached, and a tool may take `tool_timeout_s`. `options` are as
    those of `Client.start`; the `timeout_ms` among them is that of a whole run.
    """

    def __init__(
        self,
        *,
        system: str | None = None,
        approve: Approve | None = None,
        max_calls: int | None = None,
        tool_timeout_s: float | None = None,
        output: type | None = None,
        **options: Unpack[StartOptions],
    ) -> None:
        self.system = system
        self.approve = approve
        self.max_calls = max_calls
        self.tool_timeout_s = tool_timeout_s
        self.output = output
        self.tools = options.pop("tools", ())
        self.on_tool_call = options.pop("on_tool_call", "pause")
        self.approvals = options.pop("approvals", approve is not None)
        self._options = options

    def messages(self, question: str | Sequence[MessageLike]) -> list[Message]:
        """What a run begins with."""
        asked = [{"role": "user", "content": question}] if isinstance(question, str) else question
        messages = [one if isinstance(one, Message) else msgspec.convert(one, Message) for one in asked]
        told = self.system is None or (messages and messages[0].role == "system")
        return messages if told else [Message(role="system", content=self.system), *messages]

    def start_options(self, given: StartOptions) -> StartOptions:
        """What a stream of it is started with, beside the conversation."""
        options: StartOptions = {**self._options, **given, **self.fork_options({})}
        if self.tools:
            options["tools"] = self.tools
        if self.output is not None:
            options["grammar"] = self.output
        return options

    def fork_options(self, given: StartOptions) -> StartOptions:
        """What a fork is started with, which has the other's tools and parameters."""
        if not self.tools:
            return given
        return {**given, "on_tool_call": self.on_tool_call, "approvals": self.approvals}


class Run:
    """A run of an agent, made by `Client.run`: one stream from the question to the answer.

    It is read by iterating over it, which gives every event of the stream as `midstream.protocol` has it,
    and two of the client's own, `ToolProgress` and `ToolOutcome`; or by `answer`. A tool starts when its
    call is read as whole, while the model may be writing another. It is cancelled when its call is taken
    back or changed, and when the stream ends, however that comes about: leaving the loop, the run's `async
    with`, or dropping it cancels all of it, as it does a stream.
    """

    def __init__(self, client: Client, agent: Agent, stream: Stream, question: list[Message]) -> None:
        self.agent = agent
        self._client = client
        self._stream = stream
        self._question = question
        self._tasks = ToolTasks(stream.channel, agent)

    @property
    def stream(self) -> Stream:
        """The stream, to be steered as any; its `calls`, `text` and `final` are the run's."""
        return self._stream

    @property
    def outcomes(self) -> list[ToolOutcome]:
        """What came of the calls that stand."""
        return self._tasks.outcomes

    @property
    def messages(self) -> list[Message]:
        """The whole conversation so far: with another question behind it, the next run's."""
        messages, begin = list(self._question), 0
        for place, calls, turns in self._turns():
            messages += [answer_message(self._stream.text[begin : place.text_length], calls), *turns]
            begin = place.text_length
        rest = self._stream.text[begin:]
        return [*messages, answer_message(rest, [])] if rest else messages

    def _turns(self) -> list[tuple[Place, list[Call], list[Message]]]:
        """Where the model's own words end, which calls are answered there, and what stands between."""
        told = self._stream.channel.core.told
        turns: dict[Place, tuple[list[Call], list[Message]]] = {}
        for outcome in self.outcomes:
            if place := told.results.get(outcome.call.call_id):
                calls, messages = turns.setdefault(place, ([], []))
                calls.append(outcome.call)
                messages.append(outcome.message)
        for place, put_in in told.turns:
            turns.setdefault(place, ([], []))[1].extend(put_in)
        return [(place, *turns[place]) for place in sorted(turns)]

    # -- reading ---------------------------------------------------------------------------------------

    def __aiter__(self) -> Reading[Event]:
        return Reading(self._next, self._stream.channel)

    async def _next(self) -> Event | None:
        event = await self._stream.next_event(lambda: self._tasks.failure is not None)
        limit = self.agent.max_calls
        if limit is not None and len(self._stream.channel.core.spans.made) > limit:  # before the tool runs
            raise LimitReached(f"the model made more than {limit} calls")
        if event is not None:
            self._tasks.receive(event)
        if self._tasks.failure is not None:
            raise self._tasks.failure
        return event

    async def answer(self) -> Any:
        """Read it to its end: the text behind the last results, or a value of the agent's `output`.

        Raises StreamFailed, ConnectionLost and LimitReached, and ParseError where there is no such value.
        """
        async for _ in self:
            pass
        turns, final, output = self._turns(), self._stream.final, self.agent.output
        assert final is not None, "it was read to its end"
        text = self._stream.text[turns[-1][0].text_length if turns else 0 :]
        return text if output is None else answer_of(text, output, final.finish_reason)

    # -- steering --------------------------------------------------------------------------------------

    async def approve(self, call: Call) -> None:
        """A call that waits for a yes is made."""
        await self._stream.approve(call)

    async def amend(self, call: Call, arguments: Mapping[str, Any] | str, *, partial: bool = False) -> None:
        """A call has other arguments, or, where `partial`, begins with this text, and the model writes on. It
        waits for its yes anew."""
        await self._stream.amend(call, arguments, partial=partial)

    async def give(self, call: Call, content: object) -> None:
        """Answer a call by hand, whatever runs for it."""
        await self._tasks.give(call, content)

    async def refuse(self, call: Call, why: str = REFUSED) -> None:
        """A call does not run, and the model is told why."""
        await self._tasks.give(call, error=why)

    async def fork(self, *, at: int | None = None, **options: Unpack[StartOptions]) -> Run:
        """Another run, which begins as this one stands before output token `at`, or behind all that was
        read. What came of calls that stand there it knows; the other notices nothing."""
        at = self._stream.consumed if at is None else at
        stream = await self._client.fork(self._stream, at=at, **self.agent.fork_options(options))
        run = Run(self._client, self.agent, stream, self._question)
        run._tasks.inherit(self._tasks, at)
        return run

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stream.__aexit__(kind, error, trace)
