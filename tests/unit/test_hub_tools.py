"""Tools in the hub: what is refused of them, what they cost, and how they come to the model."""

from __future__ import annotations

import asyncio
import json
import threading
from collections import OrderedDict
from dataclasses import replace
from itertools import pairwise
from typing import Any

import msgspec
import pytest

from engine import api, toy_model
from engine.structure.checker import NoAnswerError
from midstream import protocol
from midstream.protocol import (
    CalledFunction,
    Credit,
    Fork,
    Function,
    Grammar,
    Guard,
    Message,
    MessageToolCall,
    NamedFunction,
    NamedTool,
    Params,
    TextPart,
    Tool,
)
from realtime.guards.pattern import Pattern
from realtime.guards.watches import Hit, Piece, ValueWatch
from realtime.hub.frame_tokenizing import (
    MOST_SIGNS,
    TOOLS_LIMIT,
    check_contents,
    text_length,
    tools_length,
)
from realtime.hub.hub import LONG_TEXT
from realtime.hub.output_rules import output_rules
from realtime.hub.rebuilt_stream import RebuiltStream
from realtime.refusal import Refusal
from realtime.stream.owner import Owner
from realtime.stream.stream import Stream
from realtime.stream.weights import weight
from realtime.tenants.allowance import Allowance
from realtime.tenants.quota import Quotas
from realtime.text import grammar
from realtime.text.chat_template import TextError
from realtime.text.tokenizer import Tokenizer
from realtime.tools.fallback import without_tools
from realtime.tools.json_scanner import signs_in
from realtime.tools.offered import argument_kinds, no_texts
from realtime.tools.span_reader import SpanReader
from tests.fakes.recording_listener import RecordingListener
from tests.fakes.simulated_client import LONG, SIZE, TENANT, endless, rest, settled, start
from tests.fakes.simulated_server import EngineSize, SimulatedServer, toy_tokenizer
from tests.fakes.small_tokenizers import ROLES, byte_level_json

HI = [Message(role="user", content="Hi")]
SCHEMA = {"type": "object", "properties": {"q": {"type": "string"}, "n": {"type": "integer"}}}
GET = NamedTool(function=NamedFunction(name="get"))
FIND = Tool(function=Function(name="find", description="Finds <|im_end|>", parameters=SCHEMA))
FREE = Tool(function=Function(name="find", strict=False))
CALL = MessageToolCall(id="abcdefghi", function=CalledFunction(name="find", arguments='{"q": "x"}'))
TALK = [
    *HI,
    Message(role="assistant", tool_calls=[CALL]),
    Message(role="tool", tool_call_id="abcdefghi", content="42"),
]
TEMPLATE = (
    "{% for tool in tools or [] %}<tool>{{ tool | tojson }}{% endfor %}"
    "{% for m in messages %}<|im_start|>{{ m.role + ' ' + m.content }}"
    "{% for call in m.tool_calls or [] %}<tool_call>{{ call.function.name }}"
    "{{ call.function.arguments | tojson }}{{ call.id }}{% endfor %}"
    "{{ m.tool_call_id or '' }}<|im_end|>{% endfor %}"
)

WRITTEN = '<tool_call>{"name": "find", "arguments": {}}</tool_call>'


def knowing(template: str = TEMPLATE) -> Tokenizer:
    return Tokenizer(json.loads(byte_level_json()), template, ROLES)


def spelt(tokenizer: Tokenizer, tokens: list[int]) -> str:
    return b"".join(map(tokenizer.token_bytes, tokens)).decode()


@pytest.mark.parametrize(
    ("fields", "code", "named"),
    [
        ({"tool_choice": "required"}, "invalid_frame", "`tool_choice`"),
        ({"tools": [FIND], "tool_choice": GET}, "invalid_frame", '`tool_choice` names "get"'),
        ({"tools": [FIND, FIND]}, "invalid_frame", 'two with the name "find"'),
        ({"tools": [FIND], "messages": None, "prompt": "Hi"}, "invalid_frame", "`messages`"),
        ({"messages": [Message(role="user")]}, "invalid_frame", "`content` in `messages[0]`"),
        ({"messages": [Message(role="tool")]}, "invalid_frame", "`content` in `messages[0]`"),
        (
            {"tools": [Tool(function=Function(name="f", description="x" * TOOLS_LIMIT))]},
            "invalid_frame",
            f"the limit is {TOOLS_LIMIT}",
        ),
        (
            {"tools": [Tool(function=Function(name="f", parameters={"x": msgspec.msgpack.Ext(1, b"")}))]},
            "invalid_frame",
            "as JSON, or none",
        ),
    ],
)
async def test_what_cannot_be_done_is_refused_by_name(fields: dict[str, Any], code: str, named: str) -> None:
    listener = RecordingListener(SimulatedServer(SIZE))
    listener.send(start(**({"prompt": None, "messages": HI} | fields)))
    await settled()
    error = listener.error()
    assert error.code == code
    assert named in error.message


