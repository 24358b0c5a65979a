"""The greedy oracle: what greedy decoding writes when nothing happens meanwhile, to hold engines against.

For a model it is transformers' own `generate`; for the toy, a stream that is alone. What was written is read
by the model at once, in a fraction of the time; where that prefers another token, it is written again.
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
Read = Callable[[tuple[int, ...]], list[int]]  # which token it prefers behind each of a context's


class Oracle:
    def __init__(self, generate: Generate, read: Read | None = None) -> None:
        self._generate, self._read = generate, read
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
            if not self.is_preferred(told.submit.tokens, tokens, injections):
                assert tokens == self.output(told.submit.tokens, injections, len(tokens))

    def is_preferred(self, prompt: list[int], tokens: list[int], injections: Injections) -> bool:
        """Each token behind all that stood before it."""
        if self._read is None or not tokens:
            return False
        context, before, put = list(prompt), list[int](), list(injections)
        for index, token in enumerate(tokens):
            while put and put[0][0] <= index:
                context += put.pop(0)[1]
            before.append(len(context) - 1)
            context.append(token)
        preferred = self._read(tuple(context))
        return tokens == [preferred[at] for at in before]


def oracle_of(model: Any) -> Oracle:
    return Oracle(generate_of(model), read_by(model))


def read_by(model: Any) -> Read:
    @functools.cache  # many say the same
    @torch.inference_mode()
    def read(context: tuple[int, ...]) -> list[int]:
        preferred: list[int] = model(torch.tensor([context]), use_cache=False).logits[0].argmax(-1).tolist()
        return preferred

    return read


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
    return oracle_of(tiny_model(architecture, dtype=torch.float64, attn_implementation="eager"))


def _toy_alone(context: list[int], count: int) -> list[int]:
    driver = Driver(engine_of(TOY))
    driver.settle(api.Submit(0, context, api.Sampling(temperature=0, ignore_eos=True), credit=count))
    return driver.told[0].tokens
