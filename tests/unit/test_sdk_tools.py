"""Tools and structured answers out of Python's types: what is told of them, and what comes of a call."""

from __future__ import annotations

import asyncio
import dataclasses
import enum
from types import SimpleNamespace
from typing import Annotated, Any, Literal, TypedDict, cast

import jsonschema
import msgspec
import pydantic
import pytest
from msgspec.structs import replace

import midstream
from midstream import protocol
from midstream.docstrings import read_docstring
from midstream.options import plain_params, start_frame
from midstream.protocol import Grammar, NamedFunction, NamedTool, Tool
from midstream.schemas import answer_of, from_json, json_schema, to_json
from midstream.session import Session
from midstream.spans import Call, Spans, answer_message
from midstream.stream_channel import Channel
from midstream.stream_core import StreamCore
from midstream.told import Place, Told
from midstream.tool_tasks import MOST_UNREAD, ToolTasks, _Work
from midstream.tools import BadCall, run_call, tool_of
from tests.fakes.scripted_server import FakeServer, Peer, final


class Colour(enum.Enum):
    RED = "red"


class Inner(pydantic.BaseModel):
    n: int = pydantic.Field(ge=1)


class Model(pydantic.BaseModel):
    """A model of pydantic's."""

    inner: Inner


@dataclasses.dataclass
class Point:
    x: int
    y: int = 0


class Tree(msgspec.Struct):
    """A tree."""

    colour: Colour
    children: list[Tree] = []
    at: Point | None = None


class Film(TypedDict, total=False):
    title: str


class Mixed(msgspec.Struct):
    model: Model
    films: list[Film]


VALUES: list[tuple[Any, str]] = [
    (Point, '{"x":1,"y":2}'),
    (Tree, '{"colour":"red","children":[{"colour":"red","children":[],"at":null}],"at":{"x":1,"y":2}}'),
    (Film, '{"title":"Heat"}'),
    (Model, '{"inner":{"n":2}}'),
    (Mixed, '{"model":{"inner":{"n":2}},"films":[{"title":"Heat"}]}'),
    (list[Model], '[{"inner":{"n":2}}]'),
    (Literal["a", "b"], '"a"'),
    (dict[str, int], '{"a":1}'),
]


@pytest.mark.parametrize(("kind", "text"), VALUES)
def test_a_value_that_fits_the_schema_is_read_and_written_again(kind: Any, text: str) -> None:
    schema = json_schema(kind)
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate(msgspec.json.decode(text), schema)
    assert to_json(from_json(text, kind)) == text


@pytest.mark.parametrize("kind", [Point, Tree, Film, Model, Mixed])
def test_objects_are_closed(kind: Any) -> None:
    text = to_json(json_schema(kind))
    assert text.count('"type":"object"') == text.count('"additionalProperties":false') > 0


@pytest.mark.parametrize("kind", [object, complex])
def test_what_json_cannot_spell_is_refused(kind: Any) -> None:
    with pytest.raises(TypeError, match="is no type"):
        json_schema(kind)


def test_a_value_that_does_not_fit_is_a_value_error() -> None:
    for kind, text in [(Model, '{"inner":{"n":0}}'), (Point, "{}"), (Point, '{"x":'), (Film, '{"title":3}')]:
        with pytest.raises(ValueError, match=r"."):
            from_json(text, kind)


def test_what_is_nested_too_deep_is_no_answer_and_no_call_as_any_that_does_not_fit() -> None:
    deep = '{"a":' + "[" * 100_000
    with pytest.raises(midstream.ParseError, match="it is nested too deep"):
        answer_of(deep, dict, "stop")
    with pytest.raises(BadCall, match="do not fit: it is nested too deep"):
        run_call(call("weather", deep), [weather])
    with pytest.raises(ValueError, match="it is nested too deep"):
        _ = call("weather", deep).parsed


# -- functions -------------------------------------------------------------------------------------


def weather(
    city: str,
    days: Annotated[int, "how many"] = 1,
    unit: Literal["C", "F"] = "C",
    *,
    where: Point | None = None,
    model: Model | None = None,
) -> Any:
    """The weather of a city.

    It is looked up.

    Args:
        city: which one,
            by its name
        days: not this
        unit (str): of degrees

    Returns:
        Whatever came.
    """
    return city, days, unit, where, model


