"""The greedy oracle: what greedy decoding writes when nothing happens meanwhile, to hold engines against.

For a model it is transformers' own `generate`; for the toy, a stream that is alone.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from engine import api
from tests.fakes.engine_driver import TOY, Driver, Injections, Told, engine_of
from tests.fakes.tiny_models import tiny_model

Generate = Callable[[list[int], int], list[int]]  # behind this context, so many tokens


class Oracle:
    def __init__(self, generate: Generate) -> None:
        self._generate = generate
        self._known: dict[tuple[int, ...], list[int]] = {}

    def after(self, context: list[int], count: int) -> list[int]:
        """The `count` tokens that greedy decoding writes behind a context."""
        key = tuple(context)
        if len(self._known.get(key, [])) < count:
            self._known[key] = self._generate(context, count)
        return self._known[key][:count]

    def output(self, prompt: list[int], injections: Injections, count: int) -> list[int]:
        """As `after`, where somebody put tokens into the context on the way."""
        context, output = list(prompt), list[int]()
        for index, put in [*injections, (count, [])]:
            if index > count:
                break
            new = self.after(context, index - len(output)) if index > len(output) else []
            output += new
            context += [*new, *put]
        return output

    def check(self, told: Told) -> None:
        """Everything that the stream ever said is what `generate` says, also what it later took back."""
        for tokens, injections in [*told.voided, (told.tokens, told.injections)]:
            assert tokens == self.output(told.submit.tokens, injections, len(tokens))


def generate_of(model: Any, **asked: Any) -> Generate:
    """`asked` are further parameters of `generate`."""

    def generate(context: list[int], count: int) -> list[int]:
        row = torch.tensor([context])
        out = model.generate(
            row,
            attention_mask=torch.ones_like(row),
            do_sample=False,
            max_new_tokens=count,
            min_new_tokens=count,
            eos_token_id=None,
            pad_token_id=0,
            **asked,
        )
        tokens: list[int] = out[0, len(context) :].tolist()
        return tokens

    return generate


@functools.cache
def oracle(architecture: str) -> Oracle:
    """Of the tiny model in float64, with attention as transformers does it; or of the toy."""
    if architecture == TOY:
        return Oracle(_toy_alone)
    return Oracle(generate_of(tiny_model(architecture, dtype=torch.float64, attn_implementation="eager")))


def _toy_alone(context: list[int], count: int) -> list[int]:
    driver = Driver(engine_of(TOY))
    driver.settle(api.Submit(0, context, api.Sampling(temperature=0, ignore_eos=True), credit=count))
    return driver.told[0].tokens
