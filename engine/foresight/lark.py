"""How many bytes a grammar in llguidance's Lark may force in one run: of what is read here, which is what is
mostly written. Anything else is not told."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

from engine.foresight.regex import A_CHAR, longest_in_regex, terminal
from engine.foresight.run import (
    MANY,
    Bytes,
    Expression,
    Rules,
    Run,
    UnknownError,
    Work,
    in_order,
    one_of,
    repeated,
    rule,
    spelt,
)
from engine.foresight.schema import longest_in_schema

_TOKEN = re.compile(
    r"""(?P<nothing>[ \t]+|(?:\#|//)[^\n]*)
    |(?P<line>(?:\r?\n)+[ \t]*)
    |(?P<define>[!?_]*[A-Za-z][\w-]*(?:\[(?:lazy|capture|max_tokens=[1-9][0-9]*)\])?[ \t]*:(?!:))
    |(?P<text>"(?:\\.|[^"\\\n])*"i?)
    |(?P<regex>/(?:\\.|[^/\\])+/[imslux]*)
    |(?P<schema>%json\s*(?=\{))
    |(?P<special><[^<>\s]+>)
    |(?P<grammar>@[\w-]+)
    |(?P<name>[!?_]*[A-Za-z][\w-]*)
    |(?P<often>[*+?]|\{[0-9]*(?:,[0-9]*)?\})
    |(?P<mark>[|&~()\[\]])""",
    re.VERBOSE | re.ASCII,
)
_ONE_REGEX = re.compile(r"start: ([A-Z]+)\n\1: /(?P<regex>(?:\\.|[^/\\\n])+)/", re.ASCII)
# Any text that begins with what ends with one known byte: at any place no more than that is left out.
_BEGINS = re.compile(r"\(\?s:(?:[^|()\\]|\\.|\(\?:(?:[^()\\]|\\.)*\))*(?:[\"':,]|\\[^\w\s])\.\*\)", re.ASCII)
SPECIAL, SPECIAL_BYTES = 1000, 16  # tokens that are no text, each as good as a byte of its own; and how long
MOST_LEFT_OUT = 16
_IN_NUMBERS = frozenset(b"0123456789+-.eE")
_ENDS = frozenset(("mark", text) for text in "|&)]")


def longest_in_lark(lark: str, beside: Mapping[str, int], work: Work) -> int:
    """`beside`: of other grammars that it may speak of, each by its name. Raises UnknownError."""
    alone = _ONE_REGEX.fullmatch(lark)
    if alone:
        return longest_in_regex(alone["regex"])
    return Rules(_Lark(lark, beside, work).rules(), work).longest("start")


class _Lark:
    def __init__(self, lark: str, beside: Mapping[str, int], work: Work) -> None:
        self._beside = beside
        self._tokens: list[tuple[str, str]] = []  # of which the next is the last
        at = 0
        while at < len(lark):
            work.more()
            found = _TOKEN.match(lark, at)
            if not found:
                raise UnknownError
            at, kind, text = found.end(), str(found.lastgroup), found[0]
            if kind == "schema":
                schema, at = json.JSONDecoder().raw_decode(lark, at)
                text = str(longest_in_schema(schema, work))
            if kind != "nothing":
                self._tokens.append((kind, text))
        self._tokens.reverse()

    def rules(self) -> dict[str, Expression]:
        rules: dict[str, Expression] = {}
        while self._next("line") or self._tokens:
            define = self._take("define")
            name = re.sub(r"[\[ \t:].*", "", define).lstrip("!?")
            if name in rules:
                raise UnknownError
            body = self._alternatives()
            rules[name] = _lazy(body) if "[lazy]" in define else body
            if self._tokens:
                self._take("line")
        return rules

    def _next(self, kind: str, text: str | None = None) -> bool:
        """Whether it was next, and is taken."""
        if not self._tokens or self._tokens[-1][0] != kind or text not in (None, self._tokens[-1][1]):
            return False
        self._tokens.pop()
        return True

    def _take(self, kind: str) -> str:
        if not self._tokens or self._tokens[-1][0] != kind:
            raise UnknownError
        return self._tokens.pop()[1]

    def _alternatives(self) -> Expression:
        parts = [self._at_once()]
        while self._another():
            parts.append(self._at_once())
        return one_of(parts)

    def _another(self) -> bool:
        if self._tokens[-2:-1] == [("mark", "|")]:
            self._next("line")
        return self._next("mark", "|")

    def _at_once(self) -> Expression:
        parts = [self._sequence()]
        while self._next("mark", "&"):
            parts.append(self._sequence())
        return parts[0] if len(parts) == 1 else _any_of(parts)

    def _sequence(self) -> Expression:
        parts = list[Expression]()
        while self._tokens and self._tokens[-1] not in _ENDS and self._tokens[-1][0] != "line":
            part = self._atom()
            if self._tokens and self._tokens[-1][0] == "often":
                part = repeated(part, *_bounds(self._take("often")))
            parts.append(part)
        return in_order(parts)

    def _atom(self) -> Expression:
        kind, text = self._tokens.pop()
        match kind:
            case "mark" if text == "~":
                return self._left_out()
            case "mark" if text in "([":
                inner = self._alternatives()
                if not self._next("mark", ")" if text == "(" else "]"):
                    raise UnknownError
                return inner if text == "(" else repeated(inner, 0, 1)
            case "text":
                return _text(text)
            case "regex":
                return terminal(*text[1:].rsplit("/", 1))
            case "schema":
                return _in_json(int(text))
            case "special":
                number = re.fullmatch(r"<\[([0-9]{1,9})\]>", text)
                return spelt(SPECIAL_BYTES, frozenset([SPECIAL + int(number[1])] if number else []))
            case "grammar" if text[1:] in self._beside:
                return spelt(self._beside[text[1:]])
            case "name":
                return rule(text)
        raise UnknownError

    def _left_out(self) -> Expression:
        """Any text in which another does not stand, or that does not begin with one."""
        if self._tokens and self._tokens[-1][0] == "regex":
            if _BEGINS.fullmatch(self._take("regex")[1:-1]):
                return spelt(SPECIAL_BYTES, is_any=True)
        elif self._next("mark", "("):
            before, text, behind = self._take("name"), self._take("text"), self._take("name")
            if self._next("mark", ")") and text.endswith('"') and len(text) > 2:
                return _any_of([rule(before), rule(behind)])
        raise UnknownError


def _any_of(parts: list[Expression]) -> Expression:
    """What is all of these, where each is any text but for a few: there are always two bytes left."""

    def run(rules: Rules, follow: Bytes) -> Run:
        if len(parts) > MOST_LEFT_OUT or not all(part(rules, follow).is_any for part in parts):
            raise UnknownError
        return Run(SPECIAL_BYTES, SPECIAL_BYTES, frozenset(), is_any=True)

    return run


def _lazy(part: Expression) -> Expression:
    """It ends as soon as it can: only before a text that ends it can it go on as well."""

    def run(rules: Rules, follow: Bytes) -> Run:
        one = part(rules, follow)
        if not one.is_closed:
            raise UnknownError
        return one

    return run


def _in_json(size: int) -> Expression:
    """It may be a number, which goes on over all digits that might follow it."""
    value, endless = spelt(size), spelt(MANY)
    return lambda rules, follow: (endless if follow <= _IN_NUMBERS else value)(rules, follow)


def _bounds(often: str) -> tuple[int, int]:
    if often in "*+?":
        return int(often == "+"), 1 if often == "?" else MANY
    least, comma, most = often[1:-1].partition(",")
    return min(int(least or 0), MANY), min(int(most or MANY) if comma else int(least), MANY)


def _text(text: str) -> Expression:
    spelling = json.loads(text.removesuffix("i")).encode()
    if not spelling:
        return in_order([])
    size = len(spelling) if text.endswith('"') else A_CHAR * len(spelling)
    return spelt(size, frozenset(spelling[:1]), is_closed=True)
