"""The hub's own rules, each by an example: starting, finding, refusing, forgetting, and long texts."""

from __future__ import annotations

import asyncio

import pytest

from engine import api
from midstream import protocol
from midstream.protocol import Credit, Message, Params
from realtime.hub.hub import LONG_TEXT
from realtime.hub.registry import REFUSED
from tests.fakes.checking_client import Reader
from tests.fakes.simulated_client import LONG, SIZE, due, opened, refused, rest, run_out, settled, start
from tests.fakes.simulated_server import toy_tokenizer

# -- starting --------------------------------------------------------------------------------------


def test_started_comes_before_the_engine_has_seen_anything() -> None:
    server, reader = opened()
    reader.send(start())
    assert reader.accounts[0].started
    assert len(server.down) == 1


@pytest.mark.parametrize(
    ("frame", "code", "says"),
    [
        (start(model="gpt-9"), "unknown_model", 'no model "gpt-9"; this server has "toy"'),
        (start(prompt=None), "invalid_frame", "one of `messages`, `prompt` and `fork`"),
        (start(messages=[Message(role="user", content="Hi")]), "invalid_frame", "one of `messages`"),
        (start(prompt=""), "invalid_frame", "empty"),
        (start(prompt=[999]), "invalid_frame", "token 999; this model's tokens are 0 to 463"),
        (start(prompt=[999] * 4096), "context_too_long", "4096 tokens; the model's context holds 4096"),
        (start(prompt=[1] * 4096), "context_too_long", "4096 tokens; the model's context holds 4096"),
        (start(params=Params(logit_bias={999: 1})), "invalid_params", "token 999"),
        (start("."), "invalid_frame", '`request_id` is ".", which'),
        (start(".."), "invalid_frame", '`request_id` is "..", which'),
    ],
)
def test_a_start_that_cannot_be_is_refused_and_leaves_nothing(
    frame: protocol.Start, code: str, says: str
) -> None:
    server, reader = opened()
    reader.send(frame)
    error = refused(reader)
    assert (error.code, error.request_id, error.ref) == (code, frame.request_id, frame.ref)
    assert says in error.message
    assert server.hub.streams == []
    assert not server.down
    reader.send(protocol.Pause(request_id=frame.request_id))
    assert refused(reader).code == "unknown_request"


def test_a_second_start_with_other_content_is_a_conflict_and_harms_nothing() -> None:
    server, reader = opened()
    reader.send(start(params=Params(max_tokens=3, ignore_eos=True)))
    reader.send(start())
    assert refused(reader).code == "request_conflict"
    assert run_out(server, reader.accounts[0]).index == 3


def test_an_id_is_free_for_every_tenant() -> None:
    server, reader = opened()
    other = Reader(server, "other")
    for one in (reader, other):
        one.send(start(params=Params(max_tokens=1)))
        assert one.errors == []
    assert len(server.hub.streams) == 2
    for one in (reader, other):
        run_out(server, one.accounts[0])


def test_there_are_never_more_streams_than_the_engine_has_slots() -> None:
    server, reader = opened()
    for name in "abcd":
        reader.send(start(name, credit=Credit()))
    error = refused(reader)
    assert (error.code, error.request_id, error.retry_after_ms) == ("overloaded", "d", 1000)
    server.tick()
    assert len(server.engine.scheduler.sequences) == SIZE.slots
    reader.send(protocol.Cancel(request_id="a"))
    server.tick()
    reader.send(start("d"))
    assert reader.errors == []


async def test_a_long_start_counts_as_a_stream_once() -> None:
    _, reader = opened()
    for name in "abc":
        reader.send(start(name, prompt=LONG[: LONG_TEXT + 1], credit=Credit()))
    reader.send(start("d"))
    assert refused(reader).request_id == "d"
    await settled()
    assert [account.started for account in reader.accounts] == [True, True, True, False]


