"""Whole models by the kernels of a device, in Triton's interpreter: the trial at the start finds them exact,
with the decode step captured and as it comes."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from engine import api
from engine.build.components import Components
from engine.build.exactness import is_exact, trial_tokens
from engine.forward.attention import NAME
from engine.forward.kv_pool import KvPool
from engine.forward.model_runner import ModelRunner
from engine.model.facts import describe
from engine.model.layer_groups import group_layers
from engine.model.preflight import ModelError
from tests.fakes.tiny_models import tiny_model
from tests.fakes.triton_kernels import needs_triton, small_product_tiles, triton_backend

pytestmark = needs_triton
BLOCK, SLOTS, TOKENS = 8, 2, 18
SMALL: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "vocab_size": 32,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
KINDS: dict[str, dict[str, Any]] = {
    "gpt_oss": {"layer_types": ["sliding_attention", "full_attention"]},
    "qwen3_moe": {"moe_intermediate_size": 16},
}


def runner_of(architecture: str, dtype: torch.dtype) -> tuple[ModelRunner, int, int]:
    from engine.forward.batch_invariant import make_batch_invariant

    model = tiny_model(architecture, dtype=dtype, **(SMALL | KINDS[architecture]))
    facts = describe(model.config)
    groups = group_layers(facts.windows, facts.context)
    model.set_attn_implementation(NAME)
    make_batch_invariant(model)
    tokens = trial_tokens(BLOCK, TOKENS) * len(groups) + BLOCK
    shape = (facts.layers, facts.kv_heads, facts.head_dim)
    pool = KvPool(*shape, tokens=tokens, dtype=dtype, device="cpu", groups=groups)
    backend = triton_backend(pool, BLOCK, facts.heads, SLOTS, exact=True)
    latest = torch.zeros(SLOTS + 1, dtype=torch.int64)
    runner = ModelRunner(model, pool, backend, latest, block_size=BLOCK, context=tokens, eos=frozenset())
    runner.capture_decode(backend, SLOTS, lambda work: work)
    return runner, facts.vocab, len(groups)


@pytest.mark.parametrize(
    ("architecture", "dtype"), [("gpt_oss", torch.float32), ("qwen3_moe", torch.bfloat16)], ids=str
)
def test_a_model_is_exact(architecture: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    small_product_tiles(monkeypatch)
    monkeypatch.setattr("engine.forward.by_triton.SHARE", 16)
    monkeypatch.setattr("engine.build.exactness.CROWDS", [(1, 2), (2, 3), (1, 1), (3, 1)])
    runner, vocab, groups = runner_of(architecture, dtype)
    assert is_exact(runner, vocab, BLOCK, groups=groups, tokens=TOKENS)


def test_an_engine_that_is_not_exact_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    options = api.EngineOptions(model="tiny", device="cpu", kv_tokens=512, exact="off")
    components = Components(tiny_model("llama"), options, None)
    tried = []

    def found(runner: ModelRunner, vocab: int, block_size: int, *, groups: int, tokens: int) -> bool:
        tried.append((runner, tokens))
        runner.pool.keys[0][:, :tokens] = 1
        return len(tried) == 1

    monkeypatch.setattr("engine.build.components.is_exact", found)
    components._try_on_device()
    assert tried == [(components.runner, 128)]
    assert not components.runner.pool.keys[0].any()
    with pytest.raises(ModelError, match=r"^not exact: .*--exact off serves it all the same"):
        components._try_on_device()
