"""A stream and its engines, each rule by an example: one is lost, and another is told all that stands."""

from __future__ import annotations

import pytest

from engine import api
from midstream import protocol
from midstream.protocol import Credit, Params
from realtime.refusal import Refusal
from realtime.stream.pending_commands import MOST_UNDER_WAY
from tests.fakes.lone_stream import PROMPT, RUN_OUT, WINDOW, LoneStream, kinds, text


def reasons(lone: LoneStream) -> list[str]:
    return [event.reason for event in lone.take() if isinstance(event, protocol.Paused)]


# -- lost ------------------------------------------------------------------------------------------


def test_a_running_stream_is_paused_and_goes_on_when_another_engine_begins_with_it() -> None:
    lone = LoneStream()
    lone.admit(2)
    lone.write("abcd")
    lone.take()
    lone.lose_engine()
    (paused,) = lone.take()
    assert isinstance(paused, protocol.Paused)
    assert (paused.reason, paused.index, paused.ref) == ("engine", 4, None)
    lone.now += 3
    submit = lone.new_engine()
    assert submit.tokens == [*PROMPT, *b"abcd"]
    assert (submit.prompt, submit.credit, submit.paused, submit.injections) == (3, WINDOW, False, [])
    assert lone.take() == [], "it is told when it goes on, not when it is tried"
    lone.admit(2)
    (resumed,) = lone.take()
    assert isinstance(resumed, protocol.Resumed)
    assert (resumed.index, resumed.recomputed_tokens) == (4, 4), "6 of 7 tokens, of which 2 were found"
    lone.write("e", finish=RUN_OUT)
    events = lone.take()
    assert text(events) == "e"
    assert isinstance(events[-1], protocol.Final)
    assert events[-1].timing.paused_ms == 3000
    assert events[-1].usage.cached_tokens == 2, "what the first engine found"


def test_a_stream_in_the_queue_is_told_nothing() -> None:
    lone = LoneStream()
    lone.take()
    lone.lose_engine()
    assert lone.take() == []
    assert lone.new_engine().tokens == PROMPT
    lone.admit(1)
    assert lone.take() == []
    lone.write("a")
    assert text(lone.take()) == "a"


def test_a_stream_that_waits_for_credit_is_told_nothing() -> None:
    lone = LoneStream(credit=Credit(limit=2, prefetch=1))
    lone.admit()
    lone.write("abc")
    lone.take()
    lone.lose_engine()
    assert lone.take() == []
    assert lone.stream.state == "stalled"
    lone.stream.grant(9, lone.now)
    assert lone.commands == [], "there is nobody to tell"
    assert lone.new_engine().credit == 10
    lone.admit()
    lone.write("d")
    assert text(lone.take()) == "cd"


@pytest.mark.usefixtures("built_again")
def test_a_stream_that_lacked_credit_when_its_engine_went_is_not_paused_where_it_is_adopted() -> None:
    lone = LoneStream(credit=Credit(limit=2))
    lone.admit()
    lone.write("ab")
    lone.take()
    lone.lose_engine()
    lone.stream.grant(9, lone.now)
    lone.new_engine()
    assert lone.stream.paused is None


def test_a_paused_stream_stays_paused_by_its_client() -> None:
    lone = LoneStream()
    lone.admit()
    lone.write("ab")
    lone.steer(protocol.Pause(request_id="a"))
    lone.answer(api.Paused(2))
    assert reasons(lone) == ["client"]
    lone.lose_engine()
    assert lone.take() == []
    assert lone.new_engine().paused
    lone.steer(protocol.Resume(request_id="a", ref="r"))
    lone.answer(api.Resumed(2, 5))
    (resumed,) = lone.take()
    assert isinstance(resumed, protocol.Resumed)
    assert (resumed.ref, resumed.recomputed_tokens) == ("r", 5)


def test_a_stream_that_nobody_listens_to_stays_paused() -> None:
    lone = LoneStream(on_disconnect="pause")
    lone.admit()
    lone.detach()
    lone.answer(api.Paused(0))
    lone.lose_engine()
    assert reasons(lone) == ["detached"]
    assert lone.new_engine().paused
    lone.attach(1)
    assert lone.commands == [api.Resume(7)]


def test_one_that_memory_had_paused_is_paused_already_and_resumed_once() -> None:
    lone = LoneStream()
    lone.admit()
    lone.write("ab")
    lone.stream.receive_news(api.News(7, early=[api.Paused(2, "memory")]), lone.now)
    lone.lose_engine()
    assert reasons(lone) == ["memory"]
    assert not lone.new_engine().paused
    lone.admit()
    assert kinds(lone.take()) == ["Resumed"]


