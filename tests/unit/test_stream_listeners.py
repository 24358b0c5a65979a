"""A stream and its listeners, each rule by an example: they go, they come back, and others come instead."""

from __future__ import annotations

import pytest

from engine import api
from midstream import protocol
from midstream.protocol import Credit, Grammar, Params
from realtime.refusal import Refusal
from realtime.stream.engine_commands import SteeringFrame
from realtime.stream.outbox import HISTORY_LIMIT, OutgoingEvent
from realtime.text.detokenizer import TextStream
from tests.fakes.lone_stream import CANCELLED, RUN_OUT, WINDOW, LoneStream, kinds, seqs, text

GRAMMAR = Grammar(regex="a+")

# -- one goes --------------------------------------------------------------------------------------


def test_without_a_listener_it_is_cancelled_unless_its_start_said_otherwise() -> None:
    lone = LoneStream()
    lone.write("ab")
    lone.take()
    lone.write("cd")
    lone.detach()
    assert lone.commands[-1] == api.Cancel(7)
    lone.answer(finish=CANCELLED)
    final = lone.final()
    assert (final.finish_reason, final.stop_reason, final.index) == ("cancelled", "detached", 2)
    assert final.usage.discarded_tokens == 2, "what nobody will read is not delivered"


def test_one_that_continues_is_asked_nothing_and_drops_nothing() -> None:
    lone = LoneStream(on_disconnect="continue")
    lone.detach()
    assert len(lone.commands) == 1
    lone.write("x" * WINDOW)
    assert text(lone.attach()) == "x" * WINDOW


def test_one_that_is_to_pause_says_that_it_was_detached_and_goes_on_when_somebody_attaches() -> None:
    lone = LoneStream(on_disconnect="pause")
    lone.write("ab")
    lone.detach()
    lone.answer(api.Paused(2))
    assert lone.stream.state == "paused"
    events = lone.attach()
    assert kinds(events) == ["Attached", "Started", "Token", "Paused"], "nobody had taken anything"
    assert isinstance(events[-1], protocol.Paused)
    assert (events[-1].reason, events[-1].ref) == ("detached", None)
    assert lone.commands == [lone.commands[0], api.Pause(7), api.Resume(7)]
    lone.answer(api.Resumed(2))
    (resumed,) = lone.take()
    assert isinstance(resumed, protocol.Resumed)
    assert resumed.ref is None


def test_detached_before_the_engine_has_paused_it_and_attached_again_it_goes_on() -> None:
    lone = LoneStream(on_disconnect="pause")
    lone.detach()
    lone.attach()
    lone.answer(api.Paused(0))
    assert lone.commands[1:] == [api.Pause(7), api.Resume(7)]


@pytest.mark.parametrize("attaches_first", [True, False])
def test_attached_again_it_goes_on_though_an_injection_that_was_to_have_it_do_so_is_refused(
    attaches_first: bool,
) -> None:
    """Of another, who steers what nobody listens to: so long it stays paused."""
    lone = LoneStream(on_disconnect="pause", grammar=GRAMMAR)
    lone.detach()
    lone.steer(protocol.Inject(request_id="a", tokens=[70], resume=True))
    if attaches_first:
        lone.attach()
    lone.answer(api.Paused(0), api.Refused(0, reason="grammar"))
    if not attaches_first:
        assert api.Resume(7) not in lone.commands
        lone.attach()
    assert lone.commands[-1] == api.Resume(7)


def test_one_that_has_ended_as_it_was_to_pause_asks_its_engine_for_nothing_more() -> None:
    """Which keeps its end for another gateway, and nothing by which this would say the same."""
    lone = LoneStream(on_disconnect="pause", max_tokens=2)
    lone.detach()
    lone.write("ab", finish=RUN_OUT)
    assert kinds(lone.attach()) == ["Attached", "Started", "Token", "Final"]
    assert lone.commands[1:] == [api.Pause(7)]


def test_nor_does_one_whose_end_waits_for_credit() -> None:
    lone = LoneStream(on_disconnect="pause", max_tokens=2, credit=Credit(limit=1, prefetch=8))
    lone.detach()
    lone.write("ab", finish=RUN_OUT)
    assert kinds(lone.attach()) == ["Attached", "Started", "Token"]
    assert lone.commands[1:] == [api.Pause(7)]


