"""Whole models look at nothing but a stream's own tokens: in any company, chunks and memory the logits are
the same, bit for bit. `bench exact` tries more and longer streams."""

from __future__ import annotations

import pytest
import torch

from bench.exact import SLOTS, Engines, alone, differing, scripts, ways
from engine import api
from engine.build.exactness import find_row_multiple, least_row_multiple, trial_tokens
from engine.forward.attention import NAME
from engine.forward.by_sdpa import SdpaBackend
from engine.forward.kv_pool import KvPool
from engine.forward.model_runner import ModelRunner
from engine.model.default_model import DEFAULT_MODEL
from engine.model.facts import describe
from engine.model.layer_groups import group_layers
from engine.model.onednn import pack
from engine.sampling.sampler import Sampler
from tests.fakes.small_tokenizers import toy_vocabulary
from tests.fakes.tiny_models import ARCHITECTURES, tiny_model

BLOCK, POOL = 16, 1024


def tiny(architecture: str, dtype: torch.dtype) -> Engines:
    """Around a tiny model, as an engine of it would be."""
    model = tiny_model(architecture, dtype=dtype)
    pack(model)
    facts = describe(model.config)
    groups = group_layers(facts.windows, facts.context)
    model.set_attn_implementation(NAME)
    latest = Sampler(SLOTS, facts.vocab, eos=[], rows=SLOTS).latest_tokens

    def runner(multiple: int, tokens: int = trial_tokens(BLOCK)) -> ModelRunner:
        shape = (facts.layers, facts.kv_heads, facts.head_dim)
        pool = KvPool(*shape, tokens=tokens * len(groups), dtype=dtype, device="cpu", groups=groups)
        backend, eos = SdpaBackend(pool, BLOCK), frozenset[int]()
        context = min(tokens, facts.context)
        return ModelRunner(
            model, pool, backend, latest, block_size=BLOCK, context=context, eos=eos, row_multiple=multiple
        )

    least = least_row_multiple(model, dtype)
    multiple = find_row_multiple(runner, facts.vocab, BLOCK, least=least, groups=len(groups))
    assert multiple is not None
    windows = tuple(group.window for group in groups)
    blocks = len(groups) * POOL // BLOCK
    return Engines(runner(multiple, POOL), facts.vocab, blocks, BLOCK, windows, toy_vocabulary())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_every_architecture_is_exact(architecture: str, dtype: torch.dtype) -> None:
    engines = tiny(architecture, dtype)
    wanted = scripts(5, 9, engines.vocab, longest=150)
    expected = alone(engines, wanted)
    assert sum(map(len, expected.heard)) >= 5 * 9
    for name in ("staggered", "in a third of the memory", "in three engines", "with drafts, in two engines"):
        assert differing(expected, ways(wanted)[name](engines, wanted)) == (0, 0), name


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_default_model_is_exact() -> None:
    options = api.EngineOptions(model=DEFAULT_MODEL, device="cpu", exact="on", kv_tokens=4096)
    engines = Engines.of(options)
    wanted = scripts(5, 12, engines.vocab, longest=600)
    expected = alone(engines, wanted)
    for name in ("in a crowd", "with pauses and releases", "with drafts, in two engines"):
        assert differing(expected, ways(wanted)[name](engines, wanted)) == (0, 0), name
