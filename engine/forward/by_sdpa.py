"""The SDPA backend: attention by PyTorch's own operators, the reference, for any device and number format.

It knows tensors and a `RaggedBatch`, which says what to read; it knows of a sequence only its blocks, and no
model.

Nothing is gathered and nothing is masked where a view will do. Decoding rows are read in as few strided
views of the pool as their layout allows. A chunk of a prompt is causal among itself and sees all of the
context before it, run by run. Where a row is read in parts, the parts are joined by their log-sum-exp,
which is exact. Only a sliding window that ends inside a chunk needs a gather.
"""

from __future__ import annotations

from collections.abc import Sequence as Rows
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.forward.attention import AttentionParams, apply_sinks
from engine.forward.kv_pool import KvPool
from engine.forward.kv_read_plan import DecodeGroup, DecodePlan, RaggedBatch, RowSpan, contiguous_runs
from engine.nonblocking_transfer import upload
from engine.schedule.batch import Row
from engine.schedule.windows import first_held

MAX_SCORES = 2**26  # at once, where they have to be written down: a long context would take all memory
Part = tuple[Tensor, Tensor]  # what attention to some keys gave, and its log-sum-exp


class SdpaBackend:
    name = "sdpa"

    def __init__(self, pool: KvPool, block_size: int) -> None:
        self._pool = pool
        self._block_size = block_size

    def plan(self, rows: Rows[Row]) -> tuple[list[int], list[SdpaPlan]]:
        tables = zip(*(row.sequence.tables for row in rows), strict=True)  # of each group of layers
        spans = [list(map(self._span, rows, of_group)) for of_group in tables]
        # Rows that decode first, and in the order in which their contexts lie: then they can be read
        # together.
        order = sorted(range(len(rows)), key=lambda at: (rows[at].count > 1, spans[0][at].runs))
        return order, [self._plan([of_group[at] for at in order]) for of_group in spans]

    def _plan(self, spans: list[RowSpan]) -> SdpaPlan:
        pool_indices: list[int] = []
        for span in spans:
            span.first = len(pool_indices)
            for part in span.slices(span.start, span.end):
                pool_indices += range(part.start, part.stop)
        indices = upload(pool_indices, self._pool.keys[0].device)
        return SdpaPlan(RaggedBatch(indices, spans, self._pool.tokens, self._pool.dtype))

    def _span(self, row: Row, table: list[int]) -> RowSpan:
        first = first_held(table)
        held = first * self._block_size
        runs = contiguous_runs(table[first:], self._block_size, row.start + row.count - held)
        return RowSpan(0, row.count, row.start, runs, held)


class SdpaPlan:
    """A batch read as views of the pool."""

    def __init__(self, ragged: RaggedBatch) -> None:
        self._ragged = ragged

    @property
    def pool_indices(self) -> Tensor:
        return self._ragged.pool_indices

    def attend(
        self, keys: Tensor, values: Tensor, query: Tensor, own: tuple[Tensor, Tensor], params: AttentionParams
    ) -> Tensor:
        heads, tokens, size = query.shape
        groups = heads // keys.shape[0]
        sinks = None if params.sinks is None else params.sinks.view(-1, groups)
        layer = LayerAttention(keys, values, params.scale, params.window, params.softcap, sinks)
        q = query.transpose(0, 1).view(tokens, -1, groups, size)
        ragged = self._ragged
        outs = [layer.decode(ragged, q[: ragged.decoding])] if ragged.decoding else []
        for span in ragged.chunks:
            rows = slice(span.first, span.first + span.count)
            outs.append(layer.chunk(span, q[rows], own[0][:, rows], own[1][:, rows]))
        out = outs[0] if len(outs) == 1 else torch.cat(outs)
        return out.reshape(tokens, heads, -1)


