"""Whatever is asked of a stream that stands still comes to the same however late its engine answers: it rests
where something holds it, and nowhere else."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from engine import api
from midstream import protocol
from midstream.protocol import Grammar, Message, Params, ToolResult
from realtime.refusal import Refusal
from tests.fakes.lone_stream import LoneStream
from tests.unit.test_stream_results import called
from tests.unit.test_stream_tools import FIND, STOP, lone

EXAMPLES = os.environ.get("MIDSTREAM_EXAMPLES")
REFUSED = 7  # a token that no grammar allows
CALLS = [call.call_id for call in called(FIND, STOP)[0].stream.output.calls]

Ask = Callable[[LoneStream, int], None]


class StandingEngine:
    """It computes nothing, and answers what it was asked, in that order, when it is told to."""

    def __init__(self, one: LoneStream) -> None:
        self._one = one
        self._heard = len(one.commands)
        self._stands = [True] * len(one.stream.output)  # what was put in is no output
        self.paused = one.stream.paused is not None

    def answer(self, count: int) -> None:
        for command in self._one.commands[self._heard :][:count]:
            self._heard += 1
            self._one.answer(self._change(command))
            while self._one.stream.reading:  # as it is given its turns, one amendment in each
                self._one.answer()

    def answer_all(self) -> None:
        while len(self._one.commands) > self._heard:
            self.answer(1)

    def _change(self, command: api.AnyCommand) -> api.AnyChange:
        match command:
            case api.Pause():
                self.paused = True
                return api.Paused(self._index)
            case api.Resume():
                self.paused = False
                return api.Resumed(self._index)
            case api.Adjust():
                return api.Adjusted(self._index)
            case api.Truncate(index=index):
                while self._index > index:
                    del self._stands[-1]
                return api.Truncated(self._index)
            case api.Append(tokens=tokens, grammar_anew=anew) if REFUSED in tokens and not anew:
                return api.Refused(self._index, reason="grammar")
            case api.Append(tokens=tokens, behind=behind):
                del self._stands[behind or len(self._stands) :]
                self._stands += [False] * len(tokens)
                return api.Appended(self._index, len(tokens))
        raise AssertionError(command)

    @property
    def _index(self) -> int:
        return sum(self._stands)


def waits_for_results() -> LoneStream:
    return may_refuse(called(FIND, STOP)[0])


def runs() -> LoneStream:
    one = lone(on_tool_call="pause")
    one.write(FIND + STOP)
    one.take()
    return may_refuse(one)


def may_refuse(one: LoneStream) -> LoneStream:
    one.steer(protocol.Adjust(request_id="a", params=Params(grammar=Grammar(regex=".*"))))
    one.answer(api.Adjusted(one.index))
    return one


def is_paused() -> LoneStream:
    one = runs()
    one.steer(protocol.Pause(request_id="a"))
    one.answer(api.Paused(one.index))
    return one


def steers(**fields: Any) -> Ask:
    kind = fields.pop("kind")
    return lambda one, _: one.steer(kind(request_id="a", **fields))


def tells(call_id: str) -> Ask:
    def tell(one: LoneStream, _: int) -> None:
        result = ToolResult(request_id="a", call_id=call_id, content="42")
        one.steer(replace(one.stream.inject_of(result), tokens=[5] * 9))

    return tell


def amends(call_id: str) -> Ask:
    amend = protocol.Amend(request_id="a", call_id=call_id, arguments={"q": 1})
    return lambda one, _: one.stream.steer_call(amend, 0, one.now)


def injects() -> st.SearchStrategy[Ask]:
    fields = st.fixed_dictionaries(
        {
            "kind": st.just(protocol.Inject),
            "tokens": st.sampled_from([[5], [REFUSED], [*STOP.encode()]]),
            "resume": st.booleans(),
            "messages": st.sampled_from([None, None, [Message(role="user", content="")]]),
        }
    )
    return fields.map(lambda these: steers(**these))


def rewinds(to: int) -> Ask:
    """To no token that is taken back by now, if it was answered at once."""
    return lambda one, sent: one.steer(protocol.Rewind(request_id="a", to=min(to, sent)))


ASKS = st.one_of(
    st.just(steers(kind=protocol.Pause)),
    st.just(steers(kind=protocol.Resume)),
    st.just(steers(kind=protocol.Adjust, params=Params(temperature=0.5))),
    injects(),
    st.sampled_from([tells(CALLS[0]), tells(CALLS[1]), amends(CALLS[0])]),
    st.sampled_from([rewinds(3), rewinds(len(FIND)), rewinds(len(FIND + STOP))]),
)


def is_taken(asked: Ask, one: LoneStream, sent: int) -> bool:
    one.take()
    try:
        asked(one, sent)
    except Refusal:
        return False
    return True


def seen(one: LoneStream) -> dict[str, Any]:
    pausing, tools = one.stream._pausing, one.stream._tools
    return {
        "held by": pausing.grounds,
        "told": pausing.reason,
        "stands": one.stream.output.context(),
        "results": sorted(tools._results),
        "turn has ended": tools.turn_has_ended,
    }


@pytest.mark.parametrize("begin", [waits_for_results, runs, is_paused])
@settings(max_examples=int(EXAMPLES or 100), derandomize=EXAMPLES is None, database=None)
@given(st.data())
def test_it_comes_to_the_same_however_late_it_is_answered(
    begin: Callable[[], LoneStream], data: st.DataObject
) -> None:
    at_once, late = begin(), begin()
    engines = StandingEngine(at_once), StandingEngine(late)
    for asked in data.draw(st.lists(ASKS, min_size=1, max_size=8)):
        at_once.take()
        sent = at_once.stream.outbox.sent
        assert is_taken(asked, at_once, sent) == is_taken(asked, late, sent)
        engines[0].answer_all()
        engines[1].answer(data.draw(st.integers(0, 3)))
    engines[1].answer_all()
    assert seen(late) == seen(at_once)
    for one, engine in zip((at_once, late), engines, strict=True):
        pausing = one.stream._pausing
        assert engine.paused == pausing.rests == bool(pausing.grounds)
        assert not pausing.rests or pausing.reason in pausing.grounds
