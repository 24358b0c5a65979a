"""The guards of one stream, with the test as its engine: what they do, in which order it is told, and what
nobody is told."""

from __future__ import annotations

import tracemalloc
from typing import Any, Literal

import pytest
from msgspec.structs import replace

from engine import api, toy_model
from midstream import protocol
from midstream.protocol import Budget, Credit, Guard, Guarded, Params
from realtime.guards.acts import Act, Acts
from realtime.guards.pattern import Lately, pattern_of
from realtime.guards.reading import Find, GuardReading, Kind
from realtime.refusal import Refusal
from realtime.stream.engine_commands import SteeringFrame
from realtime.stream.pending_commands import MOST_UNDER_WAY
from tests.fakes.counted_work import counted
from tests.fakes.folded_spans import FoldedSpans
from tests.fakes.lone_stream import CANCELLED, PROMPT, RUN_OUT, LoneStream, kinds, text
from tests.unit.test_stream_results import HELD
from tests.unit.test_stream_tools import ASKED, MODEL, STOP, lone

SECRET = Guard(name="secret", do="rewind", regex="secret")
EOS = api.Finish("eos")


def begun(*guards: Guard, **asked: Any) -> LoneStream:
    lone = LoneStream(guards=list(guards), credit=Credit(limit=100), **asked)
    lone.admit()
    lone.take()
    lone.commands.clear()
    return lone


def act(lone: LoneStream) -> Guarded:
    """The one that is to be told."""
    [told] = [event for event in lone.take() if isinstance(event, Guarded)]
    return told


def test_what_is_found_goes_back_to_where_it_begins_and_its_last_token_is_told_to_nobody() -> None:
    lone = begun(SECRET)
    lone.write("a secret, and")
    events = lone.take()
    assert text(events) == "a secre"
    assert events[-1] == Guarded(
        request_id="a", seq=2, index=2, name="secret", do="rewind", times=1, token=ord("s"), detail="secret"
    )
    assert lone.commands == [api.Truncate(7, 2, ord("s"))]
    lone.answer(api.Truncated(2))
    [rewound] = lone.take()
    assert rewound == protocol.Rewound(request_id="a", seq=3, index=2, text_length=2)
    lone.write("dog", finish=EOS)
    final = lone.final()
    assert final.usage.completion_tokens == 5
    assert final.usage.discarded_tokens == len("secret, and")


def test_after_so_many_times_it_does_what_is_left() -> None:
    lone = begun(Guard(name="secret", do="rewind", times=2, regex="secret"))
    for times in (1, 2):
        lone.write("secret")
        assert act(lone).times == times
        lone.answer(api.Truncated(0))
        lone.take()
    lone.commands.clear()
    lone.write("my secret")
    events = lone.take()
    assert kinds(events[-3:]) == ["Guarded", "Rewound", "Final"]
    told, _, final = events[-3:]
    assert isinstance(told, Guarded)
    assert isinstance(final, protocol.Final)
    assert (told.index, told.do, told.times, told.token) == (3, "finish", None, None)
    assert (final.index, final.finish_reason, final.stop_reason) == (3, "guard", "secret")
    assert lone.commands == [api.Cancel(7)]


def test_a_pause_stands_before_the_token_and_resume_lets_it_through() -> None:
    lone = begun(Guard(name="ask", do="pause", regex="secret"))
    lone.write("a secret")
    assert act(lone).index == 7
    assert lone.commands == [api.Truncate(7, 7), api.Pause(7)]
    lone.answer(api.Truncated(7), api.Paused(7))
    assert lone.take() == [protocol.Paused(request_id="a", seq=3, index=7, reason="guard")]
    assert lone.stream.paused == "guard"
    lone.steer(protocol.Resume(request_id="a"))
    lone.answer(api.Resumed(7))
    lone.take()
    lone.write("t secret")
    events = lone.take()
    assert text(events) == "t secre", "that one alone"
    assert [event.index for event in events if isinstance(event, Guarded)] == [14]


@pytest.mark.parametrize(
    ("asked", "answered"),
    [
        (protocol.Adjust(request_id="a", params=Params(top_k=3)), api.Adjusted(5)),
        (protocol.Inject(request_id="a", tokens=[3]), api.Appended(5, 1)),
    ],
)
def test_and_where_something_else_that_was_asked_has_no_answer_yet(
    asked: SteeringFrame, answered: api.AnyChange
) -> None:
    """The guard had it pause once more, unless whoever changed something waited before they resumed it."""
    lone = begun(Guard(name="ask", do="pause", regex="secret"))
    lone.write("secret")
    lone.answer(api.Truncated(5), api.Paused(5))
    lone.steer(asked)
    lone.steer(protocol.Resume(request_id="a"))
    lone.answer(answered, api.Resumed(5))
    lone.take()
    lone.write("t")
    assert kinds(lone.take()) == ["Token"]


@pytest.mark.parametrize("answered", [True, False])
def test_but_not_where_its_client_has_paused_it_since(answered: bool) -> None:
    """Whoever goes on from there goes on from that: so a replay has a guard pause again where one did."""
    lone = begun(Guard(name="ask", do="pause", regex="secret"))
    lone.write("secret")
    lone.answer(api.Truncated(5), api.Paused(5))
    lone.steer(protocol.Pause(request_id="a"))
    if answered:
        lone.answer(api.Paused(5))
    lone.steer(protocol.Resume(request_id="a"))
    lone.answer(*([] if answered else [api.Paused(5)]), api.Resumed(5))
    lone.take()
    lone.write("t")
    assert kinds(lone.take()) == ["Guarded"]