def test_one_that_is_due_needs_no_engine() -> None:
    lone = LoneStream(credit=Credit(limit=1, prefetch=9), max_tokens=3)
    lone.admit()
    lone.write("abc", finish=RUN_OUT)
    lone.take()
    lone.lose_engine()
    assert lone.stream.concluded
    assert lone.take() == []
    lone.stream.grant(3, lone.now)
    assert kinds(lone.take()) == ["Token", "Final"]


def test_one_that_was_being_cancelled_has_been_cancelled() -> None:
    lone = LoneStream()
    lone.write("ab")
    lone.cancel("c")
    lone.lose_engine()
    final = lone.final()
    assert (final.finish_reason, final.index, final.ref) == ("cancelled", 2, "c")


def test_one_that_has_ended_loses_nothing() -> None:
    lone = LoneStream()
    lone.write("ab", finish=RUN_OUT)
    lone.take()
    lone.lose_engine()
    assert lone.take() == []


# -- while there is none ---------------------------------------------------------------------------


def lost() -> LoneStream:
    """Running, and then without an engine; all of that has been told."""
    lone = LoneStream()
    lone.admit()
    lone.write("abcd")
    lone.lose_engine()
    lone.take()
    return lone


def test_a_cancel_takes_effect_at_once() -> None:
    lone = lost()
    lone.cancel("c")
    assert lone.commands == []
    final = lone.final()
    assert (final.finish_reason, final.index, final.ref) == ("cancelled", 4, "c")


def test_a_timeout_takes_effect_at_once() -> None:
    lone = lost()
    lone.stream.time_out(lone.now, 0)
    final = lone.final()
    assert (final.finish_reason, final.stop_reason) == ("length", "timeout")


def test_whom_everybody_leaves_is_cancelled_at_once() -> None:
    lone = lost()
    lone.detach()
    assert lone.final().stop_reason == "detached"


def test_steering_is_checked_and_waits_for_the_next_engine() -> None:
    lone = lost()
    with pytest.raises(Refusal):
        lone.steer(protocol.Rewind(request_id="a", to=5))
    lone.steer(protocol.Pause(request_id="a", ref="p"))
    lone.steer(protocol.Inject(request_id="a", ref="i", tokens=[8, 9]))
    lone.stream.acknowledge(4, 1)
    assert lone.commands == []
    submit = lone.new_engine()
    assert (submit.tokens, submit.paused, submit.credit) == ([*PROMPT, *b"abcd"], False, 4 + WINDOW)
    assert lone.commands == [api.Pause(7), api.Append(7, [8, 9])], "as it was asked, and in that order"


# -- another ---------------------------------------------------------------------------------------


def test_what_was_asked_and_not_answered_is_asked_again_and_answered_once() -> None:
    lone = LoneStream()
    lone.admit()
    lone.write("abcd")
    lone.take()
    lone.steer(protocol.Adjust(request_id="a", ref="first", params=Params(top_k=3)))
    lone.steer(protocol.Adjust(request_id="a", ref="second", params=Params(temperature=0.5), at=2))
    lone.answer(api.Adjusted(4))
    lone.lose_engine()
    submit = lone.new_engine()
    assert (submit.sampling.top_k, submit.sampling.temperature) == (3, 1), "what is in force"
    truncate, adjust = lone.commands
    assert truncate == api.Truncate(7, 2)
    assert isinstance(adjust, api.Adjust)
    assert (adjust.sampling.top_k, adjust.sampling.temperature) == (3, 0.5)
    lone.admit()
    lone.answer(api.Truncated(2), api.Adjusted(2))
    answers = [event for event in lone.take() if isinstance(event, protocol.Adjusted)]
    assert [event.ref for event in answers] == ["first", "second"]


def test_no_more_than_a_few_are_under_way_and_the_others_follow_as_those_are_answered() -> None:
    """However many an engine let wait, a step answers no more: what each comes to holds others up."""
    lone = LoneStream()
    lone.commands.clear()
    refs = [str(at) for at in range(2 * MOST_UNDER_WAY + 3)]
    for ref in refs:
        lone.steer(protocol.Pause(request_id="a", ref=ref))
    assert len(lone.commands) == MOST_UNDER_WAY
    lone.answer(*[api.Paused(0)] * 3)
    assert len(lone.commands) == MOST_UNDER_WAY + 3
    lone.lose_engine()
    lone.new_engine()
    while asked := len(lone.commands):
        assert asked <= MOST_UNDER_WAY
        lone.commands.clear()
        lone.answer(*[api.Paused(0)] * asked)
    assert [event.ref for event in lone.take() if isinstance(event, protocol.Paused)] == refs


