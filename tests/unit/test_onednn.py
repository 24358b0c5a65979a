"""oneDNN packing changes how a model multiplies, and none of its results."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM

from engine.model.fusion import FusedProduct, FusedProjection
from engine.model.onednn import Packed, PackedLinear, pack

SIZE: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 64,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 16}

# What each is made of, in linear layers and the products that they become: a layer has q, k, v, o, gate, up
# and down where its projections are not fused already (Phi-3) or its experts no linear layers at all.
ARCHITECTURES: dict[str, tuple[dict[str, Any], int, int]] = {
    "llama": ({"tie_word_embeddings": True}, 15, 9),
    "mistral": ({"sliding_window": 4}, 15, 9),
    "qwen2": ({}, 15, 9),
    "qwen3": ({}, 15, 9),
    "qwen3_moe": ({"num_experts": 4, **EXPERTS}, 9, 5),
    "gemma2": ({"query_pre_attn_scalar": 8}, 15, 9),
    "gemma3_text": ({"query_pre_attn_scalar": 8, "sliding_window": 4}, 15, 9),
    "phi3": ({}, 9, 9),
    "olmo2": ({}, 15, 9),
    "gpt_oss": ({"num_local_experts": 4, **EXPERTS}, 9, 5),
}


def tiny(architecture: str, dtype: torch.dtype = torch.float32) -> Any:
    torch.manual_seed(0)
    config = AutoConfig.for_model(architecture, **{**SIZE, **ARCHITECTURES[architecture][0]})
    config._attn_implementation = "eager"
    model = AutoModelForCausalLM.from_config(config).to(dtype).eval()  # type: ignore[no-untyped-call]
    with torch.no_grad():
        for bias in (one for name, one in model.named_parameters() if name.endswith("bias")):
            bias.normal_()  # zero, as they are made, they would hide a bias that got lost
    return model


def logits(model: Any, rows: int = 7) -> Tensor:
    ids = torch.arange(3, 3 + rows)[None]
    with torch.inference_mode():
        result: Tensor = model(input_ids=ids, use_cache=False).logits
    return result


def agree(one: Tensor, other: Tensor, tolerance: float = 1e-5) -> bool:
    return float((one - other).abs().max()) <= tolerance * float(other.abs().max())


class Attention(nn.Module):
    """Just the three siblings, two of them with rows of their own size."""

    def __init__(self, k_inputs: int = 8, bias: bool = True) -> None:
        super().__init__()
        self.q_proj = nn.Linear(8, 16, bias=bias)
        self.k_proj = nn.Linear(k_inputs, 4, bias=bias)
        self.v_proj = nn.Linear(8, 4, bias=bias)


@pytest.fixture
def pair() -> tuple[Attention, Attention]:
    """The same projections, plain and packed."""
    plain, packed = Attention(), Attention()
    packed.load_state_dict(plain.state_dict())
    pack(packed)
    return plain, packed


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_logits_stay_and_the_report_counts(architecture: str) -> None:
    model = tiny(architecture)
    before = {rows: logits(model, rows) for rows in (1, 2, 7, 33)}
    weights = {one.weight.data_ptr(): one.weight.nbytes for one in model.modules() if type(one) is nn.Linear}

    _, linears, products = ARCHITECTURES[architecture]
    assert pack(model) == Packed(linears, products, plain=0, weight_bytes=sum(weights.values()))
    assert all(agree(logits(model, rows), plain) for rows, plain in before.items())


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_other_types_stay_exactly_as_they_are(dtype: torch.dtype) -> None:
    model = tiny("qwen2", dtype)
    before = logits(model)
    assert pack(model) == Packed(plain=15)
    assert torch.equal(logits(model), before)


def test_generate_works_as_before() -> None:
    model = tiny("llama")
    ids = torch.tensor([[5, 6, 7, 8], [0, 9, 10, 11]])
    asked = {"attention_mask": (ids != 0).long(), "max_new_tokens": 12, "do_sample": False}
    before = model.generate(ids, **asked)
    pack(model)
    assert torch.equal(model.generate(ids, **asked), before)


def test_a_tied_embedding_keeps_its_weight() -> None:
    model = tiny("llama")
    embedding = model.get_input_embeddings().weight.clone()
    pack(model)
    assert isinstance(model.get_output_embeddings(), PackedLinear)
    assert torch.equal(model.get_input_embeddings().weight, embedding)


def test_plain_weights_are_let_go() -> None:
    model = tiny("llama")
    weight = weakref.ref(model.model.layers[0].self_attn.q_proj.weight)
    pack(model)
    gc.collect()
    assert weight() is None


def test_packing_twice_is_packing_once() -> None:
    model = tiny("llama")
    pack(model)
    once = logits(model)
    assert pack(model) == Packed()
    assert torch.equal(logits(model), once)


def test_packing_draws_no_random_numbers_of_the_process() -> None:
    model = tiny("llama")
    before = torch.get_rng_state()
    pack(model)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("shape", [(8,), (1, 8), (0, 8), (1, 0, 8), (1, 5, 8)])
def test_any_shape_of_input(shape: tuple[int, ...]) -> None:
    plain = nn.Linear(8, 3)
    packed = PackedLinear(plain.weight.detach(), plain.bias.detach())
    x = torch.randn(shape)
    torch.testing.assert_close(packed(x), plain(x).detach())


def test_siblings_called_in_order_multiply_once(pair: tuple[Attention, Attention]) -> None:
    plain, packed = pair
    fused = packed.q_proj.fused
    assert isinstance(fused, FusedProduct)
    product, inputs = fused.product, []

    def counted(x: Tensor) -> Tensor:
        inputs.append(x)
        return product(x)

    fused.product = counted
    x = torch.randn(1, 5, 8)
    for name in ("q_proj", "k_proj", "v_proj"):
        torch.testing.assert_close(getattr(packed, name)(x), getattr(plain, name)(x).detach())
    assert len(inputs) == 1


@pytest.mark.parametrize("order", ["kqv", "vkq", "qqkv", "qkqv", "kk"])
def test_siblings_called_in_any_order_are_right(pair: tuple[Attention, Attention], order: str) -> None:
    plain, packed = pair
    x = torch.randn(1, 5, 8)
    for letter in order:
        name = f"{letter}_proj"
        torch.testing.assert_close(getattr(packed, name)(x), getattr(plain, name)(x).detach())


def test_a_sibling_called_with_another_tensor_is_right(pair: tuple[Attention, Attention]) -> None:
    plain, packed = pair
    x, y = torch.randn(1, 5, 8), torch.randn(1, 3, 8)
    for name, given in (("q_proj", x), ("k_proj", y), ("v_proj", x), ("q_proj", x.clone()), ("k_proj", x)):
        torch.testing.assert_close(getattr(packed, name)(given), getattr(plain, name)(given).detach())


def test_after_a_pass_that_broke_off_nothing_stale_is_taken(pair: tuple[Attention, Attention]) -> None:
    plain, packed = pair
    x = torch.randn(1, 5, 8)
    packed.q_proj(x)
    x.mul_(2)
    for name in ("q_proj", "k_proj", "v_proj"):
        torch.testing.assert_close(getattr(packed, name)(x), getattr(plain, name)(x).detach())


def test_the_last_sibling_lets_go_of_input_and_product(pair: tuple[Attention, Attention]) -> None:
    _, packed = pair
    x = torch.randn(1, 5, 8)
    held = weakref.ref(x)
    for name in ("q_proj", "k_proj", "v_proj"):
        getattr(packed, name)(x)
    del x
    assert held() is None
    assert packed.q_proj.fused.parts == {}  # type: ignore[union-attr]


def test_siblings_of_unlike_inputs_are_packed_each_alone() -> None:
    model = Attention(k_inputs=6)
    assert pack(model) == Packed(linears=3, products=3, weight_bytes=4 * (8 * 16 + 6 * 4 + 8 * 4))
    assert not any(isinstance(one, FusedProjection) for one in model.modules())


class Doubling(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x)


def hooked(linear: nn.Linear) -> nn.Linear:
    linear.register_forward_hook(lambda module, args, result: 2 * result)
    return linear


def overridden(linear: nn.Linear) -> nn.Linear:
    linear.forward = lambda input: 2 * input  # type: ignore[method-assign]  # noqa: A006
    return linear


@pytest.mark.parametrize("odd", [Doubling(8, 8), hooked(nn.Linear(8, 8)), overridden(nn.Linear(8, 8))])
def test_what_is_not_exactly_a_linear_layer_stays(odd: nn.Linear) -> None:
    model = nn.Sequential(odd, nn.Linear(8, 4))
    x = torch.randn(2, 8)
    before = model(x).detach()
    report = pack(model)
    assert (report.linears, report.plain) == (1, 1)
    assert model[0] is odd
    torch.testing.assert_close(model(x).detach(), before)


def test_a_product_that_disagrees_stays_plain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        PackedLinear, "forward", lambda self, x: x.new_zeros(*x.shape[:-1], self.out_features)
    )
    assert pack(Attention()) == Packed(plain=3)


def test_a_product_that_cannot_be_made_stays_plain(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: PackedLinear, x: Tensor) -> Tensor:
        raise RuntimeError("could not create a primitive")

    monkeypatch.setattr(PackedLinear, "forward", refuse)
    assert pack(Attention()) == Packed(plain=3)


def test_a_torch_without_the_operators_leaves_all_plain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.model.onednn._can_pack", lambda: False)
    assert pack(Attention()) == Packed(plain=3)


def test_the_report_reads_as_a_line_of_the_log() -> None:
    report = Packed(linears=211, products=121, plain=0, weight_bytes=538_000_000)
    assert str(report) == "211 linear layers packed into 121 products (538 MB), 0 left plain"


@pytest.mark.parametrize("size", [64, 1536, 4096])
def test_a_row_can_have_the_same_bits_alone_as_in_company(size: int) -> None:
    product = PackedLinear(torch.randn(96, size), None)
    rows = torch.randn(6, size)
    product.fill_lone_rows()
    for row, expected in zip(rows, product(rows), strict=True):
        assert torch.equal(product(row), expected)
        assert torch.equal(product(row.view(1, 1, -1))[0, 0], expected)
    assert torch.equal(product(rows[:2]), product(rows)[:2])
