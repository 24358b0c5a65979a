"""The engine's news of streams where memory and steering meet, on the toy."""

from __future__ import annotations

import random
import socket
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

import msgspec
import pytest

from engine import api
from engine.parallel.ranks import Followers, LeaderCommandQueue
from engine.pipe import Pipe
from engine.schedule.batch import Row
from engine.step.command_queue import CommandQueue, Streams
from engine.step.executor import Result
from midstream.protocol import Grammar
from tests.fakes.at_once_threads import AtOnceThreads
from tests.fakes.engine_driver import SLOTS, TOY, Driver, Limits, engine_of, greedy
from tests.fakes.faulty_runner import FaultyRunner
from tests.fakes.grammars import told as grammar
from tests.fakes.greedy_oracle import oracle

TEXT = list(range(60))
TIGHT = Limits(kv_tokens=64, step_tokens=16)


def preempted() -> Driver:
    """Stream 1 has taken the memory of stream 2, which wants to go on."""
    driver = Driver(engine_of(TOY, TIGHT))
    driver.settle(api.Submit(1, TEXT[:28], greedy(30), credit=0))
    driver.send(api.Submit(2, TEXT[:26], greedy(38), credit=20))
    driver.until(driver.has(2, 4))
    driver.send(api.Grant(1, 1000))
    driver.until(lambda: driver.told[2].paused)
    return driver


def test_memory_taken_is_told_and_given_back_is_told() -> None:
    driver = preempted()
    driver.settle(api.Grant(2, 1000))
    paused, resumed = driver.told[2].changes
    assert isinstance(paused, api.Paused)
    assert isinstance(resumed, api.Resumed)
    assert paused.reason == resumed.reason == "memory"
    assert driver.stats.preemptions_total == 1
    for told in driver.told.values():
        assert told.finish == api.Finish("length")
        oracle(TOY).check(told)


def test_memory_that_is_taken_behind_forced_tokens_is_told_behind_them() -> None:
    driver = Driver(
        engine_of(TOY, replace(TIGHT, make_lookout=AtOnceThreads))
    )  # so that it waits for grammars
    forced = api.Sampling(grammar=grammar(Grammar(regex="(a|b)cdef(g|h)")), max_tokens=30)
    driver.settle(api.Submit(1, TEXT[:32], greedy(20), credit=5))
    driver.settle(api.Submit(2, TEXT[:24], forced, credit=0, tenant=1, priority=-1))
    driver.send(api.Grant(2, 1000))
    driver.step()
    driver.send(api.Grant(1, 1000))
    driver.step()
    assert len(driver.told[2].tokens) == 1
    driver.step()
    assert driver.told[2].tokens[1:] == [*b"cdef"]
    assert driver.told[2].changes == [api.Paused(5, "memory")]


def test_nothing_is_forced_on_who_was_told_that_it_waits_for_memory() -> None:
    """What it is asked meanwhile may leave a grammar no choice, which needs no computing."""
    driver = preempted()
    stood = len(driver.told[2].tokens)
    spelt = api.Sampling(grammar=grammar(Grammar(regex="abcabcabc")), max_tokens=stood + 6)
    driver.settle(api.Adjust(2, spelt), api.Grant(2, 1000))
    assert driver.told[2].tokens[stood:] == [*b"abcabc"]
    paused, adjusted, resumed = driver.told[2].changes
    assert isinstance(paused, api.Paused)
    assert isinstance(adjusted, api.Adjusted)
    assert isinstance(resumed, api.Resumed)


def test_a_client_that_resumes_what_memory_holds_is_told_so_once() -> None:
    driver = preempted()
    driver.send(api.Resume(2), api.Cancel(1))
    driver.settle(steps=100)
    assert [type(change) for change in driver.told[2].changes] == [api.Paused, api.Resumed]
    # Stalled, it loses its memory in silence, and takes it back in silence.
    driver.settle(api.Submit(3, TEXT[40:], greedy(40), credit=1000))
    assert driver.stats.evictions_total
    driver.settle(api.Grant(2, 1000))
    assert [type(change) for change in driver.told[2].changes] == [api.Paused, api.Resumed]
    oracle(TOY).check(driver.told[2])


