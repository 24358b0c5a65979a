"""Streams that a stranger has made large, each in one way alone. `STATES` has them by name, with how large
they may be: as the server's own limits have it, or a context of 128 Ki tokens.

Each is made by valid frames and a model's own tokens, as far as the server takes them. It knows nothing of
what is done to them then.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, NamedTuple

from bench.reliability import growth_lives as lives
from bench.reliability.abusive_frames import FOUND, guarded_start, stops
from bench.reliability.growth_crowds import (
    CALL,
    OPEN_CALL,
    forks,
    generations,
    more_generations,
    streams,
    streams_of_no_credit,
    streams_that_are_guarded,
    streams_that_are_steered,
    streams_that_end,
    streams_that_have_ended,
    streams_that_nobody_reads,
    streams_that_wait,
    streams_with_a_grammar,
    streams_with_much_to_read,
    streams_without_an_engine,
)
from bench.reliability.growth_lives import GOES_ON, WAITS, result, written
from bench.reliability.growth_world import PLAIN, WITH_CALLS, World
from midstream import protocol
from midstream.protocol import Budget, Credit, Grammar, Guard, Message, Params, Past, PastInject

Build = Callable[[int], Coroutine[Any, Any, World]]

LITTLE = "ab"
FEW = 50  # calls of a stream that is large in something else


class State(NamedTuple):
    """`most`: of what it is made large in."""

    build: Build
    most: int


# -- what the model has written --------------------------------------------------------------------


async def text(n: int) -> World:
    return await written(PLAIN, "lorem ipsum " * n)


async def text_with_stop_strings(n: int) -> World:
    return await written(PLAIN, "ab" * n, stop=stops(0))


async def text_that_is_counted(n: int) -> World:
    return await written(PLAIN, "lorem ipsum " * n, presence_penalty=0.5)


async def calls(n: int) -> World:
    return await written(GOES_ON, CALL * n)


async def calls_with_text_between(n: int) -> World:
    return await written(GOES_ON, (CALL + "So.") * n)


async def calls_to_approve(n: int) -> World:
    return await written(GOES_ON | {"approvals": True}, CALL * n)


async def reasoning(n: int) -> World:
    return await written(WITH_CALLS, "<think>a</think>b" * n)


async def one_thought(n: int) -> World:
    return await written(WITH_CALLS, "<think>" + "lorem ipsum " * n)


async def thought_with_a_limit(n: int) -> World:
    return await written(WITH_CALLS, "<think>" + "lorem ipsum " * n, reasoning_tokens=1 << 20)


async def long_argument(n: int) -> World:
    return await written(GOES_ON, OPEN_CALL + '"' + "x" * n + '"}}</tool_call>')


async def long_argument_and_a_call(n: int) -> World:
    return await written(GOES_ON, OPEN_CALL + '"' + "x" * n + '"}}</tool_call>' + CALL)


async def open_argument(n: int) -> World:
    return await written(GOES_ON, OPEN_CALL + '"' + "x" * n)


async def blanks_in_an_argument(n: int) -> World:
    return await written(GOES_ON, OPEN_CALL + " " * n)


async def whole_argument(n: int) -> World:
    return await written(GOES_ON | {"whole_arguments": True}, OPEN_CALL + '"' + "x" * n)


async def number(n: int) -> World:
    return await written(GOES_ON | {"whole_arguments": True}, OPEN_CALL + "1" * n)


async def nested_argument(n: int) -> World:
    return await written(GOES_ON, OPEN_CALL + "[" * n)


async def keys_of_an_argument(n: int) -> World:
    keys = ", ".join(f'"{at}": {at}' for at in range(n))
    return await written(GOES_ON, OPEN_CALL + "{" + keys + "}}}</tool_call>")


async def begun_delimiters(n: int) -> World:
    """A call that may begin with each of them, and does not."""
    return await written(GOES_ON, "<tool_cal" * n)


async def log_probabilities(n: int) -> World:
    world = await World(PLAIN, logprobs=20).begin()
    await world.write("a" * n, logprobs=20)
    return world


# -- calls and their results -----------------------------------------------------------------------


async def calls_that_wait(n: int) -> World:
    world = await written(WAITS, CALL * n)
    await world.end_turn()
    return world


async def results_on_their_way(n: int) -> World:
    """But the last; nobody has answered them."""
    world = await calls_that_wait(n)
    for call_id in world.calls[:-1]:
        await world.say(result(call_id))
    return world


async def results_that_wait(n: int) -> World:
    """For the one that is missing."""
    world = await results_on_their_way(n)
    await world.rest()
    return world


async def results_before_the_end(n: int) -> World:
    """They are all there, and the turn has not ended."""
    world = await written(WAITS, CALL * n)
    for call_id in world.calls:
        await world.say(result(call_id))
    await world.rest()
    return world


async def calls_with_results(n: int) -> World:
    world = await results_that_wait(n)
    await world.steer(result(world.calls[-1]))
    return world


async def results_one_by_one(n: int) -> World:
    """Each goes in by itself, and opens a turn."""
    world = await calls(n)
    for call_id in world.calls:
        await world.steer(result(call_id))
    return world


# -- what was asked of it --------------------------------------------------------------------------


async def steered(world: World, n: int, frame: Callable[[int], protocol.StreamFrame]) -> World:
    """So often, each answered before the next and behind two tokens; no further than it may."""
    for at in range(n):
        await world.steer(frame(at))
        await world.write(LITTLE)
        if world.listener.errors:
            break
    return world


def inject(**what: Any) -> protocol.Inject:
    return protocol.Inject(request_id="a", **({"tokens": [65, 66]} | what))


def adjust(at: int, **what: Any) -> protocol.Adjust:
    """Each another."""
    return protocol.Adjust(request_id="a", params=Params(temperature=at % 200 / 100, **what))


async def injections(n: int) -> World:
    return await steered(await World(GOES_ON).begin(), n, lambda at: inject())


async def injections_in_one_place(n: int) -> World:
    world = await World(GOES_ON).begin()
    await world.write("Once upon")
    for _ in range(n):
        await world.steer(inject())
    return world


async def injections_into_an_argument(n: int) -> World:
    world = await written(GOES_ON, OPEN_CALL + '"')
    return await steered(world, n, lambda at: inject())


async def injections_into_text(n: int) -> World:
    return await steered(await World(PLAIN).begin(), n, lambda at: inject())


async def turns(n: int) -> World:
    said = inject(messages=[Message(role="user", content="x")], tokens=None)
    return await steered(await World(GOES_ON).begin(), n, lambda at: said)


async def grammars_begun(n: int) -> World:
    world = await World(PLAIN, grammar=Grammar(choice=["a", "b"])).begin()
    return await steered(world, n, lambda at: inject(grammar="anew"))


async def adjustments(n: int) -> World:
    return await steered(await World(GOES_ON).begin(), n, adjust)


async def rewinds(n: int) -> World:
    world = await World(GOES_ON).begin()
    await world.write("Once upon a time")
    for _ in range(n):
        await world.steer(protocol.Rewind(request_id="a", to=world.sent - 2))
        await world.write(LITTLE)
    return world


async def amendments(n: int) -> World:
    """Of one call, which was amended so often."""
    world = await written(WAITS, CALL)
    await world.end_turn()
    for at in range(n):
        await world.steer(amend(world.calls[0], {"n": at}))
        await world.write("}</tool_call>")
        await world.end_turn()
    return world


def amend(call_id: str, arguments: dict[str, Any] | str, *, partial: bool = False) -> protocol.Amend:
    return protocol.Amend(request_id="a", call_id=call_id, arguments=arguments, partial=partial)


# -- what waits ------------------------------------------------------------------------------------


async def ask_much(world: World, n: int, frame: Callable[[int], protocol.StreamFrame]) -> World:
    """In vain, for nobody answers; no more than the server takes."""
    for at in range(n):
        await world.say(frame(at))
        if world.listener.errors:
            break
    return world


async def adjustments_that_wait(n: int) -> World:
    return await ask_much(await calls(FEW), n, adjust)


async def injections_that_wait(n: int) -> World:
    return await ask_much(await calls(FEW), n, lambda at: inject())


async def injections_at_a_token_that_wait(n: int) -> World:
    return await ask_much(await calls(FEW), n, lambda at: inject(at=500))


async def rewinds_that_wait(n: int) -> World:
    world = await calls(FEW)
    return await ask_much(world, n, lambda at: protocol.Rewind(request_id="a", to=world.sent - 1))


async def amendments_that_wait(n: int) -> World:
    world = await calls(FEW)
    return await ask_much(world, n, lambda at: amend(world.calls[-1], {"n": at}))


async def approvals_that_wait(n: int) -> World:
    """Behind an amendment that waits."""
    world = await calls_to_approve(FEW)
    await world.say(protocol.Pause(request_id="a"))
    await world.say(amend(world.calls[-1], {"n": 1}))
    names = world.calls
    return await ask_much(
        world, n, lambda at: protocol.Approve(request_id="a", call_id=names[at % len(names)])
    )


async def asked_without_an_engine(n: int) -> World:
    world = await calls(FEW)
    await world.lose_engine()
    return await ask_much(world, n, lambda at: amend(world.calls[at % FEW], {"n": at}))


async def calls_nobody_has_read(n: int) -> World:
    """Behind as many that somebody has."""
    world = await calls_to_approve(n)
    world.listener.ready = False
    for _ in range(n):
        await world.steer(inject(tokens=list(CALL.encode())))
        if world.listener.errors:
            break
    return world


async def answers_nobody_has_read(n: int) -> World:
    world = await calls(FEW)
    world.listener.ready = False
    return await steered(world, n, adjust)


async def text_ahead_of_credit(n: int) -> World:
    ahead = {"credit": Credit(limit=10, prefetch=4096)}
    return await written(PLAIN | ahead, "a" * n)


async def attached_again(n: int) -> World:
    """And nothing of it read."""
    world = await calls(FEW)
    world.listener.ready = False
    return await ask_much(world, n, lambda at: protocol.Attach(request_id="a", after=-1, ref=str(at)))


async def cancels_from_elsewhere(n: int) -> World:
    return await said_from_elsewhere(n, protocol.Cancel)


async def asked_from_elsewhere(n: int) -> World:
    return await said_from_elsewhere(n, protocol.Pause)


async def said_from_elsewhere(n: int, kind: type[protocol.Cancel | protocol.Pause]) -> World:
    world = await calls(FEW)
    other = world.connection()
    for at in range(n):
        await world.say(kind(request_id="a", ref=str(at)), other)
        if other.errors:
            break
    return world


# -- guards ----------------------------------------------------------------------------------------


async def guarded(n: int) -> World:
    fields = guarded_start(FOUND)
    guards = [Guard(**guard) for guard in fields["params"]["guards"]]
    return await written(GOES_ON, "lorem ipsum " * n, guards=guards)


LET_BY = Guard(name="b", do="pause", regex="b")


async def let_by(n: int) -> World:
    """What a guard pauses for, and its client lets by; and budgets that are spent behind all of it."""
    budgets = [Guard(name=str(at), do="tell", budget=Budget(tokens=n)) for at in range(15)]
    world = await World(PLAIN, guards=[LET_BY, *budgets]).begin()
    for _ in range(n):
        await world.write(LITTLE)
        await world.steer(protocol.Resume(request_id="a"))
    await world.write("aa")
    return world


# -- how it began ----------------------------------------------------------------------------------


async def conversation(n: int) -> World:
    said = [Message(role="user", content="x")] * n
    return await World(GOES_ON | {"messages": said}).begin()


async def long_prompt(n: int) -> World:
    return await World({"prompt": [65] * n}).begin()


async def past(n: int) -> World:
    steps = [PastInject(index=at, tokens=[65]) for at in range(n)]
    known = Past(tokens=[97] * n, steering=list(steps))
    return await World(GOES_ON | {"past": known}).begin()


STATES = {
    "text": State(text, 8_000),
    "text with stop strings": State(text_with_stop_strings, 16_000),
    "text that is counted": State(text_that_is_counted, 8_000),
    "calls": State(calls, 2_000),
    "calls with text between": State(calls_with_text_between, 2_000),
    "calls to approve": State(calls_to_approve, 2_000),
    "reasoning": State(reasoning, 5_000),
    "one thought": State(one_thought, 8_000),
    "a thought with a limit": State(thought_with_a_limit, 8_000),
    "a long argument": State(long_argument, 100_000),
    "a long argument and a call": State(long_argument_and_a_call, 100_000),
    "an argument that is open": State(open_argument, 100_000),
    "blanks in an argument": State(blanks_in_an_argument, 60_000),
    "an argument told whole": State(whole_argument, 100_000),
    "a number told whole": State(number, 100_000),
    "a nested argument": State(nested_argument, 16_000),
    "keys of an argument": State(keys_of_an_argument, 6_000),
    "begun delimiters": State(begun_delimiters, 8_000),
    "log probabilities": State(log_probabilities, 8_000),
    "calls that wait": State(calls_that_wait, 2_000),
    "results on their way": State(results_on_their_way, 2_000),
    "results that wait": State(results_that_wait, 2_000),
    "results before the end": State(results_before_the_end, 2_000),
    "calls with results": State(calls_with_results, 2_000),
    "results one by one": State(results_one_by_one, 1_000),
    "injections": State(injections, 8_000),
    "injections in one place": State(injections_in_one_place, 4_000),
    "injections into text": State(injections_into_text, 8_000),
    "injections into an argument": State(injections_into_an_argument, 4_000),
    "turns": State(turns, 2_000),
    "grammars begun": State(grammars_begun, 4_000),
    "adjustments": State(adjustments, 4_000),
    "rewinds": State(rewinds, 4_000),
    "amendments": State(amendments, 400),
    "adjustments that wait": State(adjustments_that_wait, 2_000),
    "injections that wait": State(injections_that_wait, 2_000),
    "injections at a token that wait": State(injections_at_a_token_that_wait, 2_000),
    "rewinds that wait": State(rewinds_that_wait, 2_000),
    "amendments that wait": State(amendments_that_wait, 2_000),
    "approvals that wait": State(approvals_that_wait, 2_000),
    "asked without an engine": State(asked_without_an_engine, 2_000),
    "calls nobody has read": State(calls_nobody_has_read, 1_500),
    "answers nobody has read": State(answers_nobody_has_read, 2_000),
    "text ahead of credit": State(text_ahead_of_credit, 4_000),
    "attached again": State(attached_again, 2_000),
    "cancels from elsewhere": State(cancels_from_elsewhere, 2_000),
    "asked from elsewhere": State(asked_from_elsewhere, 2_000),
    "guarded": State(guarded, 400),
    "let by": State(let_by, 4_000),
    "a conversation": State(conversation, 4_096),
    "a long prompt": State(long_prompt, 100_000),
    "a past": State(past, 4_096),
    "broken characters": State(lives.broken_characters, 8_000),
    "end tokens": State(lives.end_tokens, 8_000),
    "told rarely": State(lives.told_rarely, 70),
    "thoughts with an end": State(lives.thoughts_with_an_end, 2_000),
    "bans": State(lives.bans, 400),
    "guards put in": State(lives.guards_put_in, 400),
    "stop strings put in": State(lives.stop_strings_put_in, 400),
    "biases put in": State(lives.biases_put_in, 400),
    "budgets spent": State(lives.budgets_spent, 2_000),
    "paused and resumed": State(lives.paused_and_resumed, 4_000),
    "granted": State(lives.granted, 4_000),
    "attached and read": State(lives.attached_and_read, 8_000),
    "left and attached": State(lives.left_and_attached, 2_000),
    "engines lost": State(lives.engines_lost, 400),
    "answered elsewhere": State(lives.answered_elsewhere, 4_000),
    "long injections": State(lives.long_injections, 100_000),
    "long injections into an argument": State(lives.long_injections_into_an_argument, 100_000),
    "long injections that are guarded": State(lives.long_injections_that_are_guarded, 50_000),
    "an injection that is not read": State(lives.injection_not_read, 100_000),
    "many tools": State(lives.many_tools, 100_000),
    "long schemas": State(lives.long_schemas, 11),
    "a past of much": State(lives.past_of_much, 4_096),
    "a past of calls": State(lives.past_of_calls, 2_000),
    "a past of adjustments": State(lives.past_of_adjustments, 1_000),
    "a grammar": State(lives.grammar, 800),
    "results the other way round": State(lives.results_the_other_way_round, 500),
    "results told again": State(lives.results_told_again, 4_000),
    "long results": State(lives.long_results, 60_000),
    "turns of calls": State(lives.turns_of_calls, 200),
    "approved": State(lives.approved, 1_000),
    "approved, with results": State(lives.approved_with_results, 500),
    "refused by a no": State(lives.refused_by_a_no, 500),
    "forks": State(forks, 1_000),
    "generations": State(generations, 100),
    "more generations": State(more_generations, 90),
    "streams": State(streams, 1_000),
    "streams that end": State(streams_that_end, 1_000),
    "streams of no credit": State(streams_of_no_credit, 1_000),
    "streams that wait": State(streams_that_wait, 130),
    "streams that are guarded": State(streams_that_are_guarded, 380),
    "streams with a grammar": State(streams_with_a_grammar, 110),
    "streams that are steered": State(streams_that_are_steered, 125),
    "streams without an engine": State(streams_without_an_engine, 250),
    "streams that nobody reads": State(streams_that_nobody_reads, 1_000),
    "streams with much to read": State(streams_with_much_to_read, 500),
    "streams that have ended": State(streams_that_have_ended, 4_096),
}
