"""Streams that an engine has given to this gateway: whose turn it is to have one built, and what becomes of
one that cannot be."""

from __future__ import annotations

import asyncio
import dataclasses
import gc
import itertools
import threading
from itertools import pairwise
from typing import Any, TypeVar
from weakref import WeakValueDictionary

import msgspec
import pytest
from msgspec.structs import replace

from engine import api
from midstream import protocol
from midstream.protocol import Fork, Function, Grammar, Guard, Message, Params, Past, PastAdjust, Tool
from realtime.guards import pattern
from realtime.guards.pattern import Pattern
from realtime.hub import keepers
from realtime.hub.adoptions import ASKED_AT_ONCE, AT_ONCE
from realtime.hub.keepers import SETTLED_S, Found, Search
from realtime.hub.rebuilt_stream import RebuiltStream
from realtime.hub.stream_key import StreamKey
from realtime.hub.stream_record import StreamRecord, engine_key
from realtime.hub.tokenizing_pool import THREADS
from realtime.refusal import Refusal
from realtime.stream.owner import Owner
from realtime.stream.stream import Stream
from realtime.tenants.allowance import Allowance
from realtime.tenants.quota import Quotas
from tests.fakes.recording_listener import RecordingListener
from tests.fakes.simulated_client import SIZE, TENANT, endless, settled, start
from tests.fakes.simulated_server import SimulatedServer

NUMBER = 7
T = TypeVar("T")
TOOLS: dict[str, Any] = {
    "prompt": None,
    "messages": [Message(role="user", content="Hi")],
    "tools": [Tool(function=Function(name="find"))],
}


async def a_journal(**fields: Any) -> tuple[StreamKey, api.Journal]:
    """Of a stream that runs at another gateway."""
    there = SimulatedServer(SIZE, keeps=True)
    RecordingListener(there).send(endless(on_disconnect="continue", **fields))
    await settled()
    there.tick()
    (stream,) = there.hub.streams
    return StreamKey(TENANT, stream.request_id), there.engines[0].keeping.kept[stream.number].journal.told()


def forgotten(number: int) -> list[api.AnyCommand]:
    """What an engine is told of a stream in whose place there is another."""
    return [api.Note(number, 0, b""), api.Cancel(number)]


async def told_engine(
    here: SimulatedServer, key: StreamKey, journal: api.Journal, code: str
) -> api.AnyCommand:
    """The last thing that its engine is told when it cannot be built here."""
    engine = here.hub.serving.engines[0]
    found, search = Found(engine, journal, []), Search([], doubtful=False)
    with pytest.raises(Refusal) as caught:
        await here.hub._adoptions._build(key, NUMBER, search, found, RecordingListener(here), starts=False)
    assert caught.value.code == code
    engine.flush()
    return here.down.pop()[-1]


async def test_one_that_is_lost_ends_and_counts_for_nobody() -> None:
    here = SimulatedServer(SIZE, keeps=True, quotas=Quotas(lambda tenant: Allowance(max_streams=9)))
    key, journal = await a_journal()
    other = replace(journal, digest=journal.digest + 1)
    assert await told_engine(here, key, other, "unknown_request") == api.Cancel(NUMBER)
    assert here.hub._quotas.taken() == {}