def test_a_pause_goes_to_the_engine_with_its_rewind_however_many_commands_are_under_way() -> None:
    """Else what is decoded in between, where somebody is to look first, would be told."""
    lone = begun(Guard(name="ask", do="pause", regex="secret"))
    for _ in range(MOST_UNDER_WAY - 1):
        lone.steer(protocol.Adjust(request_id="a", params=Params(top_k=3)))
    lone.commands.clear()
    lone.write("a secret")
    assert lone.commands == [api.Truncate(7, 7), api.Pause(7)]


def test_what_changes_before_it_has_paused_is_said_of_the_token_that_comes_in_place_of_the_one_held() -> None:
    """Which was looked at, and nobody had heard of."""
    lone = begun(Guard(name="ask", do="pause", regex="secret"))
    lone.steer(protocol.Adjust(request_id="a", params=Params(top_k=3)))
    lone.write("a secret")
    lone.answer(api.Adjusted(8))
    lone.answer(api.Truncated(7), api.Paused(7))
    adjusted, paused = lone.take()[-2:]
    assert isinstance(adjusted, protocol.Adjusted)
    assert isinstance(paused, protocol.Paused)
    assert (adjusted.index, paused.index) == (7, 7)


@pytest.mark.parametrize("is_known", [False, True])
def test_what_is_put_in_where_it_paused_lets_nothing_through(is_known: bool) -> None:
    lone = begun(Guard(name="ask", do="pause", regex="secret"))
    lone.write("secret")
    lone.answer(api.Truncated(5), api.Paused(5))
    lone.take()
    lone.steer(protocol.Rewind(request_id="a", to=3))
    if is_known:  # to whoever has it go on
        lone.answer(api.Truncated(3))
    lone.steer(protocol.Resume(request_id="a"))
    lone.answer(*[] if is_known else [api.Truncated(3)], api.Resumed(3))
    lone.take()
    lone.write("ret")
    assert act(lone).index == 5


@pytest.mark.parametrize("is_read", [True, False])
def test_text_that_is_held_back_again_as_it_pauses_is_taken_back_before_it_comes_again(is_read: bool) -> None:
    """It may begin what the stream stops at since."""
    lone, client = begun(Guard(name="x", do="pause", regex="x")), FoldedSpans()
    client.seq = lone.stream.outbox.seq - 1
    lone.write("went")
    if is_read:
        client.read(lone.take())
    lone.steer(protocol.Adjust(request_id="a", params=Params(stop="th")))
    lone.answer(api.Adjusted(4))
    lone.write("x")
    lone.answer(api.Truncated(4), api.Paused(4))
    lone.steer(protocol.Resume(request_id="a"))
    lone.answer(api.Resumed(4))
    lone.write("x")
    client.read(lone.take())
    assert client.content == lone.stream.output.content() == "wentx"


def test_telling_changes_nothing() -> None:
    lone = begun(Guard(name="note", do="tell", regex="secret"))
    lone.write("a secret, a secret", finish=EOS)
    events = lone.take()
    assert text(events) == "a secret, a secret"
    told = [event for event in events if isinstance(event, Guarded)]
    assert [(event.index, event.detail) for event in told] == [(7, "secret"), (17, "secret")]
    assert lone.commands == []


def test_the_first_that_acts_acts_alone() -> None:
    lone = begun(
        Guard(name="note", do="tell", regex="cret"),
        SECRET,
        Guard(name="stop", do="finish", regex="secret"),
    )
    lone.write("secret")
    assert act(lone).name == "secret"


def test_tokens_that_were_on_their_way_are_counted_and_told_to_nobody() -> None:
    lone = begun(SECRET, logprobs=0)
    lone.write("secret", logprob=api.Logprob(-1.0))
    lone.stream.receive_news(api.News(7, index=6, tokens=[65, 66, 67]), lone.now)
    lone.answer(api.Truncated(0))
    assert lone.stream.counts.discarded == 9
    lone.cancel()
    lone.stream.receive_news(api.News(7, finish=CANCELLED), lone.now)
    final = lone.final()
    assert final.usage.completion_tokens == 0
    assert final.usage.discarded_tokens == 9


@pytest.mark.parametrize("finish", [EOS, RUN_OUT])
def test_an_engine_that_has_come_to_the_end_meanwhile_is_told_to_begin_anew(finish: api.Finish) -> None:
    lone = begun(SECRET)
    lone.write("a secret")
    lone.stream.receive_news(api.News(7, index=8, tokens=[65, 66], finish=finish), lone.now)
    back, submit, again = lone.commands
    assert back == again == api.Truncate(7, 2, ord("s"))
    assert isinstance(submit, api.Submit)
    assert bytes(submit.tokens[len(PROMPT) :]) == b"a secre"
    lone.answer(api.Truncated(2))
    assert kinds(lone.take())[-2:] == ["Guarded", "Rewound"]
    lone.write("cat", finish=EOS)
    final = lone.final()
    assert (final.finish_reason, final.usage.completion_tokens) == ("stop", 5)
    assert final.usage.discarded_tokens == len("secret") + 2


