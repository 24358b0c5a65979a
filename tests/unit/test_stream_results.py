"""Results of calls in one stream: when it waits for them, and what goes into it, each rule by an example."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from engine import api, toy_model
from midstream import protocol
from midstream.protocol import (
    Credit,
    Guard,
    Message,
    Params,
    Past,
    PastAdjust,
    PastInject,
    Paused,
    TextPart,
    ToolResult,
)
from realtime.refusal import Refusal
from realtime.stream.past import begun
from realtime.stream.tool_loop import ResultInject, ToolLoop
from tests.fakes.counted_work import counted
from tests.fakes.folded_spans import FoldedSpans
from tests.fakes.lone_stream import CANCELLED, LoneStream, kinds
from tests.unit.test_calls_then import WatchedId
from tests.unit.test_stream_tools import ASKED, FIND, MODEL, STOP, lone

pytestmark = pytest.mark.usefixtures("built_again")

ADJUST = protocol.Adjust(request_id="a", params=Params(temperature=0.5))
ADJUST_AT = protocol.Adjust(request_id="a", params=Params(temperature=0.5), at=3)
HELD = api.Finish("eos", held=True)


def called(*spelt: str, **asked: Any) -> tuple[LoneStream, list[str]]:
    """A stream that waits for the results of these calls, and their ids."""
    one = lone(**({"on_tool_call": "pause"} | asked))
    one.write("".join(spelt))
    end(one)
    events = one.take()
    last = events[-1]
    assert isinstance(last, Paused)
    assert last.reason == "tool_call"
    return one, [event.call_id for event in events if isinstance(event, protocol.ToolCallDone)]


def end(one: LoneStream) -> None:
    """The model comes to the end of its turn."""
    one.stream.receive_news(api.News(7, index=one.index, tokens=[toy_model.EOS], finish=HELD), one.now)


def result(call_id: str, **said: Any) -> ToolResult:
    return ToolResult(request_id="a", call_id=call_id, **(said or {"content": "42"}))


def told(inject: ResultInject) -> list[str | None]:
    """Of which calls it has the results."""
    return [message.tool_call_id for message in inject.messages or []]


def in_tokens(inject: ResultInject) -> ResultInject:
    return replace(inject, tokens=[5] * 9)


def put_in(one: LoneStream, inject: ResultInject) -> None:
    """As the hub does it, and the engine's answers to what comes of it."""
    behind = len(one.commands)
    one.steer(in_tokens(inject))
    one.answer(*[_answer(one.index, command) for command in one.commands[behind:]])


def _answer(index: int, command: object) -> api.AnyChange:
    return api.Appended(index, len(command.tokens)) if isinstance(command, api.Append) else api.Resumed(index)


def test_the_engine_is_asked_to_hold_at_an_end_token_and_only_where_tools_are() -> None:
    for one, holds in ((lone(on_tool_call="pause"), True), (lone(), False), (LoneStream(), False)):
        (submit,) = one.commands
        assert isinstance(submit, api.Submit)
        assert submit.sampling.hold_at_eos == holds


def test_it_stands_before_the_end_token_which_counts_as_discarded() -> None:
    one, _ = called(FIND)
    assert len(one.stream.output) == len(FIND.encode())
    assert one.stream.counts.discarded == 1
    assert one.stream.state == "paused"


@pytest.mark.parametrize("is_read", [True, False])
def test_text_that_is_held_back_again_where_it_waits_is_taken_back_before_it_comes_again(
    is_read: bool,
) -> None:
    """It may begin what the stream stops at since."""
    one, client = lone(on_tool_call="pause"), FoldedSpans()
    one.write("went")
    if is_read:
        client.read(one.take())
    one.steer(protocol.Adjust(request_id="a", params=Params(stop="th")))
    one.answer(api.Adjusted(4))
    one.write(STOP)
    end(one)
    client.read(one.take())
    (call,) = one.stream.output.calls
    assert one.stream.paused == "tool_call"
    put_in(one, one.stream.inject_of(result(call.call_id)))
    one.write("s up")
    client.read(one.take())
    assert client.content == one.stream.output.content() == "wents up"


def test_results_wait_for_each_other_and_go_in_as_the_calls_came() -> None:
    one, (find, stop) = called(FIND, STOP)
    put_in(one, one.stream.inject_of(result(stop, content=[TextPart("so")])))
    assert one.commands[-1] == api.Append(7, [])
    assert one.stream.paused == "tool_call"
    both = one.stream.inject_of(result(find, error="gone"))
    assert both.resume
    assert both.messages == [
        Message(role="tool", content='{"error": "gone"}', name="find", tool_call_id=find),
        Message(role="tool", content=[TextPart("so")], name="stop", tool_call_id=stop),
    ]
    put_in(one, both)
    assert kinds(one.take())[-2:] == ["Injected", "Resumed"]
    assert one.stream.paused is None