@dataclass(slots=True)
class LayerAttention:
    """One layer's attention. Queries are [T, KV, G, D], with G heads to each of the KV; so is what comes
    out."""

    keys: Tensor
    values: Tensor
    scale: float
    window: int | None
    softcap: float | None
    sinks: Tensor | None

    # -- rows of one token -----------------------------------------------------------------------

    def decode(self, ragged: RaggedBatch, q: Tensor) -> Tensor:
        plan = ragged.plan(self.window)
        if plan.parts == 1:
            parts = [self._group(group, q[group.rows]) for group in plan.groups]
            return self._apply_sinks(
                *(map(torch.cat, zip(*parts, strict=True)) if len(parts) > 1 else parts[0])
            )
        return self._apply_sinks(*self._joined(plan, q))

    def _group(self, group: DecodeGroup, q: Tensor) -> Part:
        keys, values = self._view(self.keys, group), self._view(self.values, group)
        if group.pitch == 0 and group.mask is None:
            # One context for all rows: they stand in for a length, and it is read once.
            folded = q.transpose(0, 1).reshape(1, q.shape[1], -1, q.shape[3])
            out, lse = self._attend(folded, keys[:1], values[:1])
            shape = (q.shape[1], len(group.lengths), q.shape[2])
            return out.view(*shape, -1).transpose(0, 1), lse.view(shape).transpose(0, 1)
        return self._attend(q, keys, values, mask=group.mask)

    def _view(self, pool: Tensor, group: DecodeGroup) -> Tensor:
        """[rows, KV, longest, D], without moving anything."""
        head, token, number = pool.stride()
        return pool.as_strided(
            (len(group.lengths), pool.shape[0], group.longest, pool.shape[2]),
            (group.pitch * token, head, token, number),
            pool.storage_offset() + group.first * token,
        )

    def _joined(self, plan: DecodePlan, q: Tensor) -> Part:
        """Rows whose context was read in parts: each part weighs what its scores weigh."""
        parts = [self._group(group, q[group.rows]) for group in plan.groups]
        lses = q.new_full((plan.parts, *q.shape[:3]), -torch.inf, dtype=parts[0][1].dtype)
        outs = q.new_zeros(plan.parts, *q.shape[:3], self.values.shape[2])
        for group, (out, lse) in zip(plan.groups, parts, strict=True):
            outs[group.depth, group.rows], lses[group.depth, group.rows] = out, lse
        return _join(outs, lses)

    # -- chunks of a prompt ----------------------------------------------------------------------

    def chunk(self, span: RowSpan, q: Tensor, own_keys: Tensor, own_values: Tensor) -> Tensor:
        # Groups of heads stand where a batch would: they share keys, and causality is counted along the
        # tokens.
        q = q.permute(2, 1, 0, 3)  # [G, KV, T, D]
        if self.window is not None and span.end > self.window:
            parts = [self._windowed(span, q, self.window)]
        else:
            context = [
                self._shared(q, self.keys[:, part], self.values[:, part])
                for part in span.slices(0, span.start)
            ]
            parts = [*context, self._shared(q, own_keys, own_values, causal=True)]
        out, lse = parts[0] if len(parts) == 1 else _join(*map(torch.stack, zip(*parts, strict=True)))
        return self._apply_sinks(out.permute(2, 1, 0, 3), lse.permute(2, 1, 0))

    def _windowed(self, span: RowSpan, q: Tensor, window: int) -> Part:
        """A chunk that is longer than what its first token may see."""
        begin = max(0, span.start + 1 - window)
        parts = span.slices(begin, span.end)
        keys = torch.cat([self.keys[:, part] for part in parts], 1)
        values = torch.cat([self.values[:, part] for part in parts], 1)
        at = torch.arange(begin, span.end, device=q.device)
        distance = at[span.start - begin :].unsqueeze(1) - at
        return self._shared(q, keys, values, mask=_hidden((distance < 0) | (distance >= window), q.dtype))

    def _shared(
        self, q: Tensor, keys: Tensor, values: Tensor, *, causal: bool = False, mask: Tensor | None = None
    ) -> Part:
        groups = q.shape[0]
        return self._attend(
            q,
            keys.expand(groups, *keys.shape),
            values.expand(groups, *values.shape),
            causal=causal,
            mask=mask,
        )

    # -- both ------------------------------------------------------------------------------------

    def _attend(
        self, q: Tensor, keys: Tensor, values: Tensor, *, causal: bool = False, mask: Tensor | None = None
    ) -> Part:
        """q: [B, H, T, D]; keys and values: [B, H, L, D]; the mask is added to the scores, [B, H, T, L]."""
        if self.softcap is None and q.device.type == "cpu" and keys.shape[-1] == values.shape[-1]:
            return _flash_cpu(q, keys, values, self.scale, causal, mask)
        if causal:
            mask = _hidden(
                torch.ones(q.shape[2], keys.shape[2], dtype=torch.bool, device=q.device).triu(1), q.dtype
            )
        step = max(1, MAX_SCORES // (q.shape[0] * q.shape[1] * keys.shape[2]))
        parts = [
            _plain(q[:, :, rows], keys, values, self.scale, self.softcap, _of(mask, rows))
            for rows in (slice(begin, begin + step) for begin in range(0, q.shape[2], step))
        ]
        out, lse = (torch.cat(column, 2) for column in zip(*parts, strict=True))
        return out, lse

    def _apply_sinks(self, out: Tensor, lse: Tensor) -> Tensor:
        return apply_sinks(out, lse, self.sinks)


def _flash_cpu(
    q: Tensor, keys: Tensor, values: Tensor, scale: float, causal: bool, mask: Tensor | None
) -> Part:
    """PyTorch's fused kernel, asked for its log-sum-exp too, which `scaled_dot_product_attention` keeps to
    itself."""
    if mask is not None:
        mask = mask.expand(*q.shape[:3], keys.shape[2])
    out, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        q, keys, values, 0.0, causal, attn_mask=mask, scale=scale
    )
    return out, lse


def _of(mask: Tensor | None, rows: slice) -> Tensor | None:
    """Of a mask that is one for all queries, or has a row for each."""
    return mask if mask is None or mask.shape[-2] == 1 else mask[..., rows, :]


def _plain(
    q: Tensor, keys: Tensor, values: Tensor, scale: float, softcap: float | None, mask: Tensor | None
) -> Part:
    wide = torch.float32 if q.dtype in (torch.float16, torch.bfloat16) else q.dtype
    scores = (q @ keys.mT).to(wide) * scale
    if softcap is not None:
        scores = torch.tanh(scores / softcap) * softcap
    if mask is not None:
        scores = scores + mask
    lse = scores.logsumexp(-1)
    return torch.exp(scores - lse.unsqueeze(-1)).to(q.dtype) @ values, lse


def _join(outs: Tensor, lses: Tensor) -> Part:
    """Attention to all of the keys, from attention to each part of them, stacked along the first axis."""
    whole = lses.logsumexp(0)
    shares = torch.exp(lses - whole).unsqueeze(-1)
    return (outs * shares.to(outs.dtype)).sum(0), whole


def _hidden(hidden: Tensor, dtype: torch.dtype) -> Tensor:
    return torch.zeros(hidden.shape, dtype=dtype, device=hidden.device).masked_fill_(hidden, -torch.inf)