@pytest.mark.parametrize("do", ["rewind", "pause"])
@pytest.mark.parametrize("finish", [EOS, RUN_OUT])
def test_one_that_is_cancelled_as_its_engine_comes_to_an_end_that_is_void_ends_all_the_same(
    finish: api.Finish, do: Literal["rewind", "pause"]
) -> None:
    lone = begun(Guard(name="secret", do=do, regex="secret"))
    lone.write("secre")
    lone.take()
    lone.cancel("enough")
    lone.write("t", finish=finish)
    final = lone.final()
    assert (final.finish_reason, final.ref) == ("cancelled", "enough")
    assert not any(isinstance(command, api.Submit) for command in lone.commands)


def test_where_it_has_gone_back_further_by_then_nothing_is_banned() -> None:
    """As `max_tokens` has it do: the engine bans nothing there, and neither would another."""
    lone = begun(SECRET)
    lone.write("my text is ")
    lone.steer(protocol.Adjust(request_id="a", params=Params(max_tokens=4)))
    lone.write("secret")
    assert act(lone).index == len("my text is ")
    lone.answer(api.Adjusted(lone.index), finish=RUN_OUT)
    submit, truncate = lone.commands[-2:]
    assert isinstance(submit, api.Submit)
    assert isinstance(truncate, api.Truncate)
    lone.answer(api.Truncated(3))
    assert len(lone.stream.output) == 3
    assert lone.stream.context.acts.bans == []


def test_an_engine_that_has_come_to_the_end_while_all_is_taken_back_begins_with_the_prompt() -> None:
    lone = begun(SECRET)
    lone.write("ab")
    lone.take()
    for _ in range(2):
        lone.steer(protocol.Rewind(request_id="a", to=0))
    lone.answer(api.Truncated(0), finish=RUN_OUT)
    submit, back = lone.commands[-2:]
    assert isinstance(submit, api.Submit)
    assert submit.tokens == list(PROMPT)
    assert back == api.Truncate(7, 0)
    assert lone.stream.final is None


def test_an_end_behind_what_went_back_stands() -> None:
    lone = begun(Guard(name="secret", do="tell", regex="secret"))
    lone.write("abcdefgh")
    lone.take()
    lone.steer(protocol.Adjust(request_id="a", params=Params(max_tokens=5), at=8))
    lone.answer(api.Truncated(8), api.Adjusted(8), finish=RUN_OUT)
    events = lone.take()
    assert kinds(events) == ["Rewound", "Adjusted", "Final"]
    assert not any(isinstance(command, api.Submit) for command in lone.commands)


@pytest.mark.parametrize("finish", [EOS, RUN_OUT])
def test_what_is_put_in_at_the_last_token_while_its_engine_comes_to_the_end_stands_behind_that(
    finish: api.Finish,
) -> None:
    lone = begun(Guard(name="secret", do="tell", regex="secret"))
    lone.write("abc")
    lone.take()
    lone.steer(protocol.Inject(request_id="a", tokens=[5, 6], at=3))
    lone.stream.receive_news(api.News(7, index=3, tokens=[toy_model.EOS], finish=finish), lone.now)
    submit, put_in = lone.commands[-2:]
    assert isinstance(submit, api.Submit)
    assert bytes(submit.tokens[len(PROMPT) :]) == b"abc"
    assert put_in == api.Append(7, [5, 6], behind=3)
    assert lone.take() == []
    lone.answer(api.Appended(3, 2))
    rewound, injected = lone.take()
    assert isinstance(rewound, protocol.Rewound)
    assert isinstance(injected, protocol.Injected)
    assert (rewound.index, injected.index) == (3, 3)


def test_what_is_put_in_behind_more_than_may_be_stands_behind_what_is_left() -> None:
    """Its engine has come to the end that `max_tokens` makes where it stands, and begins anew before that."""
    lone = begun(Guard(name="secret", do="tell", regex="secret"))
    lone.write("abcdefgh")
    lone.take()
    lone.steer(protocol.Adjust(request_id="a", params=Params(max_tokens=5)))
    lone.steer(protocol.Inject(request_id="a", tokens=[5, 6], at=8))
    lone.answer(api.Adjusted(8))
    lone.answer(finish=RUN_OUT)
    submit, put_in = lone.commands[-2:]
    assert isinstance(submit, api.Submit)
    assert bytes(submit.tokens[len(PROMPT) :]) == b"abcd"
    assert put_in == api.Append(7, [5, 6], behind=8)
    lone.take()
    lone.answer(api.Appended(4, 2))
    rewound, injected = lone.take()
    assert isinstance(rewound, protocol.Rewound)
    assert isinstance(injected, protocol.Injected)
    assert (rewound.index, injected.index) == (4, 4)
    lone.write("x", finish=RUN_OUT)
    assert lone.final().finish_reason == "length"


def test_what_the_end_tells_is_found_before_it_is_the_streams_end() -> None:
    lone = begun(Guard(name="end", do="rewind", regex=r"bye\b"))
    lone.write("bye now")
    assert act(lone).index == 0
    lone.answer(api.Truncated(0))
    lone.take()
    lone.write("good bye", finish=EOS)
    events = lone.take()
    assert kinds(events)[-1] == "Guarded"
    assert text(events) == "good by", "its last token is not told"
    submit, back = lone.commands[-2:]
    assert isinstance(submit, api.Submit)
    assert submit.bans == [(0, ord("b"))]
    assert back == api.Truncate(7, 5, ord("b"))
    lone.answer(api.Truncated(5))
    lone.write("day", finish=EOS)
    assert lone.final().finish_reason == "stop"