def test_a_result_that_comes_before_the_turn_has_ended_waits_for_that() -> None:
    one = lone(on_tool_call="pause")
    call = FIND.removesuffix("</tool_call>")
    one.write(call)
    (find,) = [event.call_id for event in one.take() if isinstance(event, protocol.ToolCallDone)]
    inject = one.stream.inject_of(result(find))
    assert inject.messages
    one.steer(replace(in_tokens(inject), ref="r"))
    assert one.commands[-1] == api.Append(7, [])
    one.answer(api.Appended(one.index, 0))
    (kept,) = one.take()
    assert isinstance(kept, protocol.Injected)
    assert (kept.ref, kept.count) == ("r", 0)
    one.write("</tool_call>")
    end(one)
    assert one.commands[-2:] == [api.Append(7, [5] * 9, True), api.Resume(7)]
    one.answer(api.Appended(one.index, 9), api.Resumed(one.index))
    told = one.take()
    assert kinds(told)[-3:] == ["Paused", "Injected", "Resumed"]
    assert [event.count for event in told if isinstance(event, protocol.Injected)] == [9]
    end(one)
    assert one.final().finish_reason == "stop"


@pytest.mark.parametrize(
    ("on_tool_call", "asked_first"), [("pause", False), ("continue", False), ("continue", True)]
)
def test_a_turn_that_ends_while_its_last_result_is_on_its_way_goes_on_behind_it(
    on_tool_call: str, asked_first: bool
) -> None:
    one = lone(on_tool_call=on_tool_call)
    one.write(FIND)
    (find,) = [event.call_id for event in one.take() if isinstance(event, protocol.ToolCallDone)]
    inject = one.stream.inject_of(result(find))
    put = in_tokens(inject)
    if asked_first:
        one.steer(put)
        end(one)
    else:
        end(one)
        one.steer(put)
    assert one.stream.paused == "tool_call"
    one.answer(api.Appended(one.index, 9))
    assert one.commands[-1] == api.Resume(7)
    one.answer(api.Resumed(one.index))
    assert kinds(one.take())[-3:] == ["Paused", "Injected", "Resumed"]


@pytest.mark.parametrize("to", [None, 2])
def test_a_turn_that_ends_in_the_step_in_which_it_is_steered_goes_on_behind_that(to: int | None) -> None:
    """What was taken back, or put in, was accepted: the end before it is none."""
    one = lone(on_tool_call="pause")
    one.write("Hello you")
    one.take()
    changes: list[api.AnyChange] = []
    if to is not None:
        one.steer(protocol.Rewind(request_id="a", to=to))
        changes.append(api.Truncated(to))
    turn = [Message(role="user", content="Hurry!")]
    one.steer(protocol.Inject(request_id="a", messages=turn, tokens=[70, 71]))
    changes.append(api.Appended(one.index if to is None else to, 2))
    news = api.News(7, index=one.index, tokens=[toy_model.EOS], changes=changes, finish=HELD)
    one.stream.receive_news(news, one.now)
    assert kinds(one.take())[-1] == "Injected"
    assert one.commands[-1] == api.Resume(7)


def test_a_turn_that_ends_in_the_step_in_which_its_last_result_goes_in_goes_on_behind_it() -> None:
    one = lone(on_tool_call="continue")
    one.write(FIND)
    (find,) = [event.call_id for event in one.take() if isinstance(event, protocol.ToolCallDone)]
    inject = one.stream.inject_of(result(find))
    one.steer(in_tokens(inject))
    changes: list[api.AnyChange] = [api.Appended(one.index, 9)]
    news = api.News(7, index=one.index, tokens=[toy_model.EOS], changes=changes, finish=HELD)
    one.stream.receive_news(news, one.now)
    assert one.commands[-1] == api.Resume(7)
    one.answer(api.Resumed(one.index))
    assert kinds(one.take())[-3:] == ["Paused", "Injected", "Resumed"], "the token came first"


BEHIND_ITS_END: list[tuple[Any, type[api.AnyChange]]] = [
    (protocol.Adjust(request_id="a", params=Params(ignore_eos=True, min_tokens=10)), api.Adjusted),
    (protocol.Adjust(request_id="a", params=Params(max_tokens=1)), api.Adjusted),
    (
        protocol.Adjust(request_id="a", params=Params(guards=[Guard(name="n", do="pause", regex="So$")])),
        api.Adjusted,
    ),
    (protocol.Pause(request_id="a"), api.Paused),
    (protocol.Pause(request_id="a", kv="release"), api.Paused),
    (protocol.Resume(request_id="a"), api.Resumed),
]


@pytest.mark.parametrize("limit", [2000, 2])
@pytest.mark.parametrize("then", ["pause", "continue"])
@pytest.mark.parametrize("heard", [0, 1, 3])
@pytest.mark.parametrize(("frame", "change"), BEHIND_ITS_END)
def test_what_comes_behind_an_end_that_stands_is_overtaken_by_it(
    frame: Any, change: type[api.AnyChange], heard: int, then: str, limit: int
) -> None:
    """Where no result is missing it is the stream's own end, whatever the engine has done behind it."""
    one = lone(on_tool_call=then, credit=Credit(limit=limit, prefetch=8))
    one.write("So")
    one.take()
    before = one.stream.context.params
    for ref in "xyz":
        one.steer(replace(frame, ref=ref))
    changes: list[api.AnyChange] = [change(2)] * heard
    one.stream.receive_news(
        api.News(7, index=2, tokens=[toy_model.EOS], changes=changes, finish=HELD), one.now
    )
    assert one.commands[-1] == api.Cancel(7)
    told = one.take()
    refused = [(event.code, event.ref) for event in told if isinstance(event, protocol.Error)]
    assert refused == [("request_finished", ref) for ref in "xyz"]
    assert one.stream.context.params == before
    one.stream.grant(3, one.now)
    told += one.take()
    assert [kind for kind in kinds(told) if kind != "Error"] == ["Token", "Final"]
    assert one.stream.final is not None
    assert (one.stream.final.finish_reason, one.stream.final.index) == ("stop", 3)


