"""Calls in every known format, cut into tokens in every way: the same must be told of all of them.

Each answer has reasoning, text, a call whose strings hold the format's own delimiters, braces, quotes and
characters of several bytes, another call, and text; delimiters are single tokens, or none are. It is cut at
every byte, at all bytes, at every two, and at random.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

from tests.fakes.cut_calls import EVERY, OFFERED, cuts_of, is_told, pieces_of, sample
from tests.fakes.spelt_calls import told

AT_RANDOM = 1000


@dataclass
class Found:
    cuts: int = 0
    wrong: list[str] = field(default_factory=list)


async def measure(scale: float) -> dict[str, Any]:
    found = [await asyncio.to_thread(tried, name, scale, single=single) for name, single in EVERY]
    wrong = [one for each in found for one in each.wrong]
    return {
        "name": "formats of calls",
        "formats": len({name for name, _ in EVERY}),
        "cuts": sum(each.cuts for each in found),
        "wrong": wrong[:5],
        "goal": f"every cut in one place and in two, and {AT_RANDOM} at random: the same is told of all",
        "met": not wrong,
    }


def tried(name: str, scale: float, *, single: bool) -> Found:
    text, calls = sample(name)
    length, pieces, found = len(text.encode()), pieces_of(name, single=single), Found()
    first = told(pieces.reader(OFFERED), pieces.tokens(text))
    if not is_told(calls, first):
        found.wrong.append(f"{name}: {first.said}")
    pairs = None if scale >= 1 else int(scale * length * length / 2)
    for cuts in cuts_of(length, pairs=pairs, at_random=int(scale * AT_RANDOM)):
        found.cuts += 1
        said = told(pieces.reader(OFFERED), pieces.tokens(text, cuts)).said
        if said != first.said:
            found.wrong.append(f"{name}, cut at {cuts}: {said}")
    return found