def test_text_that_a_stop_string_holds_back_is_looked_at_where_it_is_told() -> None:
    lone = begun(SECRET, stop=["secret garden"])
    lone.write("secret", finish=EOS)
    events = lone.take()
    assert text(events) == ""
    assert kinds(events)[-1] == "Guarded"


def test_what_a_stop_string_holds_back_is_told_at_an_end_that_comes_before_the_engine_has_gone_back() -> None:
    lone = begun(Guard(name="ask", do="pause", regex="secret"), stop=["e!"])
    lone.write("a secret")
    told = text(lone.take())
    lone.cancel()
    lone.lose_engine()
    events = lone.take()
    assert told + text(events) == "a secre"
    assert kinds(events[-1:]) == ["Final"]


def test_a_stop_string_ends_nothing_that_will_be_void() -> None:
    lone = begun(SECRET, stop=["X"])
    lone.write("secretX")
    lone.answer(api.Truncated(0))
    lone.write("fineX")
    assert text(lone.take()) == "fine"
    assert lone.stream.ended


def test_a_clients_rewind_takes_back_what_was_done_behind_it() -> None:
    lone = begun(SECRET)
    lone.write("a secret")
    lone.answer(api.Truncated(2))
    lone.write("dog")
    assert lone.stream.context.acts.bans == [(2, ord("s"))]
    lone.take()
    lone.steer(protocol.Rewind(request_id="a", to=2))
    lone.write("xx")
    lone.answer(api.Truncated(2))
    assert lone.stream.context.acts.bans == [(2, ord("s"))], "it stands before that"
    assert text(lone.take()) == "", "what comes before it has taken effect is void"
    lone.steer(protocol.Rewind(request_id="a", to=1))
    lone.answer(api.Truncated(1))
    assert lone.stream.context.acts.bans == []
    lone.write(" secret")
    assert act(lone).times == 1


def test_another_engine_is_told_of_bans_and_of_what_waits() -> None:
    lone = begun(SECRET)
    lone.write("secret")
    lone.answer(api.Truncated(0))
    lone.write("a secret")
    lone.lose_engine()
    submit = lone.new_engine()
    assert submit.bans == [(0, ord("s"))]
    assert bytes(submit.tokens[len(PROMPT) :]) == b"a secret"
    assert lone.commands == [api.Truncate(7, 2, ord("s"))]
    lone.admit(4)
    lone.answer(api.Truncated(2))
    lone.take()
    lone.lose_engine()
    assert lone.new_engine().bans == [(0, ord("s")), (2, ord("s"))]


def test_who_was_only_away_does_not_go_on_for_a_guard() -> None:
    lone = begun(Guard(name="ask", do="pause", regex="secret"), on_disconnect="pause")
    lone.write("secret")
    lone.answer(api.Truncated(5), api.Paused(5))
    lone.detach()
    lone.commands.clear()
    lone.attach()
    assert lone.commands == []
    assert lone.stream.paused == "guard"


def test_guards_begin_where_they_are_put_in_and_the_same_ones_go_on() -> None:
    lone = begun()
    lone.write("sec")
    asked = protocol.Adjust(request_id="a", params=Params(guards=[SECRET]))
    lone.steer(asked)
    lone.write("r")
    lone.answer(api.Adjusted(4))
    lone.write("et")
    lone.steer(asked)
    lone.write("sec")
    lone.answer(api.Adjusted(9))
    lone.write("ret")
    assert act(lone).index == 6
    lone.answer(api.Truncated(6))
    lone.steer(protocol.Adjust(request_id="a", params=Params(guards=None)))
    lone.answer(api.Adjusted(6))
    lone.write("secret")
    assert "Guarded" not in kinds(lone.take())


@pytest.mark.parametrize(
    ("budget", "written"),
    [(Budget(tokens=4), "four"), (Budget(seconds=0.5), "any")],
)
def test_what_is_spent_is_spent_once(budget: Budget, written: str) -> None:
    lone = begun(Guard(name="spent", do="pause", budget=budget))
    lone.write(written)
    assert kinds(lone.take()) == ["Token"]
    lone.now += 1
    lone.write("xy")
    told = act(lone)
    assert told.index == len(written)
    assert told.detail in ("tokens", "seconds")
    lone.answer(api.Truncated(told.index), api.Paused(told.index))
    lone.steer(protocol.Resume(request_id="a"))
    lone.answer(api.Resumed(told.index))
    lone.take()
    lone.write("and on and on")
    assert kinds(lone.take()) == ["Token"]


