"""The digest of a model's weights: a few bytes that tell one version of a model from every other.

It is of what is computed with, as it lies in memory before any layer is packed: names, shapes, number
formats, the configuration, and for each tensor sums over all its bits. So it costs one reading of the
weights, on the device that has them, and no file has to be there. One number that is another is always
noticed; so are numbers that changed places, unless the sums come out the same by chance. It guards against
mistakes, not against somebody who wants two models to look alike.

Of a model that several processes share it is of this process's part.
"""

from __future__ import annotations

import json
from hashlib import blake2b
from typing import Any

import torch
from torch import Tensor, nn

DIGEST_BYTES = 16
COLUMNS = 1021  # sums of a tensor; a prime, so that no width of a layer keeps numbers that move in one column
INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}  # by size in bytes
NO_ARITHMETIC = {"_name_or_path", "transformers_version"}  # of a configuration: where it came from


@torch.inference_mode()
def weights_digest(model: nn.Module) -> str:
    digest = blake2b(digest_size=DIGEST_BYTES)
    digest.update(_configuration(model))
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        own = tensor.to_local() if hasattr(tensor, "to_local") else tensor
        digest.update(f"{name} {tuple(own.shape)} {own.dtype}\n".encode())
        digest.update(_column_sums(own).cpu().numpy().tobytes())
    return digest.hexdigest()


def _configuration(model: nn.Module) -> bytes:
    config: Any = model.config
    fields: dict[str, Any] = config.to_dict()
    told = {name: value for name, value in fields.items() if name not in NO_ARITHMETIC}
    return json.dumps(told, sort_keys=True, default=str).encode()


def _column_sums(tensor: Tensor) -> Tensor:
    """Whole numbers, which add up to the same in any order, modulo 2**64."""
    bits = tensor.contiguous().view(-1).view(INTEGERS[tensor.itemsize])
    rows = len(bits) // COLUMNS
    sums = bits[: rows * COLUMNS].view(rows, COLUMNS).sum(0, dtype=torch.int64)
    rest = bits[rows * COLUMNS :]
    sums[: len(rest)] += rest
    return sums
