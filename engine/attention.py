"""Attention of a ragged batch over the paged KV cache: the reference backend, for any device.

A batch is one flat row of query tokens; each sequence in it has a span of that row, and a table that says where
its keys and values lie. This module knows spans, runs of neighbouring blocks and tensors; it knows no sequence's life,
no scheduler and no model class. Models reach it through transformers' attention interface, by the name `NAME`.

Nothing is gathered and nothing is masked where a slice will do. A span's context is read run by run, as views of the
pool; the parts are joined by their log-sum-exp, which is exact. A span's own chunk is causal among itself, and sees
all of the context before it. Only a sliding window that ends inside a chunk needs a mask, and a gather.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface
from transformers.masking_utils import AttentionMaskInterface

NAME = "midstream"

Part = tuple[Tensor, Tensor]  # what attention to some keys gave, [KV, G, T, D], and its log-sum-exp, [KV, G, T]


@dataclass(slots=True)
class Span:
    """One sequence's share of the batch: `count` query tokens from row `first`, at positions from `start` on."""

    first: int
    count: int
    start: int
    runs: list[tuple[int, int]]  # where positions 0 to start + count lie in the pool: (first token, tokens)

    def slices(self, begin: int, end: int) -> list[slice]:
        """Where positions `begin` to `end` lie."""
        found = []
        position = 0
        for first, tokens in self.runs:
            low, high = max(begin, position), min(end, position + tokens)
            if low < high:
                found.append(slice(first + low - position, first + high - position))
            position += tokens
        return found