@pytest.mark.parametrize(("frame", "change"), BEHIND_ITS_END[::3])
def test_and_takes_effect_where_something_is_put_in_or_taken_back_in_that_step(
    frame: Any, change: type[api.AnyChange]
) -> None:
    """The end token does not stand, so another is sampled in its place."""
    one = lone(on_tool_call="continue")
    one.write("So")
    one.take()
    one.steer(replace(frame, ref="x"))
    one.steer(protocol.Inject(request_id="a", ref="y", tokens=[70, 71]))
    changes: list[api.AnyChange] = [change(2), api.Appended(2, 2)]
    one.stream.receive_news(
        api.News(7, index=2, tokens=[toy_model.EOS], changes=changes, finish=HELD), one.now
    )
    told = [(type(event), event.ref, event.index) for event in one.take()]  # type: ignore[union-attr]
    assert [ref for _, ref, _ in told] == ["x", "y"]
    assert {index for _, _, index in told} == {2}
    pauses = isinstance(frame, protocol.Pause)
    assert one.commands[-1] == (api.Append(7, [70, 71]) if pauses else api.Resume(7))
    assert list(one.stream.output.tokens) == list(b"So")


def test_who_goes_on_behind_a_void_end_and_lacks_memory_is_told_when_it_has_it() -> None:
    """By the engine's answer to ours, of which nobody hears otherwise."""
    one = lone(on_tool_call="continue")
    one.write("So")
    one.steer(protocol.Inject(request_id="a", tokens=[70, 71]))
    news = api.News(7, index=2, tokens=[toy_model.EOS], changes=[api.Appended(2, 2)], finish=HELD)
    one.stream.receive_news(news, one.now)
    assert one.commands[-1] == api.Resume(7)
    one.take()
    lacks: list[api.AnyChange] = [api.Paused(2, "memory")]
    one.stream.receive_news(api.News(7, early=lacks, changes=[api.Resumed(2, 9)]), one.now)
    assert kinds(one.take()) == ["Paused", "Resumed"]
    one.write("!")
    assert kinds(one.take()) == ["Token"]


def test_a_call_that_waits_has_what_comes_behind_its_end_take_effect() -> None:
    one = lone(on_tool_call="continue")
    one.write(FIND)
    one.take()
    behind = one.index
    for frame, _ in BEHIND_ITS_END[:1] + BEHIND_ITS_END[3:4]:
        one.steer(replace(frame, ref="x"))
    changes: list[api.AnyChange] = [api.Adjusted(behind), api.Paused(behind)]
    news = api.News(7, index=behind, tokens=[toy_model.EOS], changes=changes, finish=HELD)
    one.stream.receive_news(news, one.now)
    assert kinds(one.take()) == ["Paused", "Adjusted", "Paused"]
    assert len(one.stream.output) == behind
    assert one.stream.context.params.ignore_eos


def test_a_cancel_behind_an_end_that_stands_is_answered_by_that() -> None:
    one = lone(on_tool_call="continue")
    one.write("So")
    one.cancel("c")
    end(one)
    final = one.final()
    assert (final.ref, final.finish_reason, final.stop_reason) == ("c", "stop", "eos")
    one.answer(finish=CANCELLED)
    assert one.take() == []


def texted(one: LoneStream, text: str) -> None:
    """The client goes on in the model's own turn."""
    one.steer(protocol.Inject(request_id="a", text=text, tokens=list(text.encode())))


def test_a_result_behind_a_text_on_its_way_waits_for_the_call_that_opens() -> None:
    one, (find,) = called(FIND)
    texted(one, STOP)
    one.steer(in_tokens(one.stream.inject_of(result(find))))
    assert one.commands[-1] == api.Append(7, [])
    one.answer(api.Appended(one.index, len(STOP)), api.Appended(one.index, 0))
    (stop,) = [event.call_id for event in one.take() if isinstance(event, protocol.ToolCallDone)]
    both = one.stream.inject_of(result(stop))
    assert told(both) == [find, stop]
    put_in(one, both)
    assert kinds(one.take())[-2:] == ["Injected", "Resumed"]


def test_and_goes_in_behind_it_where_that_opens_none() -> None:
    one, (find,) = called(FIND)
    texted(one, "So.")
    one.steer(in_tokens(one.stream.inject_of(result(find))))
    one.answer(api.Appended(one.index, 3))
    assert one.commands[-1] == api.Append(7, []), "something is still to be answered"
    one.answer(api.Appended(one.index, 0))
    assert one.commands[-2:] == [api.Append(7, [5] * 9, True), api.Resume(7)]
    one.answer(api.Appended(one.index, 9), api.Resumed(one.index))
    assert kinds(one.take())[-3:] == ["Injected", "Injected", "Resumed"]