async def test_what_tools_make_of_a_grammar_is_written_once_and_beside_everybodys_events(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where a model spells arguments one by one that takes up to half a second."""
    written = list[bool]()

    def noting(*asked: Any) -> Any:
        written.append(threading.current_thread() is threading.main_thread())
        return output_rules(*asked)

    monkeypatch.setattr("realtime.hub.frame_tokenizing.output_rules", noting)
    listener = RecordingListener(SimulatedServer(SIZE))
    for name in "ab":
        written.clear()
        listener.send(start(name, prompt=None, messages=HI, tools=[FIND], tool_choice="required"))
        await settled()
        assert isinstance(listener.heard[0], protocol.Started)
        listener.heard.clear()
        assert not any(written)
    assert len(written) == 1, "where it is known that it can be followed"


def test_what_a_call_was_given_may_be_long_where_that_is_text() -> None:
    """What stands outside of strings may be as many objects, and reading those keeps the interpreter."""

    def calling(arguments: str) -> list[Message]:
        call = MessageToolCall(id="a", function=CalledFunction(name="f", arguments=arguments))
        return [*HI, Message(role="assistant", tool_calls=[CALL, call])]

    most = f'{{"a":[{"0," * (MOST_SIGNS // 2 - 4)}0]}}'
    for arguments in (most, json.dumps({"a": '\\{"0,0,' * MOST_SIGNS}), '"' + "," * 2 * MOST_SIGNS):
        check_contents(calling(arguments))
    said = r"^The `arguments` of a call in `messages\[1\]` have 131076 .*; they may have 131072"
    with pytest.raises(Refusal, match=said) as refused:
        check_contents(calling(most + " " * 6))
    assert refused.value.code == "invalid_frame"


@pytest.mark.parametrize(
    ("text", "outside"),
    [
        ("", 0),
        ('{"a": "b"}', 4),
        ('{"\\"{":[1]}', 6),
        ('{"\\\\":1}', 4),
        ('{"\\\\\\"":1}', 4),
        ('["a', 1),
        ('["a""b""', 3),
    ],
)
def test_what_stands_outside_of_strings_is_counted(text: str, outside: int) -> None:
    assert signs_in(text) == outside


def test_arguments_that_no_template_should_see_are_refused() -> None:
    deep: Any = {}
    for _ in range(100):
        deep = {"a": deep}
    with pytest.raises(TextError, match="nested deeper than 64"):
        knowing().encode_chat(HI, [Tool(function=Function(name="f", parameters=deep))])
    call = MessageToolCall(id="a", function=CalledFunction(name="f", arguments="[" * 9000))
    assert knowing().encode_chat([Message(role="assistant", tool_calls=[call])])


def test_tools_are_paid_for_as_the_text_that_they_are() -> None:
    plain = start(prompt=None, messages=HI)
    offering = start(prompt=None, messages=HI, tools=[FIND])
    unused = start(prompt=None, messages=HI, tools=[FIND], tool_choice="none")
    assert text_length(unused) == text_length(plain) + tools_length([FIND])
    assert text_length(offering) > text_length(unused) + 100 * tools_length([FIND])
    assert weight(offering) > weight(plain) + tools_length([FIND])
    talking = start(prompt=None, messages=TALK)
    assert text_length(talking) > text_length(plain) + len(CALL.function.arguments)


async def test_many_of_them_are_rendered_in_a_thread() -> None:
    tools = [Tool(function=Function(name=f"f{n}", description="x" * 200)) for n in range(30)]
    frame = start(prompt=None, messages=HI, tools=tools)
    assert text_length(frame) > LONG_TEXT
    listener = RecordingListener(SimulatedServer(SIZE))
    listener.send(frame)
    assert not listener.heard
    await settled()
    assert listener.error().code == "context_too_long"


def test_a_template_is_told_tools_and_calls_as_it_knows_them() -> None:
    tokenizer = knowing()
    text = spelt(tokenizer, tokenizer.encode_chat(TALK, [FIND]))
    shown, _, rest = text.removeprefix("<tool>").partition("user Hi")
    assert json.loads(shown) == {"type": "function", "function": msgspec.to_builtins(FIND.function)}
    assert rest == 'assistant <tool_call>find{"q": "x"}abcdefghitool 42abcdefghi'


def test_what_a_tool_says_is_never_a_special_token() -> None:
    tokenizer = knowing()
    end = tokenizer.encode_chat([])  # none
    tokens = tokenizer.encode_chat(HI, [FIND])
    special = [token for token in tokens if token in tokenizer.special]
    assert (end, len(special)) == ([], 2)


async def test_without_a_choice_no_tool_is_told() -> None:
    server = SimulatedServer(SIZE)
    lengths = []
    for name, fields in (
        ("a", {}),
        ("b", {"tools": [FIND], "tool_choice": "none"}),
        ("c", {"tools": [FIND]}),
    ):
        listener = RecordingListener(server)
        listener.send(start(name, prompt=None, messages=HI, **fields))
        await settled()
        started = listener.heard[0]
        assert isinstance(started, protocol.Started)
        lengths.append(started.prompt_tokens)
    assert lengths[0] == lengths[1] < lengths[2]


# -- where the template knows none -----------------------------------------------------------------


def test_a_template_that_knows_no_tools_is_told_of_them_as_text() -> None:
    text = spelt(toy_tokenizer(), toy_tokenizer().encode_chat(TALK, [FIND]))
    assert text.startswith("system\n# Tools")
    assert '"name":"find"' in text
    assert '<tool_call>\n{"name": "find", "arguments": {"q": "x"}}\n</tool_call>' in text
    assert "user\n<tool_response>\n42\n</tool_response>" in text


def test_a_system_message_stays_the_first() -> None:
    told = without_tools([Message(role="system", content=[TextPart("Be"), TextPart(" kind")]), *HI], [FIND])
    assert [message.role for message in told] == ["system", "user"]
    assert "".join(told[0].texts).startswith("Be kind\n\n# Tools")


def test_results_of_one_turn_are_one_message() -> None:
    results = [Message(role="tool", content=text) for text in "12"]
    told = without_tools([*HI, *results, *HI], None)
    assert [message.role for message in told] == ["user", "user", "user"]
    assert told[1].content == ("<tool_response>\n1\n</tool_response>\n<tool_response>\n2\n</tool_response>")


def test_a_result_is_put_in_behind_an_answer() -> None:
    tokens = toy_tokenizer().encode_turns([Message(role="tool", content="42")])
    assert "<tool_response>\n42\n</tool_response>" in spelt(toy_tokenizer(), tokens)
    assert toy_model.MESSAGE in tokens


# -- schemas ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        ({"type": "string"}, True),
        ({}, True),
        (True, True),
        ({"enum": ["a", "b"]}, True),
        ({"enum": ["a", 1]}, False),
        ({"type": "integer"}, False),
        ({"type": ["string", "null"]}, False),
        ({"anyOf": [{"type": "string"}]}, False),
    ],
)
def test_which_arguments_are_text(schema: Any, text: bool) -> None:
    tool = Tool(function=Function(name="f", parameters={"properties": {"q": schema}}))
    assert no_texts(argument_kinds([tool])) == {"f": frozenset() if text else frozenset("q")}
    broken = Tool(function=Function(name="f", parameters={"properties": []}))
    assert no_texts(argument_kinds([broken])) == {"f": frozenset()}


async def test_who_adopts_a_stream_with_tools_compiles_nothing_between_others_events(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server = SimulatedServer(SIZE, keeps=True)
    listener = RecordingListener(server)
    listener.send(start("b", prompt=None, messages=HI, tools=[FIND], on_disconnect="pause"))
    await settled()
    rest(server)
    (stream,) = server.hub.streams
    journal = server.engines[0].keeping.kept[stream.number].journal.told()
    rebuilt = RebuiltStream(
        1, b"b", journal, stream.model, owner=Owner(1, 1), window=server.window, ahead_s=0
    )
    compiled = list[str]()

    def compiles(source: str, most_s: float) -> str:
        compiled.append(source)
        return ""

    def is_killed(source: str, most_s: float) -> str:
        raise NoAnswerError

    monkeypatch.setattr(grammar, "_known_problems", OrderedDict[bytes, str]())
    monkeypatch.setattr(grammar._checker, "problem_of", is_killed)
    with pytest.raises(Refusal, match="send this again") as caught:
        rebuilt.try_rules()
    assert caught.value.code == "overloaded", "it is not lost for that"
    monkeypatch.setattr(grammar._checker, "problem_of", compiles)
    rebuilt.try_rules()
    assert len(compiled) == 1
    for room in ("rebuilt_stream", "frame_tokenizing"):  # what was compiled is not even written again
        monkeypatch.setattr(f"realtime.hub.{room}.output_rules", None)
    assert list(rebuilt.replay())
    assert len(compiled) == 1


def result(call_id: str, ref: str) -> protocol.ToolResult:
    return protocol.ToolResult(request_id="a", call_id=call_id, content="42", ref=ref)


async def called(
    server: SimulatedServer, request_id: str = "a", **asked: Any
) -> tuple[RecordingListener, str]:
    """Who listens to a stream that is paused and has called a tool, and the call's id."""
    listener = RecordingListener(server)
    fields = {"request_id": request_id, "tools": [FIND], "on_tool_call": "continue"} | asked
    listener.send(start(prompt=None, messages=HI, **fields))
    await settled()
    server.tick()
    listener.send(protocol.Pause(request_id=request_id))
    listener.send(protocol.Inject(request_id=request_id, grammar="anew", text=WRITTEN))
    rest(server)
    (call,) = [event for event in listener.heard if isinstance(event, protocol.ToolCallDone)]
    return listener, call.call_id


async def test_forks_that_have_waited_until_their_stream_had_read_begin_one_after_the_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A thousand would hold everybody up for a second."""
    server = SimulatedServer(EngineSize(kv_tokens=4096, block=16, step_tokens=4096, slots=100))
    listener = RecordingListener(server)
    listener.send(start())
    with monkeypatch.context() as reading:
        reading.setattr(Stream, "reads_injected", True)
        for n in range(20):
            listener.send(protocol.Start(request_id=f"fork{n}", fork=Fork(request_id="a", at=0)))
        await asyncio.sleep(0)
    (stream,) = server.hub.streams
    entry = server.hub._registry.by_number(stream.number)
    assert entry is not None
    entry.tell_read()
    streams = [1]
    while server.hub._long_texts.keys:
        await asyncio.sleep(0)
        streams.append(len(server.hub.streams))
    assert streams[-1] == 21
    assert max(after - before for before, after in pairwise(streams)) == 1


async def test_a_result_behind_a_long_text_is_judged_when_its_turn_comes() -> None:
    server = SimulatedServer(SIZE, tokenizer=knowing())
    listener, call_id = await called(server)
    text = protocol.Inject(request_id="a", ref="text", messages=[Message(role="user", content=LONG[:2100])])
    for frame in text, result(call_id, ref="first"), result(call_id, ref="second"):
        listener.send(frame)
    await settled()
    rest(server)
    put_in = [event for event in listener.heard if isinstance(event, protocol.Injected) and event.ref]
    assert [(event.ref, event.count > 0) for event in put_in] == [("text", True), ("first", True)]
    assert [error.ref for error in listener.errors] == ["second"], "the call has its result"


@pytest.mark.parametrize("asks", ["result", "fork", "attach", "cancel"])
async def test_what_is_asked_of_a_stream_waits_until_it_has_read_what_was_put_in(asks: str) -> None:
    """In turns, which others have theirs between."""
    server = SimulatedServer(SIZE, tokenizer=knowing())
    listener, call_id = await called(server)
    server.in_turns = True
    listener.send(protocol.Inject(request_id="a", text="<" * (LONG_TEXT - 100)))
    while not server.hub.streams[0].reading:
        server.tick()
    spans = server.hub.streams[0].output.spans
    assert spans is not None
    read, heard = spans.injected_read, len(listener.heard)
    frames: dict[str, protocol.StreamFrame] = {
        "result": result(call_id, ref="1"),
        "fork": start("b", prompt=None, fork=protocol.Fork(request_id="a")),
        "attach": protocol.Attach(request_id="a", after=-1, ref="1"),
        "cancel": protocol.Cancel(request_id="a", ref="1"),
    }
    listener.send(frames[asks])
    for _ in range(5):
        await asyncio.sleep(0)
    assert spans.injected_read == read
    assert len(listener.heard) == heard
    while not server.hub._incoming._lines.empty:
        server.clock.advance(0)
    assert spans.injected_read > read
    await settled()
    rest(server)
    told = listener.heard[heard:]
    if asks == "fork":
        assert any(event.request_id == "b" for event in told if isinstance(event, protocol.Started))
    else:
        assert any(getattr(event, "ref", None) == "1" for event in told)
    assert listener.errors == []


async def test_and_until_what_was_asked_of_its_calls_is_done() -> None:
    server = SimulatedServer(SIZE, tokenizer=knowing())
    listener, _ = await called(server)
    server.in_turns = True
    listener.send(protocol.Adjust(request_id="a", params=Params(temperature=0.5), ref="0"))
    for ref in ("1", "2"):
        listener.send(protocol.Amend(request_id="a", call_id="none", arguments={}, ref=ref))
    (stream,) = server.hub.streams
    while not stream.reading:
        server.tick()
    listener.send(protocol.Pause(request_id="a", ref="3"))
    await asyncio.sleep(0)
    assert stream.to_make is not None
    assert stream.num_waiting == 1
    while not server.hub._incoming._lines.empty:
        server.clock.advance(0)
    await settled()
    rest(server)
    answers = [event for event in listener.heard if isinstance(event, protocol.Error | protocol.Paused)]
    assert [event.ref for event in answers[-3:]] == ["1", "2", "3"]


async def test_a_snapshot_of_what_is_told_of_a_long_injection_reads_none_of_it_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("realtime.stream.spanned_text.READ_AT_ONCE", 512)
    server = SimulatedServer(SIZE, tokenizer=knowing())
    listener = RecordingListener(server)
    listener.send(endless("a", prompt=None, messages=HI, tools=[FREE]))
    await settled()
    server.tick()
    server.in_turns = True
    listener.send(protocol.Inject(request_id="a", text=WHOLE.replace('"{', "{").replace("\\", "")))
    while not (server.hub.streams and server.hub.streams[0].reading):
        server.tick()
    (stream,) = server.hub.streams
    spans = stream.output.spans
    assert spans is not None
    while spans.injected_read < 512:
        server.clock.advance(0)
    listener.ready = False
    while not server.hub._incoming._lines.empty:
        server.clock.advance(0)
    stream.outbox.shorten_history(0)
    monkeypatch.setattr(SpanReader, "inject", None)
    other = RecordingListener(server)
    other.send(protocol.Attach(request_id="a", after=-1))
    heard = "".join(event.delta for event in listener.heard if isinstance(event, protocol.ToolArguments))
    (snapshot,) = [event for event in other.heard if isinstance(event, protocol.Snapshot)]
    assert [call.arguments for call in snapshot.tool_calls or ()] == [heard]
    (more,) = [event for event in other.heard if isinstance(event, protocol.ToolArguments)]
    assert heard + more.delta == "".join(spans.calls[0].arguments)


async def test_nobody_waits_for_tokens_behind_what_others_have_put_in() -> None:
    server = SimulatedServer(replace(SIZE, kv_tokens=1 << 14, slots=4), tokenizer=knowing())
    crowd, other = RecordingListener(server), RecordingListener(server, "other")
    for name in "ab":
        crowd.send(endless(name, prompt=None, messages=HI, tools=[FREE]))
    await settled()
    for name in "cd":
        other.send(endless(name))
    server.tick()
    server.in_turns = True
    for name in "ab":
        crowd.send(protocol.Inject(request_id=name, tokens=[ord("<")] * 3000))
    heard = len(other.heard)
    server.tick()
    told = [event.request_id for event in other.heard[heard:] if isinstance(event, protocol.Token)]
    assert told == ["c", "d"]
    assert any(stream.reading for stream in server.hub.streams)


LOOKING = Guard(name="g", do="pause", tool="*", path="$.q", forbid="b")
WHOLE = '<tool_call>{"name": "find", "arguments": "{\\"q\\": \\"' + "a" * 990 + "b" * 10


async def judging(
    monkeypatch: pytest.MonkeyPatch, *, more: int = 0
) -> tuple[SimulatedServer, RecordingListener, list[int]]:
    """At the token that tells all of an argument, which guards have yet to judge; and how much they read
    each time. `more`: tokens that come with it."""
    reads, read = [], ValueWatch.read

    def counted(self: ValueWatch, piece: Piece) -> Hit | None:
        reads.append(len(piece.text))
        return read(self, piece)

    monkeypatch.setattr(ValueWatch, "read", counted)
    monkeypatch.setattr("realtime.guards.reading.READ_AT_ONCE", 64)
    tokenizer = knowing()
    quote, brace = tokenizer.encode('"}', special=False)
    server = SimulatedServer(SIZE, tokenizer=tokenizer)
    listener = RecordingListener(server)
    bias = {brace: 100.0, quote: 99.0}  # first that, then the quote, and then that for ever
    params = Params(guards=[LOOKING], logit_bias=bias, presence_penalty=2.0, ignore_eos=True, temperature=0)
    listener.send(start(prompt=None, messages=HI, tools=[FREE], params=params, credit=Credit(limit=1)))
    await settled()
    rest(server)
    listener.send(protocol.Inject(request_id="a", text=WHOLE))
    await settled()
    rest(server)
    reads.clear()
    listener.send(protocol.Grant(request_id="a", limit=2 + more))
    server.in_turns = True
    while server.down:
        server.deliver_down()
    while sum(len(news.tokens) for output in server.up for news in output.news) <= more:
        assert not server.at_rest, listener.errors
        server.step()
    server.deliver_up(together=len(server.up))
    return server, listener, reads


async def test_guards_read_all_that_one_token_tells_a_part_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    server, listener, reads = await judging(monkeypatch)
    turns, (stream,) = list[int](), server.hub.streams
    while not server.hub._incoming._lines.empty:
        turns.append(sum(reads))
        assert len(stream.output) == 1, "nothing of it is taken in before all of it is read"
        reads.clear()
        server.clock.advance(0)
    assert max([*turns, sum(reads)]) <= 64
    assert len(turns) > 1000 // 64
    rest(server)
    (found,) = [event for event in listener.heard if isinstance(event, protocol.Guarded)]
    assert (found.index, found.detail) == (1, "b")


@pytest.mark.parametrize("more", [1, 3, 12])
async def test_what_comes_behind_that_token_stands_behind_it(
    more: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, listener, _ = await judging(monkeypatch, more=more)
    while not server.hub._incoming._lines.empty:
        server.clock.advance(0)
    server.in_turns = False
    rest(server)
    (found,) = [event for event in listener.heard if isinstance(event, protocol.Guarded)]
    assert (found.index, found.detail) == (1, "b")


@pytest.mark.parametrize(
    ("injected", "written"),
    [("", " "), ('<tool_call>{"arguments": {"q": "', "a")],
    ids=["the end", "a call that is none"],
)
async def test_they_read_what_is_told_since_it_is_no_call_a_part_at_a_time(
    injected: str, written: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads, find = [], Pattern.find

    def counted(self: Pattern, state: int, text: str) -> tuple[int, int]:
        reads.append(len(text))
        return find(self, state, text)

    monkeypatch.setattr(Pattern, "find", counted)
    monkeypatch.setattr("realtime.guards.reading.READ_AT_ONCE", 16)
    monkeypatch.setattr("realtime.tools.span_reader.LONGEST_UNTOLD", 200)
    tokenizer = knowing()
    (token,) = tokenizer.encode(written, special=False)
    server = SimulatedServer(SIZE, tokenizer=tokenizer)
    listener = RecordingListener(server)
    guard = Guard(name="g", do="finish", regex=f"{written}{{20}}", in_=["content"])
    most = 250 if injected else 150
    bias = {token: 100.0}
    params = Params(guards=[guard], logit_bias=bias, ignore_eos=True, temperature=0, max_tokens=most)
    listener.send(start(prompt=None, messages=HI, tools=[FREE], params=params, credit=Credit(limit=0)))
    await settled()
    rest(server)
    if injected:
        listener.send(protocol.Inject(request_id="a", text=injected))
    listener.send(protocol.Grant(request_id="a", limit=1000))
    await settled()
    rest(server)
    (found,) = [event for event in listener.heard if isinstance(event, protocol.Guarded)]
    assert found.detail == written * 20
    assert sum(reads) >= 150
    assert max(reads) <= 16


async def test_what_guards_have_yet_to_read_stands_before_what_becomes_of_their_engine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server, listener, _ = await judging(monkeypatch)
    server.clock.advance(0)
    (stream,) = server.hub.streams
    assert stream.reading
    server.kill_engine()
    server.revive_engine()
    assert stream.reading
    assert len(stream.output) == 1
    while not server.hub._incoming._lines.empty:
        server.clock.advance(0)
    assert len(stream.output) == 2
    server.in_turns = False
    rest(server)
    (found,) = [event for event in listener.heard if isinstance(event, protocol.Guarded)]
    assert (found.index, found.detail) == (1, "b")


@pytest.mark.parametrize("leaves", [False, True])
async def test_whoever_cancels_or_leaves_meanwhile_does_so_behind_it(
    leaves: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, listener, _ = await judging(monkeypatch)
    server.clock.advance(0)
    if leaves:
        listener.leave()
    else:
        listener.send(protocol.Cancel(request_id="a"))
    await asyncio.sleep(0)
    assert len(server.hub.streams[0].output) == 1
    while not server.hub._incoming._lines.empty:
        server.clock.advance(0)
    await settled()
    server.in_turns = False
    rest(server)
    assert server.hub.streams == []
    if not leaves:
        told = [type(one) for one in listener.heard if isinstance(one, protocol.Guarded | protocol.Final)]
        assert told == [protocol.Guarded, protocol.Final]


async def test_who_has_yet_to_read_what_was_put_in_hears_behind_it_that_its_engine_is_gone() -> None:
    server = SimulatedServer(SIZE, tokenizer=knowing())
    listener, _ = await called(server)
    server.in_turns = True
    listener.send(protocol.Inject(request_id="a", text="<" * (LONG_TEXT - 100)))
    (stream,) = server.hub.streams
    while not stream.reading:
        server.tick()
    assert stream.output.spans is not None
    read = stream.output.spans.injected_read
    server.kill_engine()
    server.revive_engine()
    assert (stream.output.spans.injected_read, list(server.down)) == (read, [])
    while not server.hub._incoming._lines.empty:
        server.clock.advance(0)
    assert [type(command) for command in server.down.popleft()] == [api.Submit]


@pytest.mark.parametrize("said", [{"content": LONG}, {"content": [TextPart(LONG)]}, {"error": LONG}])
def test_a_result_weighs_and_is_paid_for_as_the_text_that_it_is(said: dict[str, Any]) -> None:
    told = protocol.ToolResult(request_id="a", call_id="c", **said)
    assert text_length(told) > len(LONG)
    assert weight(told) > len(LONG)


async def called_twice(server: SimulatedServer) -> tuple[RecordingListener, str, str]:
    """Who listens to a stream that waits for the results of two calls, and the calls' ids."""
    listener, first = await called(server, tools=[FREE], on_tool_call="pause", on_disconnect="continue")
    listener.send(protocol.Inject(request_id="a", grammar="anew", text=WRITTEN))
    rest(server)
    second = [event for event in listener.heard if isinstance(event, protocol.ToolCallDone)][-1].call_id
    listener.send(protocol.Adjust(request_id="a", params=Params(logit_bias={toy_model.EOS: 100.0})))
    listener.send(protocol.Resume(request_id="a"))
    rest(server)
    return listener, first, second


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (100_000, "The tool_result has at least "),
        (1200, "169 tokens stand and 6017 more were to be injected"),
    ],
)
async def test_a_result_that_fits_no_context_is_refused_also_where_it_waits_for_anothers(
    words: int, message: str
) -> None:
    """Refused with theirs, whoever tells the last would hear of it, and could tell nothing that fits."""
    server = SimulatedServer(SIZE, tokenizer=knowing())
    listener, first, second = await called_twice(server)
    listener.send(msgspec.structs.replace(result(first, ref="long"), content="long " * words))
    await settled()
    assert (error := listener.error()).code == "context_too_long"
    assert error.message.startswith(message)
    listener.send(result(first, ref="first"))
    listener.send(result(second, ref="second"))
    rest(server)
    assert not listener.errors
    put_in = [event for event in listener.heard if isinstance(event, protocol.Injected) and event.ref]
    assert [(event.ref, event.count > 0) for event in put_in] == [("first", False), ("second", True)]


