"""Steering one stream, each rule by an example: what the engine is asked, and how its answers are told."""

from __future__ import annotations

import pytest

from engine import api
from midstream import protocol
from midstream.protocol import Credit, Error, Params
from realtime.refusal import Refusal
from tests.fakes.lone_stream import CANCELLED, CONTEXT, RUN_OUT, LoneStream, text


def test_at_rewinds_first_and_the_frame_is_answered_once() -> None:
    life = LoneStream()
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
    life = LoneStream(credit=Credit(limit=2, prefetch=3))
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
    life = LoneStream()
    life.write("naïve")
    life.take()
    life.steer(protocol.Rewind(request_id="a", ref="r", to=3))
    life.answer(api.Truncated(3))
    (rewound,) = life.take()
    assert isinstance(rewound, protocol.Rewound)
    assert (rewound.index, rewound.text_length, rewound.ref) == (3, 2, "r"), (
        "ï is two bytes, of which one stands"
    )
    life.stream.receive_news(api.News(7, index=3, tokens=[0xAE], finish=RUN_OUT), life.now)
    events = life.take()
    assert text(events) == "î"
    final = events[-1]
    assert isinstance(final, protocol.Final)
    assert (final.index, final.usage.discarded_tokens) == (4, 3)


def test_several_adjusts_under_way_build_on_one_another() -> None:
    life = LoneStream()
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
    life = LoneStream()
    with pytest.raises(Refusal, match=r"3 tokens stand and 37 more .* holds 40") as refused:
        life.steer(protocol.Inject(request_id="a", tokens=[5] * 37))
    assert refused.value.code == "context_too_long"
    assert len(life.commands) == 1


def test_an_injection_that_fits_no_more_when_it_arrives_is_answered_by_an_error() -> None:
    life = LoneStream()
    life.write("ab")
    life.steer(protocol.Inject(request_id="a", ref="r", tokens=[5] * 30))
    life.answer(api.Refused(8, known=11, context=CONTEXT))
    error = life.take()[-1]
    assert isinstance(error, Error)
    assert (error.code, error.ref) == ("context_too_long", "r")
    assert "11 tokens" in error.message
    assert "30 more" in error.message


def test_injections_are_counted_and_taken_back_with_what_stood_before_them() -> None:
    life = LoneStream()
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
    life = LoneStream()
    life.steer(protocol.Pause(request_id="a", ref="p", kv="release"))
    assert life.commands[-1] == api.Pause(7, True)
    life.answer(api.Paused(0))
    paused = life.take()[-1]
    assert isinstance(paused, protocol.Paused)
    assert (paused.index, paused.reason, paused.ref) == (0, "client", "p")
    assert life.stream.state == "paused"


def test_a_pause_for_memory_is_told_and_nobody_asked_for_it() -> None:
    life = LoneStream()
    life.stream.receive_news(api.News(7, early=[api.Paused(0, "memory")]), life.now)
    life.now += 2
    life.stream.receive_news(api.News(7, early=[api.Resumed(0, 5, "memory")]), life.now)
    _, paused, resumed = life.take()
    assert isinstance(paused, protocol.Paused)
    assert isinstance(resumed, protocol.Resumed)
    assert (paused.reason, paused.ref, resumed.recomputed_tokens, resumed.ref) == ("memory", None, 5, None)
    life.answer(finish=CANCELLED)
    assert life.final().timing.paused_ms == 2000
