"""Streams of which there are many, and streams that come from many others. Each is made by valid frames, as
far as the server takes them. It knows nothing of what is done to them then."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from bench.reliability.abusive_frames import FOUND, guarded_start, schema
from bench.reliability.growth_world import PLAIN, WITH_CALLS, World
from midstream import protocol
from midstream.protocol import Credit, Fork, Grammar, Guard, Params

CALL = '<tool_call>{"name": "stop", "arguments": {}}</tool_call>'
OPEN_CALL = '<tool_call>{"name": "find", "arguments": {"q": '
ENOUGH = Credit(limit=1 << 20)
READ_AT_ONCE = 16  # starts, whose texts may wait
FEW_AT_ONCE = 100  # that end
FORKED = 500  # tokens of a stream that very many fork


# -- many at once ----------------------------------------------------------------------------------


async def many(n: int, asked: dict[str, Any], text: str, **params: Any) -> World:
    """All alike and of one connection, as many as that may have."""
    world = await World(asked, **params).begin()
    for at in range(1, n):
        await world.say(replace(world.start, request_id=str(at)))
        if at % READ_AT_ONCE == 0:
            await world.rest()
        if world.listener.errors:
            break
    await world.rest()
    await world.write_to_all(text)
    return world


async def streams(n: int) -> World:
    return await many(n, PLAIN, "lorem ipsum " * 2)


async def streams_that_end(n: int) -> World:
    """With whoever reads them."""
    return await many(n, PLAIN | {"on_disconnect": "cancel"}, "lorem ipsum")


async def streams_of_no_credit(n: int) -> World:
    return await many(n, PLAIN | {"credit": Credit(limit=4, prefetch=64)}, "lorem ipsum")


async def streams_that_wait(n: int) -> World:
    """For results, each of three calls, as long as their memory is held."""
    asked = WITH_CALLS | {"on_tool_call": "pause", "tool_hold_ms": 60_000}
    world = await many(n, asked, CALL * 3)
    await world.hear(*(world.engine.end(stream.number) for stream in world.streams))
    await world.rest()
    return world


async def streams_that_are_guarded(n: int) -> World:
    guards = [Guard(**guard) for guard in guarded_start(FOUND)["params"]["guards"]]
    return await many(n, PLAIN, "lorem ipsum", guards=guards)


async def streams_with_a_grammar(n: int) -> World:
    return await many(n, PLAIN, "lorem ipsum", grammar=Grammar(json_schema=schema(0)))


async def streams_that_are_steered(n: int) -> World:
    """In vain, for nobody answers."""
    world = await streams(n)
    for at in range(8):
        params = Params(temperature=at / 10)
        for stream in world.streams:
            await world.say(protocol.Adjust(request_id=stream.request_id, params=params))
    return world


async def streams_without_an_engine(n: int) -> World:
    world = await streams_that_are_steered(n)
    await world.lose_engine()
    return world


async def streams_that_nobody_reads(n: int) -> World:
    world = await streams(n)
    world.listener.leave()
    await world.rest()
    world.listener = world.connection()
    return world


async def streams_with_much_to_read(n: int) -> World:
    """Which nobody reads."""
    world = await streams(n)
    world.listener.ready = False
    await world.write_to_all("lorem ipsum " * 4)
    return world


async def streams_that_have_ended(n: int) -> World:
    """Beside one that goes on."""
    world = await streams(FEW_AT_ONCE)
    for at in range(n):
        await world.say(replace(world.start, request_id=f"ended {at}"))
        await world.say(protocol.Cancel(request_id=f"ended {at}"))
        if at % FEW_AT_ONCE == 0:
            await world.rest()
    await world.rest()
    return world


async def forks(n: int) -> World:
    world = await World(PLAIN).begin()
    await world.write("lorem ipsum " * (FORKED // 12))
    for at in range(n):
        await world.say(protocol.Start(request_id=str(at), fork=Fork(request_id="a"), credit=Credit(limit=1)))
    await world.rest()
    return world


# -- one of another --------------------------------------------------------------------------------


async def generations(n: int) -> World:
    """A fork of a fork of a fork, each steered a little, written on, and gone back."""
    return await of_generations(64, n)


async def of_generations(count: int, n: int) -> World:
    """With `n` tokens each."""
    world = World(WITH_CALLS | {"on_tool_call": "continue"})
    asked: dict[str, Any] = {
        "credit": ENOUGH,
        "on_disconnect": "continue",
        "return_tokens": True,
        "on_tool_call": "continue",
    }
    names = [*map(str, range(count - 1)), "a"]
    for before, name in zip([None, *names], names, strict=False):
        start = (
            replace(world.start, request_id=name)
            if before is None
            else protocol.Start(request_id=name, fork=Fork(request_id=before), **asked)
        )
        await world.steer(start)
        number = world.streams[-1].number
        await world.write(CALL + "x" * n, number=number)
        await world.steer(
            protocol.Inject(request_id=name, tokens=[65, 66]),
            protocol.Adjust(request_id=name, params=Params(temperature=0.5)),
            protocol.Rewind(request_id=name, to=len(world.streams[-1].output) - n // 2),
        )
    assert not world.listener.errors, world.listener.errors[0].message
    return world


async def more_generations(n: int) -> World:
    """Than are kept, with few tokens each."""
    return await of_generations(n, 4)
