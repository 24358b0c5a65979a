"""Steps on the meta device: all that a step needs is on the device where the model is, or is copied there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from engine import api
from engine.build.components import Components
from engine.forward import backends
from engine.forward.attention import AttentionBackend, AttentionParams
from engine.forward.kv_pool import KvPool
from engine.model.facts import ModelFacts
from engine.sampling.readback import SampleRequest
from engine.schedule.batch import Row
from engine.schedule.sequence import Sequence
from tests.fakes.meta_device import on_meta_device
from tests.fakes.paper_model import SHAPE
from tests.fakes.tiny_models import ARCHITECTURES, PECULIAR
from tests.fakes.triton_kernels import needs_triton

ASKED = [
    api.Sampling(temperature=0),
    api.Sampling(seed=1),
    api.Sampling(seed=1, top_k=5, top_p=0.8, min_p=0.01),
    api.Sampling(seed=2, repetition_penalty=1.3, frequency_penalty=0.1, logit_bias={3: 2.0}, min_tokens=99),
    api.Sampling(temperature=0, logprobs=3),
]
KNOWN = 20


def meta_model(architecture: str) -> PreTrainedModel:
    config = AutoConfig.for_model(architecture, **{**SHAPE, **PECULIAR[architecture]})
    auto: Any = AutoModelForCausalLM
    with torch.device("meta"):
        model: PreTrainedModel = auto.from_config(config, dtype=torch.bfloat16).eval()
    return model


class UnlaunchedKernel:
    """The kernel that draws: its arguments are on the device, and it does nothing."""

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        def launch(*arguments: object, **fixed: object) -> None:
            given = [argument for argument in arguments if isinstance(argument, Tensor)]
            assert {tensor.device.type for tensor in given} == {"meta"}

        return launch


@pytest.fixture(autouse=True)
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton", reason="triton is made for Linux only")
    monkeypatch.setattr("engine.sampling.triton_draw.draw_row", UnlaunchedKernel())


def rows(components: Components, counts: list[int]) -> list[Row]:
    made = []
    for slot, (asked, count) in enumerate(zip(ASKED, counts, strict=True)):
        sequence = Sequence(slot, list(range(KNOWN)), asked, credit=1, context=50)
        sequence.slot, sequence.blocks = slot, [2 * slot, 2 * slot + 1]
        sequence.other_blocks = [sequence.blocks] * (len(components.windows) - 1)
        made.append(Row(sequence, KNOWN - count, count, True, sequence.sampling))
    return made


def check(components: Components, counts: list[int]) -> None:
    batch = rows(components, counts)
    logits = components.runner.forward(batch)
    assert logits.device.type == "meta"
    for index in (0, 1):
        components.sampler.launch(logits, [SampleRequest(row.sequence, index) for row in batch])


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_of_the_reference(architecture: str, monkeypatch: pytest.MonkeyPatch) -> None:
    options = api.EngineOptions(model="tiny", kv_tokens=512, step_tokens=64, attention="sdpa")
    with on_meta_device(monkeypatch):
        check(Components(meta_model(architecture), options, None), [1, 1, 5, 1, 7])


def unread(pool: KvPool, facts: ModelFacts, block_size: int, context: int, slots: int) -> AttentionBackend:
    """Our kernels' plans and tables, but for the kernels."""
    from engine.forward.block_tables import BlockTables, GroupTables
    from engine.forward.by_triton import LaunchConfig, Tiles, TritonBackend, TritonPlan

    class Unread(TritonPlan):
        def attend(
            self,
            keys: Tensor,
            values: Tensor,
            query: Tensor,
            own: tuple[Tensor, Tensor],
            params: AttentionParams,
        ) -> Tensor:
            heads, tokens, _ = query.shape
            return query.new_empty(tokens, heads, values.shape[-1])

    class Kernels(TritonBackend):
        def plan_of(
            self, pool_indices: Tensor, positions: Tensor, parts: list[Tiles], tables: GroupTables
        ) -> TritonPlan:
            return Unread(pool_indices, positions, parts, tables, self.launch)

    blocks, padding = -(-context // block_size), pool.tokens // block_size - 1
    tables = BlockTables(slots, blocks, block_size, padding, pool.keys[0].device, len(pool.groups))
    return Kernels(tables, facts.heads, facts.kv_heads, LaunchConfig(128, 64, 264))


@needs_triton
@pytest.mark.parametrize("counts", [[1, 1, 5, 1, 7], [1] * 5], ids=["mixed", "captured"])
def test_of_our_kernels(counts: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backends, "choose", lambda name, required: "triton")
    monkeypatch.setattr(
        backends, "make", lambda name, pool, facts, *, exact, **sizes: unread(pool, facts, **sizes)
    )
    monkeypatch.setattr("engine.forward.cuda_graphs.CudaGraphCapture", as_it_is)
    options = api.EngineOptions(model="tiny", kv_tokens=512, step_tokens=64, batch_rows=8)
    with on_meta_device(monkeypatch):
        check(Components(meta_model("gpt_oss"), options, None), counts)


def as_it_is() -> Callable[[Callable[[], None]], Callable[[], None]]:
    return lambda work: work
