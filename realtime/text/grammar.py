"""Grammars in the engine's words: as clients write them, as tools make them, and both; and whether they can
be followed.

What is refused is refused by what the grammar says, and not by how long it took: a limit counts characters,
properties and levels, and the compiler counts its own work (`engine/structure/compiler.py`), or is stopped by
what it took (`engine/structure/checker.py`). It takes milliseconds all the same, and up to a second: `check`
is for a thread. One is compiled after the other, but what was asked lately is known (`of_known`). It knows no
stream and no token.
"""

from __future__ import annotations

import json
import lzma
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import partial
from hashlib import blake2b
from typing import Any

import msgspec
from msgspec import UNSET, Struct

from engine.structure.checker import BRIEFLY_S, MOST_S, Checker, NoAnswerError
from midstream.protocol import Grammar
from realtime.refusal import Refusal
from realtime.text.chat_template import TextError
from realtime.tools.lark import slashed
from realtime.tools.offered import SAYS_NOTHING

SCHEMA_BYTES, TEXT_BYTES = 64 << 10, 16 << 10
DEPTH, PROPERTIES = 64, 1000
MOST_BROKEN = 32  # objects in Lark that are no JSON
MOST_KNOWN = 4096  # problems, or that there is none
# Different expressions that a text may be held to at once: with each more there may be twice as much to do,
# and at any token. Counted are all, where any may be.
MOST_AT_ONCE = 8
KINDS = ("json_schema", "regex", "lark", "choice")
_SAYS_NOTHING = (SAYS_NOTHING | {"type", "$defs", "definitions", "x-guidance"}) - {"format"}
COMPACT = {"whitespace_flexible": False}
# So many characters between two tokens of JSON, and no more: some models would write nothing else.
SPACED = {"whitespace_flexible": True, "whitespace_pattern": r"[\x20\x0A\x0D\x09]{1,40}"}


class NoCompilerError(Refusal):
    """So it is not known whether a grammar can be followed: it may be asked again."""

    def __init__(self) -> None:
        super().__init__(
            "overloaded",
            "The compiler of grammars was killed, or cannot be begun now: send this again.",
            retry_after_ms=1000,
        )


class Unknown:
    """Grammars of which has to be found out whether they can be followed: for a thread, one a turn."""

    def __init__(
        self, looks: Sequence[Callable[[], object]], ask: Callable[[], object] | None = None
    ) -> None:
        """`looks`: at each, one or more, and behind one that returns something at no other; `ask`: for what
        needs them, and perhaps others."""
        self.looks = looks
        self._ask = ask

    def find_out(self) -> Unknown | None:
        """Returns what is still to be found out for the same; whoever asks again hears what came of it."""
        look, *others = self.looks
        if not look() and others:
            return Unknown(others, self._ask)
        try:
            if self._ask is not None:
                with of_known():
                    self._ask()
        except NotKnownError as error:
            return error.unknown
        except Refusal:
            pass
        return None


class NotKnownError(Exception):
    """Something is `unknown`. That may wait, and this may not: an error has with it whatever was at hand
    where it was raised, such as a prompt."""

    def __init__(self, unknown: Unknown) -> None:
        super().__init__()
        self.unknown = unknown


class OutputRules(Struct, frozen=True):
    """What a model's tools and reasoning make of a stream's output, in Lark: where nothing else is asked of
    it, if that is not any text; and where an answer is asked for by a grammar, which is the rule `answer`."""

    alone: str | None
    or_answer: str
    later: OutputRules | None = None  # of the turns behind the first, where they are others

    @property
    def texts(self) -> list[str]:
        later = [] if self.later is None else self.later.texts
        return [self.alone or "", self.or_answer, *later]


def source_of(grammar: Grammar) -> str:
    """In llguidance's words. It has one kind, and only one."""
    return _encoded({"grammars": [_grammar(grammar)]})


def source_with(rules: OutputRules, grammar: Grammar) -> str:
    """Of both."""
    answer = {"name": "answer", **_grammar(grammar)}
    return _encoded({"grammars": [{"lark_grammar": rules.or_answer}, answer]})


def source_of_lark(lark: str) -> str:
    return _encoded({"grammars": [{"lark_grammar": lark}]})


def _grammar(grammar: Grammar) -> dict[str, Any]:
    match grammar:
        case Grammar(json_schema=bool() | dict() as schema):
            return {"json_schema": _schema(schema, SPACED if grammar.whitespace else COMPACT)}
        case Grammar(regex=str() as regex):
            return {"lark_grammar": f"start: TEXT\nTEXT: /{slashed(regex)}/"}
        case Grammar(choice=list() as choices):
            choice = " | ".join(json.dumps(choice, ensure_ascii=False) for choice in choices)
            return {"lark_grammar": f"start: {choice}"}
        case Grammar(lark=str() as lark):
            return {"lark_grammar": lark}
    raise AssertionError("a grammar without a kind")