async def test_a_stream_with_a_long_inject_counts_once() -> None:
    _, reader = opened()
    for name in "ab":
        reader.send(start(name, credit=Credit()))
    reader.send(protocol.Inject(request_id="a", text=LONG[: LONG_TEXT + 1]))
    reader.send(start("c"))
    await settled()
    assert reader.errors == []


def test_a_server_that_drains_starts_nothing_and_finishes_what_runs() -> None:
    server, reader = opened()
    reader.send(start(params=Params(max_tokens=2)))
    server.hub.draining = True
    reader.send(start("b"))
    error = refused(reader)
    assert (error.code, error.retryable, error.retry_after_ms) == ("draining", True, 1000)
    run_out(server, reader.accounts[0])


# -- finding ---------------------------------------------------------------------------------------


def test_late_frames_for_what_has_ended() -> None:
    server, reader = opened()
    reader.send(start(params=Params(max_tokens=1)))
    run_out(server, reader.accounts[0])
    reader.send(protocol.Cancel(request_id="a"))
    reader.send(protocol.Grant(request_id="a", limit=100))
    assert reader.errors == [], "they crossed the final"
    reader.send(protocol.Rewind(request_id="a", to=0))
    assert refused(reader).code == "request_finished"
    assert not server.down


def test_streams_of_another_tenant_are_not_to_be_found() -> None:
    server, reader = opened()
    reader.send(start())
    stranger = Reader(server, "stranger")
    stranger.send(protocol.Cancel(request_id="a"))
    assert refused(stranger).code == "unknown_request"


@pytest.mark.parametrize(
    ("frame", "says"),
    [
        (protocol.Inject(request_id="a"), "one of `text`, `messages` and `tokens`"),
        (protocol.Inject(request_id="a", text="x", tokens=[1]), "one of `text`, `messages` and `tokens`"),
        (protocol.Inject(request_id="a", text=""), "empty"),
        (protocol.Inject(request_id="a", tokens=[464]), "token 464; this model's tokens are 0 to 463"),
    ],
)
def test_an_inject_that_says_nothing_or_too_much_is_refused(frame: protocol.Inject, says: str) -> None:
    server, reader = opened()
    reader.send(start())
    server.down.clear()
    reader.send(frame)
    error = refused(reader)
    assert error.code == "invalid_frame"
    assert says in error.message
    assert not server.down


def test_tokens_to_inject_that_are_too_many_are_not_looked_at() -> None:
    _, reader = opened()
    reader.send(start())
    reader.send(protocol.Inject(request_id="a", tokens=[464] * 4096))
    error = refused(reader)
    assert error.code == "context_too_long"
    assert "The inject has at least 4096 tokens" in error.message


# -- endings ---------------------------------------------------------------------------------------


def test_a_timeout_ends_a_stream_by_length() -> None:
    server, reader = opened()
    reader.send(start(timeout_ms=500, credit=Credit()))
    server.tick()
    server.clock.advance(0.4)
    assert not server.down
    server.clock.advance(0.2)
    final = run_out(server, reader.accounts[0])
    assert (final.finish_reason, final.stop_reason, final.index) == ("length", "timeout", 0)


def test_an_end_takes_its_timer_along() -> None:
    server, reader = opened()
    reader.send(start(timeout_ms=500, params=Params(max_tokens=1)))
    run_out(server, reader.accounts[0])
    assert server.clock.waiting == 0


def test_a_listener_that_goes_takes_its_streams_along_within_a_step() -> None:
    server, reader = opened()
    stays = Reader(server)
    reader.send(start())
    stays.send(start("b", credit=Credit()))
    server.tick()
    reader.leave()
    server.tick()
    assert [stream.request_id for stream in server.hub.streams] == ["b"]
    assert len(server.engine.scheduler.sequences) == 1


def test_a_listener_that_goes_leaves_no_stream_that_waits_for_its_credit() -> None:
    server, reader = due()
    reader.leave()
    assert server.hub.streams == []


