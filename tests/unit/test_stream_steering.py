"""Steering one stream, each rule by an example: what the engine is asked, and how its answers are told."""

from __future__ import annotations

from typing import Any

import pytest

from engine import api
from midstream import protocol
from midstream.protocol import Credit, Error, Params
from realtime.refusal import Refusal
from tests.fakes.lone_stream import CANCELLED, CONTEXT, RUN_OUT, LoneStream, kinds, text
from tests.unit.test_stream_tools import ASKED, MODEL

pytestmark = pytest.mark.usefixtures("built_again")


def test_at_rewinds_first_and_the_frame_is_answered_once() -> None:
    lone = LoneStream()
    lone.write("abcdef")
    lone.take()
    lone.steer(protocol.Adjust(request_id="a", ref="r", params=Params(temperature=0.5), at=4))
    assert lone.commands[1] == api.Truncate(7, 4)
    assert isinstance(lone.commands[2], api.Adjust)
    lone.answer(api.Truncated(4), api.Adjusted(4))
    rewound, adjusted = lone.take()
    assert isinstance(rewound, protocol.Rewound)
    assert isinstance(adjusted, protocol.Adjusted)
    assert (rewound.index, rewound.text_length, rewound.ref) == (4, 4, None)
    assert (adjusted.index, adjusted.params.temperature, adjusted.ref) == (4, 0.5, "r")


def test_at_a_token_that_was_sent_before_its_event_was_whole_since_no_more_might_come() -> None:
    lone = LoneStream(credit=Credit(limit=3), interval=5)
    lone.write("abc")
    assert text(lone.take()) == "abc"
    lone.steer(protocol.Adjust(request_id="a", params=Params(temperature=0.5)))
    lone.answer(api.Adjusted(3))
    lone.stream.grant(6, lone.now)
    lone.write("def")
    assert text(lone.take()) == "def"
    lone.steer(protocol.Rewind(request_id="a", to=6))
    lone.stream.grant(20, lone.now)


def test_at_beyond_what_was_sent_is_refused_and_changes_nothing() -> None:
    lone = LoneStream(credit=Credit(limit=2, prefetch=3))
    lone.write("abcde")
    lone.take()
    for frame, field in (
        (protocol.Rewind(request_id="a", to=3), "`to` is 3"),
        (protocol.Adjust(request_id="a", params=Params(), at=3), "`at` is 3"),
    ):
        with pytest.raises(Refusal, match=rf"{field}, but only 2 .* 0 to 2") as refused:
            lone.steer(frame)
        assert refused.value.code == "invalid_params"
    assert len(lone.commands) == 1


def test_rewinding_takes_tokens_and_text_back() -> None:
    lone = LoneStream()
    lone.write("naïve")
    lone.take()
    lone.steer(protocol.Rewind(request_id="a", ref="r", to=3))
    lone.answer(api.Truncated(3))
    (rewound,) = lone.take()
    assert isinstance(rewound, protocol.Rewound)
    assert (rewound.index, rewound.text_length, rewound.ref) == (3, 2, "r"), (
        "ï is two bytes, of which one stands"
    )
    lone.stream.receive_news(api.News(7, index=3, tokens=[0xAE], finish=RUN_OUT), lone.now)
    events = lone.take()
    assert text(events) == "î"
    final = events[-1]
    assert isinstance(final, protocol.Final)
    assert (final.index, final.usage.discarded_tokens) == (4, 3)


def test_several_adjusts_under_way_build_on_one_another() -> None:
    lone = LoneStream()
    lone.steer(protocol.Adjust(request_id="a", params=Params(temperature=0.5)))
    lone.steer(protocol.Adjust(request_id="a", params=Params(top_k=3)))
    last = lone.commands[-1]
    assert isinstance(last, api.Adjust)
    assert (last.sampling.temperature, last.sampling.top_k) == (0.5, 3)
    lone.answer(api.Adjusted(0), api.Adjusted(0))
    adjusted = lone.take()[-1]
    assert isinstance(adjusted, protocol.Adjusted)
    assert (adjusted.params.temperature, adjusted.params.top_k) == (0.5, 3)


def test_an_injection_that_does_not_fit_says_both_numbers() -> None:
    lone = LoneStream()
    with pytest.raises(Refusal, match=r"3 tokens stand and 37 more .* holds 40") as refused:
        lone.steer(protocol.Inject(request_id="a", tokens=[5] * 37))
    assert refused.value.code == "context_too_long"
    assert len(lone.commands) == 1


def test_an_injection_that_fits_no_more_when_it_arrives_is_answered_by_an_error() -> None:
    lone = LoneStream()
    lone.write("ab")
    lone.steer(protocol.Inject(request_id="a", ref="r", tokens=[5] * 30))
    lone.answer(api.Refused(8, known=11, context=CONTEXT))
    error = lone.take()[-1]
    assert isinstance(error, Error)
    assert (error.code, error.ref) == ("context_too_long", "r")
    assert "11 tokens" in error.message
    assert "30 more" in error.message


