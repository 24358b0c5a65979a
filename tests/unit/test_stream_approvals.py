"""Calls that wait for a yes, and calls that are amended, in one stream: each rule by an example."""

from __future__ import annotations

import json
from typing import Any

import pytest
from msgspec.structs import replace

from engine import api
from midstream import protocol
from midstream.protocol import Amend, Approve, Approved, Injected, Params, Rewound, ToolCallDone
from realtime.refusal import Refusal
from realtime.stream.later_commands import MADE_A_TURN
from realtime.stream.spanned_text import Call
from realtime.stream.tool_loop import ToolLoop
from tests.fakes.folded_spans import FoldedSpans
from tests.fakes.lone_stream import CANCELLED, LoneStream, kinds
from tests.unit.test_stream_results import called, end, put_in, result
from tests.unit.test_stream_tools import ASKED, FIND, MODEL, STOP, lone

pytestmark = pytest.mark.usefixtures("built_again")

CALL = '<tool_call>{"name": "find", "arguments": {"q": "Paris", "n": 1}}</tool_call>'
LONDON = {"q": "London", "n": 1}


def approve(one: LoneStream, call_id: str, ref: str | None = None) -> None:
    one.stream.steer_call(Approve(request_id="a", ref=ref, call_id=call_id), 0, one.now)


def amend(one: LoneStream, call_id: str, arguments: Any, **fields: Any) -> None:
    one.stream.steer_call(Amend(request_id="a", call_id=call_id, arguments=arguments, **fields), 0, one.now)


def refused(one: LoneStream) -> str:
    (error,) = one.take()
    assert isinstance(error, protocol.Error)
    return error.message


def appended(one: LoneStream) -> api.Append:
    """The amendment that the engine was sent, and its answer."""
    command = next(one for one in reversed(one.commands) if isinstance(one, api.Append))
    assert command.behind is not None
    index, _ = one.stream.output.place(command.behind)
    one.answer(api.Appended(index, len(command.tokens)))
    return command


def test_a_call_that_waits_for_a_yes_takes_no_content_before_it() -> None:
    one, (find,) = called(FIND, approvals=["find"])
    with pytest.raises(Refusal, match="waits for an approve"):
        one.stream.inject_of(result(find))
    approve(one, find, ref="yes")
    (approved,) = one.take()
    assert isinstance(approved, Approved)
    assert (approved.ref, approved.call_id, approved.index) == ("yes", find, 0)
    assert one.stream.inject_of(result(find)).messages


def test_who_has_yet_to_hear_that_a_call_waits_hears_that_it_does_no_more() -> None:
    one = LoneStream(model=MODEL, credit=protocol.Credit(limit=40), asked=ASKED | {"approvals": True})
    client = FoldedSpans()
    one.write(FIND + "!")
    client.read(one.take())
    assert client.calls[0]["end"] is None
    approve(one, client.calls[0]["id"])
    assert kinds(one.take()) == ["Approved"]
    one.stream.grant(4000, one.now)
    (done,) = (event for event in one.take() if isinstance(event, ToolCallDone))
    assert not done.approval


def test_many_of_which_nobody_has_heard_are_not_held_against_each_of_many_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one, looked_at = lone(approvals=True, on_tool_call="continue"), list[Call]()
    one.write(STOP * 30)
    waits = ToolLoop.waits_for_approval

    def is_looked_at(tools: ToolLoop, call: Call) -> bool:
        looked_at.append(call)
        return waits(tools, call)

    monkeypatch.setattr(ToolLoop, "waits_for_approval", is_looked_at)
    approve(one, one.stream.output.calls[7].call_id)
    assert len(looked_at) <= 2 * 30
    told = [event for event in one.take() if isinstance(event, ToolCallDone)]
    assert [event.approval for event in told] == [True] * 7 + [False] + [True] * 22


def test_others_have_their_turn_between_a_few_of_many_that_waited_for_the_engine() -> None:
    one, (find,) = called(FIND, approvals=True)
    one.steer(protocol.Adjust(request_id="a", params=Params()))
    refs = [str(at) for at in range(2 * MADE_A_TURN + 1)]
    for ref in refs:
        approve(one, find, ref)
    one.answer(api.Adjusted(len(one.stream.output)))
    made = [len(one.take()) - 1]
    while one.stream.reading:
        one.answer()
        made.append(len(one.take()))
    assert made == [MADE_A_TURN, MADE_A_TURN, 1]
    approve(one, find, "last")
    assert [event.ref for event in one.take() if isinstance(event, Approved)] == ["last"]


def test_a_no_needs_no_yes() -> None:
    one, (find,) = called(FIND, approvals=True)
    assert one.stream.inject_of(result(find, error="the user said no")).messages