def test_a_function_is_told_by_its_docstring_and_hints() -> None:
    function = tool_of(weather).function
    assert (function.name, function.description) == ("weather", "The weather of a city.\n\nIt is looked up.")
    assert function.parameters is not None
    told = function.parameters["properties"]
    assert told["city"] == {"type": "string", "description": "which one, by its name"}
    assert told["days"] == {"type": "integer", "description": "how many"}
    assert told["unit"] == {"enum": ["C", "F"], "description": "of degrees"}
    assert function.parameters["required"] == ["city"]
    assert function.parameters["additionalProperties"] is False


def test_sphinx_docstrings() -> None:
    told = read_docstring(
        """Do it.

        :param y: the y
            that matters
        :param int z: of z: all
        :type y: int
        :returns: nothing
        """
    )
    assert told == ("Do it.", {"y": "the y that matters", "z": "of z: all"})
    assert read_docstring(None) == ("", {})
    assert read_docstring("Args:\n  x: it\nThen on.") == ("Then on.", {"x": "it"})


@pytest.mark.parametrize(
    ("kind", "description"),
    [(Point, None), (Tree, "A tree."), (Film, None), (Model, "A model of pydantic's.")],
)
def test_a_type_is_a_tool_too(kind: Any, description: str | None) -> None:
    function = tool_of(kind).function
    assert (function.name, function.description) == (kind.__name__, description)
    assert function.parameters == json_schema(kind)


def call(name: str, arguments: str) -> Call:
    return Call(call_id="c", name=name, arguments=arguments, index=0, end=9)


def test_a_call_is_run_with_what_its_hints_make_of_it() -> None:
    assert run_call(call("weather", '{"city":"Rome"}'), [weather]) == ("Rome", 1, "C", None, None)
    told = '{"unit":"F","city":"Rome","where":{"x":1},"model":{"inner":{"n":3}}}'
    assert run_call(call("weather", told), [weather]) == ("Rome", 1, "F", Point(1), Model(inner=Inner(n=3)))
    assert run_call(call("Point", '{"x":4}'), [weather, Point]) == Point(4)


def test_outcomes_may_be_looked_at_while_calls_come(monkeypatch: pytest.MonkeyPatch) -> None:
    """As from another thread than that in which a synchronous client's streams are read."""
    tasks = ToolTasks(cast(Channel, SimpleNamespace(core=StreamCore())), midstream.Agent())
    made = call("weather", "{}")
    tasks._work["a"] = _Work(made, outcome=midstream.ToolOutcome(call=made, content="mild"))

    def meanwhile(outcome: midstream.ToolOutcome, **changes: object) -> midstream.ToolOutcome:
        tasks._work["b"] = _Work(made)
        return outcome

    monkeypatch.setattr("midstream.tool_tasks.replace", meanwhile)
    assert [outcome.content for outcome in tasks.outcomes] == ["mild"]


async def test_of_what_a_tool_says_without_end_so_much_waits_for_a_reader_and_no_more() -> None:
    channel = Channel(cast(Session, None), "a", StreamCore(), None, kept=False)
    tasks = ToolTasks(channel, midstream.Agent())
    made = call("weather", "{}")
    for done in range(3 * MOST_UNREAD):
        tasks._note_progress(midstream.ToolProgress(call=made, done=done))
    waiting = list(iter(channel.core.take_event, None))
    said = [event.done for event in waiting if isinstance(event, midstream.ToolProgress)]
    assert said == [*range(MOST_UNREAD - 1), 3 * MOST_UNREAD - 1], "the newest stands"
    for event in waiting:
        tasks.receive(event)
    tasks._note_progress(midstream.ToolProgress(call=made, done=7))
    last = channel.core.take_event()
    assert isinstance(last, midstream.ToolProgress)
    assert last.done == 7


async def test_an_async_function_is_awaited_by_whoever_called() -> None:
    async def ask(question: str) -> str:
        return question

    assert await run_call(call("ask", '{"question":"why"}'), [ask]) == "why"


@pytest.mark.parametrize(
    ("name", "arguments", "words"),
    [
        ("wether", "{}", "there is no tool 'wether'; there are weather"),
        ("weather", "{}", "do not fit: Object missing required field `city`"),
        ("weather", '{"city":"Rome","days":"two"}', r"Expected `int`, got `str` - at `\$.days`"),
        ("weather", '{"city":"Rome","town":"Rome"}', "unknown field `town`"),
    ],
)
def test_what_the_model_gets_wrong_is_said_in_words_for_it(name: str, arguments: str, words: str) -> None:
    with pytest.raises(BadCall, match=words):
        run_call(call(name, arguments), [weather])