def test_an_injection_at_a_token_that_is_refused_leaves_all_as_it_was() -> None:
    lone = LoneStream()
    lone.write("abcdef")
    lone.take()
    lone.steer(protocol.Inject(request_id="a", ref="r", tokens=[5, 6], at=4))
    assert lone.commands[-1] == api.Append(7, [5, 6], behind=4)
    lone.write("g")
    lone.answer(api.Refused(7, reason="grammar"))
    assert kinds(lone.take()) == ["Token", "Error"]
    lone.steer(protocol.Inject(request_id="a", ref="s", tokens=[5, 6], at=4))
    lone.answer(api.Appended(4, 2))
    rewound, injected = lone.take()
    assert isinstance(rewound, protocol.Rewound)
    assert isinstance(injected, protocol.Injected)
    assert (rewound.index, rewound.ref, injected.index, injected.ref) == (4, None, 4, "s")
    assert (lone.stream.output.text_length, lone.stream.output.injected()) == (4, 2)


def test_where_it_stands_is_known_when_what_was_asked_before_has_taken_effect() -> None:
    lone = LoneStream()
    lone.write("abcd")
    lone.take()
    for tokens, at in (([5], None), ([6, 6], 4), ([7], 2)):
        lone.steer(protocol.Inject(request_id="a", tokens=tokens, at=at))
    lone.steer(protocol.Pause(request_id="a"))
    assert lone.commands[1:] == [api.Append(7, [5])]
    lone.answer(api.Appended(4, 1))
    assert lone.commands[2:] == [api.Append(7, [6, 6], behind=5)], "what was put there stays"
    lone.answer(api.Appended(4, 2))
    assert lone.commands[3:] == [api.Append(7, [7], behind=2), api.Pause(7)]


GRAMMAR = protocol.Grammar(regex="[0-9]+")


def paused(**params: Any) -> LoneStream:
    """By its client."""
    lone = LoneStream(on_disconnect="pause", **params)
    lone.write("12")
    lone.steer(protocol.Pause(request_id="a"))
    lone.answer(api.Paused(2))
    lone.take()
    lone.commands.clear()
    return lone


def going_on(token: int = 3, at: int | None = None) -> protocol.Inject:
    return protocol.Inject(request_id="a", tokens=[token], at=at, resume=True)


@pytest.mark.parametrize("at", [None, 1])
def test_what_is_to_go_on_behind_an_injection_that_is_refused_stays_paused(at: int | None) -> None:
    lone = paused(grammar=GRAMMAR)
    lone.steer(going_on(at=at))
    (append,) = lone.commands
    assert isinstance(append, api.Append)
    lone.answer(api.Refused(2, reason="grammar"))
    assert lone.commands == [append], "nothing has changed"
    assert kinds(lone.take()) == ["Error"]
    lone.detach()
    lone.attach()
    assert lone.commands == [append], "it is its client who has paused it, and not that nobody listens"
    assert (lone.stream.paused, lone.stream.needs_engine) == ("client", False)


@pytest.mark.parametrize("at", [None, 1])
def test_it_goes_on_once_the_injection_stands(at: int | None) -> None:
    lone = paused(grammar=GRAMMAR)
    lone.steer(going_on(at=at))
    assert len(lone.commands) == 1
    lone.answer(api.Appended(2, 1))
    assert lone.commands[1:] == [api.Resume(7)]
    lone.answer(api.Resumed(2))
    assert kinds(lone.take())[-2:] == ["Injected", "Resumed"]


@pytest.mark.parametrize("at", [None, 1])
def test_and_not_where_it_was_paused_behind_that(at: int | None) -> None:
    lone = paused(grammar=GRAMMAR)
    lone.steer(going_on(at=at))
    lone.steer(protocol.Pause(request_id="a", ref="later"))
    lone.answer(api.Appended(2, 1))
    lone.answer(api.Paused(2))
    assert api.Resume(7) not in lone.commands
    assert kinds(lone.take())[-2:] == ["Injected", "Paused"]
    assert lone.stream.paused == "client"


def test_what_was_asked_behind_an_injection_that_is_refused_is_asked_all_the_same() -> None:
    lone = paused(grammar=GRAMMAR)
    lone.steer(going_on())
    lone.steer(protocol.Adjust(request_id="a", params=Params(temperature=0.5)))
    lone.steer(going_on(token=4))
    lone.answer(api.Refused(2, reason="grammar"))
    adjust, append = lone.commands[1:]
    assert isinstance(adjust, api.Adjust)
    assert append == api.Append(7, [4])
    lone.answer(api.Adjusted(2), api.Appended(2, 1))
    assert lone.commands[-1] == api.Resume(7)
    lone.answer(api.Resumed(2))
    assert kinds(lone.take()) == ["Error", "Adjusted", "Injected", "Resumed"]
    assert lone.stream.paused is None