@pytest.mark.parametrize("last", ["approve", "a refused amend"])
def test_also_where_what_comes_last_is_answered_by_no_engine(last: str) -> None:
    """Nothing more came of that, so it waited for ever."""
    one, (find,) = called(FIND)
    texted(one, "So.")
    one.steer(in_tokens(one.stream.inject_of(result(find))))
    approve = protocol.Approve(request_id="a", call_id=find)
    amend = protocol.Amend(request_id="a", call_id="none", arguments={})
    one.stream.steer_call(approve if last == "approve" else amend, 0, one.now)
    one.answer(api.Appended(one.index, 3), api.Appended(one.index, 0))
    assert one.stream.num_waiting == 2
    assert one.commands[-2:] == [api.Append(7, [5] * 9, True), api.Resume(7)]


@pytest.mark.parametrize("told", ["result", "text"])
def test_what_is_told_between_two_amendments_finds_both_of_them_done(told: str) -> None:
    """Each is done in a turn of its own. What was told in between found one that waited yet: whoever built
    the stream again, and does one behind the other, commanded something else."""
    one, (find,) = called(FIND)
    one.steer(protocol.Adjust(request_id="a", params=Params(temperature=0.5)))
    for _ in range(2):
        amend = protocol.Amend(request_id="a", call_id="none", arguments={})
        one.stream.steer_call(amend, 0, one.now)
    one.answer(api.Adjusted(one.index))
    assert one.stream.num_waiting == 1
    one.commands.clear()
    if told == "result":
        one.steer(in_tokens(one.stream.inject_of(result(find))))
    else:
        one.steer(protocol.Inject(request_id="a", tokens=[5] * 9, grammar="anew", resume=True))
    assert one.commands == [api.Append(7, [5] * 9, True), api.Resume(7)]
    assert kinds(one.take()).count("Error") == 2


@pytest.mark.parametrize("before", ["a refused text", "a refused amend"])
def test_and_leaves_it_paused_where_somebody_has_paused_it_since(before: str) -> None:
    """It had gone on: results that were given before the pause were to have it go on."""
    one, (find,) = called(FIND)
    if before == "a refused text":
        texted(one, "So.")
        refused: api.AnyChange = api.Refused(one.index, reason="grammar")
    else:
        one.steer(protocol.Adjust(request_id="a", params=Params(temperature=0.5)))
        amend = protocol.Amend(request_id="a", call_id="none", arguments={})
        one.stream.steer_call(amend, 0, one.now)
        refused = api.Adjusted(one.index)
    one.steer(in_tokens(one.stream.inject_of(result(find))))
    one.steer(protocol.Pause(request_id="a"))
    one.answer(refused)
    one.answer(api.Appended(one.index, 0), api.Paused(one.index))
    assert one.commands[-1] == api.Append(7, [5] * 9, True)
    one.answer(api.Appended(one.index, 9))
    assert kinds(one.take())[-2:] == ["Paused", "Injected"]
    assert one.stream.paused == "client"
    assert one.stream.num_waiting == 0


def test_results_for_which_there_is_no_room_any_more_when_the_turn_ends_leave_it_waiting() -> None:
    """It went on without them: it was told to before they were refused."""
    one = lone(on_tool_call="pause")
    one.write(FIND)
    (call,) = one.stream.output.calls
    room = MODEL.context - len(one.stream.context) - 1
    one.steer(replace(one.stream.inject_of(result(call.call_id)), tokens=[5] * room))
    one.answer(api.Appended(one.index, 0))
    one.write("So.")
    end(one)
    assert one.commands[-1] == api.Append(7, [5] * room, True)
    one.answer(api.Refused(one.index, known=len(one.stream.context), context=MODEL.context))
    assert kinds(one.take())[-2:] == ["Paused", "Error"]
    assert one.stream.paused == "tool_call"
    assert one.stream.num_waiting == 0


@pytest.mark.parametrize("answered", [True, False])
@pytest.mark.parametrize("asked", ["resume", "amend"])
def test_a_result_waits_where_the_model_is_about_to_write_on(asked: str, answered: bool) -> None:
    """Whether or not what has it do so has its answer, or is made: it went into the middle of its turn."""
    one, (find, stop) = called(FIND, STOP)
    put_in(one, one.stream.inject_of(result(find)))
    one.steer(protocol.Adjust(request_id="a", params=Params(temperature=0.5)))
    if asked == "amend":
        amend = protocol.Amend(request_id="a", call_id=stop, arguments={"q": 1})
        one.stream.steer_call(amend, 0, one.now)
    else:
        one.steer(protocol.Resume(request_id="a"))
    if answered:
        changes = [api.Resumed(one.index)] if asked == "resume" else []
        one.answer(api.Adjusted(one.index), *changes)
    one.steer(in_tokens(one.stream.inject_of(result(find if asked == "amend" else stop))))
    if not answered:
        one.answer(api.Adjusted(one.index))
    assert one.commands[-1] == api.Append(7, [])


def test_results_are_told_once_more_where_the_calls_that_they_waited_for_are_taken_back() -> None:
    one, (find, _) = called(FIND, STOP)
    put_in(one, one.stream.inject_of(result(find)))
    assert one.stream.take_result_to_tell() is None
    one.steer(protocol.Rewind(request_id="a", to=len(FIND)))
    assert one.stream.take_result_to_tell() is None
    one.answer(api.Truncated(len(FIND)))
    last = one.stream.take_result_to_tell()
    assert last == result(find)
    assert one.stream.take_result_to_tell() is None, "it is being told"
    alone = one.stream.inject_of(last)
    assert told(alone) == [find]
    put_in(one, alone)
    assert kinds(one.take())[-2:] == ["Injected", "Resumed"]


