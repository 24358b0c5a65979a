"""One stream's rules, each by an example: frames and news by hand, events and commands looked at."""

from __future__ import annotations

from typing import Any

import pytest

from engine import api, toy_model
from midstream import protocol
from midstream.protocol import Credit, Error, Params, StreamEvent
from realtime.params import resolved
from realtime.prompts import Model
from realtime.refusal import Refusal
from realtime.stream import Steering, Stream
from tests.fakes.house import toy_tokenizer

CONTEXT = 40
MODEL = Model("toy", toy_tokenizer(), vocab=toy_model.VOCAB, context=CONTEXT)
PROMPT = [1, 2, 3]
WINDOW = 8


class Life:
    """A stream with the test as its engine and its listener."""

    def __init__(self, *, credit: Credit | None = None, interval: int = 1, **params: Any) -> None:
        self.commands: list[api.AnyCommand] = []
        self.now = 1000.0
        start = protocol.Start(
            request_id="a", ref="start", credit=credit, stream_interval=interval, return_tokens=True
        )
        self.stream = Stream(
            7,
            start,
            PROMPT,
            resolved(Params(**params), context_left=CONTEXT - len(PROMPT), vocab=MODEL.vocab),
            model=MODEL,
            tenant=0,
            window=WINDOW,
            send=self.commands.append,
            now=self.now,
        )
        self.index = 0

    def write(self, text: str, *changes: api.AnyChange, finish: api.Finish | None = None) -> None:
        """The engine writes a text, a byte a token, and answers what it was asked behind it."""
        for byte in text.encode():
            self.stream.hear(api.News(7, index=self.index, tokens=[byte]), self.now)
            self.index += 1
        if changes or finish:
            self.answer(*changes, finish=finish)

    def answer(self, *changes: api.AnyChange, finish: api.Finish | None = None) -> None:
        self.stream.hear(api.News(7, changes=list(changes), finish=finish), self.now)
        if changes:
            self.index = changes[-1].index

    def steer(self, frame: Steering) -> None:
        self.stream.steer(frame, 0)

    def take(self) -> list[StreamEvent | Error]:
        return self.stream.outbox.take()

    def final(self) -> protocol.Final:
        last = self.take()[-1]
        assert isinstance(last, protocol.Final)
        return last


def text(events: list[StreamEvent | Error]) -> str:
    return "".join(event.delta for event in events if isinstance(event, protocol.Token))


def kinds(events: list[StreamEvent | Error]) -> list[str]:
    return [type(event).__name__ for event in events]


CANCELLED = api.Finish("cancelled")
RUN_OUT = api.Finish("length")


# -- the beginning ---------------------------------------------------------------------------------


def test_started_is_there_before_the_engine_says_anything() -> None:
    life = Life(seed=4)
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
    life = Life(stop=["END"])
    life.write("so EN")
    assert text(life.take()) == "so "
    life.write("D")
    final = life.final()
    assert (final.finish_reason, final.stop_reason, final.index) == ("stop", "END", 6)
    assert life.commands[-1] == api.Cancel(7)


def test_what_was_no_stop_string_after_all_comes_late_and_whole() -> None:
    life = Life(stop=["END"])
    life.write("so EN")
    life.take()
    life.write("T")
    assert text(life.take()) == "ENT"


def test_text_held_for_a_stop_string_goes_out_at_the_end() -> None:
    life = Life(stop=["END"])
    life.write("so EN", finish=RUN_OUT)
    events = life.take()
    assert text(events) == "so EN"
    assert kinds(events) == ["Started", "Token", "Final"]


def test_tokens_decoded_behind_a_stop_string_are_discarded() -> None:
    life = Life(stop=["!"])
    life.stream.hear(api.News(7, tokens=list(b"a!bc")), life.now)
    life.write("de")
    final = life.final()
    assert (final.index, final.usage.discarded_tokens, life.stream.discarded) == (2, 2, 4)


