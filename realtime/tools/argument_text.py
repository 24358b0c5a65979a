"""A call's arguments as its model writes them, in any format: made of JSON, or of the beginning of some.

They come in pieces, so that what a model has written can be told from what it would be written anew: blanks
before a piece are the writer's own, and say nothing. It knows spellings, and no token and no stream.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from realtime.tools.json_scanner import SPACE
from realtime.tools.offered import Kind
from realtime.tools.pythonic_call import values_of
from realtime.tools.same_json import same_value
from realtime.tools.spelling import Spelling

_LEXEME = re.compile(r'[ \t\r\n]*+("(?:[^"\\]|\\.)*"?\\?|[{}\[\],:]|[^\s"{}\[\],:]+)', re.DOTALL)
_CUT_ESCAPE = re.compile(r"((?<!\\)(?:\\\\)*)\\(?:u[0-9a-fA-F]{0,3})?$")
_BEFORE_TAG = re.compile(r"(\s+)(?=<)")
_WORDS = {"true": "True", "false": "False", "null": "None"}


class Piece(NamedTuple):
    """`blank`: what is written before it, where any blanks may stand."""

    text: str
    blank: str = ""


class Argument(NamedTuple):
    """`value`: its lexemes; `ended`: whether they are all."""

    key: str
    named: bool  # whether the key is whole
    value: list[str]
    ended: bool


def pieces_of(
    spelling: Spelling,
    kinds: Mapping[str, Kind],
    arguments: str,
    told: str,
    written: str,
    *,
    partial: bool,
) -> list[Piece]:
    """Of JSON that is an object, or if `partial` of its beginning. Whole ones stand in an order: those come
    first that the model has `written`, which was `told` as JSON, and others as `kinds` has them, which are of
    the tool's arguments. Raises ValueError for what is no JSON."""
    found, end = _arguments(_lexemes(arguments))
    if not partial:
        order = {key: at for at, key in enumerate(dict.fromkeys([*_keys(told), *kinds]))}
        found.sort(key=lambda argument: order.get(argument.key, len(order)))
    return [piece for piece in _pieces(found, end, spelling, kinds, written) if piece.text]


def _pieces(
    found: Sequence[Argument], end: str, spelling: Spelling, kinds: Mapping[str, Kind], written: str
) -> Iterator[Piece]:
    match spelling.tools.body:
        case "json" | "named":
            return _json(found, end)
        case "pythonic":
            return _python(found, end, kinds, values_of(written, spelling.delimiters))
        case "braced":
            return _braced(found, end, spelling)
        case "tagged":
            return _tagged(found, end, spelling, kinds)


def within_string(pieces: Sequence[Piece], *, partial: bool) -> list[Piece]:
    """The same, where they stand as text in a JSON string."""
    text = json.dumps("".join(_spelt(pieces)), ensure_ascii=False)
    return [Piece(text[:-1] if partial else text)]


def continued(written: str, pieces: Sequence[Piece]) -> tuple[int, str]:
    """How much of what was written stands where these are to be, and what is to be written behind that."""
    at, compact = 0, False
    for number, piece in enumerate(pieces):
        begun = at
        while at < len(written) and written[at] in SPACE and piece.text[0] not in SPACE:
            at += 1
        compact = compact or (piece.blank != "" and begun == at < len(written))
        same = _same(written, at, piece.text)
        at += same
        if same < len(piece.text):
            blank = piece.blank if begun == len(written) and not compact else ""
            return at, blank + piece.text[same:] + "".join(_spelt(pieces[number + 1 :], compact=compact))
    return at, ""


def _same(written: str, at: int, text: str) -> int:
    """How many characters are."""
    if written.startswith(text, at):
        return len(text)
    beside = zip(text, written[at : at + len(text)], strict=False)
    return next((n for n, (one, other) in enumerate(beside) if one != other), len(written) - at)


def _spelt(pieces: Iterable[Piece], *, compact: bool = False) -> Iterator[str]:
    return (piece.text if compact else piece.blank + piece.text for piece in pieces)


# -- JSON ------------------------------------------------------------------------------------------


def _lexemes(text: str) -> list[str]:
    found, at = list[str](), 0
    while (match := _LEXEME.match(text, at)) is not None:  # a search would go on from each of many blanks
        at = match.end()
        found.append(match[1])
    if text[at:].strip(SPACE):
        raise ValueError("no JSON")
    return found


def _string(lexeme: str) -> tuple[str, bool]:
    """What it says, and whether that is all."""
    said = _loaded(lexeme)
    if said is not None:
        return said, True
    said = _loaded(_CUT_ESCAPE.sub(r"\1", lexeme) + '"')
    if said is None:
        raise ValueError("no JSON string")
    return said, False


def _loaded(lexeme: str) -> str | None:
    try:
        said = json.loads(lexeme)
        said.encode()  # half a character is none
    except (AttributeError, ValueError):
        return None
    return str(said)


