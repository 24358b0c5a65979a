"""The world of a stream that has grown large: a hub in an event loop that times its turns, one connection,
and an engine that says what it is told to and answers what it is asked, as far as it is granted.

Whatever the gateway does to a stream is done here as in a server, by the hub, in turns. It knows no model,
and neither how a stream is made large nor what is then done to it.
"""

from __future__ import annotations

import asyncio
import functools
import json
import math
import resource
import time
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any
from weakref import WeakSet

import msgspec

from bench.reliability.growth_engine import PlayedEngine
from bench.reliability.story_starts import WITH_TOOLS
from engine import api, toy_model
from midstream.protocol import Credit, Error, Final, Function, Message, Params, Start, StreamFrame, Tool
from realtime.codec import Codec
from realtime.hub.hub import Hub
from realtime.hub.observers import Observer
from realtime.hub.registry import LiveStream
from realtime.hub.stream_key import StreamKey
from realtime.hub.tokenizing_pool import TokenizingPool
from realtime.stream.stream import Stream
from realtime.text.served_model import ServedModel
from realtime.text.tokenizer import Tokenizer
from realtime.work_budget import WorkBudget
from tests.fakes.recording_listener import RecordingListener
from tests.fakes.simulated_client import TENANT
from tests.fakes.simulated_server import Timer

CONTEXT = 128 << 10  # tokens, as large models have
UNBOUNDED = Credit(limit=1 << 20)
STEPS_A_TURN = 64  # of the engine, that come in one read
STEPS_ALIKE = 16  # in each of which the engine has done as much of what waits
STILL = 8  # turns in which nothing moves, behind which nothing will
A_WHILE_S = 1.0  # what is to be done in less is done by the event loop
WITH_CALLS: dict[str, Any] = {
    "messages": [Message(role="user", content="Hi")],
    "tools": [Tool(function=Function(name="find")), Tool(function=Function(name="stop"))],
}
PLAIN: dict[str, Any] = {"prompt": "Once"}
# Tokens that say much, as large vocabularies have them, behind those of the toy.
MUCH = {
    "dashes": "-" * 80,
    "spaces": " " * 128,
    "wide letters": "漢字仮名交じり文漢字仮名交じり文",
    "emoji": "😀" * 8,
    "a wide letter among others": "a" * 30 + "é",
}
TOKENS = {kind: toy_model.VOCAB + at for at, kind in enumerate(MUCH)}
VOCAB = toy_model.VOCAB + len(MUCH)

_codec = Codec(None)
_read_steps = msgspec.msgpack.Decoder(api.StepOutput).decode


class TimedLoop(asyncio.SelectorEventLoop):
    """It knows how long its longest turn took, in seconds of the processor that its own thread had; pages of
    memory count for nothing that are copied since the process was forked off, each in `page_s`."""

    page_s = longest_s = 0.0

    def _run_once(self) -> None:
        began_s, pages = time.thread_time(), _pages()
        super()._run_once()  # type: ignore[misc]
        took_s = time.thread_time() - began_s - self.page_s * (_pages() - pages)
        self.longest_s = max(self.longest_s, took_s)


def _pages() -> int:
    """That this thread was the first to write to, since the fork or ever."""
    return resource.getrusage(resource.RUSAGE_THREAD).ru_minflt


_WRITTEN = bytearray(b"x") * (256 * resource.getpagesize())


def page_s() -> float:
    """What it takes to copy one, in a process that was just forked off."""
    began_s, pages = time.thread_time(), range(0, len(_WRITTEN), resource.getpagesize())
    for at in pages:
        _WRITTEN[at] = 0
    return (time.thread_time() - began_s) / len(pages)


class PayingListener(RecordingListener):
    """It pays for work as a connection does: by waiting; and what it hears it writes as one does."""

    def __init__(self, hub: Hub) -> None:
        super().__init__(SimpleNamespace(hub=hub))  # type: ignore[arg-type]
        self._budget = WorkBudget(time.monotonic())

    async def pay(self, work_s: float) -> None:
        wait_s = self._budget.pay(work_s, time.monotonic())
        if wait_s is not None:
            await asyncio.sleep(wait_s)

    def flush(self) -> None:
        before = len(self.heard)
        super().flush()
        for event in self.heard[before:]:
            _codec.encode(event)

    def forget_what_it_heard(self) -> None:
        for heard in (self.heard, self.answers, self.errors, self.lost):
            heard.clear()


