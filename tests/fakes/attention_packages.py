"""Stand-ins for the packages flash_attn and flashinfer, in plain PyTorch, to test what is asked of them; and
the backends that ask it.

Each follows its documentation: shapes, bases of logarithms, ends of windows. Neither needs a device.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from engine.forward.block_tables import BlockTables
from engine.forward.by_flash_attn import FlashAttnBackend
from engine.forward.by_flashinfer import FlashInferBackend
from engine.forward.kv_pool import KvPool


def _dense(
    query: Tensor, keys: Tensor, values: Tensor, scale: float, left: int, softcap: float
) -> tuple[Tensor, Tensor]:
    """query: [T, H, D], the last of the tokens of keys and values, [L, KV, D]; [T, H, D] and [T, H]. What is
    before all windows is not read."""
    unseen = max(0, len(keys) - len(query) - left) if left >= 0 else 0
    keys, values = keys[unseen:], values[unseen:]
    groups = query.shape[1] // keys.shape[1]
    keys, values = (tensor.repeat_interleave(groups, 1) for tensor in (keys, values))
    scores = torch.einsum("thd,lhd->htl", query, keys) * scale
    if softcap > 0:
        scores = softcap * torch.tanh(scores / softcap)
    at = torch.arange(len(keys), device=keys.device)
    distance = at[len(keys) - len(query) :, None] - at
    hidden = (distance < 0) | ((distance > left) & (left >= 0))
    scores = scores.masked_fill(hidden, -torch.inf)
    return torch.einsum("htl,lhd->thd", scores.softmax(-1), values), scores.logsumexp(-1).T


def flash_attn_varlen_func(
    q: Tensor,
    k: Tensor,  # [pages, page, KV heads, size]
    v: Tensor,
    *,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    softmax_scale: float,
    causal: bool,
    window_size: tuple[int, int],
    softcap: float,
    return_attn_probs: bool,
    block_table: Tensor,
) -> tuple[Tensor, Tensor, None]:
    assert causal
    assert return_attn_probs
    assert q.stride(-1) == k.stride(-1) == v.stride(-1) == 1
    assert {cu_seqlens_q.dtype, cu_seqlens_k.dtype, block_table.dtype} == {torch.int32}
    queries, lengths = cu_seqlens_q.diff().tolist(), cu_seqlens_k.diff().tolist()
    assert (max_seqlen_q, max_seqlen_k) == (max(queries), max(lengths))
    outs = []
    for row, (part, length) in enumerate(zip(torch.split(q, queries), lengths, strict=True)):
        pages = block_table[row, : -(-length // k.shape[1])].long()
        read = [tensor[pages].flatten(0, 1)[:length] for tensor in (k, v)]
        outs.append(_dense(part, read[0], read[1], softmax_scale, window_size[0], softcap))
    out, lse = (torch.cat(tensors) for tensors in zip(*outs, strict=True))
    return out, lse.T, None


class BatchPrefillWithPagedKVCacheWrapper:
    def __init__(self, workspace: Tensor, layout: str) -> None:
        assert layout == "HND"
        self._asked: dict[str, Any] = {}

    def plan(
        self,
        qo_indptr: Tensor,
        paged_kv_indptr: Tensor,
        paged_kv_indices: Tensor,
        paged_kv_last_page_len: Tensor,
        num_qo_heads: int,
        num_kv_heads: int,
        head_dim_qk: int,
        page_size: int,
        *,
        causal: bool,
        sm_scale: float,
        window_left: int,
        logits_soft_cap: float | None,
        q_data_type: torch.dtype,
    ) -> None:
        assert causal
        assert all(
            tensor.dtype == torch.int32 and tensor.device.type == "cpu"
            for tensor in (qo_indptr, paged_kv_indptr, paged_kv_indices, paged_kv_last_page_len)
        )
        self._asked = {name: value for name, value in locals().items() if name != "self"}

    def run(self, q: Tensor, pages: tuple[Tensor, Tensor], *, return_lse: bool) -> tuple[Tensor, Tensor]:
        """pages: [pages, KV heads, page, size] each."""
        asked = self._asked
        assert return_lse
        assert q.dtype == asked["q_data_type"]
        assert q.shape[1:] == (asked["num_qo_heads"], asked["head_dim_qk"])
        assert pages[0].shape[1:] == (asked["num_kv_heads"], asked["page_size"], asked["head_dim_qk"])
        ends, last = asked["paged_kv_indptr"].tolist(), asked["paged_kv_last_page_len"].tolist()
        outs = []
        for row, part in enumerate(torch.split(q, asked["qo_indptr"].diff().tolist())):
            numbers = asked["paged_kv_indices"][ends[row] : ends[row + 1]].long()
            length = (len(numbers) - 1) * asked["page_size"] + last[row]
            read = [tensor[numbers].transpose(1, 2).flatten(0, 1)[:length] for tensor in pages]
            cap = asked["logits_soft_cap"] or 0.0
            outs.append(_dense(part, read[0], read[1], asked["sm_scale"], asked["window_left"], cap))
        out, lse = (torch.cat(tensors) for tensors in zip(*outs, strict=True))
        return out, lse / math.log(2)


def flash_attn_backend(pool: KvPool, block_size: int, heads: int, slots: int) -> FlashAttnBackend:
    blocks = pool.tokens // block_size
    tables = BlockTables(slots, blocks, block_size, blocks - 1, pool.keys[0].device, len(pool.groups))
    return FlashAttnBackend(tables, flash_attn_varlen_func)


def flashinfer_backend(pool: KvPool, block_size: int, heads: int, slots: int) -> FlashInferBackend:
    return FlashInferBackend(block_size, pool.keys[0].device, BatchPrefillWithPagedKVCacheWrapper)
