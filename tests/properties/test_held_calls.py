"""What a grammar of tools lets a model write is read again as the calls that it is: in every format, of tools
with any schemas, with delimiters that are tokens and such as are spelt.

`MIDSTREAM_EXAMPLES` set to any number tries three hundred tools of each.
"""

from __future__ import annotations

import os
import random

import jsonschema
import pytest

from realtime.tools.call_grammar import HeldTool
from realtime.tools.formats import BY_NAME
from tests.fakes.held_calls import HeldModel, made_tools
from tests.fakes.spelt_calls import Told

ROUNDS = 300 if "MIDSTREAM_EXAMPLES" in os.environ else 4
EVERY = [(name, single) for name in BY_NAME for single in (True, False)]


def check(said: Told, tools: list[HeldTool]) -> None:
    """All calls are whole, of tools that there are, with arguments by their schemas."""
    schemas = {tool.name: tool.schema for tool in tools}
    assert len(said.whole) == len(said.calls)
    for name, arguments in said.whole:
        jsonschema.validate(arguments, schemas[name])


@pytest.mark.parametrize(("name", "single"), EVERY)
def test_calls_that_have_to_be_made(name: str, single: bool) -> None:
    model, whole = HeldModel(name, single=single), 0
    for seed in range(ROUNDS):
        chance = random.Random(f"{name} {seed}")
        tools = made_tools(chance)
        parallel = seed % 2 == 0
        tokens = model.write(tools, chance, answer="", parallel=parallel)
        if tokens is None:
            continue
        said = model.read(tokens, tools)
        assert not said.content.strip(), said.said
        assert said.calls
        assert parallel or len(said.calls) == 1
        check(said, tools)
        whole += 1
    assert whole > ROUNDS / 3


@pytest.mark.parametrize(("name", "single"), EVERY)
def test_calls_among_text(name: str, single: bool) -> None:
    model = HeldModel(name, single=single)
    for seed in range(ROUNDS):
        chance = random.Random(f"{name} {seed} free")
        tools = made_tools(chance)
        tokens = model.write(tools, chance, most=300, answer=None, parallel=seed % 2 == 0)
        if tokens is not None:
            check(model.read(tokens, tools), tools)


@pytest.mark.parametrize(("name", "single"), EVERY)
def test_calls_or_an_answer(name: str, single: bool) -> None:
    model = HeldModel(name, single=single)
    for seed in range(ROUNDS):
        chance = random.Random(f"{name} {seed} answer")
        tools = made_tools(chance)
        tokens = model.write(tools, chance, answer='("yes" | "no")', parallel=True)
        if tokens is None:
            continue
        said = model.read(tokens, tools)
        check(said, tools)
        assert said.content.strip() in ("yes", "no") if not said.calls else not said.content.strip()
