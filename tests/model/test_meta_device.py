"""All that a step needs is on the device where the model is, or is copied there: shown without a device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from engine import api
from engine.build.components import Parts
from engine.forward import backends
from engine.forward.attention import Backend, Look
from engine.forward.kv_pool import KvPool
from engine.model.facts import ModelFacts
from engine.sampling.readback import Next
from engine.schedule.batch import Row
from engine.schedule.sequence import Sequence
from tests.fakes.meta_device import elsewhere
from tests.fakes.tiny_models import ARCHITECTURES, PECULIAR, SHAPE
from tests.fakes.triton_kernels import needs_triton

ASKED = [
    api.Sampling(temperature=0),
    api.Sampling(seed=1),
    api.Sampling(seed=1, top_k=5, top_p=0.8, min_p=0.01),
    api.Sampling(seed=2, repetition_penalty=1.3, frequency_penalty=0.1, logit_bias={3: 2.0}, min_tokens=99),
    api.Sampling(temperature=0, logprobs=3),
]
KNOWN = 20


def model_there(architecture: str) -> PreTrainedModel:
    config = AutoConfig.for_model(architecture, **{**SHAPE, **PECULIAR[architecture]})
    auto: Any = AutoModelForCausalLM
    with torch.device("meta"):
        model: PreTrainedModel = auto.from_config(config, dtype=torch.bfloat16).eval()
    return model


def rows(parts: Parts, counts: list[int]) -> list[Row]:
    made = []
    for slot, (asked, count) in enumerate(zip(ASKED, counts, strict=True)):
        sequence = Sequence(slot, list(range(KNOWN)), asked, credit=1, context=50)
        sequence.slot, sequence.blocks = slot, [2 * slot, 2 * slot + 1]
        parts.sampler.adopt(sequence)
        made.append(Row(sequence, KNOWN - count, count, samples=True))
    return made


def check(parts: Parts, counts: list[int]) -> None:
    batch = rows(parts, counts)
    logits = parts.runner.forward(batch)
    assert logits.device.type == "meta"
    for index in (0, 1):
        parts.sampler.choose(logits, [Next(row.sequence, index) for row in batch])


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_of_the_reference(architecture: str, monkeypatch: pytest.MonkeyPatch) -> None:
    options = api.EngineOptions(model="tiny", kv_tokens=512, attention="sdpa")
    with elsewhere(monkeypatch):
        check(Parts(model_there(architecture), options, None), [1, 1, 5, 1, 7])


def unread(pool: KvPool, facts: ModelFacts, block: int, context: int, slots: int) -> Backend:
    """Our kernels' plans and tables, but for the kernels."""
    from engine.forward.block_tables import Tables
    from engine.forward.by_triton import Launch, Paged, PagedKernels, Tiles

    class Unread(Paged):
        def attend(
            self, keys: Tensor, values: Tensor, query: Tensor, own: tuple[Tensor, Tensor], look: Look
        ) -> Tensor:
            heads, tokens, _ = query.shape
            return query.new_empty(tokens, heads, values.shape[-1])

    class Kernels(PagedKernels):
        def batch(self, places: Tensor, parts: list[Tiles]) -> Paged:
            return Unread(places, parts, self.tables, self.launch)

    tables = Tables(slots, -(-context // block), block, pool.tokens // block - 1, pool.keys[0].device)
    return Kernels(tables, facts.heads, facts.kv_heads, Launch(128, 64, 264))


@needs_triton
@pytest.mark.parametrize("counts", [[1, 1, 5, 1, 7], [1] * 5], ids=["mixed", "recorded"])
def test_of_our_kernels(counts: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backends, "choose", lambda name, need: "triton")
    monkeypatch.setattr(backends, "make", lambda name, pool, facts, **sizes: unread(pool, facts, **sizes))
    monkeypatch.setattr("engine.forward.cuda_graphs.Graphs", as_it_is)
    options = api.EngineOptions(model="tiny", kv_tokens=512, batch_rows=8)
    with elsewhere(monkeypatch):
        check(Parts(model_there("gpt_oss"), options, None), counts)


def as_it_is() -> Callable[[Callable[[], None]], Callable[[], None]]:
    return lambda work: work
