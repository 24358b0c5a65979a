"""Starts with a past: a stream begins with what its client knows of one that is gone, each rule by an example
on a whole server."""

from __future__ import annotations

from typing import Any

import pytest

from engine import toy_model
from midstream import protocol
from midstream.protocol import (
    Adjust,
    Credit,
    Fork,
    Grammar,
    Guard,
    Inject,
    Message,
    Params,
    Past,
    PastAdjust,
    PastInject,
    Rewind,
    Snapshot,
)
from realtime.hub.rebuilt_stream import RebuiltStream
from realtime.stream.owner import Owner
from realtime.stream.past import A_TURN
from tests.fakes.checking_client import Account, Reader
from tests.fakes.recording_listener import RecordingListener
from tests.fakes.simulated_client import opened, refused, rest, run_out, settled, start
from tests.fakes.simulated_server import EngineSize, SimulatedServer

ROOM = EngineSize(kv_tokens=4096, block=16, step_tokens=4096, slots=12)
PARAMS: dict[str, Any] = {"seed": 5, "temperature": 1.0, "max_tokens": 60, "ignore_eos": True}


def opened_and_read() -> tuple[SimulatedServer, Reader]:
    server, reader = opened(ROOM)
    reader.prompt = True
    return server, reader


def told(server: SimulatedServer, reader: Reader, frame: protocol.Start) -> Account:
    """A stream to its end."""
    reader.send(frame)
    account = reader.accounts[-1]
    run_out(server, account)
    return account


def again(past: Past, **fields: Any) -> protocol.Start:
    return start("b", past=past, **({"params": Params(**PARAMS)} | fields))


@pytest.mark.parametrize("at", [0, 1, 15, 33, 59])
def test_it_goes_on_as_the_other_did(at: int) -> None:
    server, reader = opened_and_read()
    first = told(server, reader, start(params=Params(**PARAMS)))
    second = told(server, reader, again(Past(tokens=first.tokens[:at])))
    assert (second.tokens, second.text) == (first.tokens, first.text)
    assert second.final is not None
    assert second.final.usage.inherited_tokens == at


def test_so_it_does_where_the_other_was_steered() -> None:
    server, reader = opened_and_read()
    reader.send(start(params=Params(**PARAMS), credit=Credit(limit=10)))
    first = reader.accounts[-1]
    for limit, frame in (
        (20, Adjust(request_id="a", params=Params(temperature=0.5), ref="1")),
        (30, Inject(request_id="a", text=" so ", ref="2")),
        (30, Inject(request_id="a", messages=[Message(role="user", content="Hm")], ref="3")),
        (60, Rewind(request_id="a", to=24, ref="4")),
    ):
        rest(server)
        reader.send(frame)
        rest(server)
        reader.send(protocol.Grant(request_id="a", limit=limit))
    run_out(server, first)
    past = Past(
        tokens=first.tokens[:40],
        steering=[
            PastAdjust(index=10, params=Params(temperature=0.5)),
            PastInject(index=20, text=" so "),
        ],
    )
    second = told(server, reader, again(past))
    assert (second.tokens, second.text) == (first.tokens, first.text)
    assert first.final is not None
    assert second.final is not None
    assert second.final.usage.injected_tokens == first.final.usage.injected_tokens > 0


@pytest.mark.parametrize(
    ("fields", "code", "what"),
    [
        ({"past": Past(), "prompt": None, "fork": Fork(request_id="a")}, "invalid_frame", "a fork has"),
        ({"past": Past(tokens=[1] * 61)}, "invalid_params", "`past` has 61 tokens: ask for more"),
        ({"past": Past(tokens=[1 << 20])}, "invalid_frame", "`past.tokens` has token 1048576"),
        (
            {"past": Past(tokens=[1], steering=[PastInject(index=2, text="a")])},
            "invalid_frame",
            "a step at token 2",
        ),
        (
            {
                "past": Past(
                    tokens=[1, 1], steering=[PastInject(index=1, text="a"), PastInject(index=0, text="a")]
                )
            },
            "invalid_frame",
            "a step at token 0",
        ),
        ({"past": Past(steering=[PastInject(index=0)])}, "invalid_frame", "has one of"),
        ({"past": Past(tokens=[97], call_ids=["c"])}, "invalid_frame", "has 1, and 0 calls stand"),
        ({"past": Past(tokens=[97], call_ids=["c", "d", "c"])}, "invalid_frame", 'has "c" twice'),
        ({"past": Past(tokens=[97], waits=True)}, "invalid_frame", "`past.waits` is true, and it could not"),
        (
            {"past": Past(), "params": Params(guards=[Guard(name="a", do="tell", regex="b")])},
            "unsupported",
            "no `guards`",
        ),
        (
            {"past": Past(tokens=[10_000 % 250] * 59, steering=[PastInject(index=0, tokens=[1] * 9000)])},
            "context_too_long",
            "context",
        ),
    ],
)
def test_what_could_not_have_been_is_refused(fields: dict[str, Any], code: str, what: str) -> None:
    server, reader = opened_and_read()
    told(server, reader, start(params=Params(**PARAMS)))
    reader.send(start("b", **({"params": Params(**PARAMS)} | fields)))
    error = refused(reader)
    assert error.code == code
    assert what in error.message