class LaterCalls:
    """What is to be done after a while. Loops come and go, and none waits for so long: it is due when
    somebody says so, and all at once. What is due soon goes over from one loop to the next."""

    def __init__(self) -> None:
        self._timers: list[Timer] = []
        self._soon = dict[Timer, None]()

    def call_later(self, delay_s: float, call: Callable[[], None]) -> Timer:
        timer = Timer(delay_s, call)
        if delay_s < A_WHILE_S:
            self._soon[timer] = None
            asyncio.get_running_loop().call_later(delay_s, self._act, timer)
        else:
            self._timers.append(timer)
        return timer

    def all_due(self) -> None:
        due, self._timers = self._timers, []
        for timer in due:
            asyncio.get_running_loop().call_soon(_act, timer)

    def go_on(self) -> None:
        """In another loop."""
        for timer in self._soon:
            asyncio.get_running_loop().call_soon(self._act, timer)

    def forget_cancelled(self) -> None:
        self._timers = [timer for timer in self._timers if not timer.cancelled]

    def _act(self, timer: Timer) -> None:
        self._soon.pop(timer, None)
        _act(timer)


def _act(timer: Timer) -> None:
    if timer.call is not None:
        timer.call()


class World:
    def __init__(self, asked: dict[str, Any], **params: Any) -> None:
        """`asked`: of its start, beside its parameters."""
        self.engine = PlayedEngine()
        self._later = LaterCalls()
        self._listeners = WeakSet[PayingListener]()
        self.hub = self._gateway(is_home=True)
        self.listener = self.connection()
        fields: dict[str, Any] = {"credit": UNBOUNDED, "on_disconnect": "continue", "return_tokens": True}
        self.start = Start(request_id="a", params=Params(**params), **(fields | asked))
        self.hubs = [self.hub]
        self._most_steps = math.inf  # to wait for
        self._steps = 0

    def _gateway(self, *, is_home: bool) -> Hub:
        """Of those that are not at home, streams are only asked for."""

        def send(number: int, commands: list[api.AnyCommand]) -> None:
            self.engine.be_asked(hub, commands)
            if is_home:
                self.engine.hear(commands)
                for answer in self.engine.keeping.answers():
                    hub.receive_answer(0, answer)

        hub = Hub(send, Observer(), window=64, max_streams=4096, call_later=self._later.call_later)
        hub.engine_ready(0, model(), 16, keeper=b"engine")
        return hub

    def connection(self, hub: Hub | None = None) -> PayingListener:
        """Another, of the same client."""
        self._listeners.add(listener := PayingListener(hub or self.hub))
        return listener

    def forget_what_is_played(self) -> None:
        """What the engine knows and keeps, and listeners have heard: the gateway's own is left."""
        self.engine.forget()
        self.start = Start(request_id="a")
        self._later.forget_cancelled()
        for listener in self._listeners:
            listener.forget_what_it_heard()

    def begin_anew(self) -> None:
        """In processes that are forked off, which have no threads yet. What was told is told, and of what
        waits a few steps show enough."""
        self._most_steps = STEPS_ALIKE
        for hub in self.hubs:
            hub._long_texts._pool = hub._adoptions._pool = TokenizingPool()
        self.listener.heard.clear()
        self.listener.answers.clear()
        self.listener.errors.clear()

    async def after(self, act: Callable[[World], Awaitable[object]]) -> None:
        """In another loop than before."""
        self._later.go_on()
        await act(self)

    @property
    def entry(self) -> LiveStream:
        entry = self.hub._registry.by_key(StreamKey(TENANT, "a"))
        assert entry is not None, "it lives"
        return entry

    @property
    def stream(self) -> Stream:
        return self.entry.stream

    @property
    def streams(self) -> list[Stream]:
        return self.hub.streams

    @property
    def calls(self) -> list[str]:
        return [call.call_id for call in self.stream.output.calls]

    @property
    def sent(self) -> int:
        """Output tokens."""
        return self.stream.outbox.sent

    @property
    def outcome(self) -> str:
        """What was said no to, or how it ended; nothing, where it goes on."""
        told = [*self.listener.errors, *self.listener.answers, *self.listener.heard]
        refused = [event.code for event in told if isinstance(event, Error)]
        ended = [event.finish_reason for event in told if isinstance(event, Final)]
        return next(iter([*refused, *ended]), "")

    # -- what is said, each in a turn of its own -----------------------------------------------------

    async def say(self, frame: StreamFrame, listener: RecordingListener | None = None) -> None:
        (listener or self.listener).send(as_read(frame))
        await asyncio.sleep(0)

    async def steer(self, *frames: StreamFrame) -> None:
        """And wait for all that comes of it: what is said at once is answered in one step."""
        for frame in frames:
            await self.say(frame)
        await self.rest()

    async def hear(self, *news: api.News) -> None:
        """The engine says this in one step."""
        await self._hear_steps([list(news)])

    async def _hear_steps(self, steps: list[list[api.News]]) -> None:
        if steps and self.engine.lives:
            self.hub.receive_steps(0, [self._step(news) for news in steps])
        await asyncio.sleep(0)

    def _step(self, news: list[api.News]) -> api.StepOutput:
        self._steps += 1
        output = api.StepOutput(self._steps, news, api.Stats(step_s=0.01))
        self.engine.keeping.tell(output)
        return _read_steps(msgspec.msgpack.encode(output))

    async def write(
        self, text: str | bytes, *, logprobs: int | None = None, number: int | None = None
    ) -> None:
        """The engine writes it, a byte a token and a token a step, as far as it may. `number`: of another
        stream than "a"."""
        tokens = list(text.encode() if isinstance(text, str) else text)
        await self.write_tokens(tokens, logprobs=logprobs, number=number)

    async def write_tokens(
        self, tokens: list[int], *, logprobs: int | None = None, number: int | None = None
    ) -> None:
        number = self.stream.number if number is None else number
        at = stopped = 0
        while at < len(tokens) and stopped < 2:
            some = list(self.engine.write(number, tokens[at : at + STEPS_A_TURN], logprobs))
            await self._hear_steps([[news] for news in some])
            if self.engine.is_asked:
                await self.answer()
            at += len(some)
            stopped = 0 if some else stopped + 1
            if stopped:  # until what guards are yet to read is read
                await self.rest()
        await self.rest()

    async def write_to_all(self, text: str) -> None:
        """Of each stream the same, a token a step."""
        for token in text.encode():
            streams = [stream.number for stream in self.streams]
            await self.hear(*(news for number in streams for news in self.engine.write(number, [token])))
        await self.rest()

    async def answer(self) -> None:
        """The engine does what it was asked, in one step."""
        await self.hear(*self.engine.answers())

    async def end_turn(self) -> None:
        """The model writes an end token, behind which the stream may have to go on."""
        await self.hear(self.engine.end(self.stream.number))
        await self.rest()

    async def rest(self) -> None:
        """Until nothing moves by itself, or enough steps were alike."""
        still, steps = 0, 0
        while still < STILL and steps < self._most_steps:
            still += 1
            if self.engine.is_asked:
                await self.answer()
                still, steps = 0, steps + 1
            elif any(hub._long_texts.keys or not hub._incoming._lines.empty for hub in self.hubs):
                await asyncio.sleep(0.001)
                still = 0
            else:
                await asyncio.sleep(0)

    # -- who comes and goes --------------------------------------------------------------------------

    async def begin(self) -> World:
        """The stream, with a listener that reads."""
        await self.steer(self.start)
        assert not self.listener.errors, self.listener.errors[0].message
        await self.hear(api.News(self.stream.number, admitted=0))
        return self

    async def lose_engine(self) -> None:
        self.engine.die()
        self.hub.engine_lost(0)
        await asyncio.sleep(0)
        await self.rest()

    async def new_engine(self) -> None:
        self.engine.lives = True
        self.hub.engine_ready(0, model(), 16, keeper=b"engine")
        await asyncio.sleep(0)
        await self.rest()

    async def leave(self) -> None:
        self.listener.leave()
        await asyncio.sleep(0)
        await self.rest()

    async def let_time_pass(self) -> None:
        """More than anything waits for: all of it is due at once."""
        self._later.all_due()
        await asyncio.sleep(0)
        await self.rest()

    async def be_adopted(self, *frames: StreamFrame) -> None:
        """The client comes to another gateway with these frames, to which the engine gives the streams."""
        other = self._gateway(is_home=False)
        self.hubs.append(other)
        self.listener = self.connection(other)
        await self.steer(*frames)


def as_read(frame: StreamFrame) -> StreamFrame:
    """As a connection reads it: nothing of it is anybody else's."""
    read = _codec.decode(msgspec.json.encode(frame).decode())
    assert isinstance(read, StreamFrame)
    return read


@functools.cache
def model() -> ServedModel:
    definition = json.loads((toy_model.FOLDER / "tokenizer.json").read_text())
    added = definition["added_tokens"]
    added += [
        added[-1] | {"id": TOKENS[kind], "content": text, "special": False} for kind, text in MUCH.items()
    ]
    return ServedModel("toy", Tokenizer(definition, WITH_TOOLS), VOCAB, CONTEXT, "fp")