def test_a_client_that_pauses_what_memory_holds_waits_for_itself() -> None:
    driver = preempted()
    driver.settle(api.Pause(2), api.Cancel(1))
    assert driver.told[2].paused
    driver.settle(api.Resume(2), api.Grant(2, 1000))
    reasons = [
        change.reason for change in driver.told[2].changes if isinstance(change, api.Paused | api.Resumed)
    ]
    assert reasons == ["memory", "client", "client"]
    oracle(TOY).check(driver.told[2])


def test_text_that_would_overfill_the_context_is_refused_with_both_numbers() -> None:
    driver = Driver(engine_of(TOY, TIGHT))
    driver.settle(api.Submit(1, TEXT[:20], greedy(), credit=4), api.Append(1, [9] * 44))
    assert driver.told[1].changes == [api.Refused(0, 20, 64)]
    driver.settle(api.Grant(1, 8))
    oracle(TOY).check(driver.told[1])


def test_a_context_that_is_full_ends_its_stream() -> None:
    driver = Driver(engine_of(TOY, TIGHT))
    driver.settle(api.Submit(1, TEXT[:20], greedy(1000), credit=1000))
    assert driver.told[1].finish == api.Finish("length")
    assert driver.told[1].known == 64


def test_an_end_token_ends_its_stream_unless_it_is_told_to_go_on() -> None:
    driver = Driver(engine_of(TOY))
    end = next(iter(driver.engine.runner.eos))
    stops = api.Sampling(temperature=0, max_tokens=5, logit_bias={end: 1000.0})
    goes_on = msgspec.structs.replace(stops, ignore_eos=True)
    driver.settle(
        api.Submit(1, TEXT, stops, credit=1000),
        api.Submit(2, TEXT, goes_on, credit=1000),
    )
    assert (driver.told[1].tokens, driver.told[1].finish) == ([end], api.Finish("eos"))
    assert (driver.told[2].tokens, driver.told[2].finish) == ([end] * 5, api.Finish("length"))


def test_commands_for_a_stream_that_ended_are_no_mistake() -> None:
    driver = Driver(engine_of(TOY))
    driver.settle(api.Submit(1, TEXT, greedy(3), credit=1000))
    driver.settle(api.Pause(1), api.Truncate(1, 0), api.Cancel(1))
    assert driver.told[1].finish == api.Finish("length")


def test_a_cancel_takes_effect_in_the_step_in_flight() -> None:
    driver = Driver(engine_of(TOY))
    driver.send(api.Submit(1, TEXT, greedy(100), credit=1000))
    driver.step(5)
    said = len(driver.told[1].tokens)
    driver.send(api.Cancel(1))
    driver.step()
    assert driver.told[1].finish == api.Finish("cancelled")
    assert len(driver.told[1].tokens) == said + 1
    assert driver.stats.kv_used == 0


def test_a_stream_that_there_is_no_room_for_ends_and_no_other_with_it() -> None:
    driver = Driver(engine_of(TOY))
    driver.send(*(api.Submit(number, TEXT[:3], greedy(8), credit=4) for number in range(SLOTS + 1)))
    driver.settle(api.Grant(SLOTS, 8))
    assert driver.told[SLOTS].finish == api.Finish("error", "the engine has as many streams as it may")
    driver.settle(api.Cancel(0), api.Submit(SLOTS + 1, TEXT[:3], greedy(8), credit=8))
    driver.settle(*(api.Grant(number, 8) for number in range(1, SLOTS)))
    assert driver.told.pop(SLOTS).finish
    assert driver.told.pop(0).finish == api.Finish("cancelled")
    for told in driver.told.values():
        assert told.finish == api.Finish("length")
        oracle(TOY).check(told)