async def test_cancelling_all_ends_those_too_that_wait_for_credit() -> None:
    server, reader = due()
    server.hub.cancel_all()
    final = reader.accounts[0].final
    assert final is not None
    assert (final.finish_reason, final.index) == ("cancelled", 1)
    await server.hub.wait_until_empty()


def test_of_all_that_are_cancelled_some_end_in_each_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """As when a key is revoked; frames that an end refuses weigh as streams do."""
    monkeypatch.setattr("realtime.hub.hub.CANCELLED_A_TURN", 2)
    server, reader = opened()
    for name in "abc":
        reader.send(start(name, credit=Credit(limit=0)))
    server.kill_engine()
    for _ in range(REFUSED):
        reader.send(protocol.Rewind(request_id="a", to=0))
    server.hub.cancel_all()
    assert [stream.request_id for stream in server.hub.streams] == ["b", "c"]
    server.clock.advance(0)
    assert not server.hub.streams


def test_where_one_fails_those_before_and_behind_it_are_cancelled_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server, reader = opened()
    for name in "abc":
        reader.send(start(name, credit=Credit(limit=0)))
    rest(server)
    monkeypatch.setattr(server.hub.streams[1], "cancel", lambda now, step: 1 // 0)
    server.hub.cancel_all()
    assert [type(command) for said in server.down for command in said] == [api.Cancel] * 3
    rest(server)
    assert not server.hub.streams
    finals = [account.final for account in reader.accounts]
    assert [final and final.finish_reason for final in finals] == ["cancelled", "error", "cancelled"]


def test_a_listener_that_stalls_delays_nobody() -> None:
    server, stalled = opened()
    other = Reader(server)
    params = Params(max_tokens=12, ignore_eos=True)
    stalled.send(start(params=params))
    stalled.ready = False
    other.prompt = True
    other.send(start("b", params=params))
    assert run_out(server, other.accounts[0]).index == 12
    rest(server)
    (stream,) = server.hub.streams
    assert len(stream.output) == server.window, "and decodes no more than its window"


# -- long texts ------------------------------------------------------------------------------------


async def test_frames_for_a_stream_wait_behind_its_long_text_and_others_do_not() -> None:
    server, reader = opened()
    reader.send(start("a", prompt=LONG[: LONG_TEXT + 1]))
    reader.send(protocol.Pause(request_id="a"))
    reader.send(protocol.Cancel(request_id="a"))
    reader.send(start("b"))
    assert [account.started for account in reader.accounts] == [False, True]
    await settled()
    assert reader.accounts[0].started
    assert run_out(server, reader.accounts[0]).finish_reason == "cancelled"
    assert reader.errors == []


async def test_a_listener_that_went_while_its_text_was_tokenized_starts_nothing() -> None:
    server, reader = opened()
    reader.send(start("a", prompt=LONG[: LONG_TEXT + 1]))
    reader.leave()
    await settled()
    assert server.hub.streams == []
    await server.hub.wait_until_empty()


async def test_a_long_text_that_is_too_long_is_refused_with_both_numbers() -> None:
    _, reader = opened()
    reader.send(start("a", prompt=3 * LONG))
    await settled()
    error = refused(reader)
    assert error.code == "context_too_long"
    assert f"{len(toy_tokenizer().encode(3 * LONG))} tokens" in error.message
    assert "4096" in error.message


async def test_quiet_is_when_no_stream_is_left_and_no_text_waits() -> None:
    server, reader = opened()
    await server.hub.wait_until_empty()
    reader.send(start("a", prompt=LONG[: LONG_TEXT + 1], params=Params(max_tokens=1)))
    waiting = asyncio.create_task(server.hub.wait_until_empty())
    await settled(waiting)
    assert reader.accounts[0].started
    assert not waiting.done()
    run_out(server, reader.accounts[0])
    await waiting
