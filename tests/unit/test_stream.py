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
    life = LoneStream(seed=4)
    (started,) = life.take()
    assert isinstance(started, protocol.Started)
    assert (started.seq, started.ref, started.prompt_tokens) == (0, "start", 3)
    assert started.params.seed == 4
    assert started.params.max_tokens == CONTEXT - 3
    (submit,) = life.commands
    assert isinstance(submit, api.Submit)
    assert submit.credit == WINDOW


# -- stop strings ----------------------------------------------------------------------------------


def test_a_stop_string_across_tokens_is_never_sent_in_part() -> None:
    life = LoneStream(stop=["END"])
    life.write("so EN")
    assert text(life.take()) == "so "
    life.write("D")
    final = life.final()
    assert (final.finish_reason, final.stop_reason, final.index) == ("stop", "END", 6)
    assert life.commands[-1] == api.Cancel(7)


def test_what_was_no_stop_string_after_all_comes_late_and_whole() -> None:
    life = LoneStream(stop=["END"])
    life.write("so EN")
    life.take()
    life.write("T")
    assert text(life.take()) == "ENT"


def test_text_held_for_a_stop_string_goes_out_at_the_end() -> None:
    life = LoneStream(stop=["END"])
    life.write("so EN", finish=RUN_OUT)
    events = life.take()
    assert text(events) == "so EN"
    assert kinds(events) == ["Started", "Token", "Final"]


def test_tokens_decoded_behind_a_stop_string_are_discarded() -> None:
    life = LoneStream(stop=["!"])
    life.stream.receive_news(api.News(7, tokens=list(b"a!bc")), life.now)
    life.write("de")
    final = life.final()
    assert (final.index, final.usage.discarded_tokens, life.stream.discarded) == (2, 2, 4)


def test_text_held_for_another_stop_string_when_rewound_is_taken_back_and_comes_again() -> None:
    life = LoneStream()
    life.write("one two")
    life.take()
    life.steer(protocol.Adjust(request_id="a", params=Params(stop="one t!")))
    life.steer(protocol.Rewind(request_id="a", to=5))
    life.answer(api.Adjusted(7), api.Truncated(5))
    _, rewound = life.take()
    assert isinstance(rewound, protocol.Rewound)
    assert (rewound.index, rewound.text_length) == (5, 0), "it may be a stop string's beginning now"
    life.write("?")
    assert text(life.take()) == "one t?"


def test_text_that_was_sent_stands_when_the_stream_is_cut_at_its_end() -> None:
    life = LoneStream(credit=Credit(limit=3, prefetch=9))
    life.write("abcdef")
    life.steer(protocol.Adjust(request_id="a", params=Params(stop="abcx")))
    life.answer(api.Adjusted(6))
    assert text(life.take()) == "abc"
    life.stream.cancel(life.now, 0)
    life.answer(finish=CANCELLED)
    assert kinds(life.take()) == ["Final"]


# -- credit ----------------------------------------------------------------------------------------


def test_prefetch_is_decoded_and_not_sent() -> None:
    life = LoneStream(credit=Credit(limit=2, prefetch=3))
    assert isinstance(life.commands[0], api.Submit)
    assert life.commands[0].credit == 5
    life.write("abcde")
    assert text(life.take()) == "ab"
    life.stream.grant(4, life.now)
    assert life.commands[-1] == api.Grant(7, 7)
    assert text(life.take()) == "cd"


def test_grants_never_shrink() -> None:
    life = LoneStream(credit=Credit(limit=5))
    for limit in (3, 5, 0):
        life.stream.grant(limit, life.now)
    assert len(life.commands) == 1
    assert life.stream.outbox.credit.limit == 5


def test_an_end_that_was_decoded_ahead_waits_for_the_credit_of_what_comes_before_it() -> None:
    life = LoneStream(credit=Credit(limit=2, prefetch=3), max_tokens=4)
    life.write("abcd", finish=RUN_OUT)
    assert kinds(life.take()) == ["Started", "Token"]
    life.stream.grant(3, life.now)
    assert kinds(life.take()) == ["Token"]
    life.stream.grant(4, life.now)
    assert kinds(life.take()) == ["Token", "Final"]


def test_cancel_while_an_end_is_due_ends_it_at_what_was_sent() -> None:
    life = LoneStream(credit=Credit(limit=2, prefetch=3), max_tokens=4)
    life.write("abcd", finish=RUN_OUT)
    life.take()
    life.stream.cancel(life.now, 0, "stop it")
    final = life.final()
    assert (final.finish_reason, final.index, final.ref) == ("cancelled", 2, "stop it")
    assert final.usage.discarded_tokens == 2


def test_a_timeout_while_an_end_is_due_ends_it() -> None:
    life = LoneStream(credit=Credit(limit=2, prefetch=3), max_tokens=4)
    life.write("abcd", finish=RUN_OUT)
    life.stream.time_out(life.now, 0)
    final = life.final()
    assert (final.finish_reason, final.stop_reason, final.index) == ("length", "timeout", 2)


