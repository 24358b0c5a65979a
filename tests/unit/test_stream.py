"""One stream's rules, each by an example: how it begins, what stop strings and credit do, how it ends."""

from __future__ import annotations

import pytest

from engine import api
from midstream import protocol
from midstream.protocol import Credit, Error, Params
from realtime.refusal import Refusal
from tests.fakes.lone_stream import CANCELLED, CONTEXT, PROMPT, RUN_OUT, WINDOW, LoneStream, kinds, text

# -- the beginning ---------------------------------------------------------------------------------


def test_started_is_there_before_the_engine_says_anything() -> None:
    lone = LoneStream(seed=4)
    (started,) = lone.take()
    assert isinstance(started, protocol.Started)
    assert (started.seq, started.ref, started.prompt_tokens) == (0, "start", 3)
    assert started.params.seed == 4
    assert started.params.max_tokens == CONTEXT - 3
    (submit,) = lone.commands
    assert isinstance(submit, api.Submit)
    assert submit.credit == WINDOW


# -- stop strings ----------------------------------------------------------------------------------


def test_a_stop_string_across_tokens_is_never_sent_in_part() -> None:
    lone = LoneStream(stop=["END"])
    lone.write("so EN")
    assert text(lone.take()) == "so "
    lone.write("D")
    final = lone.final()
    assert (final.finish_reason, final.stop_reason, final.index) == ("stop", "END", 6)
    assert lone.commands[-1] == api.Cancel(7)


def test_what_was_no_stop_string_after_all_comes_late_and_whole() -> None:
    lone = LoneStream(stop=["END"])
    lone.write("so EN")
    lone.take()
    lone.write("T")
    assert text(lone.take()) == "ENT"


def test_text_held_for_a_stop_string_goes_out_at_the_end() -> None:
    lone = LoneStream(stop=["END"])
    lone.write("so EN", finish=RUN_OUT)
    events = lone.take()
    assert text(events) == "so EN"
    assert kinds(events) == ["Started", "Token", "Final"]


def test_tokens_decoded_behind_a_stop_string_are_discarded() -> None:
    lone = LoneStream(stop=["!"])
    lone.stream.receive_news(api.News(7, tokens=list(b"a!bc")), lone.now)
    lone.write("de")
    final = lone.final()
    assert (final.index, final.usage.discarded_tokens, lone.stream.counts.discarded) == (2, 2, 4)


def test_text_held_for_another_stop_string_when_rewound_is_taken_back_and_comes_again() -> None:
    lone = LoneStream()
    lone.write("one two")
    lone.take()
    lone.steer(protocol.Adjust(request_id="a", params=Params(stop="one t!")))
    lone.steer(protocol.Rewind(request_id="a", to=5))
    lone.answer(api.Adjusted(7), api.Truncated(5))
    _, rewound = lone.take()
    assert isinstance(rewound, protocol.Rewound)
    assert (rewound.index, rewound.text_length) == (5, 0), "it may be a stop string's beginning now"
    lone.write("?")
    assert text(lone.take()) == "one t?"


def test_text_that_was_sent_stands_when_the_stream_is_cut_at_its_end() -> None:
    lone = LoneStream(credit=Credit(limit=3, prefetch=9))
    lone.write("abcdef")
    lone.steer(protocol.Adjust(request_id="a", params=Params(stop="abcx")))
    lone.answer(api.Adjusted(6))
    assert text(lone.take()) == "abc"
    lone.stream.cancel(lone.now, 0)
    lone.answer(finish=CANCELLED)
    assert kinds(lone.take()) == ["Final"]


# -- credit ----------------------------------------------------------------------------------------


def test_prefetch_is_decoded_and_not_sent() -> None:
    lone = LoneStream(credit=Credit(limit=2, prefetch=3))
    assert isinstance(lone.commands[0], api.Submit)
    assert lone.commands[0].credit == 5
    lone.write("abcde")
    assert text(lone.take()) == "ab"
    lone.stream.grant(4, lone.now)
    assert lone.commands[-1] == api.Grant(7, 7)
    assert text(lone.take()) == "cd"


def test_grants_never_shrink() -> None:
    lone = LoneStream(credit=Credit(limit=5))
    for limit in (3, 5, 0):
        lone.stream.grant(limit, lone.now)
    assert len(lone.commands) == 1
    assert lone.stream.outbox.credit.limit == 5


def test_an_end_that_was_decoded_ahead_waits_for_the_credit_of_what_comes_before_it() -> None:
    lone = LoneStream(credit=Credit(limit=2, prefetch=3), max_tokens=4)
    lone.write("abcd", finish=RUN_OUT)
    assert kinds(lone.take()) == ["Started", "Token"]
    lone.stream.grant(3, lone.now)
    assert kinds(lone.take()) == ["Token"]
    lone.stream.grant(4, lone.now)
    assert kinds(lone.take()) == ["Token", "Final"]


def test_cancel_while_an_end_is_due_ends_it_at_what_was_sent() -> None:
    lone = LoneStream(credit=Credit(limit=2, prefetch=3), max_tokens=4)
    lone.write("abcd", finish=RUN_OUT)
    lone.take()
    lone.stream.cancel(lone.now, 0, "stop it")
    final = lone.final()
    assert (final.finish_reason, final.index, final.ref) == ("cancelled", 2, "stop it")
    assert final.usage.discarded_tokens == 2


def test_a_timeout_while_an_end_is_due_ends_it() -> None:
    lone = LoneStream(credit=Credit(limit=2, prefetch=3), max_tokens=4)
    lone.write("abcd", finish=RUN_OUT)
    lone.stream.time_out(lone.now, 0)
    final = lone.final()
    assert (final.finish_reason, final.stop_reason, final.index) == ("length", "timeout", 2)


