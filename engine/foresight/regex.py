"""How many bytes a regular expression may force, by what stands in it: perhaps too many, never too few."""

from __future__ import annotations

import re

from engine.foresight.run import MANY, Bytes, Expression, UnknownError, spelt

A_CHAR = 4  # bytes
_CLASS = r"\[\^?\]?(?:\\.|[^\\\[\]])*\]|\\[dDsSwW]|\."
_COUNT = "(?:0|[1-9][0-9]{0,8})"
_PIECE = re.compile(
    rf"(?P<kind>{_CLASS})(?:[*+?]|\{{{_COUNT}(?:,{_COUNT}?)?\}})*|\\.|(?P<endless>[*+]|\{{{_COUNT},\}})"
    rf"|\{{(?:{_COUNT},)?(?P<most>{_COUNT})\}}|.",
    re.DOTALL,
)
_BEGINNING = re.compile(rf"(?:\(\?[is]*:|\((?!\?))*(?:(?P<kind>{_CLASS})|(?P<char>[^\\\[\](){{}}.*+?|^$]))")
_ANY = re.compile(r"\(\?s:\.(?:[*+]|\{[0-9]*,[0-9]*\})\)")
_CHARS = "\t\n\r" + "".join(map(chr, range(32, 127)))


def longest_in_regex(regex: str) -> int:
    """That is all of a text: what is left of one from any place, at the least."""
    size = A_CHAR * len(regex)
    for count in re.findall(r"\{\s*([0-9]+)", regex):
        size = min(MANY, size * max(1, int(count)))
    return size


def terminal(regex: str, flags: str) -> Expression:
    """That others follow, where it goes on as long as it can. What is repeated without end in it is one of
    several characters, of which none is passed in a run. Raises UnknownError."""
    if "x" in flags or re.search(r"\(\?[a-zA-Z-]*x", regex):
        raise UnknownError
    size = A_CHAR * len(regex)
    for piece in _PIECE.finditer(regex):
        if piece["endless"] or piece[0] == "{":  # which may count as well, as `{ 9}`
            raise UnknownError
        if piece["kind"]:
            _some_of(piece["kind"])
        size = min(MANY, size * max(1, int(piece["most"] or 1)))
    begun = None if "{0" in regex else _BEGINNING.match(regex)
    if begun is None:
        first: Bytes = frozenset()
    else:
        first = _some_of(begun["kind"]) if begun["kind"] else frozenset(begun["char"].encode()[:1])
    return spelt(size, first, is_any=bool(_ANY.fullmatch(regex)))


def _some_of(kind: str) -> Bytes:
    """Of its characters."""
    if any(sign in kind for sign in ("&&", "--", "~~", "||")):
        raise UnknownError
    try:
        found = frozenset(map(ord, re.findall(kind, _CHARS)))
    except re.error:
        raise UnknownError from None
    if len(found) < 2:
        raise UnknownError
    return found
