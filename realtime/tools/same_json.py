"""Whether two JSON texts mean the same: the order of keys, blanks and how a number is written say nothing."""

from __future__ import annotations

import json
from typing import Any


def same_json(one: str, other: str) -> bool:
    """What is no JSON means nothing but itself."""
    try:
        return same_value(json.loads(one), json.loads(other))
    except (ValueError, RecursionError):
        return one == other


def same_value(one: Any, other: Any) -> bool:
    """To Python true is 1."""
    match one, other:
        case bool(), _:
            return one is other
        case _, bool():
            return False
        case dict(), dict():
            return one.keys() == other.keys() and all(same_value(one[key], other[key]) for key in one)
        case list(), list():
            return len(one) == len(other) and all(map(same_value, one, other))
    return bool(one == other)
