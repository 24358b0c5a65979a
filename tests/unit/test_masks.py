"""Masks: what is forbidden is never chosen, no other row is touched, and nobody waits for the device."""

from __future__ import annotations

import pytest
import torch

from engine.sampling.masks import forbid
from engine.structure.mask import ALLOWED
from tests.fakes.device_waits import NoDeviceWaits

VOCAB = 20


def mask(*allowed: int, size: int = VOCAB) -> bytes:
    return bytes(ALLOWED if token in allowed else 0 for token in range(size))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("rows", [[1], [0, 2], [0, 1, 2]])
def test_only_what_is_allowed_is_left(rows: list[int], dtype: torch.dtype) -> None:
    logits = torch.randn(3, VOCAB, dtype=dtype)
    before = logits.clone()
    with NoDeviceWaits():  # type: ignore[no-untyped-call]
        forbid(logits, rows, [mask(row, 7) for row in rows])
    for row in range(3):
        if row in rows:
            assert logits[row].isfinite().nonzero().squeeze(1).tolist() == sorted({row, 7})
            assert torch.equal(logits[row, 7], before[row, 7])
        else:
            assert torch.equal(logits[row], before[row])


def test_a_tokenizer_may_have_more_tokens_than_the_model() -> None:
    logits = torch.zeros(1, VOCAB)
    forbid(logits, [0], [mask(3, VOCAB + 1, size=VOCAB + 4)])
    assert logits[0].isfinite().nonzero().squeeze(1).tolist() == [3]


def test_what_nobody_may_is_what_the_model_said() -> None:
    logits = torch.zeros(2, VOCAB)
    forbid(logits, [], [])
    assert not logits.any()
