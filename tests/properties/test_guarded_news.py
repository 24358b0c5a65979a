"""A stream with guards tells the same however much they read at once, and whatever is said of it meanwhile:
of what comes with a token, with what was put in, and in the end.

`MIDSTREAM_EXAMPLES` set to any number tries that many.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from engine import api
from midstream import protocol
from midstream.protocol import Credit, Guard, Message, Params
from realtime.guards import reading
from realtime.refusal import Refusal
from realtime.stream import spanned_text
from realtime.stream.outbox import OutgoingEvent
from tests.fakes.lone_stream import LoneStream
from tests.unit.test_stream_tools import ASKED, MODEL

EXAMPLES = os.environ.get("MIDSTREAM_EXAMPLES")
MOST_TURNS = 2000

# Arguments in a string, which are told once it is whole, and what may have been a call.
LONG = '<tool_call>{"name": "find", "arguments": "{\\"q\\": \\"' + "abc" * 9
NO_CALL = '<tool_call>{"arguments": {"q": "' + "acb" * 9
TEXTS = [LONG, NO_CALL, "<tool_call>!", 'b"', '\\"}"', "}", "</tool_call>", "ab", " \n" * 9, "<think>ab", "c"]
GUARDS = [
    Guard(name="r", do="rewind", regex="ca|b$"),
    Guard(name="t", do="tell", regex=r"\bab|acb"),
    Guard(name="f", do="pause", tool="find", path="$.q", forbid="cab"),
    Guard(name="q", do="tell", tool="*", path="$.q", require="d"),
    Guard(name="c", do="rewind", tool="find"),
    Guard(name="e", do="finish", regex="c{2}"),
]


class Step(NamedTuple):
    """What the engine writes at once, and behind it its answers, and an end; asked is before, or `amid`, what
    changes nothing that stands."""

    tokens: bytes
    asks: Callable[[LoneStream], object] | None
    answers: int
    finish: api.Finish | None
    amid: Callable[[LoneStream], object]


class Told:
    """A stream and its engine, which is told of what it says a turn after the other."""

    def __init__(self, guards: list[Guard], *, at_once: int, in_turns: bool) -> None:
        self.at_once, self.in_turns = at_once, in_turns
        self.one = LoneStream(
            model=MODEL,
            credit=Credit(limit=1000),
            on_disconnect="continue",
            asked=ASKED,
            guards=guards,
            seed=1,
            stop=["aa"],
            max_tokens=900,
        )
        self.events: list[OutgoingEvent] = []
        self.one.admit()
        self._stands = list[bool]()  # what was put in is no output
        self._heard = len(self.one.commands)
        self._runs, self._is_gone = True, False

    def take(self, step: Step) -> None:
        one, stream = self.one, self.one.stream
        if stream.concluded:
            return
        if step.asks is not None:
            try:
                step.asks(one)
            except Refusal as refusal:
                self.events.append(refusal.event("a"))
        self._hear_submit()
        tokens = list(step.tokens) if self._runs else []
        finish = step.finish if tokens else None
        news = api.News(7, index=self._outputs, tokens=tokens, finish=finish)
        self._stands += [True] * len(tokens)
        self._runs = self._runs and finish is None
        self._is_gone = self._is_gone or (finish is not None and not finish.held)
        news.changes = [] if self._is_gone else self._answers(step.answers)
        self._receive(news, step.amid)
        self.events += one.take()

    @property
    def said(self) -> list[api.AnyCommand]:
        """To its engine, but for how much is granted when."""
        said = (one for one in self.one.commands if not isinstance(one, api.Grant))
        return [replace(one, credit=0) if isinstance(one, api.Submit) else one for one in said]

    def lose_engine(self) -> None:
        if not self.one.stream.concluded:
            self.one.lose_engine()
            self.one.new_engine()
            self._heard = 0
            self._begin_anew()
            self.one.admit()

    def _hear_submit(self) -> None:
        """It was at an end that is void."""
        begun = [at for at, said in enumerate(self.one.commands) if isinstance(said, api.Submit)]
        if begun and begun[-1] >= self._heard:
            self._heard = begun[-1] + 1
            self._begin_anew()

    def _begin_anew(self) -> None:
        output, at = self.one.stream.output, 0
        self._runs, self._is_gone = not self.one.stream._pausing.rests, False
        self._stands = list[bool]()
        for index, injected in output.injections:
            self._stands += [True] * (index - at) + [False] * len(injected)
            at = index
        self._stands += [True] * (len(output) - at)

    def _receive(self, news: api.News, amid: Callable[[LoneStream], object]) -> None:
        stream = self.one.stream
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(reading, "READ_AT_ONCE", self.at_once)
            patch.setattr(spanned_text, "READ_AT_ONCE", 64)
            stream.receive_news(news, self.one.now)
            if self.in_turns:
                amid(self.one)
            turns = 0
            while stream.reading and not stream.concluded:
                stream.receive_news(api.News(7), self.one.now)
                turns += 1
                assert turns < MOST_TURNS
            if not self.in_turns:
                amid(self.one)

    def _answers(self, most: int) -> list[api.AnyChange]:
        answers = list[api.AnyChange]()
        while len(answers) < most and self._heard < len(self.one.commands):
            change = self._change(self.one.commands[self._heard])
            answers += [] if change is None else [change]
            self._heard += 1
        return answers

    def _change(self, command: api.AnyCommand) -> api.AnyChange | None:
        match command:
            case api.Pause():
                self._runs = False
                return api.Paused(self._outputs)
            case api.Resume():
                self._runs = True
                return api.Resumed(self._outputs)
            case api.Adjust():
                return api.Adjusted(self._outputs)
            case api.Truncate(index=index):
                while self._outputs > index:
                    del self._stands[-1]
                return api.Truncated(self._outputs)
            case api.Append(tokens=tokens, behind=behind):
                if behind is not None:
                    del self._stands[behind:]
                self._stands += [False] * len(tokens)
                return api.Appended(self._outputs, len(tokens))
        return None

    @property
    def _outputs(self) -> int:
        return sum(self._stands)


def inject(text: str, *, turn: bool) -> Callable[[LoneStream], object]:
    messages = [Message(role="user", content="")] if turn else None
    frame = protocol.Inject(request_id="a", tokens=list(text.encode()), messages=messages)
    return lambda one: one.steer(frame)


def rewind(back: int) -> Callable[[LoneStream], object]:
    def ask(one: LoneStream) -> None:
        one.steer(protocol.Rewind(request_id="a", to=max(0, one.stream.outbox.sent - back)))

    return ask


def adjust(guards: list[Guard]) -> Callable[[LoneStream], object]:
    return lambda one: one.steer(protocol.Adjust(request_id="a", params=Params(guards=guards)))


def pause(one: LoneStream) -> None:
    one.steer(protocol.Pause(request_id="a"))


def resume(one: LoneStream) -> None:
    one.steer(protocol.Resume(request_id="a"))


def attach(one: LoneStream) -> None:
    one.stream.attach(-1, 0, anew=True)


def nothing(one: LoneStream) -> None:
    """Of what may come at any time."""


def grant(one: LoneStream) -> None:
    one.stream.grant(one.stream.credit.granted + 5, one.now)


def cancel(one: LoneStream) -> None:
    one.cancel()


ASKS = st.one_of(
    st.none(),
    st.builds(
        inject, st.lists(st.sampled_from(TEXTS), min_size=1, max_size=3).map("".join), turn=st.booleans()
    ),
    st.builds(rewind, st.integers(0, 9)),
    st.builds(adjust, st.lists(st.sampled_from(GUARDS), unique_by=lambda guard: guard.name)),
    st.sampled_from([pause, resume, attach]),
)
ENDS = [None, None, None, api.Finish("eos", held=True), api.Finish("eos"), api.Finish("length")]
STEPS = st.builds(
    Step,
    st.lists(st.sampled_from(TEXTS), max_size=3).map(lambda texts: "".join(texts).encode()),
    ASKS,
    st.integers(0, 5),
    st.sampled_from(ENDS),
    st.sampled_from([nothing, nothing, grant, cancel]),
)


@settings(max_examples=int(EXAMPLES) if EXAMPLES else 150)
@given(
    st.lists(st.sampled_from(GUARDS), min_size=1, max_size=4, unique_by=lambda guard: guard.name),
    st.lists(st.one_of(STEPS, STEPS, st.none()), min_size=1, max_size=12),
)
def test_what_is_told_hangs_on_nothing_that_guards_read_at_once(
    guards: list[Guard], steps: list[Step | None]
) -> None:
    told = [
        Told(guards, at_once=1 << 20, in_turns=False),
        Told(guards, at_once=8, in_turns=True),
        Told(guards, at_once=8, in_turns=False),
    ]
    for step in steps:
        for one in told:
            if step is None:
                one.lose_engine()
            else:
                one.take(step)
        assert [one.events for one in told[1:]] == [told[0].events] * 2
        assert [one.said for one in told[1:]] == [told[0].said] * 2
