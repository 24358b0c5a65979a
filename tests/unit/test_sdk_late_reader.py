"""A run whose reader is late: what it has yet to hear of a call, nobody answers for it meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

import pytest

import midstream
from midstream.protocol import (
    Approved,
    Event,
    Frame,
    Injected,
    Params,
    Rewound,
    Started,
    ToolArguments,
    ToolCall,
    ToolCallDone,
)
from midstream.session import Session
from midstream.spans import Call
from midstream.stream_channel import Channel
from midstream.stream_core import StreamCore
from midstream.tool_tasks import ToolTasks

PARIS, ROME = '{"city":"Paris"}', '{"city":"Rome"}'


class Asked:
    """A session in which all that is asked has no answer, and is noted."""

    connected = True

    def __init__(self) -> None:
        self.frames: asyncio.Queue[Any] = asyncio.Queue()

    def check_loop(self) -> None:
        pass

    async def request(self, frame: Frame, answer: type[Event]) -> Event:
        self.frames.put_nowait((answer, frame))
        return await asyncio.Future()


class Read:
    """A stream of one call, and what is read of it."""

    def __init__(self, agent: midstream.Agent) -> None:
        self.session = Asked()
        self.channel = Channel(cast(Session, self.session), "a", StreamCore(), None, kept=False)
        self.tasks = ToolTasks(self.channel, agent)
        self._come(lambda seq: Started(request_id="a", seq=seq, model="m", prompt_tokens=1, params=Params()))

    def _come(self, event: Callable[[int], Any]) -> None:
        self.channel.receive(event(self.channel.core.seq + 1))

    def call(self, arguments: str, *, approval: bool = False) -> None:
        of: dict[str, Any] = {"request_id": "a", "call_id": "c", "index": 0}
        self._come(lambda seq: ToolCall(**of, seq=seq, name="weather"))
        self._come(lambda seq: ToolArguments(**of, seq=seq, count=0, delta=arguments))
        self._come(lambda seq: ToolCallDone(**of, seq=seq, end=0, approval=approval))

    def take_back(self) -> None:
        self._come(lambda seq: Rewound(request_id="a", seq=seq, index=0, text_length=0))

    def read(self) -> None:
        while (event := self.channel.core.take_event()) is not None:
            self.tasks.receive(event)


async def until_idle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def begun_in_paris(tool: Callable[..., object]) -> Read:
    """A run whose reader has read a call of the tool's, that is at work."""
    late = Read(midstream.Agent(tools=[tool]))
    late.call(PARIS)
    late.read()
    await until_idle()
    return late


async def test_what_came_of_a_call_that_was_changed_is_no_result_of_what_it_is_now() -> None:
    gates = {"Paris": asyncio.Event(), "Rome": asyncio.Event()}
    begun: list[str] = []

    async def weather(city: str) -> str:
        begun.append(city)
        await gates[city].wait()
        return f"mild in {city}"

    late = await begun_in_paris(weather)
    late.take_back()
    late.call(ROME)
    gates["Paris"].set()
    await until_idle()
    assert late.session.frames.empty(), "it is nobody's result any more"
    late.read()
    gates["Rome"].set()
    answer, frame = await late.session.frames.get()
    assert (answer, frame.content, begun) == (Injected, "mild in Rome", ["Paris", "Rome"])


async def test_what_stands_again_as_it_was_is_begun_again() -> None:
    gates = [asyncio.Event(), asyncio.Event()]
    calls = iter(gates)

    async def weather(city: str) -> str:
        await next(calls).wait()
        return f"mild in {city}"

    late = await begun_in_paris(weather)
    late.take_back()
    gates[0].set()
    await until_idle()
    late.call(PARIS)
    late.read()
    gates[1].set()
    answer, frame = await late.session.frames.get()
    assert (answer, frame.content) == (Injected, "mild in Paris")


@pytest.mark.parametrize("verdict", [True, False, {"city": "Oslo"}])
async def test_a_verdict_is_on_the_call_of_which_it_was_asked(verdict: Any) -> None:
    asked: asyncio.Queue[tuple[str, asyncio.Future[Any]]] = asyncio.Queue()

    async def approve(call: Call) -> Any:
        said: asyncio.Future[Any] = asyncio.Future()
        asked.put_nowait((call.arguments, said))
        return await said

    def weather(city: str) -> str:
        return city

    late = Read(midstream.Agent(tools=[weather], approve=approve))
    late.call(PARIS, approval=True)
    late.read()
    about, said = await asked.get()
    assert about == PARIS
    late.take_back()
    late.call(ROME, approval=True)
    said.set_result(verdict)
    await until_idle()
    assert late.session.frames.empty(), "it is asked of the other"
    late.read()
    about, said = await asked.get()
    assert about == ROME
    said.set_result(True)
    answer, _ = await late.session.frames.get()
    assert answer is Approved
