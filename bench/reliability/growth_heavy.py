"""Streams that are made large of what takes the most memory for what it is: tokens that say much, wide
letters, and names and parameters that are long and each another. `HEAVY` has them by name, with how large
they may be. It knows nothing of what is done to them then, nor of what is counted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from msgspec.structs import replace

from bench.reliability.growth_crowds import CALL, FEW_AT_ONCE, OPEN_CALL, READ_AT_ONCE, streams
from bench.reliability.growth_lives import GOES_ON, WAITS, written
from bench.reliability.growth_states import FEW, Build, State, amend, ask_much, calls, steered
from bench.reliability.growth_world import MUCH, PLAIN, TOKENS, WITH_CALLS, World
from midstream import protocol
from midstream.protocol import (
    Credit,
    Fork,
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

DASHES, WIDE = TOKENS["dashes"], TOKENS["wide letters"]
BIAS = dict.fromkeys(range(460), 0.5)
CALLS_MUCH = [
    *b'<tool_call>{"name": "stop", "arguments": {"a": "',
    WIDE,
    DASHES,
    *b'"}}</tool_call>',
]


# -- texts whose tokens say much -------------------------------------------------------------------


async def read(asked: dict[str, Any], tokens: list[int], logprobs: int | None = None, **params: Any) -> World:
    world = await World(asked, logprobs=logprobs, **params).begin()
    await world.write_tokens(tokens, logprobs=logprobs)
    return world


async def unread(
    asked: dict[str, Any], tokens: list[int], logprobs: int | None = None, **params: Any
) -> World:
    world = await World(asked, logprobs=logprobs, **params).begin()
    world.listener.ready = False
    await world.write_tokens(tokens, logprobs=logprobs)
    return world


OPENED = list(f'{OPEN_CALL}"'.encode())
CLOSED = list(b'"}}</tool_call>a')
AHEAD = {"credit": Credit(limit=10, prefetch=4096)}


def never_found(count: int = 16, **guard: Any) -> list[Guard]:
    return [Guard(name=str(at), do="tell", **(guard or {"regex": f"q{at}+"})) for at in range(count)]


async def injected(token: int, n: int, **params: Any) -> World:
    """In eight parts."""
    world = await World(GOES_ON, **params).begin()
    return await put_in(world, token, n)


async def injected_into_an_argument(token: int, n: int, **params: Any) -> World:
    return await put_in(await read(GOES_ON, OPENED, **params), token, n)


async def put_in(world: World, token: int, n: int) -> World:
    for _ in range(8):
        await world.steer(protocol.Inject(request_id="a", tokens=[token] * max(1, n // 8)))
        await world.write("a")
    return world


async def injections_that_wait(token: int, n: int) -> World:
    world = await written(GOES_ON, "ab")
    frame = protocol.Inject(request_id="a", tokens=[token] * 100)
    return await ask_much(world, max(1, n // 100), lambda at: frame)


async def known(token: int, n: int) -> World:
    return await World(GOES_ON | {"past": Past(tokens=[token] * n)}).begin()


def of_tokens(kind: str) -> Iterator[tuple[str, Build]]:
    """What may be full of it; of the stop strings one may begin with its end."""
    token, stop = TOKENS[kind], [f"{MUCH[kind][-1]}q"]

    def full(how: Callable[..., Any], asked: dict[str, Any], before: list[int], **params: Any) -> Build:
        return lambda n: how(asked, before + [token] * n, **params)

    yield "text", full(read, PLAIN, [])
    yield "unread text", full(unread, PLAIN, [])
    yield "text with stop strings", full(unread, PLAIN, [], stop=stop)
    yield "content", full(read, GOES_ON, [])
    yield "guarded content", full(read, GOES_ON, [], guards=never_found())
    yield "thought", full(read, WITH_CALLS, list(b"<think>"))
    yield "argument", full(read, GOES_ON, OPENED)
    yield "unread argument", full(unread, GOES_ON, OPENED)
    yield "argument told whole", full(read, GOES_ON | {"whole_arguments": True}, OPENED)
    yield "argument that has ended", lambda n: read(GOES_ON, OPENED + [token] * n + CLOSED)
    yield "text ahead of credit", full(read, PLAIN | AHEAD, [])
    yield "past", partial(known, token)
    yield "injections", partial(injected, token)
    yield "injections into an argument", partial(injected_into_an_argument, token)
    yield (
        "guarded injections into an argument",
        partial(injected_into_an_argument, token, guards=never_found(in_=["arguments"], regex="q+")),
    )
    yield "injections that wait", partial(injections_that_wait, token)


async def letters_among_others(before: list[int], n: int) -> World:
    """One that is wide, behind all else."""
    return await read(GOES_ON, [*before, *[DASHES] * n, TOKENS["emoji"]])


async def log_probabilities(n: int) -> World:
    return await read(PLAIN, [WIDE] * n, logprobs=20)


async def unread_log_probabilities(n: int) -> World:
    return await unread(PLAIN, [WIDE] * n, logprobs=20)


# -- calls and results -----------------------------------------------------------------------------


async def calls_of_much(n: int) -> World:
    return await read(GOES_ON, CALLS_MUCH * n)


async def unread_calls_of_much(n: int) -> World:
    return await unread(GOES_ON, CALLS_MUCH * n)


async def calls_to_come(n: int) -> World:
    world = await read(WAITS, list(CALL.encode()) * n)
    await world.end_turn()
    return world


async def results(world: World, content: Any) -> World:
    """Of all but the last."""
    for call_id in world.calls[:-1]:
        await world.say(protocol.ToolResult(request_id="a", call_id=call_id, content=content))
    await world.rest()
    return world


async def wide_results(n: int) -> World:
    return await results(await calls_to_come(n), "漢" * 300 + "x" * 300)


async def results_in_parts(n: int) -> World:
    return await results(await calls_to_come(n), [{"type": "text", "text": "漢"}] * 30)


async def wide_results_before_the_end(n: int) -> World:
    return await results(await read(WAITS, list(CALL.encode()) * n), "漢" * 300 + "x" * 300)


async def wide_results_put_in(n: int) -> World:
    world = await results(await calls_to_come(n), "漢" * 30 + "x" * 30)
    await world.steer(protocol.ToolResult(request_id="a", call_id=world.calls[-1], content="42"))
    return world


async def failed_results(n: int) -> World:
    world = await calls_to_come(n)
    for call_id in world.calls[:-1]:
        await world.say(protocol.ToolResult(request_id="a", call_id=call_id, error="漢" * 300))
    await world.rest()
    return world


# -- what is asked, answered and waits -------------------------------------------------------------


def full_adjust(at: int, **what: Any) -> protocol.Adjust:
    stop = [f"漢{at:0>120}x{number}" for number in range(16)]
    return protocol.Adjust(
        request_id="a", ref=f"{at:0>60}", params=Params(stop=stop, logit_bias=BIAS, **what)
    )


def guards_of(at: int) -> list[Guard]:
    """Each another."""
    return [
        Guard(name=f"{at} 漢{number}", do="tell", regex=f"[漢字仮名交じり文]{{2}}{at:0>30}x{number}")
        for number in range(16)
    ]


def adjust_guards(at: int) -> protocol.Adjust:
    return protocol.Adjust(request_id="a", params=Params(guards=guards_of(at)))


def inject_messages(at: int) -> protocol.Inject:
    said = [Message(role="user", content="漢" * 10)] * 10
    return protocol.Inject(request_id="a", ref=f"{at:0>60}", messages=said)


def asked_much(frame: Callable[[int], protocol.StreamFrame]) -> Build:
    async def build(n: int) -> World:
        return await ask_much(await written(GOES_ON, "ab"), n, frame)

    return build


def answered_much(frame: Callable[[int], protocol.StreamFrame], *, ready: bool = True) -> Build:
    async def build(n: int) -> World:
        world = await written(GOES_ON, "ab")
        world.listener.ready = ready
        return await steered(world, n, frame)

    return build


def from_elsewhere(frame: Callable[[int], protocol.StreamFrame], *, answered: bool = False) -> Build:
    async def build(n: int) -> World:
        world = await calls(FEW)
        other = world.connection()
        for at in range(n):
            await world.say(frame(at), other)
            if answered:
                await world.rest()
            if other.errors:
                break
        return world

    return build


async def wide_amendments_that_wait(n: int) -> World:
    world = await calls(FEW)
    return await ask_much(world, n, lambda at: amend(world.calls[-1], {"n": "漢" * 100, "at": at}))


async def wide_amendments(n: int) -> World:
    world = await calls_to_come(1)
    for at in range(n):
        await world.steer(amend(world.calls[0], {"n": "漢" * 50, "at": at}))
        await world.write("}</tool_call>")
        await world.end_turn()
    return world


async def waiting_behind_a_text(n: int) -> World:
    """All at once, so that the text is not read yet."""
    world = await calls(FEW)
    long = protocol.Inject(request_id="a", text="x " * 60_000)
    return await ask_much(world, n, lambda at: full_adjust(at) if at else long)


async def starts_that_wait(n: int) -> World:
    world = await calls(FEW)
    said = [Message(role="user", content="漢字仮" * 1_000)]
    return await ask_much(world, n, lambda at: replace(world.start, request_id=f"{at:0>100}", messages=said))


async def rewinds_of_much(n: int) -> World:
    world = await read(GOES_ON, [DASHES] * FEW)
    for at in range(n):
        await world.steer(protocol.Rewind(request_id="a", to=world.sent - 2, ref=f"漢{at:0>30}"))
        await world.write_tokens([DASHES, WIDE])
    return world


async def attached_to_much(n: int) -> World:
    world = await read(GOES_ON, [WIDE] * 200)
    world.listener.ready = False
    return await ask_much(world, n, lambda at: protocol.Attach(request_id="a", after=-1, ref=f"漢{at:0>60}"))


# -- guards ----------------------------------------------------------------------------------------


def guards_that_find(how: Callable[..., Any]) -> Build:
    guards = [Guard(name="漢" * 60 + str(number), do="tell", regex=".") for number in range(16)]
    return lambda n: how(GOES_ON, [WIDE] * n, guards=guards)


async def guards_of_values(n: int) -> World:
    call = [*b'<tool_call>{"name": "find", "arguments": {"q": {"a": ["', *[WIDE] * 4, *b'"]}}}</tool_call>']
    return await read(GOES_ON, call * n, guards=never_found(tool="find", path="$.q.a[1]", forbid="q+"))


async def guards_of_names(n: int) -> World:
    """That are long, and wide."""
    names = "{" + ", ".join(f'"{"漢" * 80}{at}": 1' for at in range(n // 250 + 1))
    guards = never_found(tool="find", path="$.q.b.c.d.e[1]", forbid="q+")
    return await read(GOES_ON, [*OPEN_CALL.encode(), *names.encode()[:n]], guards=guards)


async def guards_of_what_is_deep(n: int) -> World:
    guards = never_found(tool="find", path="$.q[0][1]", forbid="q+")
    return await read(GOES_ON, [*OPEN_CALL.encode(), *b"[" * n], guards=guards)


# -- how it began ----------------------------------------------------------------------------------


async def past_of_all_kinds(n: int) -> World:
    steps: list[PastAdjust | PastInject] = []
    for at in range(n):
        steps.append(PastAdjust(index=at * 2, params=full_adjust(at).params))
        steps.append(PastInject(index=at * 2 + 1, messages=inject_messages(at).messages))
    return await World(GOES_ON | {"past": Past(tokens=[DASHES] * (2 * n), steering=steps)}).begin()


async def past_of_names(n: int) -> World:
    names = ["漢" * 100 + str(at) for at in range(n)]
    return await World(GOES_ON | {"past": Past(tokens=list(CALL.encode()) * n, call_ids=names)}).begin()


# -- many ------------------------------------------------------------------------------------------


def crowd(asked: dict[str, Any], each: Callable[[int], dict[str, Any]]) -> Build:
    """Each of them with something of its own."""

    async def build(n: int) -> World:
        world = World(asked)
        world.start = replace(world.start, **each(0))
        await world.begin()
        for at in range(1, n):
            await world.say(replace(world.start, request_id=f"{at:0>100}", **each(at)))
            if at % READ_AT_ONCE == 0:
                await world.rest()
            if world.listener.errors:
                break
        await world.rest()
        return world

    return build


def with_params(of: Callable[[int], Params]) -> Build:
    return crowd(PLAIN, lambda at: {"params": of(at)})


def tools_of(at: int, **what: Any) -> dict[str, Any]:
    schema = {"type": "object", "properties": {f"漢{number}": {"type": "string"} for number in range(10)}}
    return {
        "tools": [
            Tool(
                function=Function(
                    name=f"t{at}_{number}", description="漢" * 50, parameters=schema, strict=True
                )
            )
            for number in range(8)
        ]
    } | what


def lark(at: int) -> Grammar:
    return Grammar(lark=f'start: "a{at}" | ' + " | ".join(f'"漢{number}"' for number in range(100)))


def schema_of(at: int) -> Grammar:
    names = [f"漢{at}{number}" for number in range(100)]
    return Grammar(json_schema={"type": "object", "properties": {name: {"type": "string"} for name in names}})


def forks_of(tokens: list[int], **params: Any) -> Build:
    async def build(n: int) -> World:
        world = await read(GOES_ON, tokens, **params)
        for at in range(n):
            fork = protocol.Start(
                request_id=f"{at:0>100}", fork=Fork(request_id="a"), credit=Credit(limit=1), ref="漢" * 60
            )
            await world.say(fork)
        await world.rest()
        return world

    return build


async def ended(n: int, **fields: Any) -> World:
    """Beside a few that go on."""
    world = await streams(4)
    for at in range(n):
        name = f"{at:0>100}"
        await world.say(replace(world.start, request_id=name, **fields))
        await world.say(protocol.Cancel(request_id=name))
        if at % FEW_AT_ONCE == 0:
            await world.rest()
    await world.rest()
    return world


async def decoded_turns(n: int) -> World:
    """That are known for an hour, of streams that have ended."""
    world = await read(GOES_ON, [])
    for at in range(n):
        name = f"{at:0>100}"
        await world.steer(replace(world.start, request_id=name))
        number = world.streams[-1].number
        await world.write_tokens([WIDE, *CALLS_MUCH], number=number)
        await world.hear(world.engine.end(number))
        await world.rest()
    return world


OF_TOKENS = {f"{what}, {kind}": State(build, 8_000) for kind in MUCH for what, build in of_tokens(kind)}
STOPS = [f"{'漢' * 250}{number}" for number in range(16)]
HEAVY = OF_TOKENS | {
    "a wide letter behind a thought": State(partial(letters_among_others, list(b"<think>")), 8_000),
    "a wide letter in an argument": State(partial(letters_among_others, OPENED), 8_000),
    "log probabilities of much": State(log_probabilities, 4_000),
    "unread log probabilities of much": State(unread_log_probabilities, 4_000),
    "calls of much": State(calls_of_much, 1_000),
    "unread calls of much": State(unread_calls_of_much, 1_000),
    "wide results": State(wide_results, 600),
    "results in parts": State(results_in_parts, 600),
    "wide results before the end": State(wide_results_before_the_end, 600),
    "wide results put in": State(wide_results_put_in, 600),
    "failed results": State(failed_results, 600),
    "full adjustments that wait": State(asked_much(full_adjust), 400),
    "guards that wait": State(asked_much(adjust_guards), 400),
    "texts that wait": State(asked_much(lambda at: protocol.Inject(request_id="a", text="漢" * 100)), 2_000),
    "messages that wait": State(asked_much(inject_messages), 2_000),
    "pauses that wait": State(
        asked_much(lambda at: protocol.Pause(request_id="a", ref=f"漢{at:0>60}")), 2_000
    ),
    "full adjustments": State(answered_much(full_adjust), 400),
    "unread full adjustments": State(answered_much(full_adjust, ready=False), 400),
    "messages": State(answered_much(inject_messages), 2_000),
    "other guards each time": State(answered_much(adjust_guards), 400),
    "full adjustments from elsewhere": State(from_elsewhere(full_adjust), 200),
    "answered full adjustments from elsewhere": State(from_elsewhere(full_adjust, answered=True), 200),
    "cancels from elsewhere with a name": State(
        from_elsewhere(lambda at: protocol.Cancel(request_id="a", ref=f"漢{at:0>60}")), 2_000
    ),
    "wide amendments that wait": State(wide_amendments_that_wait, 1_000),
    "wide amendments": State(wide_amendments, 300),
    "frames behind a text": State(waiting_behind_a_text, 400),
    "starts that wait": State(starts_that_wait, 2_000),
    "rewinds of much": State(rewinds_of_much, 3_000),
    "attached to much": State(attached_to_much, 1_000),
    "guards that find each token": State(guards_that_find(read), 2_000),
    "guards that find each unread token": State(guards_that_find(unread), 500),
    "guards of values": State(guards_of_values, 400),
    "guards of names": State(guards_of_names, 16_000),
    "guards of what is deep": State(guards_of_what_is_deep, 4_000),
    "a past of all kinds": State(past_of_all_kinds, 400),
    "a past of names": State(past_of_names, 2_000),
    "streams with wide stop strings": State(with_params(lambda at: Params(stop=STOPS)), 600),
    "streams with other stop strings": State(
        with_params(lambda at: Params(stop=[f"{at:0>120}漢{number:0>120}" for number in range(16)])), 600
    ),
    "streams with all parameters": State(
        with_params(lambda at: Params(stop=STOPS, logit_bias=BIAS, guards=guards_of(0))), 600
    ),
    "streams with other guards": State(with_params(lambda at: Params(guards=guards_of(at))), 600),
    "streams with a choice": State(
        with_params(lambda at: Params(grammar=Grammar(choice=[f"漢字{at} {one}" * 5 for one in range(50)]))),
        600,
    ),
    "streams with lark": State(with_params(lambda at: Params(grammar=lark(at))), 400),
    "streams with a schema": State(with_params(lambda at: Params(grammar=schema_of(at))), 400),
    "streams with tools": State(crowd(WITH_CALLS, tools_of), 300),
    "streams that must call": State(crowd(WITH_CALLS, lambda at: tools_of(at, tool_choice="required")), 200),
    "streams of messages": State(
        crowd({}, lambda at: {"messages": [Message(role="user", content="漢" * 200)] * 8}), 600
    ),
    "forks of much": State(forks_of([DASHES, WIDE] * 250), 600),
    "forks with guards": State(forks_of([DASHES, WIDE] * 250, guards=never_found()), 400),
    "forks of calls": State(forks_of(CALLS_MUCH * FEW), 300),
    "ended streams with parameters": State(
        partial(ended, prompt="漢" * 100, params=Params(stop=STOPS[:4])), 1_500
    ),
    "decoded turns": State(decoded_turns, 400),
}