def test_so_they_are_where_a_message_answers_the_calls_that_they_waited_for() -> None:
    """They were never put in."""
    one, (find, stop) = called(FIND, STOP)
    put_in(one, one.stream.inject_of(result(find)))
    answer = Message(role="tool", tool_call_id=stop, content="no")
    one.steer(protocol.Inject(request_id="a", messages=[answer], tokens=[5] * 9))
    assert one.stream.take_result_to_tell() is None
    one.answer(api.Appended(one.index, 9))
    assert one.stream.take_result_to_tell() == result(find)


def test_where_all_calls_are_taken_back_it_goes_on_though_what_it_was_to_go_on_behind_is_refused() -> None:
    """It waited for nothing."""
    one, _ = called(FIND)
    one.steer(protocol.Rewind(request_id="a", to=0))
    one.steer(protocol.Inject(request_id="a", tokens=[5], resume=True))
    one.answer(api.Truncated(0))
    assert one.commands[-1:] == [api.Append(7, [5])]
    one.answer(api.Refused(0, reason="grammar"))
    assert one.commands[-1:] == [api.Resume(7)]


@pytest.mark.parametrize("then", ["amend", "resume"])
def test_behind_an_amended_call_it_goes_on_once(then: str) -> None:
    """A second resume came when the model had closed the call, and it went on without its result."""
    one, (stop,) = called(STOP)
    amends = [protocol.Amend(request_id="a", call_id=stop, arguments={"q": q}) for q in (1, 2)]
    one.stream.steer_call(amends[0], 0, one.now)
    if then == "amend":
        one.stream.steer_call(amends[1], 0, one.now)
        one.answer(api.Appended(one.index, 7))
        one.answer(api.Appended(one.index, 2))
        one.answer(api.Resumed(one.index))
    else:
        one.steer(protocol.Resume(request_id="a"))
        one.answer(api.Appended(one.index, 7), api.Resumed(one.index))
    assert sum(isinstance(command, api.Resume) for command in one.commands) == 1
    assert one.stream.num_waiting == 0
    assert one.stream.paused is None


def test_and_not_before_the_turn_has_ended_of_which_they_are() -> None:
    one = lone(on_tool_call="pause")
    one.write(FIND + STOP)
    find, _ = [event.call_id for event in one.take() if isinstance(event, protocol.ToolCallDone)]
    put_in(one, one.stream.inject_of(result(find)))
    one.steer(protocol.Rewind(request_id="a", to=len(FIND)))
    one.answer(api.Truncated(len(FIND)))
    assert one.stream.take_result_to_tell() is None
    end(one)
    assert one.stream.take_result_to_tell() == result(find)


def test_but_not_where_another_call_came_since() -> None:
    one = lone(on_tool_call="pause")
    one.write(FIND)
    (find,) = [event.call_id for event in one.take() if isinstance(event, protocol.ToolCallDone)]
    put_in(one, one.stream.inject_of(result(find)))
    one.write(STOP)
    end(one)
    (stop,) = [event.call_id for event in one.take() if isinstance(event, protocol.ToolCallDone)]
    assert one.stream.paused == "tool_call"
    both = one.stream.inject_of(result(stop))
    assert told(both) == [find, stop]


def test_it_goes_on_with_its_results_though_its_parameters_are_adjusted_all_the_time() -> None:
    one, (find,) = called(FIND)
    one.steer(ADJUST)
    one.steer(in_tokens(one.stream.inject_of(result(find))))
    one.steer(ADJUST)
    one.answer(api.Adjusted(one.index), api.Appended(one.index, 9))
    assert one.stream.num_waiting == 2
    assert one.commands[-1] == api.Resume(7)
    one.steer(ADJUST)
    one.answer(api.Adjusted(one.index), api.Resumed(one.index), api.Adjusted(one.index))
    assert one.commands.count(api.Resume(7)) == 1
    assert one.stream.paused is None


def test_so_are_results_told_once_more() -> None:
    one, (find, _) = called(FIND, STOP)
    put_in(one, one.stream.inject_of(result(find)))
    one.steer(protocol.Rewind(request_id="a", to=len(FIND)))
    one.steer(ADJUST)
    one.answer(api.Truncated(len(FIND)))
    assert one.stream.take_result_to_tell() == result(find)


def test_a_stream_that_somebody_paused_takes_results_and_stays_paused() -> None:
    one, (find,) = called(FIND)
    one.steer(protocol.Pause(request_id="a"))
    one.answer(api.Paused(one.index))
    given = one.stream.inject_of(result(find))
    assert given.messages
    assert not given.resume
    one.steer(in_tokens(given))
    assert one.commands[-1] == api.Append(7, [5] * 9, True), "its turn has ended, whoever has paused it too"


def test_each_result_goes_in_by_itself_where_the_stream_goes_on_meanwhile() -> None:
    one = lone(on_tool_call="continue")
    one.write(FIND + STOP)
    find, stop = [event.call_id for event in one.take() if isinstance(event, protocol.ToolCallDone)]
    given = one.stream.inject_of(result(stop))
    assert told(given) == [stop]
    put_in(one, given)
    end(one)
    assert one.stream.paused == "tool_call", f"{find} has none yet"


