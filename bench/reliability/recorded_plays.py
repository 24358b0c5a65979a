"""Streams that are steered at random, and what is written down of them: a play is drawn from its seed.

Half are the toy's own words, the others those of an agent's model, with calls of tools. Whoever steers reads
as far as they like, answers what a stream waits for, forks what was forked, and leaves before the end.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import midstream
from tests.fakes.guards import OF_TEXT
from tests.fakes.scripts import saying, spelt

CALLS = [spelt({"city": city}) for city in ("Paris", "Rome", "Saint-Denis")]
ANSWERS = ["", "So.", "It is mild there.", *CALLS, *(f"Well. {call}" for call in CALLS), CALLS[0] + CALLS[1]]
PARAMS: list[dict[str, Any]] = [
    {"temperature": 0.0},
    {"temperature": 1.7, "top_p": 0.9},
    {"seed": 99},
    {"stop": [" the"]},
    {"stop": []},
    {"ignore_eos": True, "min_tokens": 10},
    {"max_tokens": 30},
    {"repetition_penalty": 1.3, "logit_bias": {300: 4.0}},
    {"logprobs": None},
    {"guards": []},
]
MOST_TOKENS, MOST_STREAMS = 120, 5
Say = Callable[[str], object]


def weather(city: str) -> str:
    return f"mild in {city}"


class Play:
    """One client's: it starts a stream, and steers it and its forks."""

    def __init__(self, seed: int, say: Say = lambda line: None) -> None:
        self._chance = random.Random(seed)
        self._say = say
        self._agent = self._chance.random() < 0.5
        self._guarded = self._chance.choice([0, 0, 0.4])
        self._streams: list[midstream.Stream] = []

    async def write(self, url: str, file: Path) -> None:
        chance = self._chance
        async with midstream.connect(url) as client:
            with client.record(file):
                self._streams.append(await self._start(client))
                for _ in range(chance.randint(0, 14)):
                    await self._move(client, chance.choice(self._streams))
                for stream in self._streams:
                    if chance.random() < 0.6:
                        await self._unless_refused(self._read(stream, MOST_TOKENS))
                    await stream.cancel()

    async def _start(self, client: midstream.Client) -> midstream.Stream:
        options = self._reading() | self._params() | {"seed": self._chance.randint(0, 99)}
        if self._agent:
            answers = self._chance.choices(ANSWERS, k=self._chance.randint(1, 4))
            said = [{"role": "user", "content": saying(*answers)}]
            options |= {"messages": said, "tools": [weather], **self._with_calls()}
        else:
            options["prompt"] = "Once upon a time"
        self._say(f"start {options}")
        return await client.start(**options)

    def _reading(self) -> dict[str, Any]:
        return {
            "window": self._chance.choice([1, 3, 64]),
            "credit": self._chance.choice([None, "auto", {"limit": 4, "prefetch": 8}]),
            "stream_interval": self._chance.choice([1, 1, 4]),
            "max_tokens": self._chance.randint(10, MOST_TOKENS),
        }

    def _params(self) -> dict[str, Any]:
        if self._chance.random() >= self._guarded:
            return {}
        return {"guards": self._chance.sample(OF_TEXT, self._chance.randint(1, 2))}

    def _with_calls(self) -> dict[str, Any]:
        how = self._chance.choice(["pause", "pause", "continue", "finish"])
        return {"on_tool_call": how, "approvals": self._chance.choice([False, False, True])}

    async def _move(self, client: midstream.Client, stream: midstream.Stream) -> None:
        chance = self._chance
        place, back = max(0, stream.consumed - chance.randint(0, 20)), chance.random() < 0.3
        at = place if back else None
        tokens = chance.choice([3, 12, 30])
        moves: Sequence[tuple[str, Callable[[], Awaitable[object]]]] = [
            (f"read {tokens}", lambda: self._read(stream, tokens)),
            (f"read {tokens}", lambda: self._read(stream, tokens)),
            (f"adjust at {at}", lambda: stream.adjust(at=at, **chance.choice(PARAMS) | self._params())),
            (f"inject at {at}", lambda: stream.inject(at=at, text=chance.choice([" But", " é"]))),
            (f"inject at {at}", lambda: stream.inject(at=at, tokens=[300, 301])),
            ("ask", lambda: stream.inject(messages=[{"role": "user", "content": "Why?"}])),
            (f"rewind {place}", lambda: stream.rewind(place)),
            ("pause", lambda: stream.pause(kv=chance.choice(["hold", "release"]))),
            ("resume", stream.resume),
            (f"fork at {place}", lambda: self._fork(client, stream, place)),
            ("say of a call", lambda: self._say_of_a_call(stream)),
        ]
        what, act = chance.choice(moves)
        self._say(f"{self._streams.index(stream)}: {what}, {stream!r}")
        await self._unless_refused(act())

    async def _unless_refused(self, act: Awaitable[object]) -> None:
        try:
            await act
        except midstream.RequestError as refused:
            self._say(f"refused: {refused}")

    async def _fork(self, client: midstream.Client, stream: midstream.Stream, at: int) -> None:
        if len(self._streams) < MOST_STREAMS:
            options = self._reading() | self._params() | (self._with_calls() if self._agent else {})
            self._say(f"fork {options}")
            self._streams.append(await client.fork(stream, at=at, **options))

    async def _read(self, stream: midstream.Stream, tokens: int) -> None:
        """So many tokens; where it stands, whatever it waits for is given to it."""
        end = stream.consumed + tokens
        while stream.consumed < end and stream.final is None:
            if stream.try_next() is not None:
                continue
            waits = [call for call in stream.calls if call.whole]
            if stream.pause_reason == "tool_call" and waits:
                await self._answer(stream, waits)
            elif stream.pause_reason in ("client", "guard", "tool_call"):
                await stream.resume()
            else:
                await stream.channel.wait()

    async def _answer(self, stream: midstream.Stream, calls: Sequence[midstream.Call]) -> None:
        for call in calls:
            if call.call_id not in stream.channel.core.told:
                await self._tell(stream, call)
        if stream.pause_reason == "tool_call":
            await stream.resume()

    async def _tell(self, stream: midstream.Stream, call: midstream.Call) -> None:
        if call.approval and self._chance.random() < 0.5:
            await stream.tool_result(call, error="no")
            return
        if call.approval:
            await stream.approve(call)
        await stream.tool_result(call, f"mild at {stream.index}")

    async def _say_of_a_call(self, stream: midstream.Stream) -> None:
        calls = [call for call in stream.calls if call.whole]
        if not calls:
            return
        call = self._chance.choice(calls)
        if self._chance.random() < 0.5:
            await self._tell(stream, call)
        elif self._chance.random() < 0.5:
            await stream.amend(call, {"city": "Rome"})
        else:
            await stream.amend(call, '{"city": "Ro', partial=True)
