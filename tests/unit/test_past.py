"""The past that a client keeps of its stream: where what stands cannot be said exactly, nothing is said."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import asdict, replace

from midstream import protocol
from midstream.past import Past
from midstream.protocol import (
    MAX_PAST_STEERING,
    Adjusted,
    Amend,
    Grammar,
    Inject,
    Injected,
    Message,
    Params,
    Paused,
    Resumed,
    Rewound,
    Snapshot,
    SnapshotCall,
    Start,
    Started,
    ToolCall,
    ToolResult,
)
from midstream.spans import Call, Spans

CALL = '<tool_call>{"name": "find", "arguments": {"q": "Paris"}}</tool_call>'
START = Start(request_id="a", prompt="Hi", on_disconnect="continue")


def told(past: Past, event: Any) -> None:
    past.receive(event, Spans())


def standing(*calls: Call) -> Spans:
    spans = Spans()
    spans.receive_snapshot(snapshot(tool_calls=[SnapshotCall(**asdict(call)) for call in calls]))
    return spans


def snapshot(**fields: Any) -> Snapshot:
    told = {"index": 3, "text": "", "model": "toy", "prompt_tokens": 1, "params": Params()}
    return Snapshot(request_id="a", seq=2, **told | fields)  # type: ignore[arg-type]


def with_a_call() -> Past:
    """That was put in."""
    past = Past()
    told(past, Started(request_id="a", seq=0, model="toy", prompt_tokens=1, params=Params(seed=1)))
    past.sent(Inject(request_id="a", text=CALL, ref="1"))
    told(past, Injected(request_id="a", seq=1, index=2, count=60, ref="1"))
    return past


def test_what_was_put_in_is_said_again() -> None:
    start = with_a_call().start(START, [7, 8, 9], 3, 0, Spans())
    assert start is not None
    assert start.past is not None
    assert start.past.steering == [protocol.PastInject(index=2, text=CALL)]


def test_what_took_effect_behind_tokens_that_have_not_come_is_not_until_they_do() -> None:
    """They were decoded ahead of credit."""
    past = with_a_call()
    told(past, Adjusted(request_id="a", seq=2, index=4, params=Params(seed=2)))
    assert past.start(START, [7, 8, 9], 3, 0, Spans()) is None
    assert past.start(START, [7, 8, 9, 10], 4, 0, Spans()) is not None


def test_more_than_a_server_takes_is_not_said() -> None:
    past = with_a_call()
    tokens = list(range(MAX_PAST_STEERING))
    for index in tokens[:-1]:
        told(past, Adjusted(request_id="a", seq=index, index=index, params=Params(seed=index)))
    assert past.start(START, tokens, len(tokens), 0, Spans()) is not None
    told(past, Adjusted(request_id="a", seq=9999, index=len(tokens), params=Params(seed=2)))
    assert past.start(START, tokens, len(tokens), 0, Spans()) is None


@pytest.mark.parametrize(("index", "exactly"), [(2, False), (3, True)])
def test_a_call_that_was_put_in_and_cut_by_an_amendment_is_not(index: int, exactly: bool) -> None:
    """It puts nothing in where the arguments that were asked for are a beginning of those that there were."""
    past = with_a_call()
    past.sent(Amend(request_id="a", call_id="c", arguments='{"q": "Pa', partial=True, ref="2"))
    told(past, Rewound(request_id="a", seq=2, index=index, text_length=0))
    told(past, Injected(request_id="a", seq=3, index=index, count=0, ref="2"))
    assert (past.start(START, [7, 8, 9][:index], index, 0, Spans()) is not None) == exactly


def test_a_result_that_waited_for_others_is_not_of_the_call_that_is_written_anew() -> None:
    """It has the same id."""
    past, call = with_a_call(), Call(call_id="c", name="find", arguments="{}", index=1, end=3)
    past.sent(ToolResult(request_id="a", call_id="c", content="old", ref="2"))
    past.receive(Injected(request_id="a", seq=2, index=3, count=0, ref="2"), standing(call))
    assert len(past.waiting) == 1
    past.receive(Rewound(request_id="a", seq=3, index=3, text_length=0), standing(call))
    assert len(past.waiting) == 1
    past.receive(Rewound(request_id="a", seq=4, index=2, text_length=0), standing(replace(call, end=None)))
    assert past.waiting == []


def test_a_result_that_waited_for_others_is_none_once_a_message_answers_its_call() -> None:
    """The server puts in the others alone."""
    past = with_a_call()
    calls = [Call(call_id=one, name="find", arguments="{}", index=1, end=3) for one in "cd"]
    answer = Message(role="tool", tool_call_id="c", content="instead")
    for at, frame in enumerate(
        [
            ToolResult(request_id="a", call_id="c", content="old", ref="2"),
            Inject(request_id="a", messages=[answer], ref="3"),
            ToolResult(request_id="a", call_id="d", content="new", ref="4"),
        ],
        2,
    ):
        past.sent(frame)
        past.receive(
            Injected(request_id="a", seq=at, index=3, count=9 * (at > 2), ref=frame.ref), standing(*calls)
        )
        assert len(past.waiting) == (at == 2)
    start = past.start(START, [7, 8, 9], 3, 0, Spans())
    assert start is not None
    assert start.past is not None
    last = start.past.steering[-1]
    assert isinstance(last, protocol.PastInject)
    assert [message.content for message in last.messages or ()] == ["new"]


def test_its_calls_have_the_ids_that_they_had_where_others_were_taken_back() -> None:
    """Also those of which a snapshot tells alone."""
    past, spans = with_a_call(), Spans()
    for index, call_id in enumerate("cd"):
        spans.receive(ToolCall(request_id="a", seq=0, index=index, call_id=call_id, name="find"))
    spans.rewind(Rewound(request_id="a", seq=1, index=1, text_length=0, tool_calls=1))
    stand = [
        SnapshotCall(index=at, call_id=call_id, name="find", arguments="") for at, call_id in enumerate("ce")
    ]
    spans.receive_snapshot(snapshot(tool_calls=stand))
    start = past.start(START, [7, 8, 9], 3, 0, spans)
    assert start is not None
    assert start.past is not None
    assert (start.past.call_ids, start.past.told_calls) == (["c", "e"], 3)


def test_so_much_of_reasoning_and_of_the_last_arguments_stands() -> None:
    """In code points."""
    past, spans = with_a_call(), Spans()
    stand = [
        SnapshotCall(index=at, call_id=str(at), name="find", arguments=told)
        for at, told in enumerate(("{}", '{"é'))
    ]
    spans.receive_snapshot(snapshot(reasoning="H\U0001f914<", tool_calls=stand))
    start = past.start(START, [7, 8, 9], 3, 0, spans)
    assert start is not None
    assert start.past is not None
    assert (start.past.reasoning_length, start.past.arguments_length) == (3, 3)


def test_one_that_waits_for_results_says_so_until_it_goes_on() -> None:
    """Whatever is put in, and whoever pauses it; and where it was started again, if it does there."""
    past = with_a_call()

    def waits() -> bool:
        start = past.start(START, [7, 8, 9], 3, 0, Spans())
        return start is not None and start.past is not None and start.past.waits

    assert not waits()
    told(past, Paused(request_id="a", seq=2, index=3, reason="tool_call"))
    for ref, kind, resumes in (("2", Paused, False), ("3", Injected, False), ("4", Injected, True)):
        assert waits()
        past.sent(Inject(request_id="a", text="a", ref=ref, resume=resumes))
        if kind is Injected:
            told(past, Injected(request_id="a", seq=3, index=3, count=1, ref=ref))
        else:
            told(past, Paused(request_id="a", seq=3, index=3, reason="client"))
    assert not waits()
    told(past, Paused(request_id="a", seq=4, index=3, reason="tool_call"))
    told(past, Resumed(request_id="a", seq=5, index=3, recomputed_tokens=0))
    assert not waits()
    for paused in ("tool_call", None):
        past.begin(snapshot(paused=paused))
        assert waits() == (paused is not None)


def test_one_that_was_to_go_on_behind_what_was_put_in_is_not_paused() -> None:
    """Its `resumed` may have been lost."""
    past = with_a_call()
    told(past, Paused(request_id="a", seq=2, index=3, reason="client"))
    past.sent(Inject(request_id="a", text="a", ref="2", resume=True))
    assert past.paused
    told(past, Injected(request_id="a", seq=3, index=3, count=1, ref="2"))
    assert not past.paused


def test_where_a_grammar_has_begun_is_told_whatever_other_came_before_it_there() -> None:
    one, other = Grammar(regex="a"), Grammar(regex="b")
    past = Past()
    told(past, Started(request_id="a", seq=0, model="toy", prompt_tokens=1, params=Params(grammar=None)))
    for now, grammars in (
        (one, [one]),
        (one, [one]),
        (None, [one, None]),
        (other, [None, other]),
        (None, [other, None]),
        (None, [other, None]),
    ):
        told(past, Adjusted(request_id="a", seq=1, index=3, params=Params(grammar=now)))
        start = past.start(START, [7, 8, 9], 3, 0, Spans())
        assert start is not None
        assert start.past is not None
        steps = [step for step in start.past.steering if isinstance(step, protocol.PastAdjust)]
        assert [step.params.grammar for step in steps] == grammars