def test_steering_what_is_due_is_refused_at_once() -> None:
    life = LoneStream(credit=Credit(limit=2, prefetch=3), max_tokens=4)
    life.steer(protocol.Pause(request_id="a", ref="too late"))
    life.write("abcd", finish=RUN_OUT)
    error = life.take()[-1]
    assert isinstance(error, Error)
    assert (error.code, error.ref) == ("request_finished", "too late")
    with pytest.raises(Refusal, match="has ended"):
        life.steer(protocol.Pause(request_id="a"))


def test_automatic_credit_is_what_was_taken_and_a_window() -> None:
    life = LoneStream()
    life.stream.acknowledge(5, 0)
    assert life.commands[-1] == api.Grant(7, 5 + WINDOW)


def test_an_interval_larger_than_the_window_does_not_stall_the_stream() -> None:
    life = LoneStream(interval=100)
    life.write("x" * (WINDOW - 1))
    assert text(life.take()) == ""
    life.write("y")
    assert text(life.take()) == "x" * (WINDOW - 1) + "y"
    life.stream.acknowledge(WINDOW, 0)
    life.write("z")
    assert text(life.take()) == ""


# -- the end ---------------------------------------------------------------------------------------


def test_frames_that_came_too_late_are_each_answered_once_before_the_final() -> None:
    life = LoneStream()
    life.write("abcd")
    life.take()
    life.steer(protocol.Adjust(request_id="a", ref="r", params=Params(), at=2))
    life.steer(protocol.Pause(request_id="a", ref="p"))
    life.answer(finish=api.Finish("eos"))
    first, second, final = life.take()
    assert isinstance(first, Error)
    assert isinstance(second, Error)
    assert isinstance(final, protocol.Final)
    assert [(first.ref, first.code), (second.ref, second.code)] == [
        ("r", "request_finished"),
        ("p", "request_finished"),
    ]
    assert (final.finish_reason, final.stop_reason) == ("stop", "eos")


def test_what_was_decoded_before_a_pause_still_comes_when_it_is_cancelled_unread() -> None:
    life = LoneStream()
    life.take()
    life.write("abc")
    life.steer(protocol.Pause(request_id="a"))
    life.answer(api.Paused(3))
    life.stream.cancel(life.now, 0)
    life.answer(finish=CANCELLED)
    events = life.take()
    assert kinds(events) == ["Token", "Paused", "Final"]
    assert text(events) == "abc"


def test_cancel_is_idempotent_and_its_ref_is_the_finals() -> None:
    life = LoneStream()
    life.stream.cancel(life.now, 0, "c")
    life.stream.cancel(life.now, 0)
    assert life.commands[1:] == [api.Cancel(7)]
    life.answer(finish=CANCELLED)
    final = life.final()
    assert (final.finish_reason, final.ref) == ("cancelled", "c")
    life.stream.cancel(life.now, 0)
    assert life.take() == []


def test_a_timeout_is_an_end_by_length() -> None:
    life = LoneStream()
    life.write("ab")
    life.stream.time_out(life.now, 0)
    assert life.commands[-1] == api.Cancel(7)
    life.answer(finish=CANCELLED)
    final = life.final()
    assert (final.finish_reason, final.stop_reason, final.index) == ("length", "timeout", 2)


def test_a_timeout_behind_a_cancel_changes_nothing() -> None:
    life = LoneStream()
    life.stream.cancel(life.now, 0)
    life.stream.time_out(life.now, 0)
    life.answer(finish=CANCELLED)
    assert life.final().finish_reason == "cancelled"


def test_an_error_of_the_model_is_told_in_its_words() -> None:
    life = LoneStream()
    life.answer(finish=api.Finish("error", "the model failed on this stream"))
    final = life.final()
    assert (final.finish_reason, final.stop_reason) == ("error", "the model failed on this stream")


def test_a_character_that_never_becomes_whole_is_replaced_at_the_end() -> None:
    life = LoneStream()
    life.stream.receive_news(api.News(7, tokens=[0xF0, 0x9F]), life.now)
    first, waiting = life.take()
    assert isinstance(waiting, protocol.Token)
    assert (kinds([first]), waiting.count, waiting.delta) == (["Started"], 2, "")
    life.answer(finish=RUN_OUT)
    rest, _ = life.take()
    assert isinstance(rest, protocol.Token)
    assert (rest.index, rest.count, rest.delta) == (2, 0, "\ufffd")


def test_cached_tokens_are_of_the_prompt_and_not_of_what_was_injected_behind_it() -> None:
    life = LoneStream()
    life.stream.receive_news(api.News(7, admitted=8, finish=CANCELLED), life.now)
    assert life.final().usage.cached_tokens == len(PROMPT)


def test_usage_adds_up() -> None:
    life = LoneStream()
    life.stream.receive_news(api.News(7, admitted=2, tokens=list(b"ab"), finish=RUN_OUT), life.now)
    usage = life.final().usage
    assert (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens, usage.cached_tokens) == (
        3,
        2,
        5,
        2,
    )
