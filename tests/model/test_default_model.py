"""The default model, in fp32 and through the whole engine, gives the tokens of transformers from one folder.

Sums in another order differ in their last bits. Where the oracle's two best logits lie closer than `TIE`,
either token is right. Anywhere else another token is a failure. The oracle reads at once all that was
written, and says of each token whether it would have written it there.
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


@torch.inference_mode()
def behind_the_best(plain: Any, prompt: list[int], tokens: list[int]) -> float:
    """By how much, at most, it prefers another token to one of these, each behind those before it."""
    logits = plain(torch.tensor([[*prompt, *tokens]]), logits_to_keep=len(tokens) + 1).logits[0, :-1]
    said = logits.gather(1, torch.tensor(tokens)[:, None])
    return float((logits.max(1, keepdim=True).values - said).max())


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
        tokens = driver.told[at].tokens
        assert len(tokens) == TOKENS
        assert behind_the_best(plain, prompt, tokens) < TIE
