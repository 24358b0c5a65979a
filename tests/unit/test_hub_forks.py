"""Forks: streams that begin as another one stands, each rule by an example on a whole server."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from engine import api
from midstream import protocol
from midstream.protocol import Credit, Fork, Grammar, Message, Params
from realtime.hub.hub import KEPT_BYTE_S
from tests.fakes.checking_client import Account, Reader
from tests.fakes.lone_stream import PROMPT, RUN_OUT, LoneStream, kinds, text
from tests.fakes.recording_listener import RecordingListener
from tests.fakes.simulated_client import opened, refused, rest, run_out, start
from tests.fakes.simulated_server import EngineSize, SimulatedServer

ROOM = EngineSize(kv_tokens=4096, block=16, step_tokens=4096, slots=12)


def told(server: SimulatedServer, reader: Reader, frame: protocol.Start) -> Account:
    """A stream to its end."""
    reader.send(frame)
    account = reader.accounts[-1]
    run_out(server, account)
    return account


def opened_and_read() -> tuple[SimulatedServer, Reader]:
    server, reader = opened(ROOM)
    reader.prompt = True
    return server, reader


def parent(length: int = 60, **fields: Any) -> tuple[SimulatedServer, Reader, Account]:
    """A stream of so many tokens, which has ended; it was sampled."""
    server, reader = opened_and_read()
    params = Params(seed=5, temperature=1.0, max_tokens=length, ignore_eos=True)
    account = told(server, reader, start(**({"params": params} | fields)))
    return server, reader, account


def fork(name: str, at: int | None, /, of: str = "a", **params: Any) -> protocol.Start:
    return protocol.Start(
        request_id=name, fork=Fork(request_id=of, at=at), params=Params(**params), return_tokens=True
    )


@pytest.mark.parametrize("at", [0, 1, 15, 16, 33, 59])
def test_with_its_parents_seed_a_fork_goes_on_as_its_parent_did(at: int) -> None:
    server, reader, first = parent()
    again = told(server, reader, fork("b", at, seed=5))
    assert (again.tokens, again.text) == (first.tokens, first.text)
    assert again.final is not None
    assert again.final.usage.inherited_tokens == at


def test_without_a_seed_every_fork_has_one_of_its_own() -> None:
    server, reader, _ = parent()
    branches = [told(server, reader, fork(name, 20)) for name in "bcd"]
    assert len({str(one.params[0][1].seed) for one in branches}) == 3
    assert len({one.text for one in branches}) == 3
    assert len({one.text[:5] for one in branches}) == 1


def test_the_parent_may_run_and_goes_on_as_if_nothing_had_been() -> None:
    _, _, alone = parent()
    server, reader = opened_and_read()
    reader.send(start(params=Params(seed=5, temperature=1.0, max_tokens=60, ignore_eos=True)))
    for _ in range(30):
        server.tick()
    first = reader.accounts[0]
    read = len(first.tokens)
    assert 0 < read < 60
    reader.send(fork("b", None))
    assert reader.accounts[1].began_with == read, "behind all that was sent"
    for account in reader.accounts:
        run_out(server, account)
    assert first.tokens == alone.tokens
    assert reader.accounts[1].tokens[:read] == alone.tokens[:read]


def test_eight_forks_share_what_they_have_in_common_and_take_memory_for_their_own_tokens_alone() -> None:
    server, reader = opened_and_read()
    reader.send(start(params=Params(seed=5, ignore_eos=True, max_tokens=2000)))
    first = reader.accounts[0]
    while len(first.tokens) < 1000:
        server.tick()
    reader.send(protocol.Pause(request_id="a"))
    rest(server)
    used, read = server.engine.cache.used, len(first.tokens)
    for name in "bcdefghi":
        reader.send(fork(name, read, max_tokens=read + 40))
        reader.send(protocol.Pause(request_id=name))
    rest(server)
    for name in "bcdefghi":
        reader.send(protocol.Resume(request_id=name))
    most = used
    while not server.at_rest:
        server.tick()
        most = max(most, server.engine.cache.used)
    own = -(-40 // 16) + 1  # blocks: the first of them was begun by the parent
    assert most - used <= 8 * own
    assert all(len(account.tokens) == read + 40 for account in reader.accounts[1:])


def test_a_fork_has_what_was_injected_before_it_and_not_what_came_behind() -> None:
    server, reader = opened_and_read()
    reader.send(start(params=Params(seed=5, ignore_eos=True, max_tokens=40), credit=Credit(limit=10)))
    rest(server)
    reader.send(protocol.Inject(request_id="a", text=" and so"))
    reader.send(protocol.Grant(request_id="a", limit=20))
    rest(server)
    reader.send(protocol.Inject(request_id="a", text=" never"))
    rest(server)
    first = reader.accounts[0]
    (_, injected), _ = first.injections
    reader.send(fork("b", 15, seed=5, max_tokens=20))
    final = run_out(server, reader.accounts[1])
    assert final.usage.injected_tokens == len(injected)
    assert reader.accounts[1].tokens == first.tokens


def test_a_fork_lives_on_when_its_parent_and_its_engine_do_not() -> None:
    _, _, alone = parent()
    server, reader = opened_and_read()
    reader.send(start(params=Params(seed=5, temperature=1.0, max_tokens=60, ignore_eos=True)))
    for _ in range(20):
        server.tick()
    reader.send(fork("b", 10, seed=5))
    server.tick()
    reader.send(protocol.Cancel(request_id="a"))
    server.kill_engine()
    server.revive_engine()
    run_out(server, reader.accounts[1])
    assert reader.accounts[1].tokens == alone.tokens


def test_another_connection_of_the_tenant_may_fork_and_no_other() -> None:
    server, _, first = parent()
    sibling, stranger = Reader(server), Reader(server, "stranger")
    sibling.prompt = True
    sibling._by_name["a"] = stranger._by_name["a"] = first
    assert told(server, sibling, fork("b", 30, seed=5)).tokens == first.tokens
    stranger.send(fork("c", 30))
    assert refused(stranger).code == "unknown_request"


@pytest.mark.parametrize(
    ("frame", "code", "says"),
    [
        (fork("b", 61), "invalid_params", "`fork.at` is 61, but only 60 tokens of request a"),
        (fork("b", None), "invalid_params", "`params.max_tokens` is 60, and the fork begins at 60"),
        (fork("b", 5, max_tokens=5), "invalid_params", "`params.max_tokens` is 5, and the fork begins at 5"),
        (
            protocol.Start(request_id="b", prompt="Once", fork=Fork(request_id="a")),
            "invalid_frame",
            "one of `messages`, `prompt` and `fork`",
        ),
    ],
)
def test_a_fork_that_cannot_be_is_refused_and_leaves_nothing(
    frame: protocol.Start, code: str, says: str
) -> None:
    server, reader, _ = parent()
    reader.send(frame)
    error = refused(reader)
    assert error.code == code
    assert says in error.message
    assert not server.hub.streams


def test_a_second_start_of_the_same_fork_attaches_to_the_first() -> None:
    server, reader, first = parent()
    again = told(server, reader, fork("b", 30, seed=5))
    reader.send(fork("b", 30, seed=5))
    assert not reader.errors
    assert again.tokens == first.tokens


def test_a_grammar_goes_on_in_a_fork_and_another_begins_there() -> None:
    first = LoneStream(grammar=Grammar(regex="[0-9]{20}"))
    first.write("0123456")
    first.take()
    for asked, begins in ((Params(max_tokens=20), 0), (Params(grammar=Grammar(regex="[a-z]+")), 5)):
        context = first.stream.fork("b", 5, asked)
        again = LoneStream(context=context, asked={"fork": Fork(request_id="a")})
        (submit,) = again.commands
        assert isinstance(submit, api.Submit)
        assert submit.tokens == [*PROMPT, *b"01234"]
        assert submit.grammar_starts == (begins,)


def test_a_character_that_broke_off_at_the_parents_end_is_whole_in_its_fork() -> None:
    first = LoneStream()
    first.stream.receive_news(api.News(7, tokens=[0x61, 0xC3]), first.now)
    first.answer(finish=RUN_OUT)
    assert text(first.take()) == "a\ufffd"
    context = first.stream.fork("b", None, Params(max_tokens=5))
    again = LoneStream(context=context, asked={"fork": Fork(request_id="a")})
    again.stream.receive_news(api.News(7, index=2, tokens=[0xAF]), again.now)
    events = again.take()
    assert kinds(events) == ["Started", "Snapshot", "Token"]
    assert isinstance(events[1], protocol.Snapshot)
    assert events[1].text + text(events) == "aï"


def test_messages_put_into_a_fork_go_on_from_there() -> None:
    """A turn more, of a conversation that has ended."""
    server, reader, first = parent(messages=[Message(role="user", content="Hi")], prompt=None)
    asked = fork("b", None, max_tokens=80)
    asked.credit = Credit(limit=60)
    reader.send(asked)
    rest(server)
    turn = [Message(role="user", content="And then?")]
    reader.send(protocol.Inject(request_id="b", messages=turn))
    reader.send(protocol.Grant(request_id="b", limit=80))
    final = run_out(server, reader.accounts[1])
    assert final.usage.injected_tokens > 0
    assert reader.accounts[1].tokens[:60] == first.tokens


def test_who_forks_a_stream_with_a_long_history_pays_for_what_goes_to_its_engine() -> None:
    """To be kept there: a frame of a hundred bytes sent a MiB, so that one connection filled the way of
    everybody's commands, and a hundred MiB waited for it."""
    server = SimulatedServer(ROOM, keeps=True)
    listener = RecordingListener(server)
    listener.send(start(on_disconnect="continue", params=Params(ignore_eos=True)))
    for _ in range(20):
        listener.send(
            protocol.Adjust(request_id="a", params=Params(logit_bias=dict.fromkeys(range(300), 0.5)))
        )
        server.tick()
    before = listener.owed_s
    listener.send(replace(fork("b", 0), on_disconnect="continue"))
    submit = next(one for one in server.down[-1] if isinstance(one, api.Submit))
    assert submit.keep is not None
    assert len(submit.keep.record) > 20 * 300 * len(msgspec.msgpack.encode(0.5))
    assert listener.owed_s - before == pytest.approx(KEPT_BYTE_S * len(submit.keep.record), rel=0.05)