@pytest.mark.timeout(20)
def test_who_is_told_to_end_within_a_step_that_leaves_nothing_to_do_waits_for_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = engine_of(TOY)
    take = engine._commands.take

    def told_meanwhile(most_s: float, streams: Streams) -> Iterable[api.AnyCommand]:
        engine.stop()
        return take(most_s, streams)

    monkeypatch.setattr(engine._commands, "take", told_meanwhile)
    outputs: list[api.StepOutput] = []
    engine.run(outputs.append)
    assert len(outputs) == 1


def test_who_has_yet_to_take_what_was_asked_is_not_idle() -> None:
    """A step may leave some of a crowd's commands to the next."""
    engine = engine_of(TOY)
    engine.send([api.Cancel(1)])
    assert not engine.idle
    engine.step()
    assert engine.idle


class OfTenants:
    """Streams, each of its hundred's tenant."""

    full = False

    def tenant_of(self, stream: int) -> int | None:
        return stream // 100


class OfOne(OfTenants):
    def tenant_of(self, stream: int) -> int | None:
        return 1


@pytest.mark.parametrize("together", [4000, 100, 1])
def test_of_a_crowds_commands_a_step_takes_those_that_it_has_time_for_and_the_next_the_others(
    monkeypatch: pytest.MonkeyPatch, together: int
) -> None:
    """Together they take some 100 ms where 4,000 streams are left at once, or end with their gateway; and
    any of them a millisecond, where it gives back the memory of a long context."""
    now = 0.0
    monkeypatch.setattr("time.perf_counter", lambda: now)
    queue = CommandQueue()
    for first in range(0, 4000, together):
        queue.put([api.Cancel(number) for number in range(first, first + together)])
    steps: list[list[int]] = []
    while not queue.empty:
        queue.wait()
        steps.append([])
        for command in queue.take(1000.0, OfOne()):
            assert isinstance(command, api.Cancel)
            steps[-1].append(command.stream)
            now += 1000.0 if len(steps) == 1 else 1.0
    assert [len(step) for step in steps] == [1, 1000, 1000, 1000, 999]
    assert [stream for step in steps for stream in step] == [*range(4000)]


def test_what_one_frame_asks_of_a_stream_is_done_in_one_step_and_others_may_be_in_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A token in between would be decoded by what was adjusted there. And a resume of one whose context is
    very long takes ten milliseconds."""
    now = 0.0
    monkeypatch.setattr("time.perf_counter", lambda: now)
    queue = CommandQueue()
    frames: list[list[api.AnyCommand]] = [
        [api.Truncate(number, 5), api.Adjust(number, api.Sampling())] for number in range(3)
    ]
    frames += [[api.Pause(2, True)], [api.Resume(2)], [api.Truncate(2, 4), api.Pause(2)]]
    queue.put([*frames[0], *frames[1]])
    queue.put([command for frame in frames[2:] for command in frame])
    steps: list[list[api.AnyCommand]] = []
    while not queue.empty:
        steps.append([])
        for command in queue.take(1.0, OfOne()):
            steps[-1].append(command)
            now += 1.0
    assert steps == frames


def test_a_tenants_commands_wait_for_no_more_than_a_step_behind_anothers_crowd(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of each, what concerns its streams is done in its order: also of a fork, which begins behind what was
    said of the stream that it forks."""
    now = 0.0
    monkeypatch.setattr("time.perf_counter", lambda: now)
    queue, steps = CommandQueue(), list[list[api.AnyCommand]]()

    def step() -> None:
        nonlocal now
        steps.append([])
        for command in queue.take(10.0, OfTenants()):
            steps[-1].append(command)
            now += 1.0

    crowd = [api.Pause(number % 10, True) for number in range(320)]
    fork = api.Submit(1100, TEXT[:3], greedy(8), credit=4, tenant=2)
    others: list[api.AnyCommand] = [
        api.Truncate(200, 1),
        api.Resume(200),
        fork,
        api.Pause(1100),
        api.Cancel(200),
    ]
    queue.put([*crowd])
    step()
    queue.put([api.Pause(100)])
    queue.put([*others, api.TellBlocks()])
    while not queue.empty:
        step()
    assert api.Pause(100) in steps[1]
    assert api.TellBlocks() in steps[1]
    assert [command for step in steps[1:3] for command in step if command in others] == others
    assert [command for step in steps for command in step if command in crowd] == crowd