def test_another_engine_is_told_to_go_on_behind_the_injection_too() -> None:
    lone = paused(grammar=GRAMMAR)
    lone.steer(going_on())
    lone.lose_engine()
    assert lone.new_engine().paused
    assert lone.commands == [api.Append(7, [3])]
    lone.answer(api.Appended(2, 1))
    assert lone.commands[-1] == api.Resume(7)


def test_where_nothing_can_refuse_an_injection_all_is_asked_at_once() -> None:
    lone = paused()
    lone.steer(going_on())
    assert lone.commands == [api.Append(7, [3]), api.Resume(7)]
    lone.steer(going_on())
    assert lone.commands[2:] == [api.Append(7, [3])], "the first may have taken the room"


def test_injections_are_counted_and_taken_back_with_what_stood_before_them() -> None:
    lone = LoneStream()
    lone.write("abcd")
    lone.take()
    lone.steer(protocol.Inject(request_id="a", tokens=[5, 6]))
    lone.answer(api.Appended(4, 2))
    (injected,) = lone.take()
    assert isinstance(injected, protocol.Injected)
    assert (injected.index, injected.count, lone.stream.output.injected()) == (4, 2, 2)
    lone.steer(protocol.Rewind(request_id="a", to=4))
    lone.answer(api.Truncated(4))
    assert lone.stream.output.injected() == 2, "it stands before token 4"
    lone.steer(protocol.Rewind(request_id="a", to=3))
    lone.answer(api.Truncated(3))
    assert lone.stream.output.injected() == 0


def test_a_pause_in_the_queue_is_told_before_any_token() -> None:
    lone = LoneStream()
    lone.steer(protocol.Pause(request_id="a", ref="p", kv="release"))
    assert lone.commands[-1] == api.Pause(7, True)
    lone.answer(api.Paused(0))
    paused = lone.take()[-1]
    assert isinstance(paused, protocol.Paused)
    assert (paused.index, paused.reason, paused.ref) == (0, "client", "p")
    assert lone.stream.state == "paused"


def test_a_pause_for_memory_is_told_and_nobody_asked_for_it() -> None:
    lone = LoneStream()
    lone.stream.receive_news(api.News(7, early=[api.Paused(0, "memory")]), lone.now)
    lone.now += 2
    lone.stream.receive_news(api.News(7, early=[api.Resumed(0, 5, "memory")]), lone.now)
    _, paused, resumed = lone.take()
    assert isinstance(paused, protocol.Paused)
    assert isinstance(resumed, protocol.Resumed)
    assert (paused.reason, paused.ref, resumed.recomputed_tokens, resumed.ref) == ("memory", None, 5, None)
    lone.answer(finish=CANCELLED)
    assert lone.final().timing.paused_ms == 2000


def reasons(most: int) -> LoneStream:
    one = LoneStream(
        model=MODEL, credit=Credit(limit=100), on_disconnect="continue", asked=ASKED, reasoning_tokens=most
    )
    one.write("<thin")
    one.commands.clear()
    return one


def adjusts(**params: Any) -> protocol.Adjust:
    return protocol.Adjust(request_id="a", params=Params(**params))


def test_reasoning_goes_on_and_ends_though_parameters_are_adjusted_all_the_time() -> None:
    """As by a slider that is moved faster than a busy engine answers: nothing more was granted meanwhile."""
    one = reasons(5)
    one.steer(adjusts(temperature=0.1))
    for token in "k>Hmmmm":
        one.take()
        assert one.stream.credit.granted > len(one.stream.output)
        one.steer(adjusts(temperature=0.2))
        one.write(token, api.Adjusted(one.index + 1))
    assert one.commands[-1] == api.Append(7, list(MODEL.tokenizer.reasoning_end))
    assert one.stream.num_waiting == 2


@pytest.mark.parametrize("asked", [[30], [None, 5], [2]])
def test_but_what_changes_how_long_it_may_be_has_its_answer_before(asked: list[int | None]) -> None:
    one = reasons(5)
    for most in asked:
        one.steer(adjusts(reasoning_tokens=most))
    if asked == [None, 5]:
        one.answer(api.Adjusted(5))
    one.steer(adjusts(temperature=0.1))
    one.write("k>H")
    held = [command for command in one.commands if not isinstance(command, api.Adjust)]
    assert held[-1] == api.Grant(7, 0)


def test_who_adopts_a_stream_does_what_was_asked_at_tokens_beyond_what_is_granted_now() -> None:
    """Where its reasoning has an end, less is granted while it goes back."""
    lone = LoneStream(
        model=MODEL, credit=Credit(limit=5), on_disconnect="continue", asked=ASKED, reasoning_tokens=20
    )
    lone.write("<thin")
    lone.stream.grant(100, lone.now)
    lone.write("k>so it is")
    lone.steer(protocol.Pause(request_id="a"))
    lone.answer(api.Paused(14))
    lone.take()
    lone.steer(protocol.Rewind(request_id="a", to=14))
    assert lone.commands[-2:] == [api.Grant(7, 0), api.Truncate(7, 14)]