def test_it_is_refused_behind_what_it_would_have_stopped_at() -> None:
    server, reader = opened_and_read()
    first = told(server, reader, start(params=Params(**PARAMS)))
    stop = first.text[10:13]
    reader.send(again(Past(tokens=first.tokens[:40]), params=Params(**PARAMS, stop=stop)))
    assert "beyond the end of the stream" in refused(reader).message


@pytest.mark.parametrize(
    "params",
    [
        {},
        {"stop": " "},
        {"stop": " ", "max_tokens": 1},
        {"ignore_eos": False, "min_tokens": 7, "logit_bias": {toy_model.EOS: 100.0}},
        {"ignore_eos": False, "min_tokens": 7, "logit_bias": {toy_model.EOS: 100.0}, "max_tokens": 8},
    ],
    ids=["its length", "a stop string", "one with its length", "an end token", "one with its length"],
)
def test_one_that_had_come_to_its_end_ends(params: dict[str, Any]) -> None:
    """What was lost of it was how it ended; nothing is sampled behind that."""
    server, reader = opened_and_read()
    asked = Params(**PARAMS | params)
    first = told(server, reader, start(params=asked))
    second = told(server, reader, again(Past(tokens=first.tokens), params=asked))
    assert first.final is not None
    assert second.final is not None
    assert (second.tokens, second.text) == (first.tokens, first.text)
    for what in ("index", "finish_reason", "stop_reason"):
        assert getattr(second.final, what) == getattr(first.final, what)
    run_out(server, second)
    assert server.hub.streams == []


@pytest.mark.parametrize(("tokens", "text"), [([97, 98], "ab"), ([97, 195], "a\ufffd"), ([97, 60], "a<")])
async def test_what_was_told_in_the_end_alone_stands_where_all_of_it_was(
    tokens: list[int], text: str
) -> None:
    """It may begin a stop string, or a character."""
    server = SimulatedServer(ROOM)
    listener = RecordingListener(server)
    params = Params(**PARAMS | {"stop": ["bc", "<>"], "max_tokens": 2})
    listener.send(again(Past(tokens=tokens, text_length=len(text)), params=params))
    await settled()
    rest(server)
    (_, snapshot, final) = listener.heard
    assert isinstance(snapshot, Snapshot)
    assert isinstance(final, protocol.Final)
    assert (snapshot.text, final.finish_reason) == (text, "length")


def test_where_something_was_put_in_behind_an_end_token_it_goes_on() -> None:
    server, reader = opened_and_read()
    params = Params(**PARAMS | {"ignore_eos": False, "max_tokens": 3})
    past = Past(tokens=[97, toy_model.EOS], steering=[PastInject(index=2, tokens=[98])])
    second = told(server, reader, again(past, params=params))
    assert second.final is not None
    assert second.final.index == 3


def test_so_it_does_where_it_was_not_to_end_by_that() -> None:
    server, reader = opened_and_read()
    params, ends = Params(**PARAMS | {"max_tokens": 3}), Params(ignore_eos=False)
    past = Past(tokens=[97, toy_model.EOS], steering=[PastAdjust(index=2, params=ends)])
    second = told(server, reader, again(past, params=params))
    assert second.final is not None
    assert second.final.index == 3


def test_one_that_was_to_have_fewer_tokens_than_it_had_ended_with_that() -> None:
    server, reader = opened_and_read()
    fewer = PastAdjust(index=3, params=Params(max_tokens=2))
    second = told(server, reader, again(Past(tokens=[97] * 3, steering=[fewer])))
    assert second.final is not None
    assert (second.final.index, second.final.finish_reason) == (3, "length")


def test_nothing_is_sampled_behind_a_stop_string_that_it_had_met() -> None:
    """An engine that has much to do hears of its end a step later."""
    server, reader = opened_and_read()
    params = Params(**PARAMS | {"stop": " "})
    first = told(server, reader, start(params=params))
    rest(server)
    reader.send(again(Past(tokens=first.tokens), params=params))
    (said,), sampled = server.down, server.engine.tokens_total
    server.down.clear()
    for command in said:
        server.down.append([command])
        server.engines[0].deliver_down()
        server.engines[0].step()
    final = run_out(server, reader.accounts[-1])
    assert (final.index, final.finish_reason, final.stop_reason) == (1, "stop", " ")
    rest(server)
    assert server.engine.tokens_total == sampled