def check(grammar: Grammar) -> None:
    """Raise `TextError` where a stream could not follow it."""
    given = [kind for kind in KINDS if getattr(grammar, kind) is not UNSET]
    if len(given) != 1:
        raise TextError(f"`params.grammar` has one of {', '.join(f'`{kind}`' for kind in KINDS)}.")
    kind = given[0]
    if kind == "json_schema":
        check_shape(grammar.json_schema, "params.grammar.json_schema")
    try:
        source = source_of(grammar)
        size = len(source.encode())
    except (TypeError, ValueError):
        raise TextError(f"`params.grammar.{kind}` has something in it that is not JSON.") from None
    most = SCHEMA_BYTES if kind == "json_schema" else TEXT_BYTES
    if size > most:
        raise TextError(f"`params.grammar.{kind}` has {size} bytes; it may have {most}.")
    if isinstance(grammar.lark, str):
        for schema in _schemas_within(grammar.lark):
            check_shape(schema, "params.grammar.lark")
    problem = problem_of(source)
    if problem:
        raise TextError(f"`params.grammar.{kind}` cannot be followed: {problem}.")


def _schema(schema: dict[str, Any] | bool, options: dict[str, Any]) -> dict[str, Any]:
    """True is what anything fits, and False what nothing does."""
    if isinstance(schema, bool):
        schema = {} if schema else {"enum": []}
    return schema | {"x-guidance": options}


def _encoded(value: object) -> str:
    return msgspec.json.encode(value).decode()


def check_shape(schema: Any, field: str) -> None:
    """Raise `TextError` for what the compiler's own limits come to too late."""
    properties, at_once, expressions = 0, False, set[str]()
    for value, depth in _walk(schema):
        if depth > DEPTH:
            raise TextError(f"`{field}` is nested deeper than {DEPTH} levels.")
        listed = value.get("properties")
        properties += len(listed) if isinstance(listed, dict) else 0
        if properties > PROPERTIES:
            raise TextError(f"`{field}` has more than {PROPERTIES} properties.")
        at_once = at_once or _holds_at_once(value)
        expressions |= {one for key in ("pattern", "format") if isinstance(one := value.get(key), str)}
    if at_once and len(expressions) > MOST_AT_ONCE:
        raise TextError(
            f"`{field}` has {len(expressions)} different `pattern`s and `format`s; with `allOf`, or others "
            f"beside `anyOf`, `oneOf` or `$ref`, it may have {MOST_AT_ONCE}."
        )


def _holds_at_once(schema: dict[str, Any]) -> bool:
    """Whether a value is held to several schemas."""
    parts = schema.get("allOf")
    if isinstance(parts, list) and len(parts) > 1:
        return True
    kinds: dict[str, type] = {"allOf": list, "anyOf": list, "oneOf": list, "$ref": str}
    elsewhere = any(isinstance(schema.get(key), kind) for key, kind in kinds.items())
    return elsewhere and len(schema.keys() - _SAYS_NOTHING) > 1


def _schemas_within(lark: str) -> Iterator[Any]:
    """What is no JSON the compiler refuses, unless it stands in a text; each may be read to the end, in
    vain."""
    at = broken = 0
    while (found := lark.find("%json", at)) >= 0:
        at = found + 1
        try:
            schema, at = json.JSONDecoder().raw_decode(lark, lark.index("{", at))
        except (ValueError, RecursionError):
            broken += 1
            if broken > MOST_BROKEN:
                raise TextError(
                    f"`params.grammar.lark` has more than {MOST_BROKEN} `%json` with no JSON object behind."
                ) from None
        else:
            yield schema


def _walk(schema: Any) -> Iterator[tuple[dict[str, Any], int]]:
    """All objects in it, with how deep they lie."""
    waiting: list[tuple[Any, int]] = [(schema, 1)]
    while waiting:
        value, depth = waiting.pop()
        if isinstance(value, dict):
            yield value, depth
            value = value.values()
        elif not isinstance(value, list):
            continue
        waiting += [(inner, depth + 1) for inner in value if isinstance(inner, dict | list)]


def problem_of(source: str, *, briefly: bool = False) -> str:
    """Why a grammar cannot be followed, or nothing. What was asked lately is known: agents send the same
    tools again and again; and what was tried in a thread is asked for once more between others' events.
    `briefly`: one of many. Raises NoCompilerError, and NotKnownError `of_known`."""
    key = blake2b(source.encode(), digest_size=16, person=b"briefly" if briefly else b"").digest()
    problem = _known_problems.get(key)
    if problem is None and _of_known.get():
        raise NotKnownError(Unknown([partial(_problem_of_packed, _packed(source), briefly=briefly)]))
    if problem is None:
        try:
            problem = _checker.problem_of(source, BRIEFLY_S if briefly else MOST_S)
        except NoAnswerError:
            raise NoCompilerError from None
        _known_problems[key] = problem
        if len(_known_problems) > MOST_KNOWN:
            _known_problems.popitem(last=False)
    with suppress(KeyError):  # as another thread may have it
        _known_problems.move_to_end(key)
    return problem


def _packed(source: str) -> bytes:
    """For very many may wait to be compiled: of a start's tools it may be forty times as long as they are,
    and then says the same again and again."""
    return lzma.compress(source.encode(), preset=0)


def _problem_of_packed(source: bytes, *, briefly: bool) -> str:
    return problem_of(lzma.decompress(source).decode(), briefly=briefly)


def close() -> None:
    """The server ends: a compiler that hangs holds no thread up, for which Python would wait."""
    _checker.close()


@contextmanager
def of_known() -> Iterator[None]:
    """Nothing is compiled within, whatever other threads do."""
    before = _of_known.set(True)
    try:
        yield
    finally:
        _of_known.reset(before)


_of_known = ContextVar("of_known", default=False)
_checker = Checker()
_known_problems = OrderedDict[bytes, str]()  # what was asked last at the end