@pytest.mark.parametrize(
    ("guard", "said"),
    [
        ({"regex": "a*"}, "found where nothing stands"),
        ({"regex": "(?=a)b"}, "looks ahead"),
        ({"regex": "(a"}, "no regular expression"),
        ({"regex": "(?a)(?u)a"}, "no regular expression"),
        ({"regex": "a{600}"}, "more than 512"),
        ({"regex": "a" * 513}, "513 characters"),
        ({"regex": "a", "tool": "b"}, "one of `regex`"),
        ({}, "one of `regex`"),
        ({"tool": "t", "path": "$.a"}, "`forbid` and `require`"),
        ({"tool": "t", "path": "a", "forbid": "b"}, "does not begin with"),
        ({"tool": "t", "in_": ["content"]}, "goes with `regex`"),
        ({"budget": Budget()}, "without any limit"),
        ({"budget": Budget(tokens=3)}, "cannot rewind"),
    ],
)
def test_what_cannot_be_had_is_refused_by_one_sentence(guard: dict[str, Any], said: str) -> None:
    lone = begun()
    with pytest.raises(Refusal, match=said) as refused:
        lone.steer(
            protocol.Adjust(request_id="a", params=Params(guards=[Guard(name="g", do="rewind", **guard)]))
        )
    assert refused.value.code == "invalid_params"
    assert lone.commands == []


def test_guards_together_have_a_limit() -> None:
    many = [Guard(name=f"g{at}", do="tell", regex="a{500}") for at in range(5)]
    lone = begun()
    with pytest.raises(Refusal, match="all of them may have 2048"):
        lone.steer(protocol.Adjust(request_id="a", params=Params(guards=many)))
    with pytest.raises(Refusal, match="the name of one before it"):
        lone.steer(protocol.Adjust(request_id="a", params=Params(guards=many[:1] * 2)))


# -- with tools --------------------------------------------------------------------------------------

NEEDS = Guard(name="why", do="rewind", tool="stop", path="$.why", require=".")


def calling(*guards: Guard) -> LoneStream:
    """A stream that waits for the results of its calls."""
    one = lone(on_tool_call="pause")
    one.steer(protocol.Adjust(request_id="a", params=Params(guards=list(guards))))
    one.answer(api.Adjusted(0))
    one.take()
    one.commands.clear()
    return one


def test_arguments_that_lack_what_they_must_have_are_wrong_where_they_end() -> None:
    one = calling(NEEDS)
    one.write(STOP)
    told = act(one)
    assert (told.index, told.detail) == (STOP.index("{}") + 1, "$.why")
    assert one.commands == [api.Truncate(7, told.index, ord("}"))]


def test_what_is_found_where_arguments_end_is_found_once() -> None:
    one = calling(Guard(name="last", do="tell", regex=r"\}$", in_=["arguments"]))
    one.write(STOP, finish=EOS)
    assert act(one).index == STOP.index("}") + 1


def test_a_turn_that_ended_meanwhile_is_open_again() -> None:
    one = calling(NEEDS)
    one.write(STOP)
    one.stream.receive_news(api.News(7, index=one.index, tokens=[toy_model.EOS], finish=HELD), one.now)
    told = act(one)
    assert one.commands == [api.Truncate(7, told.index, ord("}"))]
    one.answer(api.Truncated(told.index))
    assert one.commands[-1] == api.Resume(7)
    one.answer(api.Resumed(told.index))
    assert kinds(one.take()) == ["Rewound"]
    assert one.stream.state != "paused"
    one.write('"why": "so"}}</tool_call>')
    one.stream.receive_news(api.News(7, index=one.index, tokens=[toy_model.EOS], finish=HELD), one.now)
    assert one.stream.paused == "tool_call"
    assert len([event for event in one.take() if isinstance(event, protocol.ToolCallDone)]) == 1


@pytest.mark.parametrize("do", ["rewind", "pause", "finish", "tell"])
def test_what_came_behind_an_end_that_is_held_takes_effect_where_a_guard_has_it_not_be_the_end(
    do: Literal["rewind", "pause", "finish", "tell"],
) -> None:
    """It judges what stood before."""
    one = calling(Guard(name="short", do=do, regex="So$"))
    one.write("So")
    one.take()
    one.steer(protocol.Adjust(request_id="a", ref="x", params=Params(temperature=0.5, guards=[])))
    one.commands.clear()
    changes: list[api.AnyChange] = [api.Adjusted(2)]
    news = api.News(7, index=2, tokens=[toy_model.EOS], changes=changes, finish=HELD)
    one.stream.receive_news(news, one.now)
    told = one.take()
    assert one.stream.context.params.temperature == (0.5 if do in ("rewind", "pause") else 1.0)
    if do == "rewind":
        assert kinds(told) == ["Guarded", "Adjusted"]
        assert one.commands == [api.Truncate(7, 0, ord("S"))]
        one.answer(api.Truncated(0))
        assert one.commands[-1] == api.Resume(7)
        one.answer(api.Resumed(0))
        assert kinds(one.take()) == ["Rewound"]
        assert one.stream.context.acts.bans == [(0, ord("S"))]
    elif do == "pause":
        assert kinds(told) == ["Guarded", "Adjusted"]
        assert one.commands == [api.Truncate(7, 2), api.Pause(7)]
        one.answer(api.Truncated(2), api.Paused(2))
        assert one.stream.paused == "guard"
        assert list(one.stream.output.tokens) == list(b"So")
    else:
        kinds_told = ["Guarded", "Rewound", "Error", "Final"] if do == "finish" else None
        assert kinds(told) == (kinds_told or ["Token", "Guarded", "Error", "Final"])
        assert one.stream.final is not None
        assert one.stream.final.finish_reason == ("guard" if do == "finish" else "stop")


