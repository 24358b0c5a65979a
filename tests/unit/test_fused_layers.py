"""Fused layers: a model computes what it did but for the last bits, in fewer launches, and what would come to
something else is left as it is. The kernel that rotates runs in Triton's interpreter, or on a device."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

from engine.forward.fused_layers import fuse
from tests.fakes.devices import DEVICE
from tests.fakes.tiny_models import ARCHITECTURES, tiny_model
from tests.fakes.triton_kernels import needs_triton

pytestmark = needs_triton
IDS = torch.arange(6, device=DEVICE)[None] * 67 % 400
HALF_ANGLES = ["gpt_oss"]
ONE_PROJECTION = ["phi3"]


@pytest.mark.parametrize(("dtype", "off"), [(torch.float32, 1e-5), (torch.float16, 0.04)], ids=str)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_model_computes_what_it_did(architecture: str, dtype: torch.dtype, off: float) -> None:
    model = tiny_model(architecture, dtype=dtype).to(DEVICE)  # type: ignore[arg-type]
    weights = {name: weight.clone() for name, weight in model.named_parameters()}
    with torch.inference_mode():
        expected = model(IDS).logits
        said = fuse(model)
        found = model(IDS).logits
    torch.testing.assert_close(found, expected, rtol=0, atol=off)
    assert all(torch.equal(weight, weights[name]) for name, weight in model.named_parameters())
    layers = model.config.num_hidden_layers
    rotated = 0 if architecture in HALF_ANGLES else layers
    together = 0 if architecture in ONE_PROJECTION else layers
    assert said.startswith("fused: ")
    assert said.endswith(f"norms, {rotated} of {layers} rotations, projections of {together} layers")
    norms = said.removeprefix("fused: ").partition(" norms")[0].split(" of ")
    assert norms[0] == norms[1]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize(("heads", "kv_heads", "size"), [(9, 3, 64), (4, 4, 80), (32, 8, 24)])
def test_a_rotation_is_the_same_to_the_bit(heads: int, kv_heads: int, size: int, dtype: torch.dtype) -> None:
    from engine.forward.rotation_kernel import rotated

    def noise(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape))).to(DEVICE, dtype)

    for tokens in (1, 5):
        query, key = noise(1, tokens, heads, size).transpose(1, 2), noise(1, kv_heads, tokens, size)
        cos, sin = noise(1, tokens, size), noise(1, tokens, 2 * size)[..., size:]
        found, expected = rotated(query, key, cos, sin), apply_rotary_pos_emb(query, key, cos, sin)
        assert all(map(torch.equal, found, expected))


class OddRMSNorm(nn.Module):
    """Its name says what it does not do."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full((32,), 3.0))
        self.eps = 1e-6

    def forward(self, x: Tensor) -> Tensor:
        return x / x.abs().mean(-1, keepdim=True) * self.weight


def test_what_comes_to_something_else_is_left_as_it_is() -> None:
    norm = OddRMSNorm().to(DEVICE)
    assert fuse(norm) == "fused: 0 of 1 norms, 0 of 0 rotations, projections of 0 layers"
    x = torch.randn(4, 32, device=DEVICE)
    assert torch.equal(norm(x), x / x.abs().mean(-1, keepdim=True) * 3)


def test_what_somebody_put_in_a_place_stays_there() -> None:
    model = tiny_model("llama").to(DEVICE)  # type: ignore[arg-type]
    norm, attention = model.model.norm, model.model.layers[0].self_attn
    norm.forward, attention.forward = norm.forward, attention.forward
    kept = norm.forward, attention.forward
    assert fuse(model) == "fused: 6 of 6 norms, 2 of 2 rotations, projections of 2 layers"
    assert (norm.forward, attention.forward) == kept


def test_projections_lie_behind_each_other_and_hold_nothing_afterwards() -> None:
    model = tiny_model("qwen2").to(DEVICE)  # type: ignore[arg-type]
    fuse(model)
    attention = model.model.layers[0].self_attn
    query, key, value = attention.q_proj, attention.k_proj, attention.v_proj
    assert query.weight.untyped_storage().data_ptr() == value.weight.untyped_storage().data_ptr()
    x = torch.randn(1, 6, query.in_features, device=DEVICE)
    for layer in (query, key, value, value, key):  # in whatever order they are asked
        expected = nn.functional.linear(x, layer.weight, layer.bias)
        torch.testing.assert_close(layer(x), expected)
    assert value(x) is not None
    together = value.forward.func
    assert (together._asked, together._parts) == (None, [])
