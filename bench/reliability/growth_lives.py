"""Streams that have lived through very much, or begin with very much: each in one way alone. It knows nothing
of what is done to them then."""

from __future__ import annotations

from typing import Any

from bench.reliability.abusive_frames import FAR, guarded_start, schema, stops
from bench.reliability.growth_crowds import CALL, OPEN_CALL
from bench.reliability.growth_world import PLAIN, WITH_CALLS, World
from engine import api, toy_model
from midstream import protocol
from midstream.protocol import (
    Budget,
    Credit,
    Function,
    Grammar,
    Guard,
    Message,
    Params,
    Past,
    PastAdjust,
    PastInject,
    Tool,
)
from realtime.stream.spanned_text import call_id_of

GOES_ON: dict[str, Any] = WITH_CALLS | {"on_tool_call": "continue"}
WAITS: dict[str, Any] = WITH_CALLS | {"on_tool_call": "pause"}
PAUSE: protocol.StreamFrame = protocol.Pause(request_id="a")
RESUME: protocol.StreamFrame = protocol.Resume(request_id="a")


# -- what has come of it ---------------------------------------------------------------------------


async def broken_characters(n: int) -> World:
    world = await World(PLAIN).begin()
    await world.write(b"\xff\xe2\x82" * n)
    return world


async def end_tokens(n: int) -> World:
    """Which it ignores."""
    world = await World(GOES_ON, ignore_eos=True).begin()
    await world.write_tokens([97, toy_model.EOS] * n)
    return world


async def told_rarely(n: int) -> World:
    """With so many tokens that wait for more."""
    return await written(GOES_ON | {"stream_interval": 4096}, (CALL + "So, ") * n)


async def thoughts_with_an_end(n: int) -> World:
    """That is put in, since each is too long."""
    world = await World(WITH_CALLS, reasoning_tokens=1).begin()
    for _ in range(n):
        await world.write("<think>" + "x" * 17)
    return world


async def written(asked: dict[str, Any], text: str, **params: Any) -> World:
    world = await World(asked, **params).begin()
    await world.write(text)
    return world


async def bans(n: int) -> World:
    """What guards have rewound for, and others again."""
    world = await World(PLAIN).begin()
    for at in range(n):
        guards = [Guard(name=str(at), do="rewind", times=16, regex="b")]
        await world.steer(protocol.Adjust(request_id="a", params=Params(guards=guards)))
        for _ in range(8):
            await world.write("ab")
    return world


async def guards_put_in(n: int) -> World:
    """Sixteen others each time, behind a token of the last."""
    guards = [Guard(**guard) for guard in guarded_start(FAR)["params"]["guards"]]
    world = await World(GOES_ON).begin()
    for at in range(n):
        await world.steer(
            protocol.Adjust(request_id="a", params=Params(guards=[*guards[1:], named(guards[0], at)]))
        )
        await world.write("ab")
    return world


def named(guard: Guard, at: int) -> Guard:
    return Guard(name=f"the {at}th", do="tell", regex=guard.regex)


async def stop_strings_put_in(n: int) -> World:
    world = await World(GOES_ON).begin()
    for at in range(n):
        await world.steer(protocol.Adjust(request_id="a", params=Params(stop=stops(at))))
        await world.write("ab")
    return world


async def biases_put_in(n: int) -> World:
    world = await World(GOES_ON).begin()
    for at in range(n):
        bias = dict.fromkeys(range(460), at % 100 / 10)
        await world.steer(protocol.Adjust(request_id="a", params=Params(logit_bias=bias)))
        await world.write("ab")
    return world


async def budgets_spent(n: int) -> World:
    """One behind the other, each another, and the first again."""
    world = await World(PLAIN).begin()
    for at in [*range(n), 0]:
        budgets = [Guard(name=str(one), do="tell", budget=Budget(tokens=1 + at)) for one in range(16)]
        await world.steer(protocol.Adjust(request_id="a", params=Params(guards=budgets)))
        await world.write("ab")
    return world


# -- what was done with it -------------------------------------------------------------------------


async def paused_and_resumed(n: int) -> World:
    world = await written(GOES_ON, CALL)
    for _ in range(n):
        await world.steer(PAUSE, RESUME)
        await world.write("a")
    return world


async def granted(n: int) -> World:
    """A token each."""
    world = await World(GOES_ON | {"credit": Credit()}).begin()
    for at in range(n):
        await world.say(protocol.Grant(request_id="a", limit=at + 1))
        await world.write("a")
    return world


async def attached_and_read(n: int) -> World:
    world = await written(GOES_ON, CALL * 50)
    for _ in range(n):
        await world.say(protocol.Attach(request_id="a", after=world.stream.outbox.seq - 1))
    return world


async def left_and_attached(n: int) -> World:
    world = await written(GOES_ON | {"on_disconnect": "pause"}, CALL * 50)
    for _ in range(n):
        world.listener.leave()
        world.listener = world.connection()
        await world.steer(protocol.Attach(request_id="a", after=world.stream.outbox.seq - 1))
    return world


async def engines_lost(n: int) -> World:
    """Not under the same token, or the stream would be blamed."""
    world = await written(GOES_ON, CALL * 50)
    for at in range(n):
        await world.lose_engine()
        await world.new_engine()
        await world.hear(api.News(world.stream.number, admitted=0))
        await world.write("abcd" * (2 + at % 2 * 3))
    return world


async def answered_elsewhere(n: int) -> World:
    world = await written(GOES_ON, CALL * 50)
    other = world.connection()
    for at in range(n):
        await world.say(
            protocol.Adjust(request_id="a", params=Params(temperature=at % 20 / 10), ref=str(at)), other
        )
        await world.rest()
    return world