def test_one_that_its_client_has_paused_stays_paused_by_the_client() -> None:
    lone = LoneStream(on_disconnect="pause")
    lone.steer(protocol.Pause(request_id="a"))
    lone.answer(api.Paused(0))
    lone.detach()
    lone.attach()
    assert lone.commands[1:] == [api.Pause(7)], "it is not resumed by whoever attaches"


def test_detached_twice_it_is_paused_once() -> None:
    lone = LoneStream(on_disconnect="pause")
    lone.detach()
    lone.detach()
    assert lone.commands[1:] == [api.Pause(7)]


@pytest.mark.parametrize("frame", [protocol.Pause(request_id="a"), protocol.Resume(request_id="a")])
def test_what_a_client_says_of_pausing_stands_above_that_nobody_listens(frame: SteeringFrame) -> None:
    """Whoever says it has not attached; but what was said last holds."""
    lone = LoneStream(on_disconnect="pause")
    lone.detach()
    lone.steer(frame)
    asked = len(lone.commands)
    lone.attach()
    assert len(lone.commands) == asked, "neither is undone by attaching"


def test_one_that_memory_has_paused_is_paused_all_the_same() -> None:
    lone = LoneStream(on_disconnect="pause")
    lone.stream.receive_news(api.News(7, early=[api.Paused(0, "memory")]), lone.now)
    lone.detach()
    assert lone.commands[-1] == api.Pause(7)
    lone.stream.receive_news(
        api.News(7, early=[api.Resumed(0, 4, "memory")], changes=[api.Paused(0)]), lone.now
    )
    told = [event for event in lone.take() if isinstance(event, protocol.Paused)]
    assert [event.reason for event in told] == ["memory", "detached"]


def test_one_whose_end_is_due_waits_for_its_credit_without_being_paused() -> None:
    lone = LoneStream(on_disconnect="pause", credit=Credit(limit=2, prefetch=3), max_tokens=4)
    lone.write("abcd", finish=RUN_OUT)
    lone.detach()
    assert len(lone.commands) == 1
    assert text(lone.attach()) == "ab"
    lone.stream.grant(4, lone.now)
    events = lone.take()
    assert (text(events), kinds(events)) == ("cd", ["Token", "Final"])


def test_one_whose_end_is_due_and_whom_nobody_wants_is_cancelled_at_once() -> None:
    lone = LoneStream(credit=Credit(limit=2, prefetch=3), max_tokens=4)
    lone.write("abcd", finish=RUN_OUT)
    lone.take()
    lone.detach()
    final = lone.final()
    assert (final.finish_reason, final.stop_reason, final.index) == ("cancelled", "detached", 2)
    assert len(lone.commands) == 1, "its engine knows it no more"


def test_one_that_is_being_cancelled_is_not_cancelled_again() -> None:
    lone = LoneStream()
    lone.cancel("c")
    lone.detach()
    assert lone.commands[1:] == [api.Cancel(7)]
    lone.answer(finish=CANCELLED)
    final = lone.final()
    assert (final.stop_reason, final.ref) == (None, "c"), "its client had cancelled it first"


def test_one_that_has_ended_does_nothing_any_more() -> None:
    for mode in ("cancel", "pause", "continue"):
        lone = LoneStream(on_disconnect=mode)
        lone.write("ab", finish=RUN_OUT)
        lone.detach()
        assert kinds(lone.take()) == ["Started", "Token", "Final"]
        assert len(lone.commands) == 1


def test_nobody_comes_back_to_a_paused_stream() -> None:
    lone = LoneStream(on_disconnect="pause", grace_ms=1500)
    assert lone.stream.terms.grace_s == 1.5
    lone.write("ab")
    lone.detach()
    lone.answer(api.Paused(2))
    lone.stream.abandon(lone.now, 0)
    lone.answer(finish=CANCELLED)
    final = lone.final()
    assert (final.finish_reason, final.stop_reason, final.index) == ("cancelled", "detached", 0)


# -- one comes back --------------------------------------------------------------------------------