def test_what_goes_back_first_goes_to_the_engine_as_a_whole_however_many_are_under_way() -> None:
    """Else the token that it is for would be decoded before the rest is heard of."""
    lone = LoneStream()
    lone.admit()
    lone.write("abcd")
    lone.take()
    for _ in range(MOST_UNDER_WAY - 1):
        lone.steer(protocol.Pause(request_id="a"))
    lone.commands.clear()
    lone.steer(protocol.Adjust(request_id="a", params=Params(temperature=0.5), at=2))
    lone.steer(protocol.Resume(request_id="a"))
    assert [type(command) for command in lone.commands] == [api.Truncate, api.Adjust]
    lone.lose_engine()
    lone.new_engine()
    assert [type(command) for command in lone.commands[-2:]] == [api.Truncate, api.Adjust]
    assert len(lone.commands) == MOST_UNDER_WAY + 1


def test_injections_stand_among_the_output_and_are_no_output() -> None:
    lone = LoneStream()
    lone.write("ab")
    lone.steer(protocol.Inject(request_id="a", tokens=[8, 9]))
    lone.answer(api.Appended(2, 2))
    lone.write("c")
    lone.lose_engine()
    submit = lone.new_engine()
    assert submit.tokens == [*PROMPT, *b"ab", 8, 9, *b"c"]
    assert (submit.prompt, submit.injections) == (3, [(2, 2)])


def test_what_was_rewound_stands_no_more() -> None:
    lone = LoneStream()
    lone.write("abcd")
    lone.take()
    lone.steer(protocol.Inject(request_id="a", tokens=[8]))
    lone.steer(protocol.Rewind(request_id="a", to=1))
    lone.answer(api.Appended(4, 1), api.Truncated(1))
    lone.lose_engine()
    submit = lone.new_engine()
    assert (submit.tokens, submit.injections) == ([*PROMPT, *b"a"], [])


def test_engines_may_die_one_after_the_other_and_it_is_told_once() -> None:
    lone = lost()
    lone.new_engine()
    lone.lose_engine()
    lone.new_engine()
    assert lone.take() == []
    lone.admit()
    assert kinds(lone.take()) == ["Resumed"]


def test_a_culprit_ends_in_an_error_with_all_that_was_decoded() -> None:
    lone = LoneStream()
    lone.write("ab")
    lone.stream.fail("the engine failed again and again", lone.now)
    events = lone.take()
    final = events[-1]
    assert isinstance(final, protocol.Final)
    assert (text(events), final.finish_reason) == ("ab", "error")
    assert final.stop_reason == "the engine failed again and again"
    lone.stream.fail("once more", lone.now)
    assert lone.take() == []


# -- of another fingerprint ------------------------------------------------------------------------


def fingerprints(lone: LoneStream) -> list[tuple[str, str | None]]:
    """Of the events that may tell one."""
    told = protocol.Started | protocol.Paused | protocol.Resumed
    events = [event for event in lone.take() if isinstance(event, told)]
    return [(type(event).__name__, getattr(event, "fingerprint", None)) for event in events]


def test_a_stream_that_moves_is_told_the_fingerprint_if_it_is_another() -> None:
    lone = LoneStream()
    lone.admit()
    lone.write("a")
    assert fingerprints(lone) == [("Started", "fp")]
    for fingerprint, told in (("fp", None), ("other", "other"), ("other", None), ("fp", "fp")):
        lone.lose_engine()
        lone.new_engine(fingerprint)
        lone.admit()
        assert fingerprints(lone) == [("Paused", None), ("Resumed", told)]


def test_one_that_would_not_have_heard_of_it_hears_of_it() -> None:
    waiting, stalled = LoneStream(), LoneStream(credit=Credit(limit=1))
    stalled.admit()
    stalled.write("a")
    for lone in (waiting, stalled):
        lone.take()
        lone.lose_engine()
        lone.new_engine("other")
        assert fingerprints(lone) == [("Paused", None)]
    stalled.stream.grant(9, stalled.now)
    for lone in (waiting, stalled):
        lone.admit()
        assert fingerprints(lone) == [("Resumed", "other")]
        assert lone.stream.state == "running"


def test_one_that_its_client_paused_hears_of_it_when_it_goes_on() -> None:
    lone = LoneStream()
    lone.admit()
    lone.steer(protocol.Pause(request_id="r"))
    lone.answer(api.Paused(0))
    lone.take()
    lone.lose_engine()
    lone.new_engine("other")
    assert fingerprints(lone) == []
    lone.steer(protocol.Resume(request_id="r"))
    lone.answer(api.Resumed(0))
    assert fingerprints(lone) == [("Resumed", "other")]