@pytest.mark.parametrize("do", ["rewind", "finish"])
def test_a_call_too_many_that_was_put_in_behind_the_last_token_is_taken_back_with_that(
    do: Literal["rewind", "finish"],
) -> None:
    one = calling(Guard(name="calls", do=do, budget=Budget(calls=1)))
    one.write("So")
    one.steer(protocol.Inject(request_id="a", tokens=list((STOP + STOP).encode())))
    one.answer(api.Appended(2, 2 * len(STOP)))
    one.take()
    one.answer(finish=RUN_OUT)
    assert (told := act(one)).index == 1
    assert (told.do, told.token) == (do, ord("o") if do == "rewind" else None)
    if do == "rewind":
        submit, back = one.commands[-2:]
        assert isinstance(submit, api.Submit), "the engine, which has come to the end, begins anew"
        assert back == api.Truncate(7, 1, ord("o"))
    else:
        assert one.stream.final is not None


def test_a_turn_that_ended_where_a_guard_pauses_stays_paused() -> None:
    one = calling(replace(NEEDS, do="pause"))
    one.write(STOP)
    one.stream.receive_news(api.News(7, index=one.index, tokens=[toy_model.EOS], finish=HELD), one.now)
    at = act(one).index
    assert one.commands == [api.Truncate(7, at), api.Pause(7)]
    one.answer(api.Truncated(at), api.Paused(at))
    assert one.stream.paused == "guard"


def test_what_is_amended_is_read_and_not_judged() -> None:
    one = calling(Guard(name="q", do="rewind", tool="find", path="$.q", forbid="bad"))
    one.write('<tool_call>{"name": "find", "arguments": {"q": "b')
    one.steer(protocol.Inject(request_id="a", tokens=list(b"ad things")))
    one.answer(api.Appended(one.index, 9))
    one.write('", "bad": 1}}</tool_call>')
    assert "Guarded" not in kinds(one.take())
    one = calling(Guard(name="q", do="rewind", tool="find", path="$.q", forbid="bad"))
    one.write('<tool_call>{"name": "find", "arguments": {"q": "')
    one.steer(protocol.Inject(request_id="a", tokens=list(b"ba")))
    one.answer(api.Appended(one.index, 2))
    at = one.index
    one.write("d")
    assert act(one).index == at, "the model has completed it"


def test_a_call_that_is_to_be_amended_waits_for_what_a_guard_takes_back() -> None:
    one = calling(SECRET)
    one.write(STOP)
    call_id = next(event.call_id for event in one.take() if isinstance(event, protocol.ToolCall))
    one.steer(protocol.Pause(request_id="a"))
    one.stream.steer_call(protocol.Amend(request_id="a", call_id=call_id, arguments='{"a": 1}'), 0, one.now)
    one.write(" secret")
    assert act(one).index == len(STOP) + 1
    assert one.commands == [api.Pause(7), api.Truncate(7, len(STOP) + 1, ord("s"))]
    one.answer(api.Paused(one.index), api.Truncated(len(STOP) + 1))
    assert isinstance(one.commands[-1], api.Append), "now it is known what stands"


@pytest.mark.parametrize("answer", [api.Refused(3, reason="grammar"), api.Refused(3, known=9, context=9)])
def test_what_was_withheld_for_what_is_refused_is_made_anew(answer: api.Refused) -> None:
    lone = begun(Guard(name="g", do="rewind", regex="never"))
    lone.write("ab")
    lone.take()
    lone.steer(protocol.Inject(request_id="a", tokens=[5], at=1))
    lone.commands.clear()
    lone.write("c", answer)
    assert kinds(lone.take()) == ["Error"]
    assert lone.commands == [api.Truncate(7, 2)]
    lone.write("d", api.Truncated(2))
    lone.write("cd")
    events = lone.take()
    assert (kinds(events), text(events)) == (["Token"], "cd")
    assert lone.stream.counts.discarded == 2


def test_parameters_change_where_a_guard_goes_back_to_and_not_behind_what_nobody_hears_of() -> None:
    lone = begun(Guard(name="g", do="pause", regex="x"))
    lone.write("ab")
    lone.steer(protocol.Adjust(request_id="a", params=Params(top_k=3)))
    lone.write("xy", api.Adjusted(4))
    adjusted = lone.take()[-1]
    assert isinstance(adjusted, protocol.Adjusted)
    assert adjusted.index == 2


def test_a_rewind_behind_what_is_refused_leaves_nothing_that_was_withheld() -> None:
    lone = begun(SECRET)
    lone.write("abcdef")
    lone.take()
    lone.steer(protocol.Inject(request_id="a", tokens=[5], at=4))
    lone.steer(protocol.Rewind(request_id="a", to=2))
    lone.write("gh", api.Refused(8, reason="grammar"))
    assert lone.commands[-2:] == [api.Truncate(7, 2), api.Truncate(7, 6)]
    lone.answer(api.Truncated(2))
    lone.write("CDEFGH", api.Truncated(6))
    assert lone.commands[-1] == api.Truncate(7, 2)
    lone.answer(api.Truncated(2))
    assert kinds(lone.take()) == ["Error", "Rewound"]
    lone.write("CD", finish=EOS)
    assert text(lone.take()) == "CD"
    assert list(lone.stream.output.tokens) == list(b"abCD")