def test_when_all_have_theirs_the_turns_end_is_the_streams() -> None:
    one, (find,) = called(FIND)
    put_in(one, one.stream.inject_of(result(find)))
    one.write("So.")
    end(one)
    final = one.final()
    assert (final.finish_reason, final.stop_reason) == ("stop", "eos")
    assert one.commands[-1] == api.Cancel(7), "the engine holds it, until it hears"


def test_a_result_may_be_replaced_while_it_waits_and_not_once_it_is_in() -> None:
    one, (find, stop) = called(FIND, STOP)
    put_in(one, one.stream.inject_of(result(find, content="1")))
    put_in(one, one.stream.inject_of(result(find, content="2")))
    both = one.stream.inject_of(result(stop))
    assert [message.content for message in both.messages or []] == ["2", "42"]
    put_in(one, both)
    with pytest.raises(Refusal, match=rf'no result of a call "{find}"\.$'):
        one.stream.inject_of(result(find))


def test_a_result_that_is_refused_does_not_go_in_with_anothers() -> None:
    one, (find, stop) = called(FIND, STOP)
    one.stream.inject_of(result(find, content="never asked for"))
    assert told(one.stream.inject_of(result(stop))) == [stop], "its hub has refused the other"
    put_in(one, one.stream.inject_of(result(find)))
    one.steer(in_tokens(one.stream.inject_of(result(stop, content="too long"))))
    one.answer(api.Refused(one.index, 4090, 4096), api.Resumed(one.index))
    end(one)
    assert told(one.stream.inject_of(result(find, content="less"))) == [find]
    both = one.stream.inject_of(result(stop))
    assert [message.content for message in both.messages or []] == ["42", "42"]


def test_a_result_that_was_tokenized_while_another_call_was_made_waits_for_its() -> None:
    for ended in (False, True):
        one = lone(on_tool_call="pause")
        one.write(FIND)
        (find,) = [event.call_id for event in one.take() if isinstance(event, protocol.ToolCallDone)]
        first = in_tokens(one.stream.inject_of(result(find)))
        one.write(STOP)
        if ended:
            end(one)
        (stop,) = [event.call_id for event in one.take() if isinstance(event, protocol.ToolCallDone)]
        one.steer(first)
        assert one.commands[-1] == api.Append(7, [])
        one.answer(api.Appended(one.index))
        if not ended:
            end(one)
        put_in(one, one.stream.inject_of(result(stop)))
        assert [command for command in one.commands if isinstance(command, api.Append)][1:] == [
            api.Append(7, [5] * 9, True)
        ]
        assert kinds(one.take())[-2:] == ["Injected", "Resumed"]


def test_a_result_that_is_on_its_way_is_not_given_twice() -> None:
    one, (find,) = called(FIND)

    def give() -> None:
        one.steer(in_tokens(one.stream.inject_of(result(find))))

    give()
    with pytest.raises(Refusal, match="waits for no result"):
        one.stream.inject_of(result(find))
    one.answer(api.Refused(one.index, 4090, 4096), api.Resumed(one.index))
    end(one)
    give()
    one.answer(api.Appended(one.index, 9), api.Resumed(one.index))
    assert kinds(one.take())[-2:] == ["Injected", "Resumed"]


def test_a_result_that_is_taken_back_on_its_way_may_be_given_again() -> None:
    one, (find,) = called(FIND)
    behind = len(one.stream.output)
    one.steer(in_tokens(one.stream.inject_of(result(find))))
    one.steer(protocol.Rewind(request_id="a", to=behind))
    with pytest.raises(Refusal, match="waits for no result"):
        one.stream.inject_of(result(find))  # what stands before that token stays
    one.steer(protocol.Rewind(request_id="a", to=behind - 1))
    assert one.stream.inject_of(result(find)).messages


def test_a_result_is_judged_by_what_stands_when_its_turn_comes() -> None:
    one, (find, stop) = called(FIND, STOP)
    one.steer(protocol.Rewind(request_id="a", to=len(FIND.encode())))
    with pytest.raises(Refusal, match=f'does for "{find}"'):
        one.stream.inject_of(result(stop))
    both = one.stream.inject_of(result(find))
    assert told(both) == [find], "there is no other then"
    one.steer(protocol.Rewind(request_id="a", to=0))
    with pytest.raises(Refusal, match="waits for no result"):
        one.stream.inject_of(result(find))


@pytest.mark.parametrize("frame", [protocol.Rewind(request_id="a", to=3), ADJUST_AT])
def test_where_the_calls_are_taken_back_for_which_it_waits_it_goes_on(frame: Any) -> None:
    """Nobody could ever tell it a result."""
    one, _ = called(FIND)
    one.steer(frame)
    one.answer(api.Truncated(3), *([] if isinstance(frame, protocol.Rewind) else [api.Adjusted(3)]))
    assert one.commands[-1] == api.Resume(7)
    one.answer(api.Resumed(3))
    assert kinds(one.take())[-1] == "Resumed"
    one.write(FIND[3:])
    end(one)
    assert one.stream.paused == "tool_call"