def test_which_calls_wait_is_told_with_them_and_in_a_snapshot() -> None:
    one = lone(approvals=["find"], on_tool_call="pause")
    one.write(FIND + STOP)
    end(one)
    done = [event for event in one.take() if isinstance(event, ToolCallDone)]
    assert [event.approval for event in done] == [True, False]
    one.stream.outbox.acknowledge(100)
    for waits in (True, False):
        snapshot = one.attach(-1)[0]
        assert isinstance(snapshot, protocol.Snapshot)
        assert [call.approval for call in snapshot.tool_calls] == [waits, False]
        approve(one, done[0].call_id)
        one.take()
        one.stream.outbox.acknowledge(100)


@pytest.mark.parametrize(("call_id", "why"), [("nonsense", "no call"), (None, "not whole")])
def test_what_is_no_whole_call_cannot_be_approved(call_id: str | None, why: str) -> None:
    one = lone(approvals=True)
    one.write(FIND[:-15])
    begun = next(event.call_id for event in one.take() if isinstance(event, protocol.ToolCall))
    approve(one, call_id or begun)
    assert why in refused(one)


def test_a_call_that_has_its_result_is_past_both() -> None:
    one, (find,) = called(FIND)
    put_in(one, one.stream.inject_of(result(find)))
    one.take()
    approve(one, find)
    assert "has its result" in refused(one)
    amend(one, find, {})
    assert "has its result" in refused(one)


def test_an_amended_call_says_so_under_its_own_id_and_the_model_closes_it() -> None:
    one = lone(on_tool_call="pause", approvals=True)
    client = FoldedSpans()
    one.write(CALL)
    end(one)
    client.read(one.take())
    (call,) = client.calls
    call_id = call["id"]
    approve(one, call_id)
    client.read(one.take())
    amend(one, call_id, LONDON, ref="r")
    command = appended(one)
    assert bytes(command.tokens).decode() == 'London", "n": 1}'
    assert one.commands[-1] == api.Resume(7), "the model closes it"
    told = one.take()
    assert kinds(told) == ["Rewound", "Injected", "ToolArguments"]
    rewound, injected = told[0], told[1]
    assert isinstance(rewound, Rewound)
    assert isinstance(injected, Injected)
    assert (rewound.index, rewound.arguments_length, injected.ref) == (CALL.index("Paris"), 7, "r")
    client.read(told)
    one.answer(api.Resumed(one.index))
    one.write("}</tool_call>")
    end(one)
    told = one.take()
    (done,) = [event for event in told if isinstance(event, ToolCallDone)]
    assert done.approval, "what was approved was another"
    client.read(told)
    assert (call["id"], json.loads(call["arguments"])) == (call_id, LONDON)
    assert one.stream.paused == "tool_call"
    with pytest.raises(Refusal, match="waits for an approve"):
        one.stream.inject_of(result(call_id))


@pytest.mark.parametrize("written", range(CALL.index("{") + 38, len(CALL) + 1))
def test_while_it_is_written_too(written: int) -> None:
    one, client = lone(), FoldedSpans()
    one.write(CALL[:written])
    client.read(one.take())
    call_id = client.calls[0]["id"]
    amend(one, call_id, LONDON)
    appended(one)
    one.write("}</tool_call>")
    client.read(one.take())
    assert json.loads(client.calls[0]["arguments"]) == LONDON
    assert (client.calls[0]["id"], len(client.calls)) == (call_id, 1)
    assert client.calls[0]["end"] == one.index - len("</tool_call>")


def test_one_that_fits_no_grammar_is_refused_and_nothing_has_changed() -> None:
    one, (find,) = called(CALL)
    before = list(one.stream.output.tokens)
    amend(one, find, LONDON)
    one.answer(api.Refused(one.index, reason="grammar"))
    assert "do not fit the tool of call" in refused(one)
    assert list(one.stream.output.tokens) == before
    assert one.stream.inject_of(result(find)).messages


def test_what_says_the_same_changes_nothing() -> None:
    one, (find,) = called(CALL)
    amend(one, find, {"q": "Paris", "n": 1}, ref="r")
    assert one.commands[-1] == api.Append(7, [])
    one.answer(api.Appended(one.index))
    assert one.commands[-1] == api.Append(7, []), "it waits for the result as before"
    (injected,) = one.take()
    assert isinstance(injected, Injected)
    assert (injected.count, injected.ref) == (0, "r")


def test_what_is_asked_of_calls_waits_for_what_was_asked_before_and_what_follows_for_it() -> None:
    one, (find,) = called(CALL)
    one.steer(protocol.Rewind(request_id="a", ref="1", to=CALL.index("Paris")))
    sent = len(one.commands)
    amend(one, find, LONDON, ref="2")
    approve(one, find, ref="3")
    one.steer(protocol.Pause(request_id="a", ref="4"))
    assert len(one.commands) == sent, "what it comes to is not known yet"
    one.answer(api.Truncated(CALL.index("Paris")))
    appended(one)
    assert [type(command) for command in one.commands[sent:]] == [api.Append, api.Pause]
    one.answer(api.Paused(one.index))
    told = one.take()
    refs = [event.ref for event in told if getattr(event, "ref", None)]
    assert refs == ["1", "2", "3", "4"]
    error = next(event for event in told if isinstance(event, protocol.Error))
    assert "not whole" in error.message, "it was amended, and its end is not there"


