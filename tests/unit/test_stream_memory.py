"""What streams hold in the gateway for readers that do not read: bounded in bytes, whatever it is, and paid
for."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import msgspec
import pytest

from engine import api
from midstream import protocol
from midstream.protocol import MAX_TOOLS, Credit, Params
from realtime.codec import Codec
from realtime.refusal import Refusal
from realtime.stream import credit as credit_module
from realtime.stream import memory, weights
from realtime.stream.credit import AHEAD_BYTES, LEAST_AHEAD_BYTES
from realtime.stream.memory import MemoryAccount, event_bytes
from realtime.stream.pending_commands import MOST_UNDER_WAY, PendingCommand
from realtime.stream.spanned_text import SpannedText
from realtime.stream.stream import UNREAD_LIMIT
from realtime.text.stop_strings import StopMatcher
from realtime.tools.offered import argument_kinds
from tests.fakes.lone_stream import LoneStream
from tests.fakes.recording_listener import RecordingListener
from tests.fakes.simulated_client import endless, opened, rest, start
from tests.fakes.simulated_server import SimulatedServer, toy_tokenizer

HUGE = 2**31 - 1
BIAS = dict.fromkeys(range(256), 1.0)


def grants(lone: LoneStream) -> list[int]:
    return [command.credit for command in lone.commands if isinstance(command, api.Grant | api.Submit)]


def adjusted(lone: LoneStream) -> None:
    lone.steer(protocol.Adjust(request_id="a", params=Params(logit_bias=BIAS)))
    lone.answer(api.Adjusted(lone.index))


UNREAD = "limit of 512 KiB of events that wait to be read"
FULL = "The limit of 0 MiB that is held for the streams of all"


def until_refused(act: Callable[[], None], why: str = UNREAD) -> int:
    """How often it was done before the stream's unread events were too many."""
    times = 0
    with suppress(Refusal):
        while times < 100_000:
            act()
            times += 1
    with pytest.raises(Refusal, match=why):
        act()
    return times


# -- one stream ----------------------------------------------------------------------------------------


def test_who_attaches_again_and_again_and_reads_nothing_is_kept_one_replay() -> None:
    lone = LoneStream()
    lone.write("some text")
    lone.take()
    lone.stream.attach(-1, 0, "attach", anew=False)
    before = lone.stream.bytes
    attaches = until_refused(lambda: lone.stream.attach(-1, 0, "attach", anew=False))
    assert attaches > 100
    assert lone.stream.bytes - before < UNREAD_LIMIT + 1000
    assert lone.take()
    lone.stream.attach(-1, 0, "attach", anew=False)


def test_who_adjusts_again_and_again_and_reads_nothing_is_refused_in_time() -> None:
    lone = LoneStream()
    until_refused(lambda: adjusted(lone))
    assert lone.stream.outbox.unread_bytes < UNREAD_LIMIT + 40_000
    lone.take()
    adjusted(lone)


def test_an_attach_that_is_refused_changes_no_number_of_events_whatever_it_says_of_them() -> None:
    """One of another epoch is counted behind the last that its client has."""
    lone = LoneStream()
    until_refused(lambda: adjusted(lone))
    before = lone.stream.outbox.seq
    with pytest.raises(Refusal, match="wait to be read"):
        lone.stream.attach(1000, 0, anew=False, epoch=1)
    assert lone.stream.outbox.seq == before


def test_cancels_from_elsewhere_weigh_until_the_final_and_only_the_first_is_never_refused() -> None:
    lone = LoneStream(credit=Credit(limit=HUGE))
    heard: list[object] = []
    before = lone.memory.held
    times = until_refused(lambda: lone.stream.cancel(lone.now, 0, "ref", heard.append))
    assert lone.memory.held > before + 300 * times
    lone.answer(finish=api.Finish("cancelled"))
    assert len(heard) == times
    assert lone.memory.held < before + 1000
    loaded = LoneStream(credit=Credit(limit=HUGE))
    until_refused(lambda: adjusted(loaded))
    loaded.stream.cancel(loaded.now, 0, "ref", heard.append)