def test_a_rewind_behind_another_leaves_nothing_that_was_withheld() -> None:
    lone = begun(SECRET)
    lone.write("abcdef")
    lone.take()
    for to in 2, 5:
        lone.steer(protocol.Rewind(request_id="a", to=to, ref=str(to)))
    lone.answer(api.Truncated(2))
    lone.stream.receive_news(api.News(7, index=2, tokens=[65, 66]), lone.now)
    lone.steer(protocol.Adjust(request_id="a", params=Params(temperature=0.5)))
    lone.steer(protocol.Inject(request_id="a", tokens=[67]))
    put_in = lone.commands[-1]
    lone.answer(api.Truncated(4), api.Adjusted(4), api.Appended(4, 1))
    assert lone.commands[-2:] == [api.Truncate(7, 2), put_in]
    lone.answer(api.Truncated(2), api.Appended(2, 1))
    events = lone.take()
    assert kinds(events) == ["Rewound", "Rewound", "Adjusted", "Injected"]
    told = [event for event in events if isinstance(event, protocol.Rewound | protocol.Adjusted)]
    assert [event.index for event in told] == [2, 2, 2]
    lone.write("cd", finish=EOS)
    assert text(lone.take()) == "cd"
    assert list(lone.stream.output.tokens) == list(b"abcd")
    assert lone.stream.output.injected(before=2) == 1


def test_what_is_withheld_for_what_goes_back_stays_so_where_guards_are_taken_away_meanwhile() -> None:
    lone = begun(SECRET)
    lone.write("abcdef")
    lone.take()
    for to in 2, 5:
        lone.steer(protocol.Rewind(request_id="a", to=to))
    lone.answer(api.Truncated(2))
    lone.write("xy")
    lone.steer(protocol.Adjust(request_id="a", params=Params(guards=[])))
    lone.answer(api.Truncated(4), api.Adjusted(4))
    assert lone.commands[-1] == api.Truncate(7, 2)
    lone.write("z", api.Truncated(2))
    assert text(lone.take()) == ""
    lone.write("cd", finish=EOS)
    assert text(lone.take()) == "cd"
    assert list(lone.stream.output.tokens) == list(b"abcd")


def test_what_comes_behind_what_is_withheld_is_so_too_though_guards_came_and_went_meanwhile() -> None:
    """It was told, a token too early: the one before it was withheld while there were guards."""
    lone = begun()
    lone.write("abcdefgh")
    lone.take()
    for guards in ([SECRET], None):
        lone.steer(protocol.Adjust(request_id="a", params=Params(guards=guards)))
    lone.steer(protocol.Rewind(request_id="a", to=8))
    lone.answer(api.Adjusted(8))
    lone.write("i")
    lone.answer(api.Adjusted(9))
    lone.write("j")
    assert text(lone.take()) == ""
    lone.answer(api.Truncated(8))
    assert bytes(list(lone.stream.output.tokens)) == b"abcdefgh"


def test_a_guard_that_pauses_in_the_step_in_which_the_turn_ends_has_it_paused() -> None:
    """The end is void; the engine stands still before it, as it is to."""
    one = LoneStream(
        model=MODEL,
        credit=Credit(limit=2000),
        asked=ASKED | {"on_tool_call": "pause"},
        guards=[Guard(name="no dragons", do="pause", regex="dragon")],
    )
    one.write("dragon")
    changes: list[api.AnyChange] = [api.Truncated(5), api.Paused(5)]
    news = api.News(7, index=6, tokens=[toy_model.EOS], changes=changes, finish=HELD)
    one.stream.receive_news(news, one.now)
    assert one.stream.paused == "guard"
    assert one.commands[-1] == api.Pause(7), "it is not resumed, to come to the same again and again"


def test_what_guards_look_for_is_made_when_they_are_asked_for_and_weighs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """However many others are asked for before they take effect."""
    monkeypatch.setattr("realtime.guards.pattern._lately", Lately(0))
    one, regex = LoneStream(), "(?:some|thing){9} long"
    weight = pattern_of(regex).bytes
    guards = [Guard(name="g", do="tell", regex=regex)]
    one.steer(protocol.Adjust(request_id="a", params=Params(guards=guards)))
    assert one.stream._commands.bytes > weight > 4_000
    before = one.stream.context.bytes
    monkeypatch.setattr("realtime.guards.pattern.Pattern", None)
    one.answer(api.Adjusted(0))
    assert one.stream.context.bytes - before > weight


def test_whether_a_guard_has_had_its_say_is_known_without_a_look_at_what_others_let_by() -> None:
    lines = []
    others, spent = (
        Guard(name="b", do="pause", regex="b"),
        Guard(name="c", do="tell", budget=Budget(tokens=1)),
    )
    for count in (1, 100):
        acts = Acts()
        for index in range(count):
            acts.add(Act(others, index))
        acts.add(Act(spent, count))
        with counted() as work:
            assert acts.passed(spent)
            assert not acts.passed(spent, 0)
            assert acts.times("c") == 0
        lines.append(work.lines)
        assert acts.passed(others, 0)
        acts.cut(0)
        assert (acts.passed(spent), acts.passed(others)) == (False, True)
    assert lines[0] == lines[1]


