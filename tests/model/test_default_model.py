"""The default model, in fp32 and through the whole engine, gives the tokens of transformers from one folder.

Sums in another order differ in their last bits. Where the oracle's two best logits lie closer than `TIE`,
either token is right, and what follows it is no longer comparable. Anywhere else another token is a failure.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import AutoTokenizer

from engine import api
from engine.build.build import build
from engine.model.default_model import DEFAULT_MODEL
from engine.model.loading import load
from engine.model.names import resolve
from tests.fakes.engine_driver import Driver, greedy

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

TIE = 1e-4
TOKENS = 48
QUESTIONS = [
    "What is the capital of France, and what is it known for?",
    "Write a short poem about the sea.",
    "Explain to a child why the sky is blue.",
]
NEIGHBOUR = 9


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    tokenizer: Any = AutoTokenizer.from_pretrained(resolve())
    return [
        tokenizer.apply_chat_template(
            [{"role": "user", "content": question}], add_generation_prompt=True, return_dict=False
        )
        for question in QUESTIONS
    ]


def truth(plain: Any, prompt: list[int]) -> tuple[list[int], list[float]]:
    """What `generate` writes, and by how much it preferred each token."""
    row = torch.tensor([prompt])
    out = plain.generate(
        row,
        attention_mask=torch.ones_like(row),
        do_sample=False,
        max_new_tokens=TOKENS,
        min_new_tokens=TOKENS,
        eos_token_id=None,
        pad_token_id=0,
        return_dict_in_generate=True,
        output_logits=True,
    )
    best = [logits[0].topk(2).values for logits in out.logits]
    return out.sequences[0, len(prompt) :].tolist(), [float(first - second) for first, second in best]


def is_same_but_for_ties(tokens: list[int], expected: list[int], margins: list[float]) -> bool:
    differs = [index for index in range(TOKENS) if tokens[index] != expected[index]]
    return not differs or margins[differs[0]] < TIE


def test_it_says_what_transformers_says_while_a_neighbour_comes_and_goes(prompts: list[list[int]]) -> None:
    options = api.EngineOptions(model=DEFAULT_MODEL, weights="f32", device="cpu", kv_tokens=512)
    engine, hello = build(options)
    assert hello.dtype == "float32"
    driver = Driver(engine)
    neighbour = [token + 5 for token in prompts[0]] * 3
    driver.send(api.Submit(NEIGHBOUR, neighbour, greedy(80), credit=1000))
    driver.until(driver.has(NEIGHBOUR, 3))
    driver.send(*(api.Submit(at, prompt, greedy(TOKENS), credit=1000) for at, prompt in enumerate(prompts)))
    driver.until(driver.has(1, 5))
    driver.send(api.Pause(NEIGHBOUR), api.Pause(0, release=True))
    driver.until(driver.has(1, 20))
    driver.send(api.Submit(NEIGHBOUR + 1, [7] * 400, greedy(2), credit=1000))
    driver.settle()
    driver.settle(api.Resume(0), api.Resume(NEIGHBOUR), api.Truncate(NEIGHBOUR, 2))
    assert driver.stats.evictions_total

    plain = load(resolve(), dtype="float32")
    for at, prompt in enumerate(prompts):
        assert is_same_but_for_ties(driver.told[at].tokens, *truth(plain, prompt))
