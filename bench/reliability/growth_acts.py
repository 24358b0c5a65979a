"""What may be done to a stream, by its client and others, by its engine and by time. `ACTS` has each by name:
it waits until all has come of it. It knows nothing of how the stream was made large.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from bench.reliability.abusive_frames import FAR, guarded_start, schema, stops
from bench.reliability.growth_crowds import CALL, OPEN_CALL
from bench.reliability.growth_lives import PAUSE, RESUME, result
from bench.reliability.growth_states import adjust, amend, inject
from bench.reliability.growth_world import World
from engine import api
from midstream import protocol
from midstream.protocol import Fork, Grammar, Guard, Message, Params

Act = Callable[[World], Coroutine[Any, Any, None]]

ADOPTED = 64  # streams at once, which are built anew
MANY = 4  # streams that are more than a few
MOST_AT_ONCE = 16  # commands of a stream that its engine answers in one step
GUARDS = [Guard(**guard) for guard in guarded_start(FAR)["params"]["guards"]]


class NothingThereError(Exception):
    """The stream has nothing that this could be done to."""


def said(*frames: protocol.StreamFrame) -> Act:
    """At once, and answered in one step."""
    return lambda world: world.steer(*frames)


def of_call(at: int, frame: Callable[[str], protocol.StreamFrame]) -> Act:
    """Of the first, or the last."""

    async def act(world: World) -> None:
        calls = world.calls
        if not calls:
            raise NothingThereError
        await world.steer(frame(calls[at]))

    return act


def approve(call_id: str) -> protocol.Approve:
    return protocol.Approve(request_id="a", call_id=call_id)


def failed(call_id: str) -> protocol.ToolResult:
    return protocol.ToolResult(request_id="a", call_id=call_id, error="no")


def at_part(part: float, frame: Callable[[int], protocol.StreamFrame], times: int = 1) -> Act:
    """At a token of what was sent: 0 the first, 1 behind the last."""

    async def act(world: World) -> None:
        await world.steer(*[frame(int(part * world.sent))] * times)

    return act


def one_before(frame: Callable[[int], protocol.StreamFrame]) -> Act:
    """Of what was sent."""

    async def act(world: World) -> None:
        await world.steer(frame(max(0, world.sent - 1)))

    return act


def rewind(to: int) -> protocol.Rewind:
    return protocol.Rewind(request_id="a", to=to)


def fork(at: int) -> protocol.Start:
    return protocol.Start(request_id="b", fork=Fork(request_id="a", at=at))


def written(text: str) -> Act:
    return lambda world: world.write(text)


async def many_approvals(world: World) -> None:
    await world.steer(*map(approve, world.calls[:MOST_AT_ONCE]))


async def many_results(world: World) -> None:
    await world.steer(*map(result, world.calls[:MOST_AT_ONCE]))


async def rewind_step_by_step(world: World) -> None:
    await world.steer(*(rewind(max(0, world.sent - at)) for at in range(1, MOST_AT_ONCE + 1)))


async def length_reached(world: World) -> None:
    await world.hear(world.engine.run_out(world.stream.number))
    await world.rest()


async def memory_taken(world: World) -> None:
    number = world.stream.number
    index = len(world.stream.output)
    await world.hear(api.News(number, early=[api.Paused(index, "memory")]))
    await world.hear(api.News(number, early=[api.Resumed(index, 0, "memory")]))
    await world.rest()


async def lose_engine(world: World) -> None:
    if not world.engine.lives:
        raise NothingThereError
    await world.lose_engine()


async def engine_lost(world: World) -> None:
    await lose_engine(world)
    await world.new_engine()


async def steered_without_engine(world: World) -> None:
    await lose_engine(world)
    await world.steer(inject(), adjust(1), rewind(0), PAUSE)
    await world.new_engine()


async def gone_and_back(world: World) -> None:
    await world.leave()
    world.listener = world.connection()
    await world.steer(protocol.Attach(request_id="a", after=-1))


async def attached_near_the_end(world: World) -> None:
    await world.steer(protocol.Attach(request_id="a", after=world.stream.outbox.seq - 2))


async def taken_by_another(world: World) -> None:
    await world.say(protocol.Attach(request_id="a", after=-1), world.connection())
    await world.rest()


async def read_at_last(world: World) -> None:
    world.listener.ready = True
    await asyncio.sleep(0)
    world.listener.flush()
    await asyncio.sleep(0)
    await world.rest()


async def acknowledged(world: World) -> None:
    stream = world.stream
    world.hub.acknowledge(stream, world.sent, stream.outbox.seq - 1)
    world.hub.flush()
    await asyncio.sleep(0)
    await world.rest()


async def cancelled_with_all_others(world: World) -> None:
    world.hub.cancel_all()
    await asyncio.sleep(0)
    await world.rest()


async def handed_over(world: World) -> None:
    await world.hub.hand_over(also_read=False)
    await asyncio.sleep(0)
    await world.rest()


async def timed_out(world: World) -> None:
    world.hub._time_out(world.entry)
    await asyncio.sleep(0)
    await world.rest()


async def memory_released(world: World) -> None:
    """It waited for results for too long."""
    world.hub._incoming._release_kv(world.entry)
    await asyncio.sleep(0)
    await world.rest()


async def adopted(world: World) -> None:
    await world.be_adopted(protocol.Attach(request_id="a", after=-1))


# -- to all streams, of which there are many -------------------------------------------------------


def to_all(frame: Callable[[str], protocol.StreamFrame]) -> Act:
    """Answered in one step."""

    async def act(world: World) -> None:
        for name in names_of_many(world):
            await world.say(frame(name))
        await world.rest()

    return act


def names_of_many(world: World) -> list[str]:
    if len(world.streams) < MANY:
        raise NothingThereError
    return [stream.request_id for stream in world.streams]


async def a_token_of_all(world: World) -> None:
    names_of_many(world)
    await world.write_to_all("a")


async def most_tokens_of_all(world: World) -> None:
    names_of_many(world)
    await world.hear(*(world.engine.run_out(stream.number) for stream in world.streams))
    await world.rest()


async def memory_taken_from_all(world: World) -> None:
    names_of_many(world)
    streams = [(stream.number, len(stream.output)) for stream in world.streams]
    await world.hear(*(api.News(number, early=[api.Paused(index, "memory")]) for number, index in streams))
    await world.hear(
        *(api.News(number, early=[api.Resumed(index, 0, "memory")]) for number, index in streams)
    )
    await world.rest()


async def all_left_and_time_passed(world: World) -> None:
    names_of_many(world)
    await world.leave()
    await world.let_time_pass()


async def all_left_and_attached(world: World) -> None:
    names = names_of_many(world)
    world.listener.leave()
    world.listener = world.connection()
    for name in names:
        await world.say(protocol.Attach(request_id=name, after=-1))
    await world.rest()


async def all_taken_by_another(world: World) -> None:
    names, other = names_of_many(world), world.connection()
    for name in names:
        await world.say(protocol.Attach(request_id=name, after=-1), other)
    await world.rest()


async def all_adopted(world: World) -> None:
    names = names_of_many(world)[:ADOPTED]
    await world.be_adopted(*(protocol.Attach(request_id=name, after=-1) for name in names))


async def ended_and_asked_for(world: World) -> None:
    await length_reached(world)
    await world.steer(protocol.Attach(request_id="a", after=-1), fork(0))


ACTS: dict[str, Act] = {
    "approve the first": of_call(0, approve),
    "approve the last": of_call(-1, approve),
    "approve many": many_approvals,
    "amend the first": of_call(0, lambda call: amend(call, {"a": 1})),
    "amend the last": of_call(-1, lambda call: amend(call, {"a": 1})),
    "amend a beginning": of_call(-1, lambda call: amend(call, '{"a": ', partial=True)),
    "a result of the first": of_call(0, result),
    "a result of the last": of_call(-1, result),
    "a result that failed": of_call(-1, failed),
    "many results": many_results,
    "inject": said(inject()),
    "inject a call": said(inject(tokens=list(CALL.encode()))),
    "inject much": said(inject(tokens=list(b"lorem " * 3000))),
    "inject a message": said(inject(tokens=None, messages=[Message(role="user", content="x")])),
    "inject at the first token": at_part(0, lambda at: inject(at=at)),
    "inject in the middle": at_part(0.5, lambda at: inject(at=at)),
    "inject before the last": one_before(lambda at: inject(at=at)),
    "inject in the middle, many": at_part(0.5, lambda at: inject(at=at), MOST_AT_ONCE),
    "inject many": said(*[inject()] * MOST_AT_ONCE),
    "adjust": said(adjust(7)),
    "adjust many": said(*map(adjust, range(MOST_AT_ONCE))),
    "adjust the stop strings": said(adjust(7, stop=stops(1))),
    "adjust stop strings many times": said(*(adjust(7, stop=stops(at)) for at in range(MOST_AT_ONCE))),
    "adjust the guards": said(adjust(7, guards=GUARDS)),
    "adjust the grammar": said(adjust(7, grammar=Grammar(json_schema=schema(1)))),
    "adjust the biases": said(adjust(7, logit_bias=dict.fromkeys(range(400), 0.5))),
    "adjust the reasoning": said(adjust(7, reasoning_tokens=5)),
    "adjust in the middle": at_part(
        0.5, lambda at: protocol.Adjust(request_id="a", params=Params(temperature=0.3), at=at)
    ),
    "rewind by one": one_before(rewind),
    "rewind step by step": rewind_step_by_step,
    "rewind to the middle": at_part(0.5, rewind),
    "rewind to the middle, many": at_part(0.5, rewind, MOST_AT_ONCE),
    "rewind to the first": said(rewind(0)),
    "pause": said(PAUSE),
    "pause and resume, many": said(*[PAUSE, RESUME] * (MOST_AT_ONCE // 2)),
    "pause and release": said(protocol.Pause(request_id="a", kv="release")),
    "resume": said(RESUME),
    "more credit": said(protocol.Grant(request_id="a", limit=1 << 20)),
    "fork from the first": at_part(0, fork),
    "fork from the middle": at_part(0.5, fork),
    "fork from the end": at_part(1, fork),
    "attach": said(protocol.Attach(request_id="a", after=-1)),
    "attach many times": said(*[protocol.Attach(request_id="a", after=-1)] * MOST_AT_ONCE),
    "attach near the end": attached_near_the_end,
    "attach elsewhere": taken_by_another,
    "attach in another epoch": said(protocol.Attach(request_id="a", after=5, epoch=3)),
    "go and come back": gone_and_back,
    "go": World.leave,
    "read at last": read_at_last,
    "acknowledge": acknowledged,
    "cancel": said(protocol.Cancel(request_id="a")),
    "cancel all": cancelled_with_all_others,
    "hand over": handed_over,
    "be adopted": adopted,
    "time out": timed_out,
    "release memory": memory_released,
    "lose memory": memory_taken,
    "lose the engine": engine_lost,
    "be steered without an engine": steered_without_engine,
    "a token": written("a"),
    "text": written("ab" * 32),
    "a call": written(CALL),
    "a call that begins": written(OPEN_CALL),
    "a thought": written("<think>x</think>"),
    "the end of an argument": written('"}}</tool_call>'),
    "the end of the turn": World.end_turn,
    "the most tokens": length_reached,
    "the end, and who asks for it": ended_and_asked_for,
    "time passes": World.let_time_pass,
}

# Where there are many.
ACTS_ON_MANY: dict[str, Act] = {
    "pause all": to_all(lambda name: protocol.Pause(request_id=name)),
    "adjust all": to_all(lambda name: protocol.Adjust(request_id=name, params=Params(temperature=0.3))),
    "inject into all": to_all(lambda name: protocol.Inject(request_id=name, tokens=[65, 66])),
    "rewind all": to_all(lambda name: protocol.Rewind(request_id=name, to=0)),
    "cancel each": to_all(lambda name: protocol.Cancel(request_id=name)),
    "fork each": to_all(lambda name: protocol.Start(request_id=f"{name} b", fork=Fork(request_id=name))),
    "a token of all": a_token_of_all,
    "the most tokens of all": most_tokens_of_all,
    "lose memory of all": memory_taken_from_all,
    "go, and time passes": all_left_and_time_passed,
    "go and come back to all": all_left_and_attached,
    "attach to all elsewhere": all_taken_by_another,
    "all be adopted": all_adopted,
}