def test_steering_what_is_due_is_refused_at_once() -> None:
    lone = LoneStream(credit=Credit(limit=2, prefetch=3), max_tokens=4)
    lone.steer(protocol.Pause(request_id="a", ref="too late"))
    lone.write("abcd", finish=RUN_OUT)
    error = lone.take()[-1]
    assert isinstance(error, Error)
    assert (error.code, error.ref) == ("request_finished", "too late")
    with pytest.raises(Refusal, match="has ended"):
        lone.steer(protocol.Pause(request_id="a"))


def test_automatic_credit_is_what_was_taken_and_a_window() -> None:
    lone = LoneStream()
    lone.stream.acknowledge(5, 0)
    assert lone.commands[-1] == api.Grant(7, 5 + WINDOW)


def test_an_interval_larger_than_the_window_does_not_stall_the_stream() -> None:
    lone = LoneStream(interval=100)
    lone.write("x" * (WINDOW - 1))
    assert text(lone.take()) == ""
    lone.write("y")
    assert text(lone.take()) == "x" * (WINDOW - 1) + "y"
    lone.stream.acknowledge(WINDOW, 0)
    lone.write("z")
    assert text(lone.take()) == ""


# -- the end ---------------------------------------------------------------------------------------


def test_frames_that_came_too_late_are_each_answered_once_before_the_final() -> None:
    lone = LoneStream()
    lone.write("abcd")
    lone.take()
    lone.steer(protocol.Adjust(request_id="a", ref="r", params=Params(), at=2))
    lone.steer(protocol.Pause(request_id="a", ref="p"))
    lone.answer(finish=api.Finish("eos"))
    first, second, final = lone.take()
    assert isinstance(first, Error)
    assert isinstance(second, Error)
    assert isinstance(final, protocol.Final)
    assert [(first.ref, first.code), (second.ref, second.code)] == [
        ("r", "request_finished"),
        ("p", "request_finished"),
    ]
    assert (final.finish_reason, final.stop_reason) == ("stop", "eos")


def test_what_was_decoded_before_a_pause_still_comes_when_it_is_cancelled_unread() -> None:
    lone = LoneStream()
    lone.take()
    lone.write("abc")
    lone.steer(protocol.Pause(request_id="a"))
    lone.answer(api.Paused(3))
    lone.stream.cancel(lone.now, 0)
    lone.answer(finish=CANCELLED)
    events = lone.take()
    assert kinds(events) == ["Token", "Paused", "Final"]
    assert text(events) == "abc"


def test_cancel_is_idempotent_and_its_ref_is_the_finals() -> None:
    lone = LoneStream()
    lone.stream.cancel(lone.now, 0, "c")
    lone.stream.cancel(lone.now, 0)
    assert lone.commands[1:] == [api.Cancel(7)]
    lone.answer(finish=CANCELLED)
    final = lone.final()
    assert (final.finish_reason, final.ref) == ("cancelled", "c")
    lone.stream.cancel(lone.now, 0)
    assert lone.take() == []


def test_a_timeout_is_an_end_by_length() -> None:
    lone = LoneStream()
    lone.write("ab")
    lone.stream.time_out(lone.now, 0)
    assert lone.commands[-1] == api.Cancel(7)
    lone.answer(finish=CANCELLED)
    final = lone.final()
    assert (final.finish_reason, final.stop_reason, final.index) == ("length", "timeout", 2)


def test_a_timeout_behind_a_cancel_changes_nothing() -> None:
    lone = LoneStream()
    lone.stream.cancel(lone.now, 0)
    lone.stream.time_out(lone.now, 0)
    lone.answer(finish=CANCELLED)
    assert lone.final().finish_reason == "cancelled"


def test_an_error_of_the_model_is_told_in_its_words() -> None:
    lone = LoneStream()
    lone.answer(finish=api.Finish("error", "the model failed on this stream"))
    final = lone.final()
    assert (final.finish_reason, final.stop_reason) == ("error", "the model failed on this stream")


def test_but_not_of_one_that_was_cancelled_before_it_began() -> None:
    """Others may have its place then, so that its engine has none for it."""
    lone = LoneStream()
    lone.cancel("c")
    lone.answer(finish=api.Finish("error", "the engine has as many streams as it may"))
    final = lone.final()
    assert (final.finish_reason, final.stop_reason, final.ref) == ("cancelled", None, "c")
    lone = LoneStream()
    lone.admit()
    lone.cancel()
    lone.answer(finish=api.Finish("error", "the model failed on this stream"))
    assert lone.final().finish_reason == "error"


def test_a_character_that_never_becomes_whole_is_replaced_at_the_end() -> None:
    lone = LoneStream()
    lone.stream.receive_news(api.News(7, tokens=[0xF0, 0x9F]), lone.now)
    first, waiting = lone.take()
    assert isinstance(waiting, protocol.Token)
    assert (kinds([first]), waiting.count, waiting.delta) == (["Started"], 2, "")
    lone.answer(finish=RUN_OUT)
    rest, _ = lone.take()
    assert isinstance(rest, protocol.Token)
    assert (rest.index, rest.count, rest.delta) == (2, 0, "\ufffd")


def test_cached_tokens_are_of_the_prompt_and_not_of_what_was_injected_behind_it() -> None:
    lone = LoneStream()
    lone.stream.receive_news(api.News(7, admitted=8, finish=CANCELLED), lone.now)
    assert lone.final().usage.cached_tokens == len(PROMPT)


def test_usage_adds_up() -> None:
    lone = LoneStream()
    lone.stream.receive_news(api.News(7, admitted=2, tokens=list(b"ab"), finish=RUN_OUT), lone.now)
    usage = lone.final().usage
    assert (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens, usage.cached_tokens) == (
        3,
        2,
        5,
        2,
    )