def test_what_the_function_raises_is_its_own() -> None:
    def fails(x: int) -> None:
        raise ValueError("mine")

    with pytest.raises(ValueError, match=r"^mine$"):
        run_call(call("fails", '{"x":1}'), [fails])


def test_a_function_that_cannot_be_called_by_names_is_no_tool() -> None:
    def many(*numbers: int) -> None: ...

    with pytest.raises(TypeError, match="many: a model names its arguments"):
        tool_of(many)
    with pytest.raises(ValueError, match=r"function\.name"):
        tool_of(lambda: None)


# -- what is sent ----------------------------------------------------------------------------------


def test_start_takes_functions_and_types() -> None:
    given: Any = {"type": "function", "function": {"name": "given", "parameters": {"type": "object"}}}
    frame = start_frame(
        {
            "messages": [{"role": "user", "content": "Hi"}],
            "tools": [weather, Point, given],
            "tool_choice": weather,
        }
    )
    assert frame.tools is not None
    assert [tool.function.name for tool in frame.tools] == ["weather", "Point", "given"]
    assert frame.tool_choice == NamedTool(function=NamedFunction(name="weather"))
    assert frame.tools[2] == msgspec.convert(given, Tool)
    for choice in ("auto", "none", "required"):
        assert start_frame({"prompt": "x", "tool_choice": choice}).tool_choice == choice
    assert start_frame({"prompt": "x", "tool_choice": "given"}).tool_choice == NamedTool(
        function=NamedFunction(name="given")
    )


def test_a_type_as_grammar_is_its_schema() -> None:
    params = start_frame({"prompt": "x", "grammar": Point}).params
    assert params.grammar == Grammar(json_schema=json_schema(Point))
    for grammar in (None, {"regex": "a"}, Grammar(regex="a")):
        assert plain_params({"grammar": grammar}) == {"grammar": grammar}


def test_an_answer_with_calls_is_a_turn_of_the_conversation() -> None:
    whole, cut = call("weather", '{"city":"Rome"}'), Call(call_id="d", name="w", arguments="{", index=9)
    message = answer_message("", [whole, cut])
    assert (message.role, message.content) == ("assistant", None)
    assert message.tool_calls is not None
    assert [(one.id, one.function.name, one.function.arguments) for one in message.tool_calls] == [
        ("c", "weather", '{"city":"Rome"}')
    ]
    assert answer_message("", [cut]).content == ""
    assert whole.answer({"at": Model(inner=Inner(n=1))}).content == '{"at":{"inner":{"n":1}}}'
    assert (whole.answer("warm").content, whole.answer("warm").tool_call_id) == ("warm", "c")


def weather_anywhere() -> str:
    """The weather."""
    return "mild"


async def running(client: midstream.Client, peer: Peer) -> tuple[midstream.Run, asyncio.Task[Any], str]:
    """An agent's run, somebody who reads its answer, and the name of its stream."""
    agent = midstream.Agent(tools=[weather_anywhere])
    run, start = await asyncio.gather(client.run(agent, "Hi"), peer.accept_start())
    return run, asyncio.create_task(run.answer()), start.request_id


async def say_that_it_called(peer: Peer, name: str, *, approval: bool = False, arguments: str = "{}") -> None:
    await peer.send(protocol.ToolCall(request_id=name, index=0, call_id="a", name="weather_anywhere"))
    await peer.send(protocol.ToolArguments(request_id=name, index=0, count=0, call_id="a", delta=arguments))
    await peer.send(protocol.ToolCallDone(request_id=name, index=0, end=0, call_id="a", approval=approval))


async def refuse(peer: Peer, name: str, asked: protocol.Frame) -> None:
    await peer.send(
        protocol.Error(
            status=400, code="invalid_params", message="no", retryable=False, request_id=name, ref=asked.ref
        )
    )


async def refuse_for_now(peer: Peer, name: str, asked: protocol.Frame, after_ms: int = 1) -> None:
    await peer.send(
        protocol.Error(
            status=429,
            code="rate_limited",
            message="slower",
            retryable=True,
            retry_after_ms=after_ms,
            request_id=name,
            ref=asked.ref,
        )
    )