async def test_a_result_that_is_refused_does_not_go_in_with_anothers(monkeypatch: pytest.MonkeyPatch) -> None:
    server = SimulatedServer(SIZE, tokenizer=knowing(), keeps=True)
    listener, first, second = await called_twice(server)
    (entry,) = server.hub._registry.entries
    assert entry.stream.paused == "tool_call"
    with monkeypatch.context() as patch:
        patch.setattr(entry.quota, "check_rate", _refuse)
        listener.send(result(first, ref="refused"))
    assert listener.error().ref == "refused"
    listener.send(result(second, ref="waits"))
    rest(server)
    (put_in,) = [event for event in listener.heard if isinstance(event, protocol.Injected) and event.ref]
    assert (put_in.ref, put_in.count) == ("waits", 0)
    server.check_kept()
    assert server.adoptions == 1


async def test_a_result_that_takes_anothers_place_is_counted_as_made_in_vain(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server = SimulatedServer(SIZE, tokenizer=knowing())
    listener, first, second = await called_twice(server)
    (entry,) = server.hub._registry.entries
    counted = list[int]()
    monkeypatch.setattr(entry.quota, "count", counted.append)
    listener.send(result(first, ref="waits"))
    rest(server)
    assert not counted, "it is put in with the other's"
    listener.send(msgspec.structs.replace(result(first, ref="instead"), content="43 " * 50))
    listener.send(result(second, ref="last"))
    rest(server)
    assert len(counted) == 1
    assert counted[0] > 50
    assert not listener.errors


async def test_a_result_goes_in_where_its_stream_was_given_a_grammar_since_also_if_its_tools_are_free() -> (
    None
):
    server = SimulatedServer(SIZE, tokenizer=knowing())
    listener, call_id = await called(server, tools=[FREE])
    listener.send(protocol.Adjust(request_id="a", params=Params(grammar=Grammar(choice=["yes", "no"]))))
    await settled()
    listener.send(result(call_id, ref="result"))
    rest(server)
    assert not listener.errors
    (put_in,) = [event for event in listener.heard if isinstance(event, protocol.Injected) and event.ref]
    assert (put_in.ref, put_in.count > 0) == ("result", True)


async def told_one_of_two(
    server: SimulatedServer, content: str = "42"
) -> tuple[RecordingListener, protocol.Rewind]:
    """A result that waits for that of a second call, which the rewind takes back."""
    listener, first = await called(server, tools=[FREE], on_tool_call="pause", on_disconnect="continue")
    behind_first = len(server.hub.streams[0].output)
    listener.send(protocol.Adjust(request_id="a", params=Params(logit_bias={ord("x"): 100.0})))
    listener.send(protocol.Resume(request_id="a"))
    server.tick()
    listener.send(protocol.Pause(request_id="a"))
    listener.send(protocol.Inject(request_id="a", grammar="anew", text=WRITTEN))
    listener.send(protocol.Adjust(request_id="a", params=Params(logit_bias={toy_model.EOS: 100.0})))
    listener.send(protocol.Resume(request_id="a"))
    rest(server)
    assert server.hub.streams[0].paused == "tool_call"
    listener.send(msgspec.structs.replace(result(first, ref="waits"), content=content))
    await settled()
    rest(server)
    listener.send(protocol.Adjust(request_id="a", params=Params(logit_bias={ord("x"): 100.0})))
    return listener, protocol.Rewind(request_id="a", to=behind_first)


def check_it_went_in(listener: RecordingListener) -> None:
    put_in = [event for event in listener.heard if isinstance(event, protocol.Injected)]
    assert (put_in[-1].ref, put_in[-1].count > 0) == (None, True)
    assert isinstance(listener.heard[listener.heard.index(put_in[-1]) + 1], protocol.Resumed)


@pytest.mark.parametrize("leaves", [False, True])
async def test_results_go_in_by_themselves_where_those_they_waited_for_will_not_come(leaves: bool) -> None:
    server = SimulatedServer(SIZE, tokenizer=knowing(), keeps=True)
    listener, rewind = await told_one_of_two(server)
    listener.send(rewind)
    if leaves:
        server.hub.detach(listener)
        rest(server)
        assert server.hub.streams[0].paused == "tool_call"
        listener = RecordingListener(server)
        listener.send(protocol.Attach(request_id="a", after=-1))
    rest(server)
    check_it_went_in(listener)
    server.check_kept()
    assert server.adoptions == 1


async def test_so_they_do_where_a_minutes_tokens_are_taken_by_then() -> None:
    """They were taken before, and nobody would tell them again."""
    quotas = Quotas(lambda tenant: Allowance(tokens_per_minute=100_000))
    server = SimulatedServer(SIZE, tokenizer=knowing(), quotas=quotas)
    listener, rewind = await told_one_of_two(server)
    quotas.count(TENANT, 200_000)
    listener.send(rewind)
    rest(server)
    assert not listener.errors
    check_it_went_in(listener)


async def test_so_they_do_where_whoever_told_them_went_before_they_were_tokens() -> None:
    """They were taken, and nobody else knows that they are to be told once more."""
    server = SimulatedServer(SIZE, tokenizer=knowing())
    listener, rewind = await told_one_of_two(server, content="4 2 " * (LONG_TEXT // 3))
    listener.send(rewind)
    rest(server)
    assert server.hub._long_texts.keys
    listener.leave()
    await settled()
    listener = RecordingListener(server)
    listener.send(protocol.Attach(request_id="a", after=-1))
    await settled()
    rest(server)
    assert not listener.errors
    check_it_went_in(listener)


def _refuse() -> None:
    raise Refusal("rate_limited", "Wait.")


async def test_of_many_whose_memory_is_held_for_too_long_some_release_it_in_each_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And those no more whose results come before their turn."""
    monkeypatch.setattr("realtime.hub.deadlines.OVER_A_TURN", 1)
    server = SimulatedServer(SIZE, tokenizer=knowing())
    for name in "abc":
        listener, call_id = await called(server, name, tools=[FREE], on_tool_call="pause", tool_hold_ms=1000)
        ends = Params(logit_bias={toy_model.EOS: 100.0})
        listener.send(protocol.Adjust(request_id=name, params=ends))
        listener.send(protocol.Resume(request_id=name))
        rest(server)

    def released() -> list[str]:
        return [stream.request_id for stream in server.hub.streams if stream.released]

    server.clock.advance(1)
    assert released() == ["a"]
    listener.send(protocol.ToolResult(request_id="c", call_id=call_id, content="42"))
    await settled()
    rest(server)
    server.clock.advance(0)
    assert released() == ["a", "b"]
    server.clock.advance(0)
    assert released() == ["a", "b"]


def waiting(name: str = "a", **fields: Any) -> protocol.Start:
    """Of a stream that waits for results, as where it was before."""
    past = protocol.Past(steering=[protocol.PastInject(index=0, text=WRITTEN)], waits=True)
    asked: dict[str, Any] = {"messages": HI, "prompt": None, "tools": [FREE], "on_tool_call": "pause"}
    return start(name, **{"past": past} | asked | fields)


async def test_those_that_were_started_again_as_they_wait_take_nothing_of_what_may_wait_for_the_engine() -> (
    None
):
    """They wait for their results, however long, and others of their tenant's may begin meanwhile."""
    narrow = Allowance(prefill_tokens=150)
    server = SimulatedServer(SIZE, tokenizer=knowing(), quotas=Quotas(lambda tenant: narrow))
    listener = RecordingListener(server)
    for name in "ab":
        listener.send(waiting(name))
        await settled()
    listener.send(start("c", prompt="x" * 100))
    await settled()
    assert not listener.errors
    assert [stream.paused for stream in server.hub.streams] == ["tool_call", "tool_call", None]


async def test_what_was_started_again_waits_for_the_engine_once_its_client_has_it_go_on() -> None:
    """By what begins so more could be had to wait than may, and others of the tenant's all the same."""
    narrow = Allowance(prefill_tokens=150)
    slow = replace(SIZE, step_tokens=16)
    server = SimulatedServer(slow, tokenizer=knowing(), quotas=Quotas(lambda tenant: narrow))
    listener, long = RecordingListener(server), [Message(role="user", content="x" * 100)]
    for name in "ab":
        listener.send(waiting(name, messages=long))
        await settled()
    rest(server)
    for stream in server.hub.streams:
        (call,) = stream._tools.missing
        listener.send(protocol.ToolResult(request_id=stream.request_id, call_id=call.call_id, content="ok"))
        await settled()
    server.tick()
    server.tick()
    assert [stream.paused for stream in server.hub.streams] == [None, None]
    assert server.hub._quotas.taken()[TENANT].waiting > 100, "the engine has begun with one of them"
    rest(server)
    assert not server.hub._quotas.taken()[TENANT].waiting


async def test_what_was_started_again_as_it_waits_is_counted_once() -> None:
    """With its start: as it went on all of that counted as computed again."""
    counted = Allowance(tokens_per_minute=10_000)
    server = SimulatedServer(SIZE, tokenizer=knowing(), quotas=Quotas(lambda tenant: counted))
    listener = RecordingListener(server)
    written = knowing().encode(WRITTEN)
    past = protocol.Past(tokens=written, call_ids=["c"], waits=True)
    credit, params = protocol.Credit(limit=len(written) + 3), protocol.Params(ignore_eos=True)
    listener.send(waiting(past=past, credit=credit, params=params))
    await settled()
    (stream,) = server.hub.streams
    begun = len(stream.context)
    listener.send(protocol.ToolResult(request_id="a", call_id="c", content="ok"))
    await settled()
    rest(server)
    assert len(stream.context) > begun + 3
    assert server.hub._quotas.taken()[TENANT].tokens == len(stream.context)


async def test_nor_could_it_by_what_was_started_again_without_credit() -> None:
    narrow = Allowance(prefill_tokens=150)
    server = SimulatedServer(SIZE, quotas=Quotas(lambda tenant: narrow))
    listener = RecordingListener(server)
    for name in "ab":
        past, credit = protocol.Past(tokens=[97]), protocol.Credit(limit=1)
        listener.send(start(name, prompt="x" * 100, past=past, credit=credit))
    rest(server)
    for name in "ab":
        listener.send(protocol.Grant(request_id=name, limit=9))
    listener.send(start("c"))
    assert [error.code for error in listener.errors] == ["rate_limited"]
    rest(server)
    listener.send(start("c"))
    assert len(listener.errors) == 1


async def test_one_that_was_started_again_as_it_waits_sends_nobody_to_another_engine() -> None:
    """Neither there nor where it comes to when its engine is lost: nothing of it is computed."""
    server = SimulatedServer(SIZE, engines=2, tokenizer=knowing())
    listener = RecordingListener(server)
    listener.send(waiting(messages=[Message(role="user", content="x" * 1000)]))
    await settled()
    (entry,) = server.hub._registry.entries
    for _ in range(2):
        rest(server)
        assert entry.engine is not None
        assert entry.engine.choice(()).waiting_tokens == 0
        server.kill_engine(entry.engine.number)
        server.clock.advance(0)


async def test_the_memory_of_one_that_was_started_again_as_it_waits_is_held_no_longer() -> None:
    server = SimulatedServer(SIZE, tokenizer=knowing())
    RecordingListener(server).send(waiting(tool_hold_ms=10))
    await settled()
    (stream,) = server.hub.streams
    assert (stream.paused, stream.released) == ("tool_call", False)
    server.clock.advance(0.02)
    assert stream.released


async def test_what_was_released_while_a_result_was_long_in_coming_is_computed_once() -> None:
    """It goes on by itself when it is amended: from then on nothing is to be computed again."""
    server = SimulatedServer(SIZE, tokenizer=knowing())
    listener, call_id = await called(server, tools=[FREE], on_tool_call="pause", tool_hold_ms=10)
    listener.send(protocol.Adjust(request_id="a", params=Params(logit_bias={toy_model.EOS: 100.0})))
    listener.send(protocol.Resume(request_id="a"))
    rest(server)
    (entry,) = server.hub._registry.entries
    server.clock.advance(0.02)
    assert entry.stream.released
    rest(server)
    listener.send(protocol.Amend(request_id="a", call_id=call_id, arguments={"q": "x"}))
    rest(server)
    assert any(isinstance(event, protocol.Resumed) and event.recomputed_tokens for event in listener.heard)
    assert not entry.stream.released
