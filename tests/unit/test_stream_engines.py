"""A stream and its engines, each rule by an example: one is lost, and another is told all that stands."""

from __future__ import annotations

import pytest

from engine import api
from midstream import protocol
from midstream.protocol import Credit, Params
from realtime.refusal import Refusal
from tests.fakes.lone_stream import PROMPT, RUN_OUT, WINDOW, LoneStream, kinds, text


def reasons(life: LoneStream) -> list[str]:
    return [event.reason for event in life.take() if isinstance(event, protocol.Paused)]


# -- lost ------------------------------------------------------------------------------------------


def test_a_running_stream_is_paused_and_goes_on_when_another_engine_begins_with_it() -> None:
    life = LoneStream()
    life.admit(2)
    life.write("abcd")
    life.take()
    life.lose_engine()
    (paused,) = life.take()
    assert isinstance(paused, protocol.Paused)
    assert (paused.reason, paused.index, paused.ref) == ("engine", 4, None)
    life.now += 3
    submit = life.new_engine()
    assert submit.tokens == [*PROMPT, *b"abcd"]
    assert (submit.prompt, submit.credit, submit.paused, submit.injections) == (3, WINDOW, False, [])
    assert life.take() == [], "it is told when it goes on, not when it is tried"
    life.admit(2)
    (resumed,) = life.take()
    assert isinstance(resumed, protocol.Resumed)
    assert (resumed.index, resumed.recomputed_tokens) == (4, 4), "6 of 7 tokens, of which 2 were found"
    life.write("e", finish=RUN_OUT)
    events = life.take()
    assert text(events) == "e"
    assert isinstance(events[-1], protocol.Final)
    assert events[-1].timing.paused_ms == 3000
    assert events[-1].usage.cached_tokens == 2, "what the first engine found"


def test_a_stream_in_the_queue_is_told_nothing() -> None:
    life = LoneStream()
    life.take()
    life.lose_engine()
    assert life.take() == []
    assert life.new_engine().tokens == PROMPT
    life.admit(1)
    assert life.take() == []
    life.write("a")
    assert text(life.take()) == "a"


def test_a_stream_that_waits_for_credit_is_told_nothing() -> None:
    life = LoneStream(credit=Credit(limit=2, prefetch=1))
    life.admit()
    life.write("abc")
    life.take()
    life.lose_engine()
    assert life.take() == []
    assert life.stream.state == "stalled"
    life.stream.grant(9, life.now)
    assert life.commands == [], "there is nobody to tell"
    assert life.new_engine().credit == 10
    life.admit()
    life.write("d")
    assert text(life.take()) == "cd"


def test_a_paused_stream_stays_paused_by_its_client() -> None:
    life = LoneStream()
    life.admit()
    life.write("ab")
    life.steer(protocol.Pause(request_id="a"))
    life.answer(api.Paused(2))
    assert reasons(life) == ["client"]
    life.lose_engine()
    assert life.take() == []
    assert life.new_engine().paused
    life.steer(protocol.Resume(request_id="a", ref="r"))
    life.answer(api.Resumed(2, 5))
    (resumed,) = life.take()
    assert isinstance(resumed, protocol.Resumed)
    assert (resumed.ref, resumed.recomputed_tokens) == ("r", 5)


def test_a_stream_that_nobody_listens_to_stays_paused() -> None:
    life = LoneStream(on_disconnect="pause")
    life.admit()
    life.detach()
    life.answer(api.Paused(0))
    life.lose_engine()
    assert reasons(life) == ["detached"]
    assert life.new_engine().paused
    life.attach(1)
    assert life.commands == [api.Resume(7)]


def test_one_that_memory_had_paused_is_paused_already_and_resumed_once() -> None:
    life = LoneStream()
    life.admit()
    life.write("ab")
    life.stream.receive_news(api.News(7, early=[api.Paused(2, "memory")]), life.now)
    life.lose_engine()
    assert reasons(life) == ["memory"]
    assert not life.new_engine().paused
    life.admit()
    assert kinds(life.take()) == ["Resumed"]


def test_one_that_is_due_needs_no_engine() -> None:
    life = LoneStream(credit=Credit(limit=1, prefetch=9), max_tokens=3)
    life.admit()
    life.write("abc", finish=RUN_OUT)
    life.take()
    life.lose_engine()
    assert life.stream.concluded
    assert life.take() == []
    life.stream.grant(3, life.now)
    assert kinds(life.take()) == ["Token", "Final"]


def test_one_that_was_being_cancelled_has_been_cancelled() -> None:
    life = LoneStream()
    life.write("ab")
    life.cancel("c")
    life.lose_engine()
    final = life.final()
    assert (final.finish_reason, final.index, final.ref) == ("cancelled", 2, "c")


