"""oneDNN packing: a model's linear layers in the layout that oneDNN multiplies fastest on a CPU.

It knows torch's modules and two of its oneDNN operators, and no architecture: any `nn.Linear` that is exactly
that, in fp32 on the CPU, is replaced, and all else stays as it is. So does every layer whose packed product
does not agree with the plain one, or that this build of torch cannot pack.

Packed weights serve inference on the CPU only: they are no parameters, and cannot be saved or moved. The
plain ones are gone, unless something else holds them: a tied embedding keeps its own, so a tied head costs
its size once more. Count parameters before packing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeGuard

import torch
from torch import Tensor, nn
from torch.nn import functional

from engine.model.fusion import SIBLINGS, FusedProduct, FusedProjection


@dataclass
class Packed:
    """What `pack` did: `linears` became `products` of `weight_bytes` together; `plain` were left alone."""

    linears: int = 0
    products: int = 0
    plain: int = 0
    weight_bytes: int = 0

    def __str__(self) -> str:
        done = f"{self.linears} linear layers packed into {self.products} products"
        return f"{done} ({self.weight_bytes / 1e6:.0f} MB), {self.plain} left plain"


class PackedLinear(nn.Module):
    """A linear layer whose weight only oneDNN can read."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__()
        self.out_features, self.in_features = weight.shape
        # No hint of the batch's size: measured from 1 to 512 rows, none does better, and a hint of 1 worse.
        self.packed: Tensor = torch.ops.mkldnn._reorder_linear_weight.default(weight, None)
        self.bias = bias
        self.product = torch.ops.mkldnn._linear_pointwise.default
        self._fills_lone_row = False

    def forward(self, x: Tensor) -> Tensor:
        if self._fills_lone_row and x.numel() == self.in_features:
            filled = functional.pad(x.reshape(1, -1), (0, 0, 0, 1))
            return self._multiply(filled)[0].view(*x.shape[:-1], -1)
        return self._multiply(x)

    def _multiply(self, x: Tensor) -> Tensor:
        result: Tensor = self.product(x, self.packed, self.bias, "none", [], "")
        return result

    def fill_lone_rows(self) -> None:
        """From now on have a row give the same bits alone as beside another: oneDNN adds up the product of
        one row otherwise where that is long."""
        rows = torch.randn(2, self.in_features, generator=torch.Generator().manual_seed(0))
        self._fills_lone_row = not torch.equal(self._multiply(rows[:1]), self._multiply(rows)[:1])

    def extra_repr(self) -> str:
        return f"{self.in_features} to {self.out_features}, {'with' if self.bias is not None else 'no'} bias"


def pack(model: nn.Module) -> Packed:
    """Replace what can be replaced, in place."""
    report = Packed()
    if _can_pack():
        with torch.no_grad():
            for parent in list(model.modules()):
                _pack_children(parent, report)
    report.plain = sum(isinstance(module, nn.Linear) for module in model.modules())
    return report


def fill_lone_rows(model: nn.Module) -> None:
    """In all of its packed products that need it."""
    modules = (one.fused.product if isinstance(one, FusedProjection) else one for one in model.modules())
    with torch.no_grad():
        for product in {id(one): one for one in modules if isinstance(one, PackedLinear)}.values():
            product.fill_lone_rows()


def _can_pack() -> bool:
    return all(hasattr(torch.ops.mkldnn, name) for name in ("_reorder_linear_weight", "_linear_pointwise"))


def _pack_children(parent: nn.Module, report: Packed) -> None:
    for names in SIBLINGS:
        _replace(parent, names, report)
    for name, _ in list(parent.named_children()):
        _replace(parent, (name,), report)


def _replace(parent: nn.Module, names: Sequence[str], report: Packed) -> None:
    linears = [child for name in names if _is_plain_linear(child := getattr(parent, name, None))]
    alike = {(one.in_features, _biased(one)) for one in linears}
    if len(linears) < len(names) or len(alike) > 1:
        return
    product = _checked_product(linears)
    if product is None:
        return
    sizes = [one.out_features for one in linears]
    fused = FusedProduct(product, sizes)
    for index, name in enumerate(names):
        setattr(parent, name, FusedProjection(fused, index) if len(names) > 1 else product)
    report.linears += len(names)
    report.products += 1
    report.weight_bytes += sum(one.weight.nbytes for one in linears)


def _is_plain_linear(module: object) -> TypeGuard[nn.Linear]:
    """Exactly a linear layer: a subclass, a hook or a `forward` of its own may mean anything."""
    if type(module) is not nn.Linear or module._forward_hooks or module._forward_pre_hooks:
        return False
    weight = module.weight
    return weight.device.type == "cpu" and weight.dtype == torch.float32 and "forward" not in vars(module)


def _checked_product(linears: list[nn.Linear]) -> PackedLinear | None:
    """The layers' packed product, if it can be made and agrees with the plain one on three random rows."""
    weight = torch.cat([one.weight for one in linears])
    bias = torch.cat([one.bias for one in linears]) if _biased(linears[0]) else None
    rows = torch.randn(3, weight.shape[1], generator=torch.Generator().manual_seed(0))
    plain = functional.linear(rows, weight, bias)
    try:
        packed = PackedLinear(weight, bias)
        agrees = torch.allclose(packed(rows), plain, rtol=1e-4, atol=1e-4 * float(plain.abs().max()))
    except RuntimeError:  # the operator is there, but not for this machine or these sizes
        return None
    return packed if agrees else None


def _biased(linear: nn.Linear) -> bool:
    bias: Tensor | None = linear.bias  # torch's own annotation forgets the None
    return bias is not None