def _arguments(found: Sequence[str]) -> tuple[list[Argument], str]:
    """And what stands behind the last of them."""
    if not found or found[0] != "{":
        raise ValueError("no JSON object")
    arguments, at = list[Argument](), 1
    while at < len(found) and found[at] != "}":
        key, _ = _string(found[at])
        named = found[at + 1 : at + 2] == [":"]
        end = _value_end(found, at + 2)
        arguments.append(Argument(key, named, list(found[at + 2 : end]), end < len(found)))
        if end == len(found) or found[end] == "}":
            at = end
            break
        at = end + 1
    if at < len(found) - 1:
        raise ValueError("more than an object")
    comma = bool(arguments) and arguments[-1].ended
    return arguments, "}" if at < len(found) else "," if comma else ""


def _keys(told: str) -> list[str]:
    try:
        return [argument.key for argument in _arguments(_lexemes(told))[0] if argument.named]
    except ValueError:
        return []


def _value_end(found: Sequence[str], at: int) -> int:
    depth = 0
    while at < len(found) and (depth or found[at] not in (",", "}")):
        depth += (found[at] in ("{", "[")) - (found[at] in ("}", "]"))
        at += 1
    return min(at, len(found))


def _values(value: Sequence[str]) -> Iterator[Piece]:
    """As templates spell them."""
    for before, one in pairwise(["", *value]):
        text = one
        if one.startswith('"'):
            said, whole = _string(one)
            text = json.dumps(said, ensure_ascii=False)[: None if whole else -1]
        yield Piece(text, " " if before in (",", ":") else "")


def _json(arguments: Sequence[Argument], end: str) -> Iterator[Piece]:
    yield Piece("{")
    for at, (key, named, value, _) in enumerate(arguments):
        if at:
            yield Piece(",")
        yield Piece(json.dumps(key, ensure_ascii=False)[: None if named else -1], " " if at else "")
        if named:
            _, *pieces = _values([":", *value])
            yield from [Piece(":"), *pieces]
    if end:
        yield Piece(end)


# -- others ----------------------------------------------------------------------------------------


def _python(
    arguments: Sequence[Argument],
    end: str,
    kinds: Mapping[str, Kind],
    written: Mapping[str, tuple[str, Any]],
) -> Iterator[Piece]:
    """What says the same in other words stays: Python has many."""
    for at, (key, named, value, ended) in enumerate(arguments):
        if at:
            yield Piece(",")
        yield Piece(key, " " if at else "")
        if named:
            yield Piece("=")
        if ended and key in written and same_value(written[key][1], json.loads("".join(value))):
            yield Piece(written[key][0])
            continue
        word = kinds.get(key) == "word"
        yield from _values([_WORDS.get(one, one) for one in value] if word else value)
    if end:
        yield Piece(")" if end == "}" else end)


def _braced(arguments: Sequence[Argument], end: str, spelling: Spelling) -> Iterator[Piece]:
    quote = spelling.delimiters.mark(spelling.tools.quote)
    yield Piece("{")
    for at, (key, named, value, _) in enumerate(arguments):
        if at:
            yield Piece(",")
        yield Piece(key)
        if named:
            yield Piece(":")
        for one, behind in pairwise([*value, ""]):
            if not one.startswith('"'):
                yield Piece(one)
                continue
            said, whole = _string(one)
            yield Piece(said if behind == ":" else quote + said + quote * whole)
    if end:
        yield Piece(end)


def _tagged(
    arguments: Sequence[Argument], end: str, spelling: Spelling, kinds: Mapping[str, Kind]
) -> Iterator[Piece]:
    tags, writing, mark = spelling.tools.tags, spelling.tools.writing, spelling.delimiters.mark
    blank = writing.call.partition("NAME")[2].partition("ARGUMENTS")[0]
    for name_end in tags.name_ends:
        blank = blank.removeprefix(name_end)
    for key, named, value, ended in arguments:
        is_text = kinds.get(key, "text") == "text" and value[:1] != [] and value[0].startswith('"')
        spelt = writing.argument.replace("IS_TEXT", "true" if is_text else "false")
        before, _, rest = spelt.partition("KEY")
        between, _, behind = rest.partition("VALUE")
        yield Piece(mark(before), blank)
        if not named:
            yield Piece(key)
            return
        said, whole = _string(value[0]) if is_text else ("".join(_spelt(_values(value))), ended)
        tag, *more = _BEFORE_TAG.split(between)
        written = [tag, *more[1::2]]
        written = [mark(one) for one in written]
        written[0] = key + written[0]
        written[-1] += said + (mark(behind.rstrip()) if whole else "")
        yield Piece(written[0])
        for space, one in zip(more[::2], written[1:], strict=True):
            yield Piece(one, space)
        blank = behind[len(behind.rstrip()) :]
    if end == "}":
        yield Piece(mark(tags.call_end), blank)