def test_all_events_behind_the_last_that_is_known_come_again_as_they_were() -> None:
    lone = LoneStream()
    first = lone.take()
    for letter in "abc":
        lone.write(letter)
        first += lone.take()
    for after in range(-1, 4):
        again = lone.attach(after)
        assert kinds(again[-1:]) == ["Attached"]
        assert again[:-1] == first[after + 1 :]


def test_who_attaches_has_nothing_decoded_again(monkeypatch: pytest.MonkeyPatch) -> None:
    lone = LoneStream(credit=Credit(limit=30), on_disconnect="continue")
    for _ in range(30):
        lone.write("a")
        lone.take()
    lone.stream.acknowledge(30, 20)

    def decoded(stream: TextStream, token: int) -> str:
        raise AssertionError("it was decoded before")

    monkeypatch.setattr(TextStream, "feed", decoded)
    snapshot = lone.attach(-1)[0]
    assert isinstance(snapshot, protocol.Snapshot)
    assert snapshot.text == "a" * 30
    assert kinds(lone.attach(25))[-1:] == ["Attached"]


def test_what_waited_comes_behind_attached() -> None:
    lone = LoneStream(on_disconnect="continue")
    lone.take()
    lone.write("a")
    lone.detach()
    events = lone.attach(0)
    assert kinds(events) == ["Attached", "Token"]
    assert seqs(events) == [1]


def test_attached_carries_the_ref_and_what_is_pending() -> None:
    lone = LoneStream(credit=Credit(limit=1))
    lone.take()
    lone.steer(protocol.Pause(request_id="a", ref="asked"))
    lone.steer(protocol.Adjust(request_id="a", ref="second", params=Params(), at=0))
    lone.steer(protocol.Resume(request_id="a"))
    lone.answer(api.Paused(0))
    lone.cancel("end")
    (attached, paused) = lone.attach(0)
    assert isinstance(attached, protocol.Attached)
    assert (attached.request_id, attached.ref) == ("a", "attach")
    assert sorted(attached.pending) == ["asked", "end", "second"], "one with `at` once, one without ref not"
    assert isinstance(paused, protocol.Paused)
    assert paused.ref == "asked", "what the engine answered waited for somebody to take it"


def test_nothing_is_pending_where_all_is_answered() -> None:
    lone = LoneStream()
    lone.steer(protocol.Pause(request_id="a", ref="p"))
    lone.answer(api.Paused(0))
    lone.cancel("c")
    lone.answer(finish=CANCELLED)
    lone.take()
    attached = lone.attach()[-1]
    assert isinstance(attached, protocol.Attached)
    assert attached.pending == []


def test_after_what_has_not_happened_is_refused_and_changes_nothing() -> None:
    lone = LoneStream(on_disconnect="pause")
    lone.write("a")
    lone.take()
    lone.detach()
    with pytest.raises(Refusal, match=r"`after` is 2, but the last event of the stream so far is 1") as no:
        lone.stream.attach(2, 0)
    assert no.value.code == "invalid_params"
    assert lone.commands[1:] == [api.Pause(7)], "it is not resumed for it"
    assert lone.take() == []


def test_who_attaches_anew_gets_nothing_of_what_another_had_asked_for() -> None:
    lone = LoneStream()
    lone.write("a")
    lone.take()
    lone.stream.attach(-1, 0, "one")
    events = lone.attach(0)
    assert kinds(events) == ["Token", "Attached"]


def test_who_attaches_twice_is_answered_twice() -> None:
    lone = LoneStream()
    lone.write("a")
    lone.take()
    lone.stream.attach(-1, 0, "one", anew=False)
    events = lone.attach(0, anew=False)
    assert kinds(events) == ["Started", "Token", "Attached", "Attached"]


def test_what_was_asked_for_by_one_that_went_is_not_told_to_nobody() -> None:
    lone = LoneStream(on_disconnect="continue")
    lone.write("a")
    lone.take()
    lone.stream.attach(-1, 0, "one")
    lone.detach()
    assert lone.take() == []


# -- what is forgotten -----------------------------------------------------------------------------


def read_up_to(lone: LoneStream, letters: str) -> list[OutgoingEvent]:
    """All of it written, taken and acknowledged."""
    lone.write(letters)
    events = lone.take()
    lone.stream.acknowledge(lone.stream.outbox.sent, lone.stream.outbox.seq - 1)
    return events


