"""Answers with everything in them that a format can spell, and every way in which they may be cut into
tokens."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable, Iterator

from realtime.tools.formats import BY_NAME
from tests.fakes.spelt_calls import SPELT, THINK, Calls, Pieces, Told

TEXT = 'say "hi" \\ } ] { [ é日👩‍👧\n</p'
CALLS: Calls = [("find", {"q": TEXT, "n": 3, "deep": {"a": [1.5, None, True], "b": ""}}), ("stop", {})]
OFFERED = {"find": {"n", "deep"}, "stop": set[str]()}
EVERY = [(name, single) for name in SPELT for single in (True, False)]


def sample(name: str) -> tuple[str, Calls]:
    """Reasoning, content, calls whose strings hold the delimiters, and content."""
    form = BY_NAME[name]
    delimiters = [*form.fills[:1], *form.opens[:1], form.tags.value_end + "-" if form.tags.value_end else ""]
    text = TEXT + "".join(delimiters)
    calls = [("find", CALLS[0][1] | {"q": text}), CALLS[1]]
    spelt = SPELT[name](calls)
    if name == "harmony":
        final = "<|start|>assistant<|channel|>final<|message|>"
        reasoning = "<|channel|>analysis<|message|>so </thi <|end|>"
        return f"{reasoning}{final}On <it<|end|>{spelt}{final}Done <t<|return|>", calls
    return f"<think>\nso </thi \n</think>\n\nOn <it{spelt}\nDone <t", calls


def is_told(calls: Calls, told: Told) -> bool:
    return told.whole == calls and told.reasoning.strip() == "so </thi" and told.content == "On <itDone <t"


def pieces_of(name: str, *, single: bool) -> Pieces:
    return Pieces(name, single=single, reasoning=None if name == "harmony" else THINK)


def cuts_of(
    length: int, *, stride: int = 1, pairs: int | None = None, at_random: int = 1000
) -> Iterator[list[int]]:
    """All in one, every single byte, cuts in one place, in two, and at random."""
    yield from ([], list(range(length)), *([at] for at in range(1, length, stride)))
    chance = random.Random(7)
    two: Iterable[tuple[int, int]] = itertools.combinations(range(1, length), 2)
    yield from map(list, two if pairs is None else chance.sample(list(two), pairs))
    for _ in range(at_random):
        yield chance.sample(range(1, length), chance.randrange(1, length - 1))