def runs_of(blocks: list[int], block: int, tokens: int) -> list[tuple[int, int]]:
    """Where the first `tokens` of a table lie, neighbours joined."""
    runs: list[tuple[int, int]] = []
    for number in blocks[: -(-tokens // block)]:
        if runs and runs[-1][0] + runs[-1][1] == number * block:
            runs[-1] = (runs[-1][0], runs[-1][1] + block)
        else:
            runs.append((number * block, block))
    spare = len(blocks[: -(-tokens // block)]) * block - tokens
    return [*runs[:-1], (runs[-1][0], runs[-1][1] - spare)]


class Pool:
    """Keys and values of every layer, [KV heads, tokens, head size] each, so that a run of one head is one slice."""

    def __init__(self, layers: list[tuple[int, int]], tokens: int, dtype: torch.dtype, device: str) -> None:
        def make() -> list[Tensor]:
            return [torch.zeros(heads, tokens, size, dtype=dtype, device=device) for heads, size in layers]

        self.keys, self.values = make(), make()

    def write(self, layer: int, slots: Tensor, keys: Tensor, values: Tensor) -> None:
        self.keys[layer].index_copy_(1, slots, keys)
        self.values[layer].index_copy_(1, slots, values)

    def copy(self, source: slice, target: slice) -> None:
        for tensor in (*self.keys, *self.values):
            tensor[:, target] = tensor[:, source]

    def scrub(self, tokens: slice) -> None:
        for tensor in (*self.keys, *self.values):
            tensor[:, tokens] = 0


@dataclass(slots=True)
class Ragged:
    """What attention needs to know of a batch: passed through the model's forward as a keyword argument."""

    pool: Pool
    slots: Tensor  # where each query token's own key and value are kept
    spans: list[Span]


def attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    *,
    midstream: Ragged,
    **_: Any,
) -> tuple[Tensor, None]:
    """The function that models call. query: [1, H, T, D]; key and value: [1, KV, T, D]; returns [1, T, H, D]."""
    layer = module.layer_idx
    assert isinstance(layer, int)
    heads, tokens, size = query.shape[1:]
    kv_heads = key.shape[1]
    midstream.pool.write(layer, midstream.slots, key[0], value[0])
    look = Look(
        midstream.pool.keys[layer],
        midstream.pool.values[layer],
        scaling if scaling is not None else size**-0.5,
        sliding_window,
        softcap,
        None if s_aux is None else s_aux.view(kv_heads, heads // kv_heads, 1),
    )
    q = query[0].view(kv_heads, heads // kv_heads, tokens, size)
    out = query.new_empty(kv_heads, heads // kv_heads, tokens, value.shape[-1])
    for span in midstream.spans:
        rows = slice(span.first, span.first + span.count)
        out[:, :, rows] = look.at(span, q[:, :, rows], key[0, :, rows], value[0, :, rows])
    return out.permute(2, 0, 1, 3).reshape(1, tokens, heads, -1), None


@dataclass(slots=True)
class Look:
    """One layer's attention, for one span at a time."""

    keys: Tensor
    values: Tensor
    scale: float
    window: int | None
    softcap: float | None
    sinks: Tensor | None

    def at(self, span: Span, q: Tensor, own_keys: Tensor, own_values: Tensor) -> Tensor:
        end = span.start + span.count
        if span.count == 1:
            begin = 0 if self.window is None else max(0, end - self.window)
            parts = self._each(span, q, begin, end)
        elif self.window is None or end <= self.window:
            parts = self._each(span, q, 0, span.start)
            parts.append(self._attend(q, own_keys, own_values, causal=True))
        else:
            parts = [self._windowed(span, q)]
        out, lse = join(parts)
        if self.sinks is not None:
            # A sink is a key without a value: it takes its share of the probability and gives nothing.
            out = out * torch.sigmoid(lse - self.sinks).unsqueeze(-1).to(out.dtype)
        return out

    def _each(self, span: Span, q: Tensor, begin: int, end: int) -> list[Part]:
        return [
            self._attend(q, self.keys[:, part], self.values[:, part]) for part in span.slices(begin, end)
        ]

    def _windowed(self, span: Span, q: Tensor) -> Part:
        """A chunk that is longer than what its first token may see."""
        assert self.window is not None
        begin, end = max(0, span.start + 1 - self.window), span.start + span.count
        parts = span.slices(begin, end)
        keys = torch.cat([self.keys[:, part] for part in parts], 1)
        values = torch.cat([self.values[:, part] for part in parts], 1)
        distance = torch.arange(span.start, end, device=q.device).unsqueeze(1) - torch.arange(
            begin, end, device=q.device
        )
        return self._attend(q, keys, values, mask=(distance >= 0) & (distance < self.window))

    def _attend(
        self, q: Tensor, keys: Tensor, values: Tensor, *, causal: bool = False, mask: Tensor | None = None
    ) -> Part:
        if mask is None and self.softcap is None and q.device.type == "cpu" and keys.shape[-1] == values.shape[-1]:
            return _flash_cpu(q, keys, values, self.scale, causal)
        return _plain(q, keys, values, self.scale, self.softcap, _causal(q, keys) if causal else mask)


def _flash_cpu(q: Tensor, keys: Tensor, values: Tensor, scale: float, causal: bool) -> Part:
    """PyTorch's fused kernel, asked for its log-sum-exp too, which `scaled_dot_product_attention` keeps to itself."""
    flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    if q.shape[2] == 1:
        # One token: the heads that share a key stand in for a length, and nothing is read twice.
        out, lse = flash(q.squeeze(2)[None], keys[None], values[None], 0.0, False, scale=scale)
        return out[0].unsqueeze(2), lse[0].unsqueeze(2)
    group = q.shape[1]
    out, lse = flash(
        q.transpose(0, 1), keys.expand(group, *keys.shape), values.expand(group, *values.shape), 0.0, causal, scale=scale
    )
    return out.transpose(0, 1), lse.transpose(0, 1)


def _plain(
    q: Tensor, keys: Tensor, values: Tensor, scale: float, softcap: float | None, mask: Tensor | None
) -> Part:
    wide = torch.float32 if q.dtype in (torch.float16, torch.bfloat16) else q.dtype
    scores = (q @ keys.unsqueeze(1).mT).to(wide) * scale
    if softcap is not None:
        scores = torch.tanh(scores / softcap) * softcap
    if mask is not None:
        scores = scores.masked_fill(~mask, float("-inf"))
    lse = scores.logsumexp(-1)
    weights = torch.exp(scores - lse.unsqueeze(-1))
    return weights.to(q.dtype) @ values.unsqueeze(1), lse


def _causal(q: Tensor, keys: Tensor) -> Tensor:
    return torch.ones(q.shape[2], keys.shape[1], dtype=torch.bool, device=q.device).tril()


def join(parts: list[Part]) -> Part:
    """Attention to all of the keys, from attention to each part of them."""
    if len(parts) == 1:
        return parts[0]
    lses = torch.stack([lse for _, lse in parts])
    whole = lses.logsumexp(0)
    shares = torch.exp(lses - whole).unsqueeze(-1)
    outs = torch.stack([out for out, _ in parts])
    return (outs * shares.to(outs.dtype)).sum(0), whole


AttentionInterface.register(NAME, attention)
# The batch's spans say who sees what; a mask would only say it again, at the size of tokens squared.
AttentionMaskInterface.register(NAME, lambda *args, **kwargs: None)