@pytest.mark.parametrize("lost", [{"record": b""}, {"digest": -1}], ids=["too long", "of another version"])
async def test_one_that_is_lost_can_be_started_again(
    lost: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By its client, who has heard so, and has its past."""
    here = SimulatedServer(SIZE, keeps=True)
    key, journal = await a_journal()
    engine = here.hub.serving.engines[0]

    async def found(number: int, *asked: Any) -> Search:
        search = here.hub._keepers._searches[number] = Search([engine], doubtful=False)
        search.answer(engine, replace(journal, **lost))
        return search

    monkeypatch.setattr(here.hub._keepers, "search", found)
    monkeypatch.setattr(here.hub._adoptions, "may_be_found", lambda *asked: not here.hub.streams)
    listener = RecordingListener(here)
    listener.send(protocol.Attach(request_id=key.request_id, after=5))
    await settled()
    assert listener.error().code == "unknown_request"
    listener.send(endless(key.request_id, on_disconnect="continue"))
    await settled()
    assert listener.errors == []
    listener.hear_token()


async def test_a_start_is_refused_where_its_name_is_another_s_elsewhere(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Which stays there, with whoever reads it."""
    here = SimulatedServer(SIZE, keeps=True)

    async def found(number: int, *asked: Any) -> Search:
        search = here.hub._keepers._searches[number] = Search([], doubtful=False)
        here.hub._keepers.receive(here.hub.serving.engines[0], api.Adopted(number, another=True))
        return search

    monkeypatch.setattr(here.hub._keepers, "search", found)
    monkeypatch.setattr(here.hub._adoptions, "may_be_found", lambda *asked: True)
    listener = RecordingListener(here)
    listener.send(endless(on_disconnect="continue"))
    await settled()
    assert listener.error().code == "request_conflict"
    assert here.hub.streams == []


async def test_a_start_that_nobody_can_have_accepted_is_looked_for_nowhere(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It has no digest by which an engine could tell that the stream of its name is another."""
    here = SimulatedServer(SIZE, keeps=True)
    monkeypatch.setattr(here.hub._keepers, "search", lambda *asked: pytest.fail("it takes what it finds"))
    monkeypatch.setattr(here.hub._adoptions, "may_be_found", lambda *asked: True)
    listener = RecordingListener(here)
    deep: dict[str, Any] = {}
    for _ in range(5000):
        deep = {"a": deep}
    told = Past(tokens=[], steering=[PastAdjust(index=0, params=Params(grammar=Grammar(json_schema=deep)))])
    listener.send(endless(past=told, on_disconnect="continue"))
    await settled()
    assert "nested deeper" in listener.error().message


async def test_a_fork_may_have_begun_where_its_stream_was_and_is_looked_for_where_that_has_come() -> None:
    here = SimulatedServer(SIZE, keeps=True)
    listener = RecordingListener(here)
    listener.send(endless(on_disconnect="continue"))
    (stream,) = here.hub.streams
    del here.hub._adoptions.may_be_found  # it is the real one that is asked
    fork = protocol.Start(request_id="b", fork=Fork(request_id="a", at=0), on_disconnect="continue")
    asked = StreamKey(TENANT, "b"), fork, listener
    begun_here = here.hub._adoptions.may_be_found(*asked)
    stream.outbox.epoch += 1  # as who adopts it counts
    assert (begun_here, here.hub._adoptions.may_be_found(*asked)) == (False, True)


async def test_a_fork_that_went_elsewhere_with_its_stream_is_looked_for_by_itself() -> None:
    here = SimulatedServer(SIZE, keeps=True)
    listener = RecordingListener(here)
    fork = protocol.Start(request_id="b", fork=Fork(request_id="a", at=0), on_disconnect="continue")
    for frame in (endless(on_disconnect="continue"), fork):
        listener.send(frame)
    here.tick()
    for stream in here.hub.streams:
        here.hub.receive_answer(0, api.Moved(stream.number))
    del here.hub._adoptions.may_be_found  # it is the real one that is asked
    listener.send(fork)
    await asyncio.sleep(0)
    assert listener.errors == []
    (number,) = here.hub._keepers._searches
    here.hub.receive_answer(0, api.Adopted(number))
    await settled()
    assert listener.error().code == "unknown_request"


async def test_forks_that_were_looked_for_elsewhere_begin_one_after_the_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Engines answer many in one message: they would hold everybody up for as long as all of them take."""
    here = SimulatedServer(dataclasses.replace(SIZE, slots=30), keeps=True)
    listener = RecordingListener(here)
    listener.send(endless(on_disconnect="continue"))
    (stream,) = here.hub.streams
    stream.outbox.epoch += 1  # as who adopts it counts
    del here.hub._adoptions.may_be_found  # it is the real one that is asked
    for n in range(20):
        listener.send(
            protocol.Start(request_id=f"fork{n}", fork=Fork(request_id="a"), on_disconnect="continue")
        )
    monkeypatch.setattr("realtime.hub.adoptions.AT_ONCE", 20)
    await asyncio.sleep(0)
    searches = here.hub._keepers._searches
    assert len(searches) == 20
    for number in searches:
        here.hub.receive_answer(0, api.Adopted(number))
    streams = [1]
    while here.hub._long_texts.keys:
        await asyncio.sleep(0)
        streams.append(len(here.hub.streams))
    assert streams[-1] == 21
    assert max(after - before for before, after in pairwise(streams)) == 1


async def test_a_name_is_settled_however_long_its_start_is_paid_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where it was not, who starts it elsewhere waited for that, and its claim stayed in its engine."""
    here = SimulatedServer(SIZE, engines=2, keeps=True)
    del here.hub._adoptions.may_be_found  # it is the real one that is asked
    registrar, other = here.hub.serving.engines.values()
    monkeypatch.setattr(here.hub._starter, "_choose", lambda *asked: other)
    listener, has_begun, is_paid = RecordingListener(here), asyncio.Event(), asyncio.Event()

    async def pay(work_s: float) -> None:
        has_begun.set()
        await is_paid.wait()

    monkeypatch.setattr(listener, "pay", pay)
    listener.send(endless(on_disconnect="continue"))
    await asyncio.sleep(0)
    (number,) = here.hub._keepers._searches
    for engine in here.hub.serving.engines:
        here.hub.receive_answer(engine, api.Adopted(number))
    await has_begun.wait()
    here.hub.receive_answer(other.number, api.Kept(here.hub.streams[0].number))
    is_paid.set()
    await settled()
    assert api.Settle(number, engine_key(StreamKey(TENANT, "a"))) in here.engines[registrar.number].down[-1]


async def test_while_engines_die_and_come_again_nobody_is_told_that_there_is_no_such_stream() -> None:
    """It may be with a gateway that waits for one, or has given it to one that was not asked."""
    here = SimulatedServer(SIZE, keeps=True)
    del here.hub._adoptions.may_be_found  # it is the real one that is asked
    keepers, listener = here.hub._keepers, RecordingListener(here)
    here.kill_engine()
    here.clock.advance(100.0)
    listener.send(protocol.Attach(request_id="a", after=5))
    await settled()
    assert listener.error().code == "overloaded"
    here.revive_engine()
    at_first = keepers.unsettled
    here.clock.advance(SETTLED_S)
    assert (at_first, keepers.unsettled) == (True, False)


async def test_one_that_cannot_be_built_now_waits_in_its_engine_for_whoever_comes_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No longer than it would for a gateway that is gone: it holds the engine's memory."""

    def compiler_was_killed(stream: RebuiltStream) -> None:
        raise Refusal("overloaded", "It cannot be built again now.", retry_after_ms=1000)

    monkeypatch.setattr(RebuiltStream, "try_rules", compiler_was_killed)
    here = SimulatedServer(SIZE, keeps=True)
    assert await told_engine(here, *await a_journal(**TOOLS), "overloaded") == api.Disown(NUMBER)


async def test_what_waited_for_another_start_is_not_asked_for_again_where_whoever_said_it_is_gone() -> None:
    """Its client said it at the other server, and reads it there: it would hear that it was taken."""
    here = SimulatedServer(SIZE, keeps=True)
    del here.hub._adoptions.may_be_found  # it is the real one that is asked
    listener = RecordingListener(here)
    listener.send(endless(on_disconnect="continue"))
    await asyncio.sleep(0)
    (number,) = here.hub._keepers._searches
    here.hub.receive_answer(0, api.Claimed(number))
    await asyncio.sleep(0)
    listener.leave()
    here.hub.receive_answer(0, api.Adopted(number))
    await settled()
    asked, then = itertools.chain.from_iterable(here.down)
    assert isinstance(asked, api.Adopt)
    assert then == api.Settle(number, asked.key)


async def asked_in_vain(
    here: SimulatedServer, listener: RecordingListener, *, claimed_at: int | None = None
) -> int:
    """A start, up to when the first engine has not answered in time; returns its number there."""
    del here.hub._adoptions.may_be_found  # it is the real one that is asked
    listener.send(endless(on_disconnect="continue"))
    await asyncio.sleep(0)
    (number,) = here.hub._keepers._searches
    if claimed_at is not None:
        here.hub.receive_answer(claimed_at, api.Claimed(number))
    while not here.hub.serving.engines[0].hangs:  # noqa: ASYNC110 - it is waited for in vain
        await asyncio.sleep(0)
    return number


@pytest.mark.parametrize("answers", ["before that", "after that"])
@pytest.mark.parametrize("because", ["it was refused", "whoever said it is gone", "it was begun there"])
async def test_what_an_engine_has_after_all_stays_there_where_nothing_was_begun_in_its_place(
    because: str, answers: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keepers, "ANSWER_S", 0.0)
    here = SimulatedServer(SIZE, keeps=True)
    _, journal = await a_journal()
    listener = RecordingListener(here)
    number = await asked_in_vain(here, listener)
    if because == "it was refused":
        here.hub.draining = True
    elif because == "whoever said it is gone":
        listener.leave()
    if answers == "after that":
        await settled()
    here.hub.receive_answer(0, api.Adopted(number, journal))
    await settled()
    said = list(itertools.chain.from_iterable(here.down))
    begun = because == "it was begun there"
    assert (api.Cancel(number) in said, api.Disown(number) in said) == (begun, not begun)


@pytest.mark.parametrize("others", ["answer", "hang too"])
async def test_what_an_engine_has_after_all_is_ended_where_it_was_begun_anew_when_it_was_said_again(
    others: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever asks for it later would find both."""
    monkeypatch.setattr(keepers, "ANSWER_S", 0.0)
    here = SimulatedServer(SIZE, keeps=True, engines=2)
    _, journal = await a_journal()
    listener = RecordingListener(here)
    number = await asked_in_vain(here, listener)
    here.hub.draining = True
    await settled()
    assert listener.error().code == "draining"
    here.hub.draining = False
    if others == "answer":
        here.hub.receive_answer(1, api.Adopted(number))
    listener.send(endless(on_disconnect="continue"))
    await settled()
    assert [stream.request_id for stream in here.hub.streams] == ["a"]
    here.hub.receive_answer(0, api.Adopted(number, journal))
    assert here.engines[0].down[-1] == forgotten(number)


async def test_what_an_engine_has_after_all_is_found_there_where_it_is_looked_for_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As another server has claimed the name, and has not begun it."""
    monkeypatch.setattr(keepers, "ANSWER_S", 0.0)
    here = SimulatedServer(SIZE, keeps=True, engines=2)
    _, journal = await a_journal()
    listener = RecordingListener(here)
    number = await asked_in_vain(here, listener, claimed_at=1)
    here.hub.receive_answer(0, api.Adopted(number, journal))
    here.hub.receive_answer(1, api.Adopted(number))
    for _ in range(3):
        await asyncio.sleep(0)
    _, asked, left, again, *_ = itertools.chain.from_iterable(here.engines[0].down)
    assert (type(asked), left, type(again)) == (api.Adopt, api.Disown(number), api.Adopt)


async def test_of_two_the_other_is_forgotten_where_it_is() -> None:
    """As one that has ended it would be found again, and be the first of both at times."""
    here = SimulatedServer(SIZE, keeps=True, engines=2)
    del here.hub._adoptions.may_be_found
    key, journal = await a_journal()
    RecordingListener(here).send(protocol.Attach(request_id=key.request_id, after=-1))
    await asyncio.sleep(0)
    (number,) = here.hub._keepers._searches
    for engine in (0, 1):
        here.hub.receive_answer(engine, api.Adopted(number, replace(journal, adoptions=engine)))
    await settled()
    *_, last = here.engines[0].down
    assert last == forgotten(number)
    assert [entry.engine for entry in here.hub._registry.entries] == [here.hub.serving.engines[1]]


async def test_what_nobody_asks_for_any_more_waits_here_for_whoever_comes_and_counts_for_its_tenant() -> None:
    """Left to its engine it would be in no gateway's count: whoever asked and hung up had as many streams as
    they liked, and all that these said, beside all limits."""
    here = SimulatedServer(SIZE, keeps=True, quotas=Quotas(lambda tenant: Allowance(max_streams=1)))
    del here.hub._adoptions.may_be_found  # it is the real one that is asked
    key, journal = await a_journal()
    listener = RecordingListener(here)
    for _ in range(2):  # the second is looked for when the first has been found
        listener.send(protocol.Attach(request_id=key.request_id, after=-1))
    await asyncio.sleep(0)
    (number,) = here.hub._keepers._searches
    listener.leave()
    here.hub.receive_answer(0, api.Adopted(number, journal))
    late = api.News(number, index=1, tokens=[65])
    assert here.hub._keepers.take_news(here.hub.serving.engines[0], late)
    await settled()
    assert len(await asked_for(here)) == 1
    assert here.hub.is_live(TENANT, key.request_id)
    taken = here.hub._quotas.taken()[TENANT]
    assert (taken.streams, taken.tokens) == (1, 1)


async def test_of_a_crowd_that_waits_for_an_engine_in_vain_the_log_has_a_line_a_second(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(keepers, "ANSWER_S", 0.0)
    here = SimulatedServer(SIZE, keeps=True)

    async def in_vain(*numbers: int) -> None:
        here.hub.serving.engines[0]._unanswered.clear()  # it is taken for well again
        looked_for = (here.hub._keepers.search(number, bytes([number]), None) for number in numbers)
        await asyncio.gather(*looked_for)

    await in_vain(1, 2, 3)
    here.clock.now += keepers.SAID_EVERY_S
    await in_vain(4)
    first, then = caplog.messages
    assert "others" not in first
    assert then == first + ", nor of 2 others since this was last said"


async def test_of_two_the_one_is_the_stream_to_which_a_client_came_last() -> None:
    """Its gateway may have been cut off, and have begun it anew from what it knew."""
    here = SimulatedServer(SIZE, keeps=True, engines=3)
    _, journal = await a_journal()
    engines, search = here.hub.serving.engines, Search([], doubtful=False)
    for number, (moves, adoptions) in enumerate([(0, 0), (1, 1), (2, 0)]):
        search.answer(engines[number], replace(journal, moves=moves, adoptions=adoptions))
    assert search.latest is not None
    assert search.latest.engine is engines[1]


@pytest.mark.parametrize("claims", [True, False])
async def test_an_engine_that_answers_while_what_another_had_is_built_keeps_nothing_for_nobody(
    claims: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was waited for in vain: nobody would ever go on with what it has, nor end it."""
    monkeypatch.setattr(keepers, "ANSWER_S", 0.0)
    here = SimulatedServer(SIZE, keeps=True, engines=2)
    key, journal = await a_journal()
    start = b"digest" if claims else None
    asked = asyncio.create_task(here.hub._keepers.search(NUMBER, engine_key(key), start))
    await asyncio.sleep(0)
    quick, slow = here.hub.serving.engines.values()
    here.hub._keepers.receive(quick, api.Adopted(NUMBER, journal))
    search = await asked
    here.hub._keepers.receive(slow, api.Adopted(NUMBER, journal))
    here.hub._keepers.settle(engine_key(key), None, is_there=True)
    assert [found.engine for found in search.found] == [quick]
    said = itertools.chain.from_iterable(here.engines[slow.number].down)
    assert [one for one in said if isinstance(one, api.Command) and one.stream == NUMBER][1:] == (
        forgotten(NUMBER) if claims else [api.Disown(NUMBER)]
    )


async def test_nobody_waits_for_the_tools_of_a_crowd_nor_does_the_server_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """When a gateway dies all of its streams come at once, and each may have a second of compiling."""
    go_on, tried = threading.Event(), list[RebuiltStream]()

    def tries(rebuilt: RebuiltStream) -> None:
        tried.append(rebuilt)
        go_on.wait(30)

    monkeypatch.setattr(RebuiltStream, "try_rules", tries)
    here = SimulatedServer(SIZE, keeps=True)
    (_, of_crowd), (_, of_other) = await a_journal(**TOOLS), await a_journal(**TOOLS)
    engine = here.hub.serving.engines[0]

    def adopted(tenant: str, number: int, journal: api.Journal) -> asyncio.Task[None]:
        found, search = Found(engine, journal, []), Search([], doubtful=False)
        key, listener = StreamKey(tenant, str(number)), RecordingListener(here, tenant)
        return asyncio.create_task(here.hub._adoptions._adopt(key, number, search, found, listener))

    crowd = [adopted("crowd", number, of_crowd) for number in range(40)]
    other = adopted("other", 40, of_other)
    try:
        assert await asyncio.wait_for(asyncio.to_thread(lambda: "at once"), 10) == "at once"
    finally:
        go_on.set()
    await other
    assert any(rebuilt._journal is of_other for rebuilt in tried[: 2 * THREADS])
    await asyncio.gather(*crowd)


@pytest.mark.parametrize("is_there", [True, False])
async def test_of_a_crowd_that_is_looked_for_few_go_on_in_a_turn_and_nobody_waits_for_anothers(
    monkeypatch: pytest.MonkeyPatch, *, is_there: bool
) -> None:
    monkeypatch.setattr("realtime.hub.adoptions.PIECES_A_TURN", 2)
    here, (_, journal) = SimulatedServer(SIZE, keeps=True), await a_journal()
    found, gone_on = Found(here.hub.serving.engines[0], journal, []), list[int]()

    async def searched(number: int, *asked: Any) -> Search:
        search = Search([], doubtful=False)
        search.found += [found] if is_there else []
        return search

    def build(number: int, *asked: Any, **known: Any) -> RebuiltStream:
        gone_on.append(number)
        return RebuiltStream(number, *asked, **known)

    async def look_for(tenant: str, number: int) -> None:
        key, frame = StreamKey(tenant, str(number)), protocol.Attach(request_id=str(number), after=-1)
        await here.hub._adoptions.find(key, frame, RecordingListener(here, tenant))
        if not is_there:
            gone_on.append(number)

    monkeypatch.setattr(here.hub._keepers, "search", searched)
    monkeypatch.setattr(here.hub._keepers, "close", lambda number: None)
    monkeypatch.setattr("realtime.hub.adoptions.RebuiltStream", build)
    wanted = [*(("crowd", number) for number in range(10)), ("other", 10)]
    looking = [asyncio.create_task(look_for(*one)) for one in wanted]
    for so_far in ([], [0, 1], [0, 1], [0, 1, 2, 10]):
        await asyncio.sleep(0)
        assert gone_on == so_far
    await asyncio.gather(*looking)
    assert sorted(gone_on) == list(range(11))


@pytest.mark.parametrize("answer", [api.Adopted, api.Claimed])
async def test_of_one_who_looks_for_a_crowd_an_engine_is_asked_for_few_at_a_time(
    answer: type[api.Adopted | api.Claimed],
) -> None:
    """What it answers may be a MiB each: of all at once it took the gateway for one that reads nothing, and
    hung up on it, with everybody's streams. What another gateway is about to begin is in nobody's way."""
    here = SimulatedServer(SIZE, keeps=True)
    del here.hub._adoptions.may_be_found  # it is the real one that is asked
    crowd, other = RecordingListener(here), RecordingListener(here, "other")
    for number in range(2 * AT_ONCE + 1):
        crowd.send(endless(f"a{number}", on_disconnect="continue"))
    other.send(endless("b", on_disconnect="continue"))
    asked = list[int]()
    for so_far in (AT_ONCE + 1, 2 * AT_ONCE + 1, 2 * AT_ONCE + 2):
        before, asked = asked, await asked_for(here)
        assert len(asked) == so_far
        for number in asked[len(before) :]:
            here.hub.receive_answer(0, answer(number))
    for number in asked:  # what was claimed is looked for again, and is nowhere
        here.hub.receive_answer(0, api.Adopted(number))
    while here.hub._keepers._searches:
        for number in list(here.hub._keepers._searches):
            here.hub.receive_answer(0, api.Adopted(number))
        await asyncio.sleep(0)
    await settled()


async def test_of_a_crowd_of_tenants_an_engine_is_asked_for_few_streams_at_a_time() -> None:
    """As where a gateway is gone, and all its clients come to another: each has few, and all have more than
    an engine waits for a gateway to take."""
    here = SimulatedServer(SIZE, keeps=True)
    del here.hub._adoptions.may_be_found  # it is the real one that is asked
    for number in range(ASKED_AT_ONCE + 3):
        RecordingListener(here, f"tenant {number}").send(protocol.Attach(request_id="a", after=-1))
    gone, last = RecordingListener(here, "gone"), RecordingListener(here, "last")
    for listener in (gone, last):
        listener.send(protocol.Attach(request_id="a", after=-1))
    asked = await asked_for(here)
    assert len(asked) == ASKED_AT_ONCE
    gone.leave()
    for number in asked[:4]:
        here.hub.receive_answer(0, api.Adopted(number))
    assert len(await asked_for(here)) == ASKED_AT_ONCE + 4, "and not for whoever is gone"
    while here.hub._keepers._searches:
        for number in list(here.hub._keepers._searches):
            here.hub.receive_answer(0, api.Adopted(number))
        await asyncio.sleep(0)
    await settled()
    assert [error.code for error in last.errors] == ["unknown_request"]


async def asked_for(here: SimulatedServer) -> list[int]:
    """The numbers that its engine was asked for, each once, when nothing goes on by itself any more."""
    for _ in range(20):
        await asyncio.sleep(0)
    said = itertools.chain.from_iterable(here.down)
    return list(dict.fromkeys(one.stream for one in said if isinstance(one, api.Adopt)))


def in_use(kind: type[object]) -> int:
    return sum(type(thing) is kind for thing in gc.get_objects())


def as_read(frame: T) -> T:
    """As it comes from a socket."""
    return msgspec.msgpack.decode(msgspec.msgpack.encode(frame), type=type(frame))


@pytest.mark.parametrize("ended", [False, True])
async def test_what_its_engine_has_heard_is_compared_and_kept_by_nobody(*, ended: bool) -> None:
    """A note of 3 KB may be a command of 30, of which there may be hundreds: of one that had ended they were
    held for as long as that is kept, in no account."""
    there, here = SimulatedServer(SIZE, keeps=True), SimulatedServer(SIZE, keeps=True)
    listener = RecordingListener(there)
    listener.send(as_read(endless(on_disconnect="continue")))
    there.tick()
    (stream,) = there.hub.streams
    for number in range(20):
        listener.send(
            as_read(protocol.Adjust(request_id="a", params=Params(logit_bias={number: 1.0}, ignore_eos=True)))
        )
        there.tick()
    kept = there.engines[0].keeping.kept[stream.number]
    if ended:
        listener.send(protocol.Cancel(request_id="a"))
        there.tick()
    found = Found(here.hub.serving.engines[0], kept.journal.told(), [])
    gc.collect()  # what other tests have left
    before = in_use(api.Adjust)
    key, search = StreamKey(TENANT, "a"), Search([], doubtful=False)
    await here.hub._adoptions._adopt(key, NUMBER, search, found, RecordingListener(here))
    assert [one.concluded for one in here.hub.streams] == ([] if ended else [False])
    assert in_use(api.Adjust) <= before + 1


async def test_of_a_fork_of_forks_each_is_built_from_one_record_and_let_go_when_the_next_is_there() -> None:
    """Each had a copy of all records that stand in its own, and all were there until the last was: 64 times a
    MiB for one, and as many contexts."""
    size = dataclasses.replace(SIZE, slots=10)
    there, here = SimulatedServer(size, keeps=True), SimulatedServer(size, keeps=True)
    listener = RecordingListener(there)
    listener.send(as_read(endless("0", prompt="long " * 400, on_disconnect="continue")))
    there.tick()
    for number in range(8):
        fork = Fork(request_id=str(number), at=0)
        listener.send(
            as_read(protocol.Start(request_id=str(number + 1), fork=fork, on_disconnect="continue"))
        )
        there.tick()
    *_, stream = there.hub.streams
    journal = there.engines[0].keeping.kept[stream.number].journal.told()
    model, owner = here.hub.serving.engines[0].model, Owner(1, 1)
    of_it = RebuiltStream(NUMBER, b"", journal, model, owner=owner, window=8, ahead_s=0)
    gc.collect()  # what other tests have left
    before = in_use(Stream)
    for _ in of_it.replay():
        pass
    assert of_it.stream.context.prompt == stream.context.prompt
    assert in_use(Stream) == before + 1
    assert of_it.record.origin is not None
    assert of_it.record.origin.record.obj is journal.record


async def test_its_guards_are_made_before_each_is_put_in_and_not_between_others_events(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Those of 16 expressions may take 70 ms, and it may have been given a thousand times as many, one after
    the other: no text waits for more than one frame's, and none is known for longer than it is needed."""

    def guarded(regex: str) -> Params:
        return Params(guards=[Guard(name="g", do="tell", regex=regex)], ignore_eos=True)

    there, here = SimulatedServer(SIZE, keeps=True), SimulatedServer(SIZE, keeps=True)
    listener = RecordingListener(there)
    listener.send(start(on_disconnect="pause", params=guarded("once told")))
    for regex in ("then put in", "last put in"):
        listener.send(protocol.Adjust(request_id="a", params=guarded(regex)))
        await settled()
        there.tick()
    (stream,) = there.hub.streams
    journal = there.engines[0].keeping.kept[stream.number].journal.told()
    in_use = WeakValueDictionary[str, Pattern]()
    monkeypatch.setattr(pattern, "_lately", pattern.Lately(0))
    monkeypatch.setattr(pattern, "_in_use", in_use)
    made, turns = list[tuple[str, int, bool]](), list[int]()

    class WatchedPattern(Pattern):
        def __init__(self, source: str) -> None:
            made.append((source, len(in_use), threading.current_thread() is threading.main_thread()))
            super().__init__(source)

    class WatchedTurn(RebuiltStream):
        def make_patterns(self, guards: list[Guard]) -> None:
            turns.append(len(made))
            super().make_patterns(guards)

    monkeypatch.setattr(pattern, "Pattern", WatchedPattern)
    monkeypatch.setattr("realtime.hub.adoptions.RebuiltStream", WatchedTurn)
    found = Found(here.hub.serving.engines[0], journal, [])
    asking = RecordingListener(here)
    await here.hub._adoptions._adopt(
        StreamKey(TENANT, "a"), NUMBER, Search([], doubtful=False), found, asking
    )
    assert made == [("once told", 0, False), ("then put in", 1, False), ("last put in", 1, False)]
    assert turns == [0, 1, 2]
    (adopted,) = here.hub.streams
    assert adopted.context.params.guards == stream.context.params.guards


async def test_by_a_clock_that_is_behind_none_lives_longer_than_it_may_in_all() -> None:
    """When its time is over goes by the wall's clock, which may be another machine's, or was put back."""
    key, journal = await a_journal(timeout_ms=60_000, grace_ms=600_000)
    record = msgspec.msgpack.decode(journal.record, type=StreamRecord)
    ahead = replace(record, deadline=record.deadline + 1_000_000.0)
    here = SimulatedServer(SIZE, keeps=True)
    found = Found(here.hub.serving.engines[0], replace(journal, record=msgspec.msgpack.encode(ahead)), [])
    search = Search([], doubtful=False)
    await here.hub._adoptions._adopt(key, NUMBER, search, found, RecordingListener(here))
    here.clock.advance(59.0)
    before = list(here.engines[0].down)
    here.clock.advance(1.0)
    assert not before
    assert here.engines[0].down[-1][0] == api.Cancel(NUMBER)


async def test_one_that_ends_since_its_engine_is_lost_by_then_holds_no_place_and_has_nobody_wait() -> None:
    """It was cancelled, which its engine has not answered."""
    there, here = SimulatedServer(SIZE, keeps=True), SimulatedServer(SIZE, keeps=True, max_detached=1)
    listener = RecordingListener(there)
    listener.send(endless(on_disconnect="pause"))
    there.tick()
    (stream,) = there.hub.streams
    listener.send(protocol.Cancel(request_id="a"))
    there.deliver_down()
    journal = there.engines[0].keeping.kept[stream.number].journal.told()
    found, search = Found(here.hub.serving.engines[0], journal, []), Search([], doubtful=False)
    here.kill_engine()
    leaving = RecordingListener(here)
    await here.hub._adoptions._adopt(StreamKey(TENANT, "a"), NUMBER, search, found, leaving)
    assert (here.hub.streams, here.hub.is_empty, here.clock.waiting) == ([], True, 0)
    here.revive_engine()
    leaving.send(endless("b", on_disconnect="continue"))
    leaving.leave()
    assert [stream.request_id for stream in here.hub.streams] == ["b"]


async def test_one_that_no_engine_has_begun_with_is_counted_where_it_began_and_waits_where_it_is() -> None:
    """As it went on, all of it counted once more, as computed again."""
    there = SimulatedServer(SIZE, keeps=True)
    listener = RecordingListener(there)
    listener.send(endless(past=Past(tokens=[97, 98]), on_disconnect="continue"))
    listener.send(protocol.Pause(request_id="a"))
    await settled()
    there.tick()
    (stream,) = there.hub.streams
    journal = there.engines[0].keeping.kept[stream.number].journal.told()
    here = SimulatedServer(SIZE, keeps=True, quotas=Quotas(lambda tenant: Allowance(prefill_tokens=99)))
    taken = here.hub._quotas._accounts[TENANT].here
    found, search = Found(here.hub.serving.engines[0], journal, []), Search([], doubtful=False)
    reading = RecordingListener(here)
    await here.hub._adoptions._adopt(StreamKey(TENANT, "a"), NUMBER, search, found, reading)

    def waiting(*changes: api.AnyChange, admitted: int | None = None) -> int:
        news = api.News(NUMBER, changes=list(changes), admitted=admitted)
        here.hub.receive_steps(0, [api.StepOutput(1, [news], api.Stats())])
        return taken.waiting

    (stream,) = here.hub.streams
    assert (stream.paused, taken.waiting) == ("client", 0)
    reading.attach()
    reading.send(protocol.Resume(request_id="a"))
    prompt = len(stream.context)
    assert waiting(api.Resumed(2, recomputed=prompt - 1)) == prompt
    assert waiting(admitted=0) == 0
    assert taken.tokens == 0