@pytest.mark.parametrize("asked", ["to its end", "to a call that stands", "paused by its client", "resumed"])
def test_a_rewind_that_leaves_something_to_wait_for_has_it_wait(asked: str) -> None:
    one, _ = called(FIND, STOP)
    to = len((FIND + STOP if asked == "to its end" else FIND).encode())
    if asked == "paused by its client":
        one.steer(protocol.Pause(request_id="a"))
        one.answer(api.Paused(one.index))
        to = 3
    if asked == "resumed":
        to = 3
    one.steer(protocol.Rewind(request_id="a", to=to))
    if asked == "resumed":
        one.steer(protocol.Resume(request_id="a"))
    before = list(one.commands)
    one.answer(api.Truncated(to))
    assert one.commands == before, "nothing but what was asked for"


def test_a_result_may_be_given_again_right_behind_the_rewind_that_takes_it_back() -> None:
    one, (find,) = called(FIND)
    behind = len(one.stream.output)
    put_in(one, one.stream.inject_of(result(find)))
    one.write("So.")
    one.take()
    one.steer(protocol.Rewind(request_id="a", to=behind - 1))
    one.steer(in_tokens(one.stream.inject_of(result(find))))
    one.answer(api.Truncated(behind - 1), api.Appended(behind - 1))
    one.write(">")
    end(one)
    assert one.commands[-2:] == [api.Append(7, [5] * 9, True), api.Resume(7)]


def test_who_holds_too_much_already_is_refused_more() -> None:
    one, (find, stop) = called(FIND, STOP)
    one.stream.inject_of(result(find))
    one.memory.limit = one.memory.held
    with pytest.raises(Refusal, match="MiB that is held"):
        one.stream.inject_of(result(stop))


def test_what_waits_weighs_with_all_its_parts_and_nothing_once_it_is_in() -> None:
    one, (find, stop) = called(FIND, STOP)

    def weight() -> int:
        assert one.stream.keeping is not None
        return one.stream.bytes - one.stream.keeping.history_bytes

    before = weight()
    put_in(one, one.stream.inject_of(result(find, content=[TextPart("x")] * 1_000)))
    assert weight() > before + 50_000
    put_in(one, one.stream.inject_of(result(find, content="x")))
    assert weight() < before + 1_000, "another took its place"
    put_in(one, one.stream.inject_of(result(stop)))
    assert weight() < before + 5_000


def test_what_waits_is_weighed_and_goes_with_its_call() -> None:
    one, (find, _) = called(FIND, STOP)
    before = one.stream.bytes
    put_in(one, one.stream.inject_of(result(find, content="x" * 10_000)))
    assert one.stream.bytes > before + 10_000
    one.steer(protocol.Rewind(request_id="a", to=3))
    one.answer(api.Truncated(3))
    assert one.stream.bytes < before + 8_000


def test_a_new_engine_has_it_paused_and_its_memory_goes_in_silence() -> None:
    one, _ = called(FIND)
    one.lose_engine()
    submit = one.new_engine()
    assert submit.paused
    one.stream.release_kv(0)
    assert one.commands == [api.Pause(7, True)]
    one.answer(api.Paused(one.index))
    assert one.take() == []


def test_one_that_its_client_paused_stays_so_where_its_memory_is_released_behind_that() -> None:
    """It was told that nobody listened."""
    one, _ = called(FIND)
    one.steer(protocol.Pause(request_id="a", ref="p"))
    one.stream.release_kv(0)
    one.answer(api.Paused(one.index), api.Paused(one.index))
    (paused,) = one.take()
    assert (paused.ref, one.stream.paused) == ("p", "client")
    assert one.commands[-2:] == [api.Pause(7), api.Pause(7, True)]


def test_memory_of_one_that_is_about_to_go_on_is_not_released() -> None:
    """It was paused behind that, and told so as if nobody listened, until somebody had it go on."""
    one, (find,) = called(FIND)
    one.steer(in_tokens(one.stream.inject_of(result(find))))
    told = one.commands[:]
    assert told[-1] == api.Resume(7)
    one.stream.release_kv(0)
    assert one.commands == told
    assert not one.stream.released


def test_a_past_that_waits_where_its_engine_has_just_come_waits_for_results() -> None:
    """It computes nothing there, so nobody told that the engine was there: what was told never went in."""
    past = Past(tokens=[*STOP.encode(), toy_model.EOS], call_ids=["c"])
    asked: dict[str, Any] = ASKED | {"past": past, "on_tool_call": "pause"}
    start, params = protocol.Start(request_id="a", **asked), lone().stream.context.params
    *_, context = begun(start, [1], params, None, MODEL, [])
    one = LoneStream(model=MODEL, credit=Credit(limit=2000), asked=asked, context=context)
    one.lose_engine()
    one.new_engine("another")
    one.answer(finish=HELD)
    assert one.stream.paused == "tool_call"
    put_in(one, one.stream.inject_of(result("c")))
    assert kinds(one.take())[-2:] == ["Injected", "Resumed"]


def test_memory_that_is_gone_with_its_engine_is_not_released_for_which_another_would_be_needed() -> None:
    one, _ = called(FIND)
    one.lose_engine()
    one.stream.release_kv(0)
    assert not one.stream.needs_engine
    one.new_engine()
    assert one.commands == []