def test_text_held_for_another_stop_string_when_rewound_is_taken_back_and_comes_again() -> None:
    life = Life()
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
    life = Life(credit=Credit(limit=3, prefetch=9))
    life.write("abcdef")
    life.steer(protocol.Adjust(request_id="a", params=Params(stop="abcx")))
    life.answer(api.Adjusted(6))
    assert text(life.take()) == "abc"
    life.stream.cancel(life.now, 0)
    life.answer(finish=CANCELLED)
    assert kinds(life.take()) == ["Final"]


# -- credit ----------------------------------------------------------------------------------------


def test_prefetch_is_decoded_and_not_sent() -> None:
    life = Life(credit=Credit(limit=2, prefetch=3))
    assert isinstance(life.commands[0], api.Submit)
    assert life.commands[0].credit == 5
    life.write("abcde")
    assert text(life.take()) == "ab"
    life.stream.credit(4, life.now)
    assert life.commands[-1] == api.Grant(7, 7)
    assert text(life.take()) == "cd"


def test_grants_never_shrink() -> None:
    life = Life(credit=Credit(limit=5))
    for limit in (3, 5, 0):
        life.stream.credit(limit, life.now)
    assert len(life.commands) == 1
    assert life.stream.outbox.limit == 5


def test_an_end_that_was_decoded_ahead_waits_for_the_credit_of_what_comes_before_it() -> None:
    life = Life(credit=Credit(limit=2, prefetch=3), max_tokens=4)
    life.write("abcd", finish=RUN_OUT)
    assert kinds(life.take()) == ["Started", "Token"]
    life.stream.credit(3, life.now)
    assert kinds(life.take()) == ["Token"]
    life.stream.credit(4, life.now)
    assert kinds(life.take()) == ["Token", "Final"]


def test_cancel_while_an_end_is_due_ends_it_at_what_was_sent() -> None:
    life = Life(credit=Credit(limit=2, prefetch=3), max_tokens=4)
    life.write("abcd", finish=RUN_OUT)
    life.take()
    life.stream.cancel(life.now, 0, "stop it")
    final = life.final()
    assert (final.finish_reason, final.index, final.ref) == ("cancelled", 2, "stop it")
    assert final.usage.discarded_tokens == 2


def test_a_timeout_while_an_end_is_due_ends_it() -> None:
    life = Life(credit=Credit(limit=2, prefetch=3), max_tokens=4)
    life.write("abcd", finish=RUN_OUT)
    life.stream.time_out(life.now, 0)
    final = life.final()
    assert (final.finish_reason, final.stop_reason, final.index) == ("length", "timeout", 2)


def test_steering_what_is_due_is_refused_at_once() -> None:
    life = Life(credit=Credit(limit=2, prefetch=3), max_tokens=4)
    life.steer(protocol.Pause(request_id="a", ref="too late"))
    life.write("abcd", finish=RUN_OUT)
    error = life.take()[-1]
    assert isinstance(error, Error)
    assert (error.code, error.ref) == ("request_finished", "too late")
    with pytest.raises(Refusal, match="has ended"):
        life.steer(protocol.Pause(request_id="a"))


def test_automatic_credit_is_what_was_taken_and_a_window() -> None:
    life = Life()
    life.stream.taken(5)
    assert life.commands[-1] == api.Grant(7, 5 + WINDOW)


def test_an_interval_larger_than_the_window_does_not_stall_the_stream() -> None:
    life = Life(interval=100)
    life.write("x" * (WINDOW - 1))
    assert text(life.take()) == ""
    life.write("y")
    assert text(life.take()) == "x" * (WINDOW - 1) + "y"
    life.stream.taken(WINDOW)
    life.write("z")
    assert text(life.take()) == ""


# -- steering --------------------------------------------------------------------------------------


def test_at_rewinds_first_and_the_frame_is_answered_once() -> None:
    life = Life()
    life.write("abcdef")
    life.take()
    life.steer(protocol.Adjust(request_id="a", ref="r", params=Params(temperature=0.5), at=4))
    assert life.commands[1] == api.Truncate(7, 4)
    assert isinstance(life.commands[2], api.Adjust)
    life.answer(api.Truncated(4), api.Adjusted(4))
    rewound, adjusted = life.take()
    assert isinstance(rewound, protocol.Rewound)
    assert isinstance(adjusted, protocol.Adjusted)
    assert (rewound.index, rewound.text_length, rewound.ref) == (4, 4, None)
    assert (adjusted.index, adjusted.params.temperature, adjusted.ref) == (4, 0.5, "r")