def test_amendments_that_have_waited_are_read_one_at_a_time_and_others_have_their_turn_between() -> None:
    one, (find,) = called(CALL)
    one.steer(protocol.Rewind(request_id="a", ref="1", to=CALL.index("Paris")))
    for ref in ("2", "3", "4"):
        amend(one, find, "]", partial=True, ref=ref)
    one.answer(api.Truncated(CALL.index("Paris")))
    told = [[event.ref for event in one.take() if isinstance(event, protocol.Error)]]
    while one.stream.reading:
        assert one.stream.to_make is not None
        one.answer()
        told.append([event.ref for event in one.take() if isinstance(event, protocol.Error)])
    assert told == [["2"], ["3"], ["4"]]


def test_an_engine_that_dies_meanwhile_is_told_again_and_the_next_does_it() -> None:
    one, (find,) = called(CALL)
    amend(one, find, LONDON)
    asked = one.commands[-1]
    one.lose_engine()
    submit = one.new_engine()
    assert one.commands == [asked]
    assert bytes(submit.tokens[3:]).decode() == CALL
    appended(one)
    one.lose_engine()
    submit = one.new_engine()
    assert bytes(submit.tokens[3:]).decode() == CALL[: CALL.index("Paris")] + 'London", "n": 1}'
    one.answer(api.Resumed(one.index))
    amend(one, find, {"q": "Lon", "n": 1})
    command = appended(one)
    assert bytes(command.tokens).decode() == '", "n": 1}', "within what was injected"
    one.lose_engine()
    submit = one.new_engine()
    assert bytes(submit.tokens[3:]).decode() == CALL[: CALL.index("Paris")] + 'Lon", "n": 1}'
    assert submit.injections == [(CALL.index("Paris"), 3), (CALL.index("Paris"), 10)]


def forked(one: LoneStream, at: int | None = None) -> LoneStream:
    context = one.stream.fork("b", at, Params())
    return LoneStream(context=context, asked={"fork": protocol.Fork(request_id="a"), "approvals": True})


def test_a_fork_has_the_approvals_of_calls_that_stand_in_it_and_none_besides() -> None:
    one, (find,) = called(FIND, approvals=True)
    before = forked(one)
    approve(one, find)
    one.take()
    with pytest.raises(Refusal, match="waits for an approve"):
        before.stream.inject_of(result(find))
    after = forked(one)
    (snapshot,) = (event for event in after.take() if isinstance(event, protocol.Snapshot))
    assert not snapshot.tool_calls[0].approval
    assert after.stream.inject_of(result(find)).messages
    within = forked(one, 60)
    within.index = 60
    within.write(FIND.encode()[60:].decode())
    with pytest.raises(Refusal, match="waits for an approve"):
        within.stream.inject_of(result(find))


def test_a_call_whose_result_is_taken_back_need_not_be_approved_again() -> None:
    one, (find,) = called(FIND, approvals=True)
    approve(one, find)
    put_in(one, one.stream.inject_of(result(find)))
    one.write("So")
    one.take()
    length = len(FIND.encode())
    one.steer(protocol.Rewind(request_id="a", to=length - 1))
    one.answer(api.Truncated(length - 1))
    one.write(FIND[-1])
    assert one.stream.inject_of(result(find)).messages


def test_a_result_behind_an_amendment_is_none_of_the_call_that_comes_of_it() -> None:
    one, (stop, find) = called(STOP, CALL)
    amend(one, find, LONDON)
    with pytest.raises(Refusal, match=f'does for "{stop}"'):
        one.stream.inject_of(result(find))
    asked = one.commands[-1]
    assert isinstance(asked, api.Append)
    one.steer(replace(one.stream.inject_of(result(stop)), tokens=[5] * 9))
    assert one.commands[-1] == api.Append(7, []), "the model writes on"
    index, _ = one.stream.output.place(asked.behind or 0)
    one.answer(api.Appended(index, len(asked.tokens)), api.Appended(index))
    one.answer(api.Resumed(one.index))
    one.write("}</tool_call>")
    end(one)
    both = one.stream.inject_of(result(find))
    assert [message.tool_call_id for message in both.messages or []] == [stop, find]


def test_a_result_right_behind_its_approval_is_taken() -> None:
    one, (find,) = called(FIND, approvals=True)
    one.steer(protocol.Pause(request_id="a"))
    approve(one, find)
    assert one.stream.inject_of(result(find)).messages