def test_one_that_has_ended_loses_nothing() -> None:
    life = LoneStream()
    life.write("ab", finish=RUN_OUT)
    life.take()
    life.lose_engine()
    assert life.take() == []


# -- while there is none ---------------------------------------------------------------------------


def lost() -> LoneStream:
    """Running, and then without an engine; all of that has been told."""
    life = LoneStream()
    life.admit()
    life.write("abcd")
    life.lose_engine()
    life.take()
    return life


def test_a_cancel_takes_effect_at_once() -> None:
    life = lost()
    life.cancel("c")
    assert life.commands == []
    final = life.final()
    assert (final.finish_reason, final.index, final.ref) == ("cancelled", 4, "c")


def test_a_timeout_takes_effect_at_once() -> None:
    life = lost()
    life.stream.time_out(life.now, 0)
    final = life.final()
    assert (final.finish_reason, final.stop_reason) == ("length", "timeout")


def test_whom_everybody_leaves_is_cancelled_at_once() -> None:
    life = lost()
    life.detach()
    assert life.final().stop_reason == "detached"


def test_steering_is_checked_and_waits_for_the_next_engine() -> None:
    life = lost()
    with pytest.raises(Refusal):
        life.steer(protocol.Rewind(request_id="a", to=5))
    life.steer(protocol.Pause(request_id="a", ref="p"))
    life.steer(protocol.Inject(request_id="a", ref="i", tokens=[8, 9]))
    life.stream.acknowledge(4, 1)
    assert life.commands == []
    submit = life.new_engine()
    assert (submit.tokens, submit.paused, submit.credit) == ([*PROMPT, *b"abcd"], False, 4 + WINDOW)
    assert life.commands == [api.Pause(7), api.Append(7, [8, 9])], "as it was asked, and in that order"


# -- another ---------------------------------------------------------------------------------------


def test_what_was_asked_and_not_answered_is_asked_again_and_answered_once() -> None:
    life = LoneStream()
    life.admit()
    life.write("abcd")
    life.take()
    life.steer(protocol.Adjust(request_id="a", ref="first", params=Params(top_k=3)))
    life.steer(protocol.Adjust(request_id="a", ref="second", params=Params(temperature=0.5), at=2))
    life.answer(api.Adjusted(4))
    life.lose_engine()
    submit = life.new_engine()
    assert (submit.sampling.top_k, submit.sampling.temperature) == (3, 1), "what is in force"
    truncate, adjust = life.commands
    assert truncate == api.Truncate(7, 2)
    assert isinstance(adjust, api.Adjust)
    assert (adjust.sampling.top_k, adjust.sampling.temperature) == (3, 0.5)
    life.admit()
    life.answer(api.Truncated(2), api.Adjusted(2))
    answers = [event for event in life.take() if isinstance(event, protocol.Adjusted)]
    assert [event.ref for event in answers] == ["first", "second"]


def test_injections_stand_among_the_output_and_are_no_output() -> None:
    life = LoneStream()
    life.write("ab")
    life.steer(protocol.Inject(request_id="a", tokens=[8, 9]))
    life.answer(api.Appended(2, 2))
    life.write("c")
    life.lose_engine()
    submit = life.new_engine()
    assert submit.tokens == [*PROMPT, *b"ab", 8, 9, *b"c"]
    assert (submit.prompt, submit.injections) == (3, [(2, 2)])


def test_what_was_rewound_stands_no_more() -> None:
    life = LoneStream()
    life.write("abcd")
    life.take()
    life.steer(protocol.Inject(request_id="a", tokens=[8]))
    life.steer(protocol.Rewind(request_id="a", to=1))
    life.answer(api.Appended(4, 1), api.Truncated(1))
    life.lose_engine()
    submit = life.new_engine()
    assert (submit.tokens, submit.injections) == ([*PROMPT, *b"a"], [])


def test_engines_may_die_one_after_the_other_and_it_is_told_once() -> None:
    life = lost()
    life.new_engine()
    life.lose_engine()
    life.new_engine()
    assert life.take() == []
    life.admit()
    assert kinds(life.take()) == ["Resumed"]


def test_a_culprit_ends_in_an_error_with_all_that_was_decoded() -> None:
    life = LoneStream()
    life.write("ab")
    life.stream.fail("the engine failed again and again", life.now)
    events = life.take()
    final = events[-1]
    assert isinstance(final, protocol.Final)
    assert (text(events), final.finish_reason) == ("ab", "error")
    assert final.stop_reason == "the engine failed again and again"
    life.stream.fail("once more", life.now)
    assert life.take() == []
