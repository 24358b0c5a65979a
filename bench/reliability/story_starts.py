"""How the streams of stories begin, and the parameters that they are given, drawn by chance: with tools of
which calls are held to schemas or are not, grammars, guards, stop strings, and every way to read them.
"""

from __future__ import annotations

import random
from typing import Any, Protocol

from engine import toy_model
from midstream import protocol
from midstream.protocol import Budget, Credit, Function, Grammar, Guard, Message, Params, Tool
from tests.fakes.guards import OF_TEXT

WITH_TOOLS = (
    "{% for tool in tools or [] %}<tool>{{ tool | tojson }}{% endfor %}"
    "{% for m in messages %}{{ m.role + ' ' + m.content }}{% for call in m.tool_calls or [] %}<tool_call>"
    "{{ call.function.name }}{{ call.function.arguments | tojson }}{% endfor %}{% endfor %}"
)
PLAIN = "{% for m in messages %}{{ m.role + m.content }}{% endfor %}"
TEMPLATES = [WITH_TOOLS, WITH_TOOLS + "<think>\n", PLAIN, PLAIN + "<think>\n"]
LONG = "long " * 440  # it is made tokens beside the event loop
SCHEMA = {
    "type": "object",
    "properties": {
        "q": {"enum": ["a", "bb", "ccc"]},
        "n": {"type": "integer", "minimum": 0, "maximum": 99},
    },
    "required": ["q"],
    "additionalProperties": False,
}
EMPTY = {"type": "object", "properties": {}, "additionalProperties": False}
FIND = Tool(function=Function(name="find", parameters=SCHEMA))
STOP = Tool(function=Function(name="stop", parameters=EMPTY))
FREE = Tool(function=Function(name="free", strict=False))
GUARDS = [
    *OF_TEXT,
    Guard(name="eight", do="rewind", tool="find", path="$.q", forbid="a"),
    Guard(name="nine", do="pause", tool="*"),
    Guard(name="ten", do="rewind", tool="stop", times=2, then="pause"),
    Guard(name="eleven", do="rewind", budget=Budget(calls=1)),
    Guard(name="twelve", do="tell", budget=Budget(reasoning_tokens=3)),
]
GRAMMARS = [
    None,
    Grammar(choice=["yes", "no", "maybe so"]),
    Grammar(regex="[ab]{3,9}"),
    Grammar(json_schema=SCHEMA),
    Grammar(json_schema=SCHEMA, force=False),
]
STOPS = ["e t", "zzz", ["th", "s ", " aq"], "🙂", ["tq", " q", "dq", "eq", "lq", "sq"]]
APPROVALS: list[Any] = [False, False, True, ["find"]]


class Stream(Protocol):
    """What is known of one."""

    @property
    def name(self) -> str: ...

    @property
    def index(self) -> int: ...

    @property
    def calls(self) -> list[str]: ...


class Starts:
    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self._guarded = chance.choice([0, 0, 0.3, 0.6])  # how often parameters have guards, and stop strings
        self._stopped = chance.choice([0.1, 0.1, 0.5])

    def start(self, name: str) -> protocol.Start:
        chance = self._chance
        tools = chance.choice([None, [FIND, STOP, FREE], [FIND, STOP, FREE], [FREE, FIND]])
        fields = self._fields()
        if tools is None:
            fields["approvals"] = False
        return protocol.Start(
            request_id=name,
            messages=[Message(role="user", content="Hi" if chance.random() < 0.95 else LONG)],
            tools=tools,
            tool_choice=chance.choice(["auto", "auto", "required", "none"]) if tools else "auto",
            params=self.params(),
            **fields,
        )

    def fork(self, name: str, of: Stream) -> protocol.Start:
        at = None if self._chance.random() < 0.3 else self._chance.randint(0, of.index + 1)
        fork = protocol.Fork(request_id=of.name, at=at)
        return protocol.Start(request_id=name, fork=fork, params=self.params(), **self._fields())

    def _fields(self) -> dict[str, Any]:
        chance = self._chance
        credit = Credit(limit=chance.randint(0, 20), prefetch=chance.randint(0, 8))
        return {
            "on_tool_call": chance.choice(["pause", "pause", "continue", "finish"]),
            "parallel_tool_calls": chance.random() < 0.7,
            "approvals": chance.choice(APPROVALS),
            "whole_arguments": chance.random() < 0.3,
            "credit": chance.choice([None, None, credit, Credit(limit=10000)]),
            "stream_interval": chance.choice([1, 1, 1, 4]),
            "on_disconnect": chance.choice(["pause", "continue", "continue", "cancel"]),
            "tool_hold_ms": chance.choice([None, None, 0, 10]),
            "return_tokens": True,
        }

    def params(self) -> Params:
        chance = self._chance
        likely_end = chance.choice([20.0, 30.0, 36.0, 38.0, 100.0, -100.0])
        asked: list[tuple[float, str, Any]] = [
            (0.6, "logit_bias", {toy_model.EOS: likely_end}),
            (0.2, "temperature", chance.choice([0, 0.7, 1.5])),
            (0.3, "max_tokens", chance.choice([1, 5, 80, 200, 400, 500])),
            (self._stopped, "stop", chance.choice(STOPS)),
            (0.15, "min_tokens", chance.choice([0, 3, 10])),
            (0.1, "ignore_eos", chance.random() < 0.5),
            (0.1, "logprobs", chance.choice([None, 0, 2])),
            (self._guarded, "guards", chance.sample(GUARDS, chance.randint(0, 3))),
            (0.2, "grammar", chance.choice(GRAMMARS)),
            (0.2, "reasoning_tokens", chance.choice([None, 0, 2, 20])),
            (0.1, "repetition_penalty", 1.2),
        ]
        return Params(**{name: value for share, name, value in asked if chance.random() < share})
