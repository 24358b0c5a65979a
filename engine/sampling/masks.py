"""Masks: which tokens a row may become at all, as scores. It knows rows of numbers, and not what forbids
them."""

from __future__ import annotations

import torch
from torch import Tensor


@torch.inference_mode()
def forbid(logits: Tensor, rows: list[int], masks: list[bytes]) -> None:
    """What has a zero in its row's mask, a byte for each token, cannot be chosen."""
    if not rows:
        return
    flat = torch.frombuffer(bytearray(b"".join(masks)), dtype=torch.uint8)
    allowed = flat.view(len(masks), -1)[:, : logits.shape[1]].to(logits.device).bool()
    if len(rows) == len(logits):
        logits.masked_fill_(~allowed, -torch.inf)
    else:
        places = torch.tensor(rows, device=logits.device)
        logits[places] = logits[places].masked_fill_(~allowed, -torch.inf)