def test_however_much_was_granted_only_so_much_is_decoded_ahead_of_a_reader() -> None:
    lone = LoneStream(credit=Credit(limit=HUGE, prefetch=5))
    ahead = grants(lone)[0]
    assert 1000 < ahead < AHEAD_BYTES
    lone.write("ab")
    assert grants(lone) == [ahead], "nothing was taken"
    lone.take()
    assert grants(lone) == [ahead], "there is enough to decode"


def test_log_probabilities_weigh_and_so_fewer_tokens_are_decoded_ahead() -> None:
    plain, told = (LoneStream(credit=Credit(limit=HUGE), logprobs=most) for most in (None, 20))
    assert 10 * grants(told)[0] < grants(plain)[0]


def test_a_reader_that_goes_on_reading_has_all_it_granted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(credit_module, "AHEAD_BYTES", 600)
    server, _ = opened()
    listener = RecordingListener(server)
    listener.send(endless(credit=Credit(limit=200), stream_interval=50))
    rest(server)
    assert sum(event.count for event in listener.heard if isinstance(event, protocol.Token)) == 200


def test_a_matcher_of_stop_strings_is_built_when_it_is_asked_for_and_not_when_it_takes_effect(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lone = LoneStream()
    lone.steer(protocol.Adjust(request_id="a", params=Params(stop=["never built again"])))
    monkeypatch.setattr(StopMatcher, "__init__", None)
    lone.answer(api.Adjusted(0))


# -- all streams of a listener -------------------------------------------------------------------------


def full(lone: LoneStream) -> None:
    lone.memory.limit = 1


def test_a_full_account_refuses_what_would_add_to_it_and_no_stop() -> None:
    lone = LoneStream(credit=Credit(limit=HUGE))
    full(lone)
    for frame in (
        protocol.Adjust(request_id="a", params=Params(top_k=5)),
        protocol.Inject(request_id="a", tokens=[1]),
        protocol.Rewind(request_id="a", to=0),
    ):
        with pytest.raises(Refusal, match=FULL):
            lone.steer(frame)
    lone.steer(protocol.Pause(request_id="a"))
    lone.cancel()
    assert isinstance(lone.commands[-1], api.Cancel)


def test_of_a_full_account_no_stream_has_much_wait_that_is_not_read() -> None:
    """Each of a thousand streams could have 512 KiB of answers wait, whatever the account's limit was."""
    lone = LoneStream(credit=Credit(limit=HUGE))
    full(lone)

    def paused_and_resumed() -> None:
        lone.steer(protocol.Pause(request_id="a"))
        lone.answer(api.Paused(0))
        lone.steer(protocol.Resume(request_id="a"))
        lone.answer(api.Resumed(0))

    assert 1 < until_refused(paused_and_resumed, FULL) < 20
    lone.take()
    lone.steer(protocol.Resume(request_id="a"))
    heard: list[object] = []
    assert 1 < until_refused(lambda: lone.stream.cancel(lone.now, 0, "ref", heard.append), FULL) < 20


def test_nothing_is_told_again_to_whoever_listens_where_its_account_is_full() -> None:
    server, _ = opened()
    listener = RecordingListener(server)
    listener.send(endless())
    rest(server)
    listener.memory.limit = 0
    listener.send(protocol.Attach(request_id="a", after=-1))
    assert listener.error().code == "rate_limited"
    assert server.hub.streams[0].outbox.unread_bytes == 0


@pytest.mark.parametrize("arguments", ["", '"a":{"type":"number"}', '"a":{"type":"string"}'])
def test_what_is_known_of_many_tools_weighs_what_it_takes(arguments: str) -> None:
    parameters = f'{{"type":"object","properties":{{{arguments}}}}}'
    tools = [f'{{"function":{{"name":"f{at}","parameters":{parameters}}}}}' for at in range(MAX_TOOLS)]
    written = f"[{','.join(tools)}]".encode()

    def known() -> SpannedText:
        kinds = argument_kinds(msgspec.json.decode(written, type=list[protocol.Tool]))
        return SpannedText(toy_tokenizer(), "a", kinds, [65], (), 0, one_call=False)

    known()
    tracemalloc.start()
    try:
        kept = [known()]  # and what Python keeps of what is no more, for the next
        before = tracemalloc.get_traced_memory()[0]
        kept += [known() for _ in range(10)]
        assert tracemalloc.get_traced_memory()[0] - before < sum(one.weight for one in kept[1:])
    finally:
        tracemalloc.stop()


def test_what_is_held_is_counted_as_it_comes_and_goes() -> None:
    lone = LoneStream()
    idle = lone.memory.held
    lone.write("text")
    assert lone.memory.held > idle + 4 * 100
    lone.take()
    lone.stream.acknowledge(4, lone.stream.outbox.seq - 1)
    assert lone.memory.held < idle + 4 * 100
    other = MemoryAccount(1)
    lone.stream.use_account(other)
    assert (lone.memory.held, other.held, other.full) == (0, lone.stream.bytes, True)
    lone.stream.release_memory()
    assert other.held == 0


def test_all_streams_share_the_names_of_what_they_know() -> None:
    """CPython keeps up to 29 of them with the class. With more each stream has a table of its own, 1.3 KiB:
    what is more belongs into a room beside it."""
    assert len(vars(LoneStream().stream)) <= 29


def test_nothing_more_starts_and_nothing_is_attached_where_an_account_is_full() -> None:
    server, _ = opened()
    reader, other = RecordingListener(server), RecordingListener(server)
    reader.send(endless("a", on_disconnect="pause"))
    other.memory.limit = 0
    for frame in (endless("b"), protocol.Attach(request_id="a", after=-1)):
        other.send(frame)
        assert other.error().code == "rate_limited"
    assert [stream.request_id for stream in server.hub.streams] == ["a"]
    assert reader.lost == []


def test_streams_that_nobody_reads_are_their_tenants_and_end_where_those_are_too_many() -> None:
    server, _ = opened()
    listener = RecordingListener(server)
    for name in "ab":
        listener.send(endless(name, on_disconnect="pause"))
    rest(server)
    server.hub.accounts.each = listener.memory.held // 2 + 3000
    listener.leave()
    rest(server)
    assert [stream.request_id for stream in server.hub.streams] == ["a"]
    assert listener.memory.held == 0


def test_accounts_are_parts_of_one_that_has_a_limit_too() -> None:
    total = MemoryAccount(10_000)
    one, other = MemoryAccount(1 << 20, total), MemoryAccount(1 << 20, total)
    one.add(9_999)
    other.check()
    other.add(1)
    with pytest.raises(Refusal, match=FULL) as refused:
        one.check()
    assert refused.value.code == "overloaded"
    one.add(-9_999)
    assert (total.held, one.full, other.full) == (1, False, False)


def test_many_streams_of_one_account_may_not_decode_more_ahead_together_than_it_has_room_for() -> None:
    limit, many = 1 << 20, 40
    account = MemoryAccount(limit)
    streams = [
        LoneStream(credit=Credit(limit=HUGE), max_tokens=HUGE, logprobs=20, memory=account)
        for _ in range(many)
    ]
    assert account.promised > limit // 2
    assert account.held + account.promised <= limit + many * LEAST_AHEAD_BYTES
    for lone in streams:
        before = account.held + account.promised
        lone.write("x" * grants(lone)[-1], logprob=api.Logprob(-1.0, [(1, -1.0)] * 20))
        assert account.held + account.promised == pytest.approx(before, abs=20_000)
        assert account.promised >= 0
    assert account.held <= limit + many * LEAST_AHEAD_BYTES
    assert account.promised == 0
    streams[0].take()
    assert account.promised > 0, "who reads may have more decoded"
    for lone in streams:
        lone.cancel()
        lone.answer(finish=api.Finish("cancelled"))
        lone.take()
        lone.stream.release_memory()
    assert (account.held, account.promised) == (0, 0)


def test_to_a_short_stream_no_more_is_promised_than_it_can_have() -> None:
    short, long = LoneStream(credit=Credit(limit=HUGE), max_tokens=2), LoneStream(credit=Credit(limit=HUGE))
    assert 0 < short.memory.promised < long.memory.promised
    short.write("ab", finish=api.Finish("length"))
    assert short.memory.promised == 0


def test_of_streams_that_are_read_and_not_acknowledged_a_full_account_keeps_little() -> None:
    roomy, narrow = LoneStream(), LoneStream(memory=MemoryAccount(9_000))
    for lone in (roomy, narrow):
        lone.stream.grant(30, lone.now)
        for _ in range(30):
            lone.steer(protocol.Pause(request_id="a"))
            lone.answer(api.Paused(lone.index))
            lone.steer(protocol.Resume(request_id="a"))
            lone.write("x", api.Resumed(lone.index, 0))
            lone.take()
    assert roomy.memory.held > 15_000
    assert narrow.memory.held < 13_000


# -- when all is over ----------------------------------------------------------------------------------


def held(server: SimulatedServer) -> int:
    return server.hub.accounts.total.held


def test_a_stream_that_has_ended_and_was_read_is_on_no_account() -> None:
    server, _ = opened()
    listener = RecordingListener(server)
    listener.send(start(params=Params(max_tokens=3, ignore_eos=True)))
    (stream,) = server.hub.streams
    rest(server)
    assert (held(server), listener.memory.held) == (0, 0)
    server.hub.acknowledge(stream, 3, 99)
    assert held(server) == 0, "whoever acknowledges it late adds nothing"
    listener.attach()
    assert held(server) == 0


@pytest.mark.parametrize("on_disconnect", ["cancel", "continue"])
def test_what_its_reader_left_unread_is_on_no_account_once_both_are_gone(on_disconnect: Any) -> None:
    server, _ = opened()
    listener = RecordingListener(server)
    listener.ready = False
    for name in "ab":
        params = Params(max_tokens=2 if name == "a" else 8, ignore_eos=True)
        listener.send(start(name, params=params, on_disconnect=on_disconnect))
    for _ in range(5):
        server.tick()
    assert held(server) > 0
    listener.leave()
    rest(server)
    assert server.hub.streams == []
    assert held(server) == 0
    late = RecordingListener(server)
    late.attach()
    assert held(server) == 0


def test_who_attaches_to_what_has_ended_holds_it() -> None:
    server, _ = opened()
    first, late = RecordingListener(server), RecordingListener(server)
    first.send(start(params=Params(max_tokens=3, ignore_eos=True)))
    rest(server)
    late.ready = False
    late.attach()
    assert late.memory.held > 1000


def test_who_goes_leaves_nothing_of_what_was_to_be_told_again_of_what_has_ended() -> None:
    server, _ = opened()
    first, late = RecordingListener(server), RecordingListener(server)
    first.send(start(params=Params(max_tokens=300, ignore_eos=True)))
    (stream,) = server.hub.streams
    rest(server)
    stream.outbox.shorten_history(0)
    before = stream.bytes
    late.ready = False
    late.attach()
    assert stream.bytes > before
    late.leave()
    assert stream.bytes == before


def test_one_tenant_leaves_others_their_half() -> None:
    server, _ = opened()
    one, other = RecordingListener(server, "one"), RecordingListener(server, "other")
    server.hub.accounts.of_tenant["one"].limit = 1
    one.send(endless("a"))
    one.send(endless("b"))
    assert one.error().code == "rate_limited"
    other.send(endless("c", on_disconnect="pause"))
    other.leave()
    rest(server)
    assert [stream.request_id for stream in server.hub.streams] == ["a", "c"]


def test_whoever_is_gone_starts_nothing() -> None:
    server, _ = opened()
    listener = RecordingListener(server)
    listener.leave()
    listener.send(endless(on_disconnect="continue"))
    assert server.hub.streams == []


# -- what weighs ---------------------------------------------------------------------------------------


def test_a_token_event_weighs_what_it_carries() -> None:
    light = protocol.Token(request_id="a", index=0, count=1, delta="x")
    heavy = protocol.Token(request_id="a", index=0, count=1, delta="x" * 1000, tokens=[1] * 1000)
    assert event_bytes(heavy) > event_bytes(light) + 30_000


def test_refs_that_say_nothing_weigh_by_their_number() -> None:
    few, many = (protocol.Attached(request_id="a", pending=count * [""]) for count in (0, 1000))
    assert event_bytes(many) - event_bytes(few) >= 8000


def test_what_waits_for_an_engine_weighs_and_has_a_limit() -> None:
    lone = LoneStream()
    lone.lose_engine()
    before = lone.stream.bytes
    adjust = protocol.Adjust(request_id="a", params=Params(logit_bias=BIAS))
    times = until_refused(lambda: lone.steer(adjust))
    assert times > 5
    assert lone.stream.bytes > before + UNREAD_LIMIT
    assert lone.memory.held == lone.stream.bytes


def test_however_much_waits_for_an_engine_a_pause_is_refused_only_where_one_was_asked_for() -> None:
    lone = LoneStream()
    until_refused(lambda: lone.steer(protocol.Rewind(request_id="a", to=0)))
    lone.steer(protocol.Pause(request_id="a"))
    assert isinstance(lone.stream._commands.waiting[-1].command, api.Pause)
    for frame in (protocol.Pause(request_id="a"), protocol.Resume(request_id="a")):
        with pytest.raises(Refusal, match="limit of 512 KiB"):
            lone.steer(frame)


@pytest.mark.parametrize(
    "frame",
    [
        protocol.Pause(request_id="a"),
        protocol.Adjust(request_id="a", params=Params(logit_bias=BIAS)),
        protocol.Adjust(request_id="a", params=Params(), at=0),
        protocol.Inject(request_id="a", tokens=[1]),
        protocol.Rewind(request_id="a", to=0),
    ],
    ids=lambda frame: type(frame).__name__,
)
def test_no_more_waits_in_an_engine_than_its_stream_waits_for(frame: Any) -> None:
    """An engine that looks into a grammar lets all that came behind wait, and counts nothing."""
    lone = LoneStream()
    assert until_refused(lambda: lone.steer(frame)) > 10
    told = [command for command in lone.commands if not isinstance(command, api.Submit | api.Grant)]
    waits = [pending.command for pending in lone.stream._commands]
    assert told == waits[:MOST_UNDER_WAY]
    assert 300 * len(waits) <= lone.stream._commands.bytes <= UNREAD_LIMIT + 30_000
    lone.cancel()
    lone.answer(finish=api.Finish("cancelled"))
    assert lone.stream._commands.bytes == 0


def test_news_look_at_no_command_that_waits_but_at_those_that_they_answer() -> None:
    """A stream for which 1,200 waited took 0.2 ms for each further token, which nobody paid for."""
    lone, looked_at = LoneStream(guards=[protocol.Guard(name="g", regex="zzz", do="rewind")]), 0

    class Waiting(list[PendingCommand]):
        def __iter__(self) -> Iterator[PendingCommand]:
            nonlocal looked_at
            for pending in super().__iter__():
                looked_at += 1
                yield pending

    lone.stream._commands.waiting = Waiting()
    for _ in range(200):
        lone.steer(protocol.Adjust(request_id="a", params=Params(temperature=0.5)))
    lone.write("text")
    for _ in range(100):
        lone.answer(api.Adjusted(lone.index))
    assert lone.stream.num_waiting == 100
    assert looked_at == 0


def test_injections_weigh() -> None:
    lone = LoneStream()
    lone.take()
    lone.stream.acknowledge(0, lone.stream.outbox.seq - 1)
    before = lone.stream.bytes
    for _ in range(3):
        lone.steer(protocol.Inject(request_id="a", tokens=[1, 2]))
        lone.answer(api.Appended(0, 2))
    lone.take()
    lone.stream.acknowledge(0, lone.stream.outbox.seq - 1)
    assert lone.stream.bytes >= before + 3 * 150


def test_a_grammar_weighs_and_is_looked_at_once_however_often_its_stream_is_weighed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looked_at, length = list[protocol.Grammar](), weights._length

    def counted(grammar: protocol.Grammar) -> int:
        looked_at.append(grammar)
        return length(grammar)

    monkeypatch.setattr(weights, "_length", counted)
    lone = LoneStream(grammar=protocol.Grammar(json_schema={"enum": ["a" * 1000]}))
    lone.write("text")
    lone.take()
    lone.steer(protocol.Adjust(request_id="a", params=Params(temperature=0.5)))
    lone.answer(api.Adjusted(lone.index))
    assert lone.stream.bytes > LoneStream().stream.bytes + 12 * 1000
    assert len(looked_at) == 1


@pytest.mark.parametrize("one", ["{}", "[]", "[{}]", '{"a":{}}', '{"":0}', "300", '"a"'])
def test_a_schema_weighs_what_its_objects_take_however_short_they_are_written(one: str) -> None:
    """A dictionary takes as much as thirty characters, and is two."""
    data = f'{{"json_schema":{{"examples":[{",".join([one] * 1000)}]}}}}'
    tracemalloc.start()
    try:
        decoded = [msgspec.json.decode(data, type=protocol.Grammar) for _ in range(10)]
        taken = tracemalloc.get_traced_memory()[0] / len(decoded)
    finally:
        tracemalloc.stop()
    grammar, counted = decoded[0], memory.params_bytes(Params(grammar=decoded[0]))
    assert taken / 1.5 < counted < 4 * taken
    assert taken / 2 < weights.value_bytes(grammar.json_schema) < 4 * taken


WIDE = "\U0001f600"  # four bytes, as all that stands with it
STEERING: dict[str, tuple[dict[str, Any], api.AnyChange]] = {
    "adjust": ({"params": {"temperature": 0.51, "top_p": 0.91, "min_p": 0.123}}, api.Adjusted(0)),
    "inject": ({"tokens": [300]}, api.Appended(0, 1)),
    "rewind": ({"to": 0}, api.Truncated(0)),
}


@pytest.mark.parametrize("name", ["a", WIDE])
@pytest.mark.parametrize("kind", STEERING)
def test_what_waits_for_its_answer_and_the_answer_weigh_what_they_take(kind: str, name: str) -> None:
    asked, reply = STEERING[kind]
    lone, codec = LoneStream(credit=Credit(limit=HUGE)), Codec(None)
    lone.admit()
    lone.take()
    data = {"type": kind, "request_id": name * 128} | asked
    frames = 60

    def weighed() -> None:
        lone.commands.clear()
        assert tracemalloc.get_traced_memory()[0] / 2 < lone.memory.held - before

    tracemalloc.start()
    try:
        before = lone.memory.held
        for number in range(frames):
            lone.steer(codec.decode(json.dumps(data | {"ref": f"{name * 60}{number}"})))  # type: ignore[arg-type]
        weighed()
        for _ in range(frames):
            lone.answer(reply)
        weighed()
        lone.take()
        weighed()
        lone.stream.acknowledge(0, lone.stream.outbox.seq - 1)
        weighed()
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("is_told", [False, True])
def test_what_waited_is_taken_off_as_it_was_added_though_its_names_were_told_meanwhile(
    is_told: bool,
) -> None:
    """A wide name takes more once it was encoded: whoever asked which frames wait had less counted with each,
    and in the end nothing."""
    asked, reply = STEERING["adjust"]
    lone, codec = LoneStream(credit=Credit(limit=HUGE)), Codec(None)
    lone.admit()
    for _ in range(20):
        data = {"type": "adjust", "request_id": "a", "ref": WIDE * 64} | asked
        lone.steer(codec.decode(json.dumps(data)))  # type: ignore[arg-type]
        lone.stream.attach(-1, 0, anew=False)
        for event in lone.take():
            if is_told:
                codec.encode(event)
        lone.answer(reply)
        lone.take()
    assert (lone.stream._commands.bytes, lone.stream.outbox.unread_bytes) == (0, 0)


def test_a_grammar_is_as_long_as_it_is_written() -> None:
    """By what writes it: a look at each of its values took half a second for a megabyte of them."""
    grammar = protocol.Grammar(json_schema={"enum": [1, "a", {}]})
    assert weights.grammar_length(grammar) == len('{"json_schema":{"enum":[1,"a",{}]}}')


def test_a_grammar_that_cannot_be_written_weighs_as_one_that_is_too_long() -> None:
    grammar = protocol.Grammar(json_schema={"const": msgspec.msgpack.Ext(1, b"x")})
    assert weights.grammar_length(grammar) > weights.LONGEST_GRAMMAR