def test_a_fork_knows_which_calls_have_their_results_and_so_does_a_rewind() -> None:
    one, (find,) = called(FIND)
    put_in(one, one.stream.inject_of(result(find)))
    one.write("So.")
    one.take()
    fork = ToolLoop(protocol.Start(request_id="b"), one.stream.fork("b", None, Params()).output.spans)
    assert not fork.missing
    one.write(STOP)
    end(one)
    (stop,) = [event.call_id for event in one.take() if isinstance(event, protocol.ToolCallDone)]
    one.steer(protocol.Rewind(request_id="a", to=len(FIND) - 1))
    one.answer(api.Truncated(len(FIND) - 1))
    one.write(">")
    refused = f'no result of a call "{stop}": it does for "{find}"'
    with pytest.raises(Refusal, match=refused):
        one.stream.inject_of(result(stop))
    assert not fork.missing, "they have calls of their own"


def test_a_result_that_is_told_twice_stands_where_it_was_told_first() -> None:
    one, (find,) = called(FIND)
    put_in(one, one.stream.inject_of(result(find)))
    at = one.index
    one.write("so")
    again = [Message(role="tool", tool_call_id=find, content="43")]
    one.steer(protocol.Inject(request_id="a", messages=again, tokens=[5] * 9))
    one.steer(protocol.Rewind(request_id="a", to=at))
    with pytest.raises(Refusal, match="waits for no result"):
        one.stream.inject_of(result(find))
    one.answer(api.Appended(one.index, 9), api.Truncated(at))
    assert [call.answered for call in one.stream.output.calls] == [at]


@pytest.mark.parametrize("then", ["pause", "continue"])
def test_a_result_is_held_once_by_the_call_that_it_is_for(then: str) -> None:
    """However often another comes in its place while there is no engine."""
    one = lone(on_tool_call=then)
    one.write(FIND + STOP)
    [find, _] = [event.call_id for event in one.take() if isinstance(event, protocol.ToolCallDone)]
    one.lose_engine()
    one.steer(in_tokens(one.stream.inject_of(result(find, content="x" * 9000))))
    [waiting] = [pending.frame for pending in one.stream._commands]
    assert isinstance(waiting, ResultInject)
    assert (waiting.result.call_id, waiting.result.content) == (find, None)


def test_results_of_many_calls_are_not_held_against_each_of_many_others() -> None:
    one, ids = called(*[STOP] * 30)
    spans = one.stream.output.spans
    assert spans is not None
    spans.calls = [replace(call, call_id=WatchedId(call.call_id)) for call in spans.calls]
    messages = [Message(role="tool", content="", tool_call_id=call_id) for call_id in ids]
    one.steer(protocol.Inject(request_id="a", messages=messages, tokens=[5]))
    WatchedId.compared = 0
    one.answer(api.Appended(one.index, 1))
    assert all(call.answered is not None for call in spans.calls)
    assert WatchedId.compared <= 10 * 30


def test_a_rewind_looks_for_calls_that_have_results_only_where_some_wait() -> None:
    one, calls = called(*[STOP] * 20)
    with counted() as work:
        one.stream._tools.settle()
    assert work.lines < 20
    put_in(one, one.stream.inject_of(result(calls[0])))
    one.steer(protocol.Rewind(request_id="a", to=0))
    one.answer(api.Truncated(0))
    assert not one.stream.has_result(calls[0])


def test_a_result_that_waits_has_nobody_look_for_what_others_still_wait_for() -> None:
    lines = []
    for count in (5, 30):
        one, calls = called(*[STOP] * count)
        for call_id in calls[:2]:
            one.steer(in_tokens(one.stream.inject_of(result(call_id))))
        with counted() as work:
            one.answer(api.Appended(one.index, 0), api.Appended(one.index, 0))
        assert all(one.stream.has_result(call_id) for call_id in calls[:2])
        lines.append(work.lines)
    assert lines[0] == lines[1]


@pytest.mark.parametrize("answered", [True, False])
@pytest.mark.parametrize("text", [[], [*b"So"]])
def test_what_is_told_while_a_client_has_paused_it_goes_in_where_its_turn_has_ended(
    text: list[int], answered: bool
) -> None:
    """And waits for that where a text goes on with it; so it does where the stream was started again."""
    before, (call_id,) = called(FIND)
    steering: list[PastAdjust | PastInject] = []
    if text:
        steering = [PastInject(index=before.index, tokens=text)]
        before.steer(protocol.Inject(request_id="a", tokens=text))
        before.answer(api.Appended(before.index, len(text)))
    known = Past(tokens=list(FIND.encode()), call_ids=[call_id], waits=True, steering=steering)
    asked: dict[str, Any] = ASKED | {"past": known, "on_tool_call": "pause"}
    start, params = protocol.Start(request_id="a", **asked), lone().stream.context.params
    *_, context = begun(start, [1], params, None, MODEL, [text])
    again = LoneStream(model=MODEL, credit=Credit(limit=2000), asked=asked, context=context)
    for one in (before, again):
        one.steer(protocol.Pause(request_id="a"))
        if answered:  # else it is as it will be: whoever starts it again says both at once
            one.answer(api.Paused(before.index))
        one.steer(in_tokens(one.stream.inject_of(result(call_id))))
        command = one.commands[-1]
        assert isinstance(command, api.Append)
        assert bool(command.tokens) == (not text)