# -- long texts that were put in -------------------------------------------------------------------


async def long_injections(n: int) -> World:
    return await put_in(await World(GOES_ON).begin(), n)


async def long_injections_into_an_argument(n: int) -> World:
    return await put_in(await written(GOES_ON, OPEN_CALL + '"'), n)


async def long_injections_that_are_guarded(n: int) -> World:
    guards = [Guard(**guard) for guard in guarded_start(FAR)["params"]["guards"]]
    return await put_in(await World(GOES_ON, guards=guards).begin(), n)


async def put_in(world: World, n: int) -> World:
    """In eight parts."""
    for _ in range(8):
        await world.steer(protocol.Inject(request_id="a", tokens=list(b"x" * (n // 8))))
        await world.write("ab")
    return world


async def injection_not_read(n: int) -> World:
    """All of which its engine has, and of which the gateway has read nothing yet."""
    world = await written(GOES_ON, OPEN_CALL + '"')
    await world.say(protocol.Inject(request_id="a", tokens=list(b"x" * n)))
    await world.answer()
    return world


# -- what it began with ----------------------------------------------------------------------------


async def many_tools(n: int) -> World:
    """As many as may be, and as long."""
    described = "x" * max(1, n // 128 - 100)
    tools = [Tool(function=Function(name=f"tool_{at}", description=described)) for at in range(126)]
    world = await World(GOES_ON | {"tools": [*WITH_CALLS["tools"], *tools]}).begin()
    await world.write(CALL * 100)
    return world


async def long_schemas(n: int) -> World:
    tools = [Tool(function=Function(name=f"t{at}", parameters=schema(at), strict=True)) for at in range(n)]
    asked = {"tools": [*WITH_CALLS["tools"], *tools], "tool_choice": "required"}
    world = await World(GOES_ON | asked).begin()
    await world.write(CALL * 100)
    return world


async def past_of_much(n: int) -> World:
    """Steered as often as may be, in every way, with many tokens before each."""
    steps: list[PastAdjust | PastInject] = [
        PastAdjust(index=at * 20, params=Params(temperature=at % 20 / 10))
        if at % 2
        else PastInject(index=at * 20, tokens=[65] * 8)
        for at in range(n)
    ]
    known = Past(tokens=list(b"ab" * 10 * n), steering=steps)
    return await World(GOES_ON | {"past": known}).begin()


async def past_of_calls(n: int) -> World:
    """With their results."""
    call = list(CALL.encode())
    steps: list[PastAdjust | PastInject] = []
    for at in range(n):
        name = call_id_of("a", at + 1)
        messages = [Message(role="tool", tool_call_id=name, content="42")]
        steps.append(PastInject(index=(at + 1) * len(call), messages=messages))
    return await World(GOES_ON | {"past": Past(tokens=call * n, steering=steps)}).begin()


async def past_of_adjustments(n: int) -> World:
    """Each of stop strings."""
    params = [Params(stop=stops(at)[:4]) for at in range(4)]
    steps: list[PastAdjust | PastInject] = [PastAdjust(index=at, params=params[at % 4]) for at in range(n)]
    known = Past(tokens=list(b"x" * n), steering=steps)
    return await World(GOES_ON | {"past": known}).begin()


async def grammar(n: int) -> World:
    choice = [f"{at}" * 4 for at in range(n)]
    return await written(PLAIN, "0000", grammar=Grammar(choice=choice))


# -- calls and their results -----------------------------------------------------------------------


def result(call_id: str, content: str = "42") -> protocol.ToolResult:
    return protocol.ToolResult(request_id="a", call_id=call_id, content=content)


async def results_the_other_way_round(n: int) -> World:
    """But the first's."""
    world = await written(WAITS, CALL * n)
    await world.end_turn()
    for call_id in reversed(world.calls[1:]):
        await world.say(result(call_id))
    await world.rest()
    return world


async def results_told_again(n: int) -> World:
    """Each of a few, very often, and the last one missing."""
    world = await written(WAITS, CALL * 20)
    await world.end_turn()
    for at in range(n):
        await world.steer(result(world.calls[at % 19], str(at)))
    return world


async def long_results(n: int) -> World:
    """That wait for one that is missing."""
    world = await written(WAITS, CALL * 60)
    await world.end_turn()
    for call_id in world.calls[:-1]:
        await world.steer(result(call_id, "x" * (n // 60)))
    return world


async def turns_of_calls(n: int) -> World:
    """Of four calls each, with their results, in another order in each."""
    world = await World(WAITS).begin()
    for at in range(n):
        await world.write(CALL * 4)
        await world.end_turn()
        names = world.calls[-4:]
        await world.steer(*map(result, names[at % 4 :] + names[: at % 4]))
    return world


async def approved(n: int) -> World:
    """All but the last, from the last to the first."""
    world = await written(WAITS | {"approvals": True}, CALL * n)
    await world.end_turn()
    for call_id in reversed(world.calls[:-1]):
        await world.say(protocol.Approve(request_id="a", call_id=call_id))
    await world.rest()
    return world


async def approved_with_results(n: int) -> World:
    world = await approved(n)
    for call_id in world.calls[:-1]:
        await world.say(result(call_id))
    await world.rest()
    return world


async def refused_by_a_no(n: int) -> World:
    """Each call, by a result that failed, without its yes; but the last."""
    world = await written(WAITS | {"approvals": True}, CALL * n)
    await world.end_turn()
    for call_id in world.calls[:-1]:
        await world.say(protocol.ToolResult(request_id="a", call_id=call_id, error="no"))
    await world.rest()
    return world
