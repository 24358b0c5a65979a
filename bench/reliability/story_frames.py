"""What clients say about the streams of stories: whatever is valid, drawn by chance, and mostly such as have
something to act on. It knows frames, and of a stream how far it has come and which calls it has made.
"""

from __future__ import annotations

import random
from typing import Any, Literal

from bench.reliability.story_starts import LONG, Starts, Stream
from midstream import protocol
from midstream.protocol import Message, TextPart

CALLS = [
    '<tool_call>{"name": "find", "arguments": {"q": "a"}}</tool_call>',
    '<tool_call>\n{"name": "find", "arguments": {"q": "bb", "n": 4}}\n</tool_call>',
    '<tool_call>{"name": "stop", "arguments": {}}</tool_call>',
    '<tool_call>{"name": "free", "arguments": {"é": [1, "x🙂"], "b": {"c": "l\\n"}}}</tool_call>',
]
TEXTS = [" and é🙂", "</think>", "<think>", '"}}</tool_call>', " th", "x"]
WHOLE: list[Any] = [{"q": "ccc"}, {"q": "bb", "n": 7}, {}, {"é": [1, "x"], "b": "🙂"}, {"q": "a"}]
SPELT: list[Any] = ['{"q": "a"', '{"q": "', "{", '{"q":"bb"}']
HOLDS: list[Literal["hold", "release"]] = ["hold", "release"]


class Frames:
    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self.starts = Starts(chance)

    def steering(self, kind: str, stream: Stream) -> protocol.StreamFrame:
        """One of a kind, which is that of a method."""
        frame: protocol.StreamFrame = getattr(self, kind)(stream)
        return frame

    def tool_result(self, of: Stream) -> protocol.ToolResult:
        chance = self._chance
        frame = protocol.ToolResult(request_id=of.name, call_id=self._call(of))
        if chance.random() < 0.15:
            frame.error = "no"
        else:
            long = LONG if chance.random() < 0.15 else "7"
            parts = [TextPart("a"), TextPart("b")]
            said: list[Any] = ["42", "42", "", "x" * chance.randint(0, 300), parts, long]
            frame.content = chance.choice(said)
        return frame

    def amend(self, of: Stream) -> protocol.Amend:
        arguments = self._chance.choice([*WHOLE, *SPELT])
        partial = isinstance(arguments, str) and self._chance.random() < 0.8
        return protocol.Amend(
            request_id=of.name, call_id=self._call(of), arguments=arguments, partial=partial
        )

    def approve(self, of: Stream) -> protocol.Approve:
        return protocol.Approve(request_id=of.name, call_id=self._call(of))

    def call(self, of: Stream) -> protocol.Inject:
        """What the toy would hardly ever write: perhaps a piece of one, or two, or one behind reasoning."""
        chance = self._chance
        text = chance.choice(CALLS)
        if chance.random() < 0.3:
            text = text[: chance.randint(1, len(text))]
        if chance.random() < 0.2:
            text += chance.choice(CALLS)
        return self._inject(of, text="</think>" + text if chance.random() < 0.1 else text)

    def text(self, of: Stream) -> protocol.Inject:
        return self._inject(
            of, text=self._chance.choice([*TEXTS, LONG if self._chance.random() < 0.2 else "x"])
        )

    def messages(self, of: Stream) -> protocol.Inject:
        """Results of calls among them, given as others give them."""
        said = [Message(role="user", content="No!")]
        one = [Message(role="tool", tool_call_id=self._call(of), content="direct", name="find")]
        two = [Message(role="tool", tool_call_id=call, content="direct") for call in of.calls[-2:] or ["zz"]]
        return self._inject(of, messages=self._chance.choice([said, one, two]))

    def _inject(self, of: Stream, **what: Any) -> protocol.Inject:
        chance = self._chance
        return protocol.Inject(
            request_id=of.name,
            at=self._about(of) if chance.random() < 0.25 else None,
            grammar="anew" if chance.random() < 0.6 else "fit",
            resume=chance.random() < 0.25,
            **what,
        )

    def rewind(self, of: Stream) -> protocol.Rewind:
        back = self._chance.choice([0, 1, 2, 5, 20, 50, -1])
        return protocol.Rewind(request_id=of.name, to=max(0, of.index - back))

    def adjust(self, of: Stream) -> protocol.Adjust:
        return protocol.Adjust(request_id=of.name, params=self.starts.params())

    def adjust_at(self, of: Stream) -> protocol.Adjust:
        return protocol.Adjust(request_id=of.name, params=self.starts.params(), at=self._about(of))

    def pause(self, of: Stream) -> protocol.Pause:
        return protocol.Pause(request_id=of.name, kv=self._chance.choice(HOLDS))

    def resume(self, of: Stream) -> protocol.Resume:
        return protocol.Resume(request_id=of.name)

    def grant(self, of: Stream) -> protocol.Grant:
        return protocol.Grant(request_id=of.name, limit=of.index + self._chance.randint(0, 30))

    def cancel(self, of: Stream) -> protocol.Cancel:
        return protocol.Cancel(request_id=of.name)

    def _about(self, of: Stream) -> int:
        return max(0, of.index - self._chance.randint(-1, 9))

    def _call(self, of: Stream) -> str:
        if not of.calls or self._chance.random() < 0.03:
            return "nonesuch"
        return self._chance.choice(of.calls[-4:])