@pytest.mark.parametrize(
    ("verdict", "kind"),
    [
        (None, protocol.ToolResult),
        (False, protocol.ToolResult),
        (True, protocol.Approve),
        ({"city": "Oslo"}, protocol.Amend),
    ],
    ids=["a result", "a no", "a yes", "other arguments"],
)
async def test_what_an_agent_is_refused_for_now_it_asks_again(
    verdict: Any, kind: type[protocol.Frame]
) -> None:
    """As where its tenant's tokens of this minute are taken."""
    approve = None if verdict is None else lambda call: verdict
    agent = midstream.Agent(tools=[weather_anywhere], approve=approve)
    async with FakeServer() as server, midstream.connect(server.url) as client:
        peer = await server.peer()
        run, start = await asyncio.gather(client.run(agent, "Hi"), peer.accept_start())
        reading = asyncio.create_task(run.answer())
        name = start.request_id
        await say_that_it_called(peer, name, approval=verdict is not None)
        refused = await peer.receive(kind)
        await refuse_for_now(peer, name, refused)
        again = await peer.receive(kind)
        assert replace(again, ref=None) == replace(refused, ref=None)
        await peer.send(final(name, 0, "stop"))
        assert await reading == ""


async def test_a_call_whose_arguments_are_no_json_may_be_given_others() -> None:
    agent = midstream.Agent(tools=[weather_anywhere], approve=lambda call: {"city": "Oslo"})
    async with FakeServer() as server, midstream.connect(server.url) as client:
        peer = await server.peer()
        run, start = await asyncio.gather(client.run(agent, "Hi"), peer.accept_start())
        reading = asyncio.create_task(run.answer())
        name = start.request_id
        await say_that_it_called(peer, name, approval=True)
        asked = await peer.receive(protocol.Amend)
        await peer.send(protocol.Rewound(request_id=name, index=0, text_length=0))
        await peer.send(protocol.Injected(request_id=name, index=0, count=2, ref=asked.ref))
        await say_that_it_called(peer, name, approval=True, arguments="{city: Rome}")
        again = await peer.receive(protocol.Amend)
        assert replace(again, ref=None) == replace(asked, ref=None)
        await peer.send(final(name, 0, "stop"))
        assert await reading == ""


async def test_what_came_of_a_tool_is_told_where_another_result_by_hand_is_refused_meanwhile() -> None:
    """Both for what is taken of this minute: what was said before stands, and had yet to be told."""
    async with FakeServer() as server, midstream.connect(server.url) as client:
        peer = await server.peer()
        run, reading, name = await running(client, peer)
        await say_that_it_called(peer, name)
        first = await peer.receive(protocol.ToolResult)
        await refuse_for_now(peer, name, first, after_ms=60_000)
        giving = asyncio.create_task(run.give(run.stream.calls[0], "by hand"))
        by_hand = await peer.receive(protocol.ToolResult)
        assert by_hand.content == "by hand"
        await refuse_for_now(peer, name, by_hand)
        with pytest.raises(midstream.RateLimited):
            await giving
        again = await peer.receive(protocol.ToolResult)
        assert replace(again, ref=None) == replace(first, ref=None)
        await peer.send(final(name, 0, "stop"))
        assert await reading == ""


def snapshot_of_a_call(name: str, *answered: protocol.Rewound) -> protocol.Snapshot:
    call = protocol.SnapshotCall(index=0, call_id="a", name="weather_anywhere", arguments="{}", end=0)
    return protocol.Snapshot(
        request_id=name,
        index=3,
        text="",
        model="toy",
        prompt_tokens=3,
        params=protocol.Params(),
        tool_calls=[call],
        answered=[*answered],
    )


async def test_a_result_that_was_taken_back_while_nobody_listened_is_told_again() -> None:
    """A snapshot stands for the rewind, and tells what was answered; the model has written on since."""
    async with FakeServer() as server, midstream.connect(server.url) as client:
        peer = await server.peer()
        run, reading, name = await running(client, peer)
        await peer.send(protocol.Token(request_id=name, index=0, count=2, delta=""))
        await say_that_it_called(peer, name)
        first = await peer.receive(protocol.ToolResult)
        await peer.send(protocol.Injected(request_id=name, index=2, count=9, ref=first.ref))
        rewinding = asyncio.create_task(run.stream.rewind(1))
        asked = await peer.receive(protocol.Rewind)
        peer.socket.transport.abort()
        peer = await server.peer()
        await peer.receive(protocol.Replace)
        attaching = await peer.receive(protocol.Attach)
        peer.seqs[name] = attaching.after + 1
        back = protocol.Rewound(
            request_id=name, ref=asked.ref, index=1, text_length=0, tool_calls=1, arguments_length=2
        )
        await peer.send(snapshot_of_a_call(name, back))
        await peer.send(protocol.Attached(request_id=name, ref=attaching.ref))
        assert await rewinding == 1
        await peer.receive(protocol.Ping)
        again = await peer.receive(protocol.ToolResult)
        assert replace(again, ref=None) == replace(first, ref=None)
        await peer.send(final(name, 3, "stop"))
        assert await reading == ""


