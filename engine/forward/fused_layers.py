"""Fused layers: what a model on a device computes in eight or ten launches is one where it comes to the same.

However little it computes, a launch takes some microseconds of a step, and norms and rotations are most of
them. So a norm is torch's own, a kernel of ours rotates queries and keys, and queries, keys and values are
projected together. Models write norms and rotations in ways of their own. Whether ours comes to the same is
tried on each, on numbers that mean nothing, and what does not is left as it is.

It knows the modules of transformers' models, and by which name their attention asks for the rotation. Rows
of a norm are added up as the library likes: where a token is to be the same bits in any company it is not
for this.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from types import FunctionType, MethodType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

ROTATION = "apply_rotary_pos_emb"
DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
TRIED = 5  # rows

Rotation = Callable[..., tuple[Tensor, Tensor]]


@torch.inference_mode()
def fuse(model: nn.Module) -> str:
    """In place. Says how much of it was."""
    own = [module for module in model.modules() if "forward" not in vars(module)]  # and nothing in its place
    norms = [module for module in own if type(module).__name__.endswith("RMSNorm")]
    rotating = [module for module in own if _rotation_of(module) is not None]
    normed, rotated = sum(map(_fuse_norm, norms)), sum(map(_fuse_rotation, rotating))
    together = sum(map(_project_together, rotating))
    return (
        f"fused: {normed} of {len(norms)} norms, {rotated} of {len(rotating)} rotations, projections of "
        f"{together} layers"
    )


# -- norms -----------------------------------------------------------------------------------------


def _fuse_norm(norm: nn.Module) -> bool:
    weight, eps = getattr(norm, "weight", None), getattr(norm, "variance_epsilon", getattr(norm, "eps", None))
    if not isinstance(weight, Tensor) or eps is None:
        return False
    shape, tried = weight.shape, torch.randn(TRIED, *weight.shape, device=weight.device).to(weight.dtype)
    plain, last_bit = norm(tried), torch.finfo(weight.dtype).eps
    ways: list[Callable[[Tensor], Tensor]] = [
        partial(functional.rms_norm, normalized_shape=shape, weight=weight, eps=eps),
        partial(_around_one, more=1 + weight.float(), eps=eps),
    ]
    for way in ways:
        # Ours rounds once less, and adds up in another order: the last bit of a number.
        if torch.allclose(way(tried).float(), plain.float(), rtol=2 * last_bit + 2e-6, atol=last_bit / 100):
            norm.forward = way
            return True
    return False


def _around_one(x: Tensor, *, more: Tensor, eps: float) -> Tensor:
    """Where the weight says by how much a number is more than itself, as Gemma's do."""
    return functional.rms_norm(x.float(), more.shape, more, eps).to(x.dtype)


# -- rotations -------------------------------------------------------------------------------------


def _rotation_of(module: nn.Module) -> Rotation | None:
    forward = type(module).forward
    if not inspect.isfunction(forward) or ROTATION not in forward.__code__.co_names:
        return None
    plain: Rotation | None = forward.__globals__.get(ROTATION)
    return plain


def _fuse_rotation(attention: nn.Module) -> bool:
    """The attention's own code, which asks for a rotation of ours."""
    plain, forward = _rotation_of(attention), type(attention).forward
    assert plain is not None
    angles = _angles(plain, attention) if find_spec("triton") else None
    if angles is None:
        return False
    asked = {**forward.__globals__, ROTATION: partial(_rotate, plain, angles)}
    other = FunctionType(forward.__code__, asked, forward.__name__, forward.__defaults__, forward.__closure__)
    other.__kwdefaults__ = forward.__kwdefaults__
    attention.forward = MethodType(other, attention)
    return True


def _angles(plain: Rotation, attention: nn.Module) -> torch.dtype | None:
    """Of which numbers those angles are by which ours comes to the same, where it does."""
    weight = next((weight for weight in attention.parameters() if weight.dtype in DTYPES), None)
    size = getattr(attention, "head_dim", None)
    if weight is None or not isinstance(size, int):
        return None
    query, key = (torch.randn(1, TRIED, heads, size).transpose(1, 2).to(weight) for heads in (3, 2))
    cos, sin = torch.randn(2, 1, TRIED, size, device=weight.device)
    try:
        if plain(query, key, cos, sin)[0].dtype != query.dtype:  # else it is made for wide angles
            cos, sin = cos.to(weight.dtype), sin.to(weight.dtype)
        expected = plain(query, key, cos, sin)
    except RuntimeError:  # it rotates by angles of another shape
        return None
    found = _rotate(plain, cos.dtype, query, key, cos, sin)
    return cos.dtype if all(map(torch.equal, found, expected)) else None


def _rotate(
    plain: Rotation,
    angles: torch.dtype,
    query: Tensor,
    key: Tensor,
    cos: Tensor,
    sin: Tensor,
    **others: Any,
) -> tuple[Tensor, Tensor]:
    """Of [1, H, T, D] each by [1, T, D]; whatever else is asked for is computed as the model does."""
    from engine.forward.rotation_kernel import rotated

    if others or cos.shape != (1, *query.shape[2:]) or cos.dtype != angles:
        return plain(query, key, cos, sin, **others)
    return rotated(query, key, cos, sin)


# -- projections -----------------------------------------------------------------------------------


def _project_together(attention: nn.Module) -> bool:
    layers = [getattr(attention, f"{name}_proj", None) for name in "qkv"]
    linear = [layer for layer in layers if type(layer) is nn.Linear]
    given = [getattr(layer, "bias", None) for layer in linear]
    biases = [bias for bias in given if isinstance(bias, Tensor)]
    if len(linear) < len(layers) or 0 < len(biases) < len(linear):
        return False
    together = _Together([layer.weight for layer in linear], biases)
    for number, layer in enumerate(linear):
        layer.forward = partial(together, number)  # type: ignore[method-assign]
    return True


class _Together:
    """Layers that are asked of the same, one behind the other: the first computes what all of them give."""

    def __init__(self, weights: list[Tensor], biases: list[Tensor]) -> None:
        self._sizes = list(map(len, weights))
        self._weight = _joined(weights)
        self._bias = _joined(biases) if biases else None
        self._asked: Tensor | None = None
        self._parts: list[Tensor] = []

    def __call__(self, number: int, x: Tensor) -> Tensor:
        if self._asked is not x:
            self._asked = x
            self._parts = list(torch.split(functional.linear(x, self._weight, self._bias), self._sizes, -1))
        part = self._parts[number]
        if number == len(self._sizes) - 1:  # nothing is held for longer than a layer takes
            self._asked, self._parts = None, []
        return part


def _joined(parts: list[Tensor]) -> Tensor:
    """One behind the other, where they lie from now on."""
    whole = torch.cat([part.data for part in parts])
    for part, place in zip(parts, torch.split(whole, list(map(len, parts))), strict=True):
        part.data = place
    return whole