def test_tenants_share_what_a_step_has_for_commands_by_the_time_that_those_take(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else whoever asks now and then for what takes long would leave others a command a step."""
    now = 0.0
    monkeypatch.setattr("time.perf_counter", lambda: now)
    queue, taken = CommandQueue(), Counter[type[api.AnyCommand]]()
    queue.put([api.Grant(1, number) for number in range(5000)])
    for _ in range(40):
        queue.put([api.Resume(100)])
        for command in queue.take(10.0, OfTenants()):
            taken[type(command)] += 1
            now += 10.0 if isinstance(command, api.Resume) else 0.1
    assert taken[api.Grant] * 0.1 == pytest.approx(taken[api.Resume] * 10.0, abs=10.0)


def test_who_begins_in_the_place_of_one_that_is_to_end_has_it_whoever_comes_first_to_its_turn() -> None:
    """A gateway has given the place away when it says that a stream is to end."""
    driver = Driver(engine_of(TOY))
    driver.settle(*(api.Submit(number, TEXT[:3], greedy(8), credit=4) for number in range(SLOTS)))
    crowd: list[api.StreamCommand] = [api.Pause(1), api.Resume(1)] * 3
    begins = [api.Submit(SLOTS + number, TEXT[:3], greedy(8), credit=8, tenant=1) for number in range(2)]
    driver.settle(*crowd, api.Cancel(2), api.Cancel(3), *begins)
    assert [driver.told[number].finish for number in (2, 3)] == [api.Finish("cancelled")] * 2
    assert [driver.told[each.stream].finish for each in begins] == [api.Finish("length")] * 2
    assert len(driver.told[1].changes) == len(crowd)


class Places:
    """Of four streams, each of its hundred's tenant."""

    def __init__(self) -> None:
        self.taken = {1, 100, 299}
        self.refused = list[api.Submit]()

    @property
    def full(self) -> bool:
        return len(self.taken) == 4

    def tenant_of(self, stream: int) -> int | None:
        return stream // 100 if stream in self.taken else None

    def apply(self, command: api.AnyCommand) -> None:
        if isinstance(command, api.Cancel):
            self.taken.discard(command.stream)
        elif isinstance(command, api.Submit) and self.full:
            self.refused.append(command)
        elif isinstance(command, api.Submit):
            self.taken.add(command.stream)


def test_a_cancel_of_one_that_is_yet_to_begin_makes_room_when_that_has_begun(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where another needed room before, it was used up for that, to which it was of no use."""
    now = 0.0
    monkeypatch.setattr("time.perf_counter", lambda: now)
    queue, places = CommandQueue(), Places()

    def begin(stream: int) -> api.Submit:
        return api.Submit(stream, TEXT[:3], greedy(8), credit=4, tenant=stream // 100)

    queue.put([api.Resume(299), begin(200), api.Pause(200), api.Cancel(200)])
    queue.put([*[api.Resume(1)] * 3, begin(300), api.Cancel(1), begin(400), api.Cancel(400)])
    for command in queue.take(100.0, places):
        places.apply(command)
        now += 10.0 if command == api.Resume(299) else 0.1  # so that the others of this tenant's come last
        if command == begin(200):
            queue.put([begin(500)])
    assert not places.refused
    assert places.taken == {100, 299, 300, 500}


@pytest.mark.parametrize("seed", range(20))
def test_each_streams_commands_are_taken_once_and_in_their_order_whatever_is_put_back_and_cut_short(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance, now = random.Random(seed), 0.0
    monkeypatch.setattr("time.perf_counter", lambda: now)
    queue, said, done = CommandQueue(), list[api.Command](), list[api.Command]()
    waiting: dict[int, list[api.AnyCommand]] = {}  # of streams that wait for an answer
    for step in range(1000):
        if step < 100:
            more = [api.Grant(100 * chance.randrange(3) + chance.randrange(3), step) for _ in range(3)]
            queue.put([*more, api.TellBlocks()])
            said += more
        for stream in [stream for stream in waiting if step > 100 or chance.random() < 0.3]:
            queue.put_back(stream // 100, waiting.pop(stream))
        for command in queue.take(chance.choice([1.0, 4.0]), OfTenants()):
            now += chance.choice([0.0, 1.0, 5.0])
            if not isinstance(command, api.Command):
                continue
            if command.stream in waiting:
                waiting[command.stream].append(command)
                continue
            done.append(command)
            if step < 100 and chance.random() < 0.3:
                waiting[command.stream] = []
    assert queue.empty
    assert not waiting
    assert sorted(done, key=lambda one: one.stream) == sorted(said, key=lambda one: one.stream)


def test_all_ranks_take_what_the_first_of_them_had_time_for(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr("time.perf_counter", lambda: now)
    ours, theirs = map(Pipe, socket.socketpair())
    leader, told = LeaderCommandQueue(Followers([ours])), theirs.commands()
    leader.put([api.Cancel(number) for number in range(20)])
    for step in range(2):
        taken: list[api.AnyCommand] = []
        for command in leader.take(10.0, OfOne()):
            taken.append(command)
            now += 1.0
        assert taken == next(told) == [api.Cancel(10 * step + number) for number in range(10)]
    ours.close()
    theirs.close()


def test_a_fork_that_goes_on_before_its_turn_has_come_is_told_that_it_runs() -> None:
    driver = Driver(engine_of(TOY))
    driver.settle(api.Submit(1, TEXT[:20], greedy(10), credit=5))
    known = list(driver.engine.scheduler.sequences[1].tokens)
    driver.send(api.Submit(2, known, greedy(10), credit=1000, prompt=20), api.Pause(2), api.Resume(2))
    fork = driver.told[2]
    fork.tokens = known[20:]
    driver.settle(api.Grant(1, 1000))
    assert fork.admitted == 24, "what its parent has computed, in whole blocks"
    assert fork.changes == [api.Paused(5), api.Resumed(5, recomputed=0)]
    assert fork.tokens == driver.told[1].tokens


def test_a_row_that_is_given_up_while_a_step_is_tried_again_has_nobody_elses_token(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    alone = Driver(engine_of(TOY))
    alone.settle(api.Submit(2, TEXT[20:40], greedy(6), credit=99))
    driver = Driver(engine_of(TOY, wrap=lambda runner: FaultyRunner(runner, max_rows=1)))
    executor = driver.engine._executor
    retry = executor._retry_rows

    def giving_up(rows: list[Row]) -> list[Result]:
        results = retry(rows)
        for row in rows:
            if row.sequence.stream == 1:
                row.sequence.give_up_in_flight()
        return results

    monkeypatch.setattr(executor, "_retry_rows", giving_up)
    driver.send(api.Submit(1, TEXT[:20], greedy(6), credit=99), api.Submit(2, TEXT[20:40], greedy(6), 99))
    driver.until(driver.has(2, 6))
    assert driver.told[2].tokens == alone.told[2].tokens


def test_what_was_computed_is_found_by_whose_cache_it_is_in_whoever_shares_the_engine() -> None:
    driver = Driver(engine_of(TOY))
    for stream, (tenant, cache_of) in enumerate([(1, 9), (2, 9), (1, 8), (8, None)], 1):
        driver.settle(api.Submit(stream, TEXT[:64], greedy(3), 3, tenant=tenant, cache_of=cache_of))
    found = [driver.told[stream].admitted for stream in range(1, 5)]
    assert found[0] == found[2] == 0
    assert found[1] == found[3] != 0