@pytest.mark.parametrize(("text_length", "text"), [(None, "aaa"), (3, "aaa"), (9, "aaa"), (2, "aa")])
async def test_what_a_rewind_had_taken_back_of_its_text_is_held(text_length: int | None, text: str) -> None:
    """Which a stop string may begin that came when it had been told."""
    server = SimulatedServer(ROOM, keeps=True)
    listener = RecordingListener(server)
    stop = PastAdjust(index=3, params=Params(stop=["ab"]))
    past = Past(tokens=[97] * 3, text_length=text_length, steering=[stop])
    listener.send(again(past, on_disconnect="pause", credit=Credit(limit=0)))
    await settled()
    (stream,) = server.hub.streams
    rest(server)
    (snapshot,) = [event for event in listener.heard if isinstance(event, Snapshot)]
    assert snapshot.text == stream.output.text(3, flushed=False) == text
    journal = server.engines[0].keeping.kept[stream.number].journal.told()
    rebuilt = RebuiltStream(
        1, b"b", journal, stream.model, owner=Owner(1, 1), window=server.window, ahead_s=0
    )
    for _ in rebuilt.replay():
        pass
    assert rebuilt.stream.output.text(3, flushed=False) == text


async def test_who_builds_it_again_from_its_journal_reads_a_long_past_in_many_turns() -> None:
    server = SimulatedServer(ROOM, keeps=True)
    listener = RecordingListener(server)
    past = Past(tokens=[97] * 2000, steering=[PastInject(index=1000, tokens=[98] * 10)])
    params = Params(**PARAMS | {"max_tokens": 2010})
    listener.send(start("b", past=past, params=params, on_disconnect="pause"))
    await settled()
    rest(server)
    (stream,) = server.hub.streams
    journal = server.engines[0].keeping.kept[stream.number].journal.told()
    rebuilt = RebuiltStream(
        1, b"b", journal, stream.model, owner=Owner(1, 1), window=server.window, ahead_s=0
    )
    assert sum(1 for _ in rebuilt.replay()) >= 2000 // A_TURN
    assert rebuilt.stream.output.tokens[:2000] == stream.output.tokens[:2000]


TURN = Message(role="user", content="a")


@pytest.mark.parametrize(
    "steering",
    [
        [PastAdjust(index=0, params=Params(temperature=1.0))] * 10,
        [PastAdjust(index=0, params=Params(stop=["x" * 64]))],
        [PastAdjust(index=0, params=Params(logit_bias=dict.fromkeys(range(200), 1.0)))],
        [
            PastAdjust(index=0, params=Params(grammar=Grammar(regex="a" * 100))),
            PastAdjust(index=0, params=Params(grammar=None)),
        ],
        [PastInject(index=0, tokens=[98])] * 10,
        [PastInject(index=0, messages=[TURN])],
    ],
    ids=["steps", "stops", "biases", "grammars", "tokens", "turns"],
)
async def test_what_was_asked_for_in_it_is_done_again_while_others_have_their_turn(
    steering: list[PastAdjust | PastInject],
) -> None:
    """A megabyte of stop strings takes seconds."""
    server, reader = opened_and_read()
    reader.send(again(Past(tokens=[97], steering=steering)))
    assert server.hub.streams == []
    await settled()
    assert len(server.hub.streams) == 1


async def test_so_does_whoever_builds_it_again() -> None:
    server = SimulatedServer(ROOM, keeps=True)
    listener = RecordingListener(server)
    past = Past(tokens=[97], steering=[PastAdjust(index=1, params=Params(top_k=40))] * 50)
    listener.send(start("b", past=past, params=Params(**PARAMS), on_disconnect="pause"))
    await settled()
    for _ in range(70):
        listener.send(Adjust(request_id="b", params=Params(top_k=50)))
    rest(server)
    (stream,) = server.hub.streams
    journal = server.engines[0].keeping.kept[stream.number].journal.told()
    rebuilt = RebuiltStream(
        1, b"b", journal, stream.model, owner=Owner(1, 1), window=server.window, ahead_s=0
    )
    assert sum(1 for _ in rebuilt.replay()) >= 120


async def test_so_does_whoever_builds_a_fork_of_forks_again() -> None:
    server = SimulatedServer(ROOM, keeps=True)
    listener = RecordingListener(server)
    listener.send(start("0", params=Params(**PARAMS), on_disconnect="pause"))
    rest(server)
    for at in range(5):
        fork = Fork(request_id=str(at), at=1)
        listener.send(protocol.Start(request_id=str(at + 1), fork=fork, on_disconnect="pause"))
        rest(server)
    stream = server.hub.streams[-1]
    journal = server.engines[0].keeping.kept[stream.number].journal.told()
    rebuilt = RebuiltStream(
        1, b"5", journal, stream.model, owner=Owner(1, 1), window=server.window, ahead_s=0
    )
    assert sum(1 for _ in rebuilt.replay()) >= 5
    assert rebuilt.stream.output.tokens == stream.output.tokens


async def test_a_fork_of_too_many_generations_is_kept_for_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """All that it comes from would be built, one within the other: some hundreds are too deep for that."""
    monkeypatch.setattr("realtime.hub.stream_record.MOST_GENERATIONS", 2)
    server = SimulatedServer(ROOM, keeps=True)
    listener = RecordingListener(server)
    listener.send(start("0", params=Params(**PARAMS), on_disconnect="pause"))
    for at in range(4):
        rest(server)
        fork = Fork(request_id=str(at), at=1)
        listener.send(protocol.Start(request_id=str(at + 1), fork=fork, on_disconnect="pause"))
    rest(server)
    assert [stream.is_kept for stream in server.hub.streams] == [True, True, True, False, False]