def test_at_beyond_what_was_sent_is_refused_and_changes_nothing() -> None:
    life = Life(credit=Credit(limit=2, prefetch=3))
    life.write("abcde")
    life.take()
    for frame, field in (
        (protocol.Rewind(request_id="a", to=3), "`to` is 3"),
        (protocol.Adjust(request_id="a", params=Params(), at=3), "`at` is 3"),
    ):
        with pytest.raises(Refusal, match=rf"{field}, but only 2 .* 0 to 2") as refused:
            life.steer(frame)
        assert refused.value.code == "invalid_params"
    assert len(life.commands) == 1


def test_rewinding_takes_tokens_and_text_back() -> None:
    life = Life()
    life.write("naïve")
    life.take()
    life.steer(protocol.Rewind(request_id="a", ref="r", to=3))
    life.answer(api.Truncated(3))
    (rewound,) = life.take()
    assert isinstance(rewound, protocol.Rewound)
    assert (rewound.index, rewound.text_length, rewound.ref) == (3, 2, "r"), (
        "ï is two bytes, of which one stands"
    )
    life.stream.hear(api.News(7, index=3, tokens=[0xAE], finish=RUN_OUT), life.now)
    events = life.take()
    assert text(events) == "î"
    final = events[-1]
    assert isinstance(final, protocol.Final)
    assert (final.index, final.usage.discarded_tokens) == (4, 3)


def test_several_adjusts_under_way_build_on_one_another() -> None:
    life = Life()
    life.steer(protocol.Adjust(request_id="a", params=Params(temperature=0.5)))
    life.steer(protocol.Adjust(request_id="a", params=Params(top_k=3)))
    last = life.commands[-1]
    assert isinstance(last, api.Adjust)
    assert (last.sampling.temperature, last.sampling.top_k) == (0.5, 3)
    life.answer(api.Adjusted(0), api.Adjusted(0))
    adjusted = life.take()[-1]
    assert isinstance(adjusted, protocol.Adjusted)
    assert (adjusted.params.temperature, adjusted.params.top_k) == (0.5, 3)


def test_an_injection_that_does_not_fit_says_both_numbers() -> None:
    life = Life()
    with pytest.raises(Refusal, match=r"3 tokens stand and 37 more .* holds 40") as refused:
        life.steer(protocol.Inject(request_id="a", tokens=[5] * 37))
    assert refused.value.code == "context_too_long"
    assert len(life.commands) == 1


def test_an_injection_that_fits_no_more_when_it_arrives_is_answered_by_an_error() -> None:
    life = Life()
    life.write("ab")
    life.steer(protocol.Inject(request_id="a", ref="r", tokens=[5] * 30))
    life.answer(api.Refused(8, known=11, context=CONTEXT))
    error = life.take()[-1]
    assert isinstance(error, Error)
    assert (error.code, error.ref) == ("context_too_long", "r")
    assert "11 tokens" in error.message
    assert "30 more" in error.message


def test_injections_are_counted_and_taken_back_with_what_stood_before_them() -> None:
    life = Life()
    life.write("abcd")
    life.take()
    life.steer(protocol.Inject(request_id="a", tokens=[5, 6]))
    life.answer(api.Appended(4, 2))
    (injected,) = life.take()
    assert isinstance(injected, protocol.Injected)
    assert (injected.index, injected.count, life.stream.output.injected()) == (4, 2, 2)
    life.steer(protocol.Rewind(request_id="a", to=4))
    life.answer(api.Truncated(4))
    assert life.stream.output.injected() == 2, "it stands before token 4"
    life.steer(protocol.Rewind(request_id="a", to=3))
    life.answer(api.Truncated(3))
    assert life.stream.output.injected() == 0