def snapshot(events: list[OutgoingEvent]) -> protocol.Snapshot:
    (only,) = [event for event in events if isinstance(event, protocol.Snapshot)]
    return only


def test_a_snapshot_stands_for_events_that_are_known_to_have_been_read() -> None:
    lone = LoneStream(seed=5)
    read_up_to(lone, "naïve")
    lone.write("!")
    lone.take()
    events = lone.attach(-1)
    assert kinds(events) == ["Snapshot", "Attached"]
    told = snapshot(events)
    assert (told.seq, told.index, told.text) == (2, 7, "naïve!")
    assert told.tokens == list("naïve!".encode())
    assert (told.model, told.prompt_tokens, told.params.seed, told.paused) == ("toy", 3, 5, None)


def test_who_has_what_is_forgotten_gets_only_the_rest() -> None:
    lone = LoneStream()
    read_up_to(lone, "abc")
    lone.write("d")
    lone.take()
    assert kinds(lone.attach(1)) == ["Token", "Attached"]
    assert kinds(lone.attach(2)) == ["Attached"]


def test_a_snapshot_is_of_what_was_sent_and_what_waits_comes_behind_it() -> None:
    lone = LoneStream(credit=Credit(limit=2, prefetch=9))
    read_up_to(lone, "abcd")
    lone.stream.grant(3, lone.now)
    events = lone.attach(-1)
    assert kinds(events) == ["Snapshot", "Attached", "Token"]
    assert (snapshot(events).text, text(events)) == ("ab", "c")


def test_a_snapshot_says_why_the_stream_is_paused() -> None:
    lone = LoneStream(on_disconnect="pause")
    read_up_to(lone, "ab")
    lone.steer(protocol.Pause(request_id="a"))
    lone.answer(api.Paused(2))
    lone.stream.outbox.take()
    lone.stream.acknowledge(2, 2)
    assert snapshot(lone.attach(-1)).paused == "client"


def test_a_snapshot_stands_between_what_was_sent_and_a_rewinding_that_was_not() -> None:
    lone = LoneStream()
    read_up_to(lone, "abcd")
    lone.steer(protocol.Rewind(request_id="a", to=1))
    lone.answer(api.Truncated(1))
    lone.write("z")
    events = lone.attach(-1)
    assert kinds(events) == ["Snapshot", "Attached", "Rewound", "Token"]
    told, rewound = snapshot(events), events[2]
    assert isinstance(rewound, protocol.Rewound)
    assert (told.index, told.text) == (1, "a")
    assert (rewound.index, rewound.text_length) == (1, 1)


def test_an_end_is_never_forgotten_whoever_has_read_it() -> None:
    lone = LoneStream(stop=["END"])
    lone.write("so EN", finish=RUN_OUT)
    last = lone.take()[-1]
    lone.stream.acknowledge(5, lone.stream.outbox.seq - 1)
    events = lone.attach(-1)
    assert kinds(events) == ["Snapshot", "Final", "Attached"]
    told = snapshot(events)
    assert (told.seq, told.text) == (1, "so EN"), "with the text that was held back until then"
    assert events[1] == last


def test_a_snapshot_does_not_tell_what_a_stop_string_may_begin_with() -> None:
    lone = LoneStream(stop=["END"])
    read_up_to(lone, "so EN")
    told = snapshot(lone.attach(-1))
    assert (told.text, told.index) == ("so ", 5)


def test_more_events_than_are_kept_are_a_snapshot_for_whoever_has_none_of_them() -> None:
    lone = LoneStream(credit=Credit(limit=1))
    for _ in range(HISTORY_LIMIT // 2 + 1):
        lone.steer(protocol.Pause(request_id="a"))
        lone.steer(protocol.Resume(request_id="a"))
        lone.answer(api.Paused(0), api.Resumed(0))
    events = lone.take()
    assert kinds(lone.attach(-1)) == ["Snapshot", "Attached"]
    kept = lone.attach(len(events) - 1 - HISTORY_LIMIT)
    assert kept[:-1] == events[-HISTORY_LIMIT:]