def test_what_an_amendment_says_is_told_though_the_stream_goes_back_to_just_behind_it() -> None:
    """With guards nothing is told of what will be void: what was put in before that token will not."""
    guard = protocol.Guard(name="no dragons", do="rewind", regex="dragon")
    one = LoneStream(
        model=MODEL,
        credit=protocol.Credit(limit=2000),
        on_disconnect="continue",
        asked=ASKED | {"on_tool_call": "pause"},
        guards=[guard],
    )
    client = FoldedSpans()
    one.write(CALL)
    client.read(one.take())
    index = CALL.index("Paris")
    amend(one, client.calls[0]["id"], LONDON)
    one.steer(protocol.Rewind(request_id="a", to=index))
    asked = one.commands[-2]
    assert isinstance(asked, api.Append)
    one.answer(api.Appended(index, len(asked.tokens)), api.Truncated(index))
    client.read(one.take())
    assert json.loads(client.calls[0]["arguments"]) == LONDON
    assert client.calls[0]["arguments"] == "".join(one.stream.output.calls[0].arguments)


def test_an_amendment_goes_back_to_where_arguments_differ_whatever_of_them_was_read() -> None:
    """Whoever adopts the stream does not know what its listener had read."""
    credit = protocol.Credit(limit=CALL.index("ris"), prefetch=80)
    asked = ASKED | {"on_tool_call": "pause"}
    one = LoneStream(model=MODEL, credit=credit, on_disconnect="continue", asked=asked)
    one.write(CALL)
    end(one)
    (call_id,) = [event.call_id for event in one.take() if isinstance(event, protocol.ToolCall)]
    amend(one, call_id, {"q": "Paris", "n": 2})
    assert bytes(appended(one).tokens).decode() == "2}"
    one.stream.grant(1000, one.now)


def test_a_result_that_waits_for_the_turns_end_is_forgotten_where_its_call_is_to_be_amended_then() -> None:
    one = lone(on_tool_call="pause")
    one.write(CALL)
    (find,) = [event.call_id for event in one.take() if isinstance(event, ToolCallDone)]
    put_in(one, one.stream.inject_of(result(find)))
    one.steer(protocol.Pause(request_id="a"))
    amend(one, find, LONDON)
    end(one)
    one.answer(api.Paused(one.index))
    appended(one)
    told = [command.tokens for command in one.commands if isinstance(command, api.Append)]
    assert [5] * 9 not in told


@pytest.mark.parametrize("then", [api.Truncated(1), None])
def test_a_call_that_is_put_in_while_the_stream_goes_back_is_told_as_long_as_it_stands(
    then: api.Truncated | None,
) -> None:
    """It may end before it has gone back: with the call, and whoever listened had to know that."""
    guard = protocol.Guard(name="no dragons", do="rewind", regex="dragon")
    one = LoneStream(model=MODEL, credit=protocol.Credit(limit=2000), asked=ASKED, guards=[guard])
    client = FoldedSpans()
    one.write("So")
    client.read(one.take())
    one.steer(protocol.Inject(request_id="a", tokens=list(STOP.encode())))
    one.steer(protocol.Rewind(request_id="a", to=1))
    one.answer(api.Appended(2, len(STOP)))
    client.read(one.take())
    assert [call["arguments"] for call in client.calls] == ["{}"]
    if then is not None:
        one.answer(then)
    one.cancel()
    one.answer(finish=CANCELLED)
    client.read(one.take())
    calls = [(call.call_id, call.index, call.end) for call in one.stream.output.calls]
    assert [(call["id"], call["index"], call["end"]) for call in client.calls] == calls
    assert len(calls) == (then is None)


@pytest.mark.parametrize(("to", "stands"), [(1, []), (2, [2])])
def test_what_was_put_in_before_a_rewind_is_void_by_it_though_a_guard_goes_back_meanwhile(
    to: int, stands: list[int]
) -> None:
    guard = protocol.Guard(name="no dragons", do="rewind", regex="dragon")
    one = LoneStream(model=MODEL, credit=protocol.Credit(limit=2000), asked=ASKED, guards=[guard])
    one.write("So")
    one.take()
    one.steer(protocol.Inject(request_id="a", tokens=list(b"so"), ref="1"))
    one.write("dragon")
    one.steer(protocol.Rewind(request_id="a", to=to, ref="2"))
    told = len(one.commands)
    one.answer(api.Appended(8, 2), api.Truncated(2), api.Truncated(to))
    for asked in one.commands[told:]:
        assert isinstance(asked, api.Append)
        one.answer(api.Appended(to, 2))
    assert [index for index, _ in one.stream.output.injections] == stands
    assert sorted(event.ref for event in one.take() if event.ref is not None) == ["1", "2"]