async def test_a_result_that_another_client_may_have_taken_back_while_nobody_listened_is_told_again() -> None:
    """A snapshot stands for their rewind, and for what the model has written since; nothing in it says so."""
    async with FakeServer() as server, midstream.connect(server.url) as client:
        peer = await server.peer()
        run, reading, name = await running(client, peer)
        await say_that_it_called(peer, name)
        await peer.send(protocol.Token(request_id=name, index=0, count=2, delta=""))
        first = await peer.receive(protocol.ToolResult)
        await peer.send(protocol.Injected(request_id=name, index=2, count=9, ref=first.ref))
        peer.socket.transport.abort()
        peer = await server.peer()
        await peer.receive(protocol.Replace)
        attaching = await peer.receive(protocol.Attach)
        peer.seqs[name] = attaching.after + 2
        await peer.send(snapshot_of_a_call(name))
        await peer.send(protocol.Attached(request_id=name, ref=attaching.ref))
        await peer.receive(protocol.Ping)
        again = await peer.receive(protocol.ToolResult)
        assert replace(again, ref=None) == replace(first, ref=None)
        await refuse(peer, name, again)
        await peer.send(final(name, 3, "stop"))
        assert await reading == ""
        assert [one.index for one in run.outcomes] == [2], "where it stands it is refused, and stands there"


@pytest.mark.parametrize(
    ("places", "anew", "doubtful"),
    [
        ((4, 4), "", set()),
        ((2, 4), "", set()),
        ((2, 5), "", {"b"}),
        ((4, 4), "b", {"a", "b"}),
        ((2, 4), "b", {"b"}),
        ((2, 4), "ab", {"a", "b"}),
    ],
)
def test_a_result_stands_for_sure_where_a_call_does_that_ends_behind_it(
    places: tuple[int, int], anew: str, doubtful: set[str]
) -> None:
    """Of two calls, that end at tokens 2 and 4; `anew`: those that say something else now."""
    spans, told = Spans(), Told()
    told.results = dict(zip("ab", (Place(at, 0) for at in places), strict=True))
    for written in ("", anew):
        spans.receive_snapshot(two_calls(written))
    told.miss(spans.stood_until)
    assert told.doubtful == doubtful


def two_calls(anew: str) -> protocol.Snapshot:
    calls = [
        protocol.SnapshotCall(
            index=2 * at, call_id=name, name="f", arguments="[]" if name in anew else "{}", end=2 * at + 2
        )
        for at, name in enumerate("ab")
    ]
    params = protocol.Params()
    return protocol.Snapshot(
        request_id="r", index=9, text="", model="toy", prompt_tokens=3, params=params, tool_calls=calls
    )


async def test_a_result_that_is_taken_back_as_soon_as_it_was_heard_is_told_again() -> None:
    """Both come in one go, before whoever told it knows that it was heard."""
    async with FakeServer() as server, midstream.connect(server.url) as client:
        peer = await server.peer()
        run, reading, name = await running(client, peer)
        await peer.send(protocol.Token(request_id=name, index=0, count=2, delta=""))
        await say_that_it_called(peer, name)
        first = await peer.receive(protocol.ToolResult)
        (call,) = run.stream.calls
        back = protocol.Rewound(
            request_id=name,
            index=call.end or 0,
            text_length=0,
            tool_calls=1,
            arguments_length=len(call.arguments),
        )
        for event in (protocol.Injected(request_id=name, index=2, count=9, ref=first.ref), back):
            event.seq = peer.seqs[name]
            peer.seqs[name] += 1
            run.stream.channel._session.receive(event)
        again = await peer.receive(protocol.ToolResult)
        assert replace(again, ref=None) == replace(first, ref=None)
        await peer.send(final(name, 0, "stop"))
        assert await reading == ""
