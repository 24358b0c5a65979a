"""Masks: which tokens a row may become at all, as scores. It knows rows of numbers, and not what forbids
them."""

from __future__ import annotations

import torch
from torch import Tensor

from engine.nonblocking_transfer import upload, upload_bytes


@torch.inference_mode()
def forbid(logits: Tensor, rows: list[int], masks: list[bytes]) -> None:
    """What has a zero in its row's mask, a byte for each token, cannot be chosen."""
    if not rows:
        return
    allowed = upload_bytes(bytearray().join(masks), logits.device).view(len(masks), -1)
    forbidden = allowed[:, : logits.shape[1]].logical_not()
    if len(rows) == len(logits):
        logits.masked_fill_(forbidden, -torch.inf)
    else:
        places = upload(rows, logits.device)
        logits[places] = logits[places].masked_fill_(forbidden, -torch.inf)
