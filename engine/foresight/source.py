"""Whether all that a grammar forces may be followed at once, by its source alone: whoever has that knows."""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Any

from engine.foresight.lark import longest_in_lark
from engine.foresight.run import UnknownError, Work
from engine.foresight.schema import longest_in_schema

MOST_AHEAD = 64 << 10  # bytes: some 30 ms of work, and 20 MiB
_OPTION = '\n%llguidance {"no_forcing": true}'


@lru_cache(maxsize=128)
def is_foreseen(source: str) -> bool:
    """Whether it forces so much at most in one run; not where that cannot be told."""
    try:
        return longest(source, Work()) <= MOST_AHEAD
    except (UnknownError, AttributeError, LookupError, RecursionError, TypeError, ValueError):
        return False


def longest(source: str, work: Work) -> int:
    """Bytes that it may force in one run: perhaps fewer. Raises UnknownError, or what comes of it where it is
    no grammar."""
    first, *others = json.loads(source)["grammars"]
    return _longest(first, {grammar["name"]: _longest(grammar, {}, work) for grammar in others}, work)


def _longest(grammar: dict[str, Any], beside: dict[str, int], work: Work) -> int:
    if "json_schema" in grammar:
        return longest_in_schema(grammar["json_schema"], work)
    return longest_in_lark(grammar["lark_grammar"], beside, work)


def without_forcing(source: str) -> str:
    """The same grammar, of which the library follows nothing before it has come."""
    try:
        first, *others = json.loads(source)["grammars"]
    except (LookupError, RecursionError, TypeError, ValueError):
        return source + _OPTION  # a text of Lark's, if it is any grammar
    if "lark_grammar" in first:
        first["lark_grammar"] += _OPTION  # the last of several counts
        return json.dumps({"grammars": [first, *others]})
    return json.dumps({"grammars": [{"lark_grammar": f"start: @whole{_OPTION}"}, {**first, "name": "whole"}]})