def test_whether_a_guard_has_had_its_say_hangs_on_no_others_of_its_name() -> None:
    lines = []
    for count in (1, 100):
        acts = Acts()
        budgets = [Guard(name="b", do="tell", budget=Budget(tokens=1 + at)) for at in range(count)]
        for index, budget in enumerate(budgets):
            acts.add(Act(budget, index))
        with counted() as work:
            assert acts.passed(budgets[0])
            assert acts.passed(budgets[0], 0)
            assert not acts.passed(Guard(name="b", do="tell", regex="b"))
        lines.append(work.lines)
    assert lines[0] == lines[1]


@pytest.mark.parametrize("count", [3, 100])
def test_what_is_taken_back_of_what_guards_did_is_forgotten_wherever_it_stood(count: int) -> None:
    pausing, rewinding = (
        Guard(name="b", do="pause", regex="b"),
        Guard(name="b", do="rewind", regex="c"),
    )
    acts = Acts()
    for index in range(count):
        acts.add(Act(pausing, index))
    acts.add(Act(rewinding, count, 65))
    fork = acts.until(1)
    acts.cut(1)
    for one in (acts, fork):
        assert (one.times("b"), one.bans) == (0, [])
        assert [one.passed(pausing, index) for index in (0, 1, 2)] == [True, True, False]
        one.add(Act(rewinding, 2, 66))
        assert (one.times("b"), one.passed(pausing, 2), one.bans) == (1, False, [(2, 66)])
    assert acts.bytes == fork.bytes


@pytest.mark.parametrize("others", [1, 1000])
def test_what_guards_did_weighs_what_it_takes(others: int) -> None:
    """Each adjustment brings guards of its own, though they say what others did."""
    acts = Acts()
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for at in range(1000):
            acts.add(Act(Guard(name="b", do="pause", regex=f"{at % others:01000}"), at))
        held = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert held < acts.bytes


def test_guards_that_have_rewound_are_forgotten_with_what_they_did() -> None:
    acts, first = Acts(), Acts()
    for at in range(100):
        act = Act(Guard(name=str(at), do="rewind", regex="b"), at, 65)
        acts.add(act)
        if at == 0:
            first.add(act)
    assert acts.until(0).bytes == first.bytes
    acts.cut(0)
    assert acts.bytes == first.bytes


STRING = '<tool_call>{"name": "find", "arguments": "{\\"q\\": \\"' + "ab" * 300
CONTENT = "<tool_call>!" * 60
LOOKS = [Guard(name="looks", do="tell", regex="z")]
OTHERS = Params(max_tokens=1, guards=[Guard(name="other", do="tell", regex="z")])


@pytest.mark.parametrize(
    ("injected", "asked", "news"),
    [
        (STRING, None, api.News(7, tokens=[*b'"'])),
        ("<tool_call>!" + STRING, None, api.News(7, tokens=[*b'a"}'])),
        (CONTENT, None, api.News(7, tokens=[*b"x"])),
        (CONTENT, None, api.News(7, tokens=[*b"<x"], finish=EOS)),
        (CONTENT, None, api.News(7, finish=RUN_OUT)),
        (CONTENT, None, api.News(7, tokens=[toy_model.EOS], finish=HELD)),
        (CONTENT, Params(temperature=0), api.News(7, tokens=[toy_model.EOS], finish=HELD)),
        (CONTENT, Params(max_tokens=1), api.News(7, finish=RUN_OUT)),
        (CONTENT, OTHERS, api.News(7, finish=RUN_OUT)),
        (CONTENT, Params(stop=["ool"]), api.News(7, tokens=[*b"x"])),
    ],
    ids=[
        "a token",
        "behind another",
        "content",
        "amid others",
        "the end",
        "an end that is held",
        "that and an adjust",
        "an end that was asked for",
        "and other guards",
        "a stop string",
    ],
)
def test_what_guards_read_of_what_is_said_at_once_they_read_a_part_at_a_time(
    injected: str, asked: Params | None, news: api.News, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever way it is said: and whoever adjusts its length has it end."""
    monkeypatch.setattr("realtime.guards.reading.READ_AT_ONCE", 64)
    monkeypatch.setattr("realtime.stream.accumulated_output.MOST_STOPPED", 32)
    one = LoneStream(model=MODEL, credit=Credit(limit=100), asked=ASKED, guards=LOOKS)
    one.admit()
    one.write("x")
    one.steer(protocol.Inject(request_id="a", tokens=[*injected.encode()]))
    one.answer(api.Appended(1, len(injected)))
    one.stream._read_all()
    if asked is not None:
        one.steer(protocol.Adjust(request_id="a", params=asked))
        if news.finish is None:
            one.answer(api.Adjusted(1))
        else:
            news = replace(news, changes=[api.Adjusted(1)])
    reads, read = list[int](), GuardReading._read

    def noted(self: GuardReading, kind: Kind, text: str) -> list[tuple[int, Find]]:
        reads.append(len(text))
        return read(self, kind, text)

    monkeypatch.setattr(GuardReading, "_read", noted)
    one.stream.receive_news(replace(news, index=1), one.now)
    turns = [sum(reads)]
    while one.stream.reading:
        reads.clear()
        one.answer()
        turns.append(sum(reads))
    assert max(turns) <= 64
    assert sum(turns) > 64 or (asked is not None and asked.stop)