def test_a_pause_in_the_queue_is_told_before_any_token() -> None:
    life = Life()
    life.steer(protocol.Pause(request_id="a", ref="p", kv="release"))
    assert life.commands[-1] == api.Pause(7, True)
    life.answer(api.Paused(0))
    paused = life.take()[-1]
    assert isinstance(paused, protocol.Paused)
    assert (paused.index, paused.reason, paused.ref) == (0, "client", "p")
    assert life.stream.state == "paused"


def test_a_pause_for_memory_is_told_and_nobody_asked_for_it() -> None:
    life = Life()
    life.stream.hear(api.News(7, early=[api.Paused(0, "memory")]), life.now)
    life.now += 2
    life.stream.hear(api.News(7, early=[api.Resumed(0, 5, "memory")]), life.now)
    _, paused, resumed = life.take()
    assert isinstance(paused, protocol.Paused)
    assert isinstance(resumed, protocol.Resumed)
    assert (paused.reason, paused.ref, resumed.recomputed_tokens, resumed.ref) == ("memory", None, 5, None)
    life.answer(finish=CANCELLED)
    assert life.final().timing.paused_ms == 2000


# -- the end ---------------------------------------------------------------------------------------


def test_frames_that_came_too_late_are_each_answered_once_before_the_final() -> None:
    life = Life()
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
    life = Life()
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
    life = Life()
    life.stream.cancel(life.now, 0, "c")
    life.stream.cancel(life.now, 0)
    assert life.commands[1:] == [api.Cancel(7)]
    life.answer(finish=CANCELLED)
    final = life.final()
    assert (final.finish_reason, final.ref) == ("cancelled", "c")
    life.stream.cancel(life.now, 0)
    assert life.take() == []


def test_a_timeout_is_an_end_by_length() -> None:
    life = Life()
    life.write("ab")
    life.stream.time_out(life.now, 0)
    assert life.commands[-1] == api.Cancel(7)
    life.answer(finish=CANCELLED)
    final = life.final()
    assert (final.finish_reason, final.stop_reason, final.index) == ("length", "timeout", 2)


def test_a_timeout_behind_a_cancel_changes_nothing() -> None:
    life = Life()
    life.stream.cancel(life.now, 0)
    life.stream.time_out(life.now, 0)
    life.answer(finish=CANCELLED)
    assert life.final().finish_reason == "cancelled"


def test_a_lost_engine_ends_it_in_an_error_with_all_that_was_decoded() -> None:
    life = Life()
    life.write("ab")
    life.stream.lost(life.now)
    events = life.take()
    final = events[-1]
    assert isinstance(final, protocol.Final)
    assert (text(events), final.finish_reason, final.stop_reason) == ("ab", "error", "the engine failed")
    life.stream.lost(life.now)
    assert life.take() == []


def test_an_error_of_the_model_is_told_in_its_words() -> None:
    life = Life()
    life.answer(finish=api.Finish("error", "the model failed on this stream"))
    final = life.final()
    assert (final.finish_reason, final.stop_reason) == ("error", "the model failed on this stream")


def test_a_character_that_never_becomes_whole_is_replaced_at_the_end() -> None:
    life = Life()
    life.stream.hear(api.News(7, tokens=[0xF0, 0x9F]), life.now)
    first, waiting = life.take()
    assert isinstance(waiting, protocol.Token)
    assert (kinds([first]), waiting.count, waiting.delta) == (["Started"], 2, "")
    life.answer(finish=RUN_OUT)
    rest, _ = life.take()
    assert isinstance(rest, protocol.Token)
    assert (rest.index, rest.count, rest.delta) == (2, 0, "\ufffd")


def test_cached_tokens_are_of_the_prompt_and_not_of_what_was_injected_behind_it() -> None:
    life = Life()
    life.stream.hear(api.News(7, admitted=8, finish=CANCELLED), life.now)
    assert life.final().usage.cached_tokens == len(PROMPT)


def test_usage_adds_up() -> None:
    life = Life()
    life.stream.hear(api.News(7, admitted=2, tokens=list(b"ab"), finish=RUN_OUT), life.now)
    usage = life.final().usage
    assert (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens, usage.cached_tokens) == (
        3,
        2,
        5,
        2,
    )
