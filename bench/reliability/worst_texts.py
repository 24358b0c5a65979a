"""Whatever reads a client's text, or a list of a client's, each with the texts and lists that may be hard for
it. `READERS` has them by name. It knows nothing of how what they do is measured.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import msgspec

from midstream import protocol
from midstream.protocol import (
    JSON_SUBPROTOCOL,
    MSGPACK_SUBPROTOCOL,
    CalledFunction,
    Function,
    Grammar,
    Message,
    MessageToolCall,
    Params,
    Past,
    PastAdjust,
    PastInject,
    TextPart,
    Tool,
)
from realtime.codec import Codec
from realtime.guards.json_path import LONGEST_PATH, PathError, ValueReader, decoded, parsed
from realtime.guards.pattern import MOST_BACK, START, Pattern
from realtime.guards.reading import READ_AT_ONCE
from realtime.http.bodies_and_headers import fields_of
from realtime.http.openai.requests import ChatBody, TextBody, read
from realtime.http.openai.starts import starts
from realtime.hub import free_values
from realtime.hub.frame_tokenizing import check_contents, check_tools, start_digest, text_length
from realtime.refusal import Refusal
from realtime.stream.amendment import LONGEST, LONGEST_WRITTEN, MOST_SIGNS, MOST_SIGNS_WRITTEN
from realtime.stream.weights import weight
from realtime.text.chat_template import TextError
from realtime.text.conversation import tool_objects, turns
from realtime.text.grammar import TEXT_BYTES, _schemas_within, check_shape
from realtime.text.stop_strings import StopMatcher
from realtime.tools.argument_text import pieces_of
from realtime.tools.call_grammar import CallGrammar, HeldTool
from realtime.tools.call_reader import LONGEST_VALUE
from realtime.tools.definitions import UnspellableError
from realtime.tools.fallback import without_tools
from realtime.tools.json_scanner import JsonScanner, signs_in
from realtime.tools.offered import argument_kinds
from realtime.tools.pythonic_call import values_of
from realtime.tools.same_json import same_json
from realtime.tools.span_reader import SpanReader
from realtime.tools.whole_json import WholeTokens
from tests.fakes.cut_calls import EVERY, OFFERED
from tests.fakes.cut_calls import pieces_of as pieces_of_format
from tests.fakes.spelt_calls import SPELT, Pieces

Work = Callable[[], object]

REFUSED = (Refusal, TextError, UnspellableError, PathError, ValueError, IndexError)  # what a reader may say
MESSAGE = 1 << 20  # bytes of the longest
ITEM = 4  # characters, about, of a list
# What texts are made of: openers, escapes, blanks, small items, wide characters, and what begins of a pair.
UNITS = [
    *"a0 \n\"'\\{[]()=<|é日",
    *('\\"', "\\\\", "\\u00", "\\ud83d", "{}", "[],", '""', '"a":', '{"a":', "0,", "a=1,", "''", "x ", "a.b"),
]
# And expressions, paths and grammars, as well.
OTHER_UNITS = [
    "/",
    "-",
    "👩",
    "e\u0301",
    "\r\n",
    "%json",
    "%json{",
    "[0]",
    '["a"]',
    ".a",
    "a|",
    "a?",
    "(a|",
    "$",
]
# A format for each way in which arguments are written.
OF_EACH_BODY = ("hermes", "mistral_args", "lfm2", "glm", "gemma4")


class Reading(NamedTuple):
    """`made`: the work, of what is repeated so often; `length`: of that, in characters; `most`: how often it
    may be repeated in what is read at once; `in_a_turn`: of the event loop, and not by a thread."""

    what: str
    made: Callable[[int], Work]
    length: int
    most: int
    in_a_turn: bool = True


def of_texts(
    read_by: Callable[[str], Work], most: int, units: Sequence[str] = (*UNITS, *OTHER_UNITS)
) -> Iterator[Reading]:
    """`most`: characters."""

    def made(unit: str, times: int) -> Work:
        return read_by(unit * times)

    for unit in units:
        yield Reading(repr(unit), partial(made, unit), len(unit), most // len(unit))


# -- what a model writes, or has put into it -------------------------------------------------------

OF_A_READER = ("_mode", "_told", "_fresh")
OF_A_CALL = ("_phase", "_key", "_quote", "_in_string", "_in_key", "_key_due")


def of_a_format(name: str, *, single: bool) -> Iterator[Reading]:
    """Whatever may come at each place of a call."""
    pieces = pieces_of_format(name, single=single)
    units = list(dict.fromkeys([*UNITS, *_delimiters(pieces)]))
    for at, reader in enumerate(_places(pieces, name)):

        def read_by(text: str, reader: SpanReader = reader) -> Work:
            marked = pieces.spelling.delimiters.mark(text)
            return lambda: reader.copy().feed_text(marked, 0)

        for reading in of_texts(read_by, READ_AT_ONCE, units):
            yield reading._replace(what=f"{reading.what} at place {at}")


def _delimiters(pieces: Pieces) -> Iterator[str]:
    """Of a format, and of each what it begins with."""
    form, tags = pieces.spelling.tools, pieces.spelling.tools.tags
    texts = [*form.opens, *form.sections, *form.fills, *form.header.ends, form.quote, *tags.name_ends]
    texts += [tags.name_open, tags.key_open, tags.key_end, tags.other_key_end, tags.value_open]
    texts += [tags.value_end, tags.call_end, "<think>", "</think>"]
    for text in filter(None, texts):
        yield from (text, text[:-1] or text)


def _places(pieces: Pieces, name: str) -> list[SpanReader]:
    """A reader wherever it reads otherwise than before."""
    text = SPELT[name]([("find", {"q": "ab", "n": 3, "deep": {"a": [1]}})])
    reader, found = pieces.reader(OFFERED), dict[tuple[object, ...], SpanReader]()
    for index, token in enumerate([*pieces.tokens(text), pieces.token(b"x")]):
        of_call = {} if reader.call is None else vars(reader.call)
        scanner = of_call.get("_scanner")
        of_reader = map(vars(reader).get, OF_A_READER)
        in_string = isinstance(scanner, JsonScanner) and scanner.in_string
        found.setdefault((*of_reader, *map(of_call.get, OF_A_CALL), in_string), reader.copy())
        reader.feed(token, index)
    return list(found.values())


def _amended(name: str, asked: str, begun: str) -> Work:
    spelling = pieces_of_format(name, single=True).spelling
    return lambda: pieces_of(spelling, {"q": "text"}, asked, begun, begun, partial=False)


def of_an_amend(name: str) -> Iterator[Reading]:
    yield from of_texts(lambda text: _amended(name, '{"q": ' + text, "{"), MOST_SIGNS)
    yield from of_texts(lambda text: _amended(name, '{"q": "' + text, "{"), LONGEST)
    yield from of_texts(lambda text: _amended(name, "{}", "{" + text), MOST_SIGNS_WRITTEN)
    yield from of_texts(lambda text: _amended(name, "{}", '{"q": "' + text), LONGEST_WRITTEN)


# -- other texts -----------------------------------------------------------------------------------


def _scanned(text: str) -> None:
    scanner, at = JsonScanner(), 0
    while (at := scanner.pass_plain(text, at)) < len(text) and not scanner.ends_with(text[at]):
        at += 1


def _told_whole(text: str) -> None:
    whole = WholeTokens()
    for char in text:
        whole.take(char)


def _read_by_path(text: str) -> None:
    reader = ValueReader(parsed("$.a[*]"))
    for char in '{"a": [' + text:
        reader.read(char)


def _stopped(text: str) -> None:
    matcher, state = StopMatcher((text, text[1:] + "x", text[:9])), 0
    for char in text + text:
        state = matcher.step(state, char)


def _values_of(text: str) -> object:
    return values_of(text, pieces_of_format("lfm2", single=True).spelling.delimiters)


def _said_to(subprotocol: str, **said: Any) -> Work:
    codec = Codec(subprotocol)
    encode: Any = msgspec.json.encode if codec.text else msgspec.msgpack.encode
    frame = encode({"type": "start", "request_id": "a"} | said)
    return lambda: codec.decode(frame.decode() if codec.text else frame)


TEXTS: dict[str, tuple[Callable[[str], object], int]] = {
    "where JSON ends": (_scanned, READ_AT_ONCE),
    "JSON told in whole tokens": (_told_whole, READ_AT_ONCE),
    "what stands at a path": (_read_by_path, READ_AT_ONCE),
    "a path": (parsed, LONGEST_PATH),
    "what a string of JSON says": (lambda text: decoded('"' + text, 0, len(text), len(text)), MOST_BACK),
    "an expression that is looked for": (
        lambda text: Pattern("(a|b)*a.{9}c").find(START, text),
        READ_AT_ONCE,
    ),
    "where what is found begins": (
        lambda text: Pattern("a?(.|\n)*").begin(text, len(text)),
        MOST_BACK,
    ),
    "signs outside of strings": (signs_in, MESSAGE),
    "a grammar with schemas": (lambda text: list(_schemas_within(text)), TEXT_BYTES),
    "stop strings": (_stopped, 256),
    "Python's arguments": (_values_of, LONGEST_VALUE),
    "the same JSON": (lambda text: same_json(f"[{text}0]", f"[{text}0]"), LONGEST_VALUE),
    "the fields of a body": (lambda text: fields_of(text.encode()), MESSAGE // 4),
}


# -- lists -----------------------------------------------------------------------------------------


def _nested(size: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(size):
        schema = {"type": "object", "properties": {"a": schema}}
    return schema


SCHEMAS: dict[str, tuple[Callable[[int], dict[str, Any]], int]] = {
    "properties": (lambda n: {"properties": {f"k{at}": {"type": "string"} for at in range(n)}}, 1000),
    "required ones": (
        lambda n: {"required": [f"k{at}" for at in range(n)], "additionalProperties": False},
        10_000,
    ),
    "objects in objects": (_nested, 32),
    "choices": (lambda n: {"properties": {"a": {"enum": [f"k{at}" for at in range(n)]}}}, 10_000),
    "types": (lambda n: {"properties": {"a": {"type": ["string", "null", "boolean"] * n}}}, 4_000),
    "one of many": (
        lambda n: {"properties": {"a": {"anyOf": [{"const": f"k{at}"} for at in range(n)]}}},
        6_000,
    ),
    "definitions": (
        lambda n: {
            "properties": {"a": {"$ref": "#/$defs/k0"}},
            "$defs": {f"k{at}": {"anyOf": [{"$ref": f"#/$defs/k{(at + 1) % n}"}]} for at in range(n)},
        },
        2_000,
    ),
}


def of_a_tool(name: str) -> Iterator[Reading]:
    spelling = pieces_of_format(name, single=True).spelling

    def made(schema_of: Callable[[int], dict[str, Any]], size: int) -> Work:
        schema = {"type": "object"} | schema_of(size)
        tools = [Tool(function=Function(name="f", parameters=schema))]

        def work() -> None:
            check_shape(schema, "tools")
            argument_kinds(tools)
            tool_objects(tools, str)
            CallGrammar(spelling, [HeldTool("f", schema)], parallel=True).lark()

        return work

    for what, (schema_of, most) in SCHEMAS.items():
        yield Reading(what, partial(made, schema_of), ITEM, most, in_a_turn=False)


HI: dict[str, Any] = {"role": "user", "content": "Hi"}
CALL = MessageToolCall(id="c", function=CalledFunction(name="f", arguments='{"a": [1, 2]}'))
STARTS: dict[str, tuple[Callable[[int], dict[str, Any]], int]] = {
    "messages": (lambda n: {"messages": [Message(**HI)] * n}, 4096),
    "results": (lambda n: {"messages": [Message(role="tool", content="Hi", tool_call_id="c")] * n}, 4096),
    "parts": (lambda n: {"messages": [Message(role="user", content=[TextPart(text="a")] * n)]}, 30_000),
    "calls": (lambda n: {"messages": [Message(role="assistant", tool_calls=[CALL] * n)]}, 128),
    "tools": (
        lambda n: {
            "messages": [Message(**HI)],
            "tools": [Tool(function=Function(name=f"f{at}")) for at in range(n)],
            "approvals": [f"f{at}" for at in range(n)],
        },
        128,
    ),
    "biases": (lambda n: {"prompt": "a", "params": Params(logit_bias=dict.fromkeys(range(n), 1.0))}, 1024),
    "a choice of many": (
        lambda n: {"prompt": "a", "params": Params(grammar=Grammar(choice=[f"k{at}" for at in range(n)]))},
        1000,
    ),
    "a past": (
        lambda n: {
            "prompt": "a",
            "past": Past(
                tokens=[1] * n,
                call_ids=[f"c{at}" for at in range(n)],
                steering=[
                    PastAdjust(index=0, params=Params(stop=["a"])),
                    *[PastInject(index=at, text="a") for at in range(n - 1)],
                ],
            ),
        },
        4096,
    ),
    "a long text": (lambda n: {"prompt": '\\"' * n, "ref": "a" * n, "x": "[" * n}, MESSAGE // 8),
}


def of_starts() -> Iterator[Reading]:
    def made(fields: Callable[[int], dict[str, Any]], size: int) -> Work:
        said = msgspec.to_builtins(fields(size))

        def work() -> None:
            for subprotocol in (JSON_SUBPROTOCOL, MSGPACK_SUBPROTOCOL):
                frame = _said_to(subprotocol, **said)()
            assert isinstance(frame, protocol.Start)
            text_length(frame)
            weight(frame)
            start_digest(frame)
            free_values.check(frame)
            check_tools(frame)
            check_contents(frame.messages or [])
            turns(frame.messages or [], str)
            without_tools(frame.messages or [], frame.tools)

        return work

    for what, (fields, most) in STARTS.items():
        yield Reading(what, partial(made, fields), ITEM, most, in_a_turn=False)


def _begun(kind: type[ChatBody | TextBody], **said: Any) -> Work:
    body = msgspec.json.encode(said)
    return lambda: starts(read(kind, body), "a")


BODIES: dict[str, tuple[Callable[[int], Work], int]] = {
    "messages": (lambda n: _begun(ChatBody, messages=[HI] * n), 4096),
    "fields": (lambda n: _begun(ChatBody, **{f"k{at}": 0 for at in range(n)}), 100_000),
    "choices": (lambda n: _begun(ChatBody, messages=[HI], n=n, seed=1), 128),
    "prompts": (lambda n: _begun(TextBody, prompt=["Hi"] * n), 128),
    "prompts of tokens": (lambda n: _begun(TextBody, prompt=[[1, 2]] * n), 128),
}


def of_bodies() -> Iterator[Reading]:
    for what, (made, most) in BODIES.items():
        yield Reading(what, made, ITEM, most)


def _of_a_text(read_by: Callable[[str], object], most: int) -> Iterator[Reading]:
    return of_texts(lambda text: lambda: read_by(text), most)


READERS: dict[str, Callable[[], Iterator[Reading]]] = {
    **{
        f"{name}, {'with' if single else 'without'} single tokens": partial(of_a_format, name, single=single)
        for name, single in EVERY
    },
    **{f"an amend in {name}": partial(of_an_amend, name) for name in OF_EACH_BODY},
    **{name: partial(_of_a_text, read_by, most) for name, (read_by, most) in TEXTS.items()},
    **{f"a tool in {name}": partial(of_a_tool, name) for name in OF_EACH_BODY},
    "a start": of_starts,
    "a body": of_bodies,
}
