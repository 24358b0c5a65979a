"""The SDPA backend: attention by PyTorch's own operators, the reference, for any device and number format.

It knows tensors and a `RaggedBatch`, which says what to read; it knows of a sequence only its blocks, and no
model.

Nothing is gathered and nothing is masked where a view will do. Whether a row decodes or is a chunk of a
prompt, its context is read in parts, which are joined by their log-sum-exp. Where it is to be exact, on a
CPU, the parts are tiles at fixed positions and every call has a shape that was tried: then what is computed
for a token is the same bits in any company, chunk or layout.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from collections.abc import Sequence as Rows
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor
from torch.nn import functional

from engine.forward.attention import AttentionParams, apply_sinks
from engine.forward.kv_pool import KvPool
from engine.forward.kv_read_plan import Call, Chunk, Decoding, RaggedBatch, RowSpan, contiguous_runs
from engine.forward.tiling import Tiling, find_tiling, tile_of
from engine.nonblocking_transfer import upload
from engine.schedule.batch import Row
from engine.schedule.windows import first_held

MAX_SCORES = 2**26  # at once, where they have to be written down: a long context would take all memory
MAX_QUERIES = 64  # likewise: products of many rows may add up otherwise
HALF = (torch.float16, torch.bfloat16)
Partial = tuple[Tensor, Tensor]  # what attention to some keys gave, and its log-sum-exp


class SdpaBackend:
    """`exact` where what is computed for a token may follow from its own context alone."""

    name = "sdpa"

    def __init__(self, pool: KvPool, block_size: int, *, exact: bool = True) -> None:
        self._pool = pool
        self._block_size = block_size
        self._exact = exact

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
        ragged = RaggedBatch(indices, spans, self._pool.tokens, self._pool.dtype)
        return SdpaPlan(ragged, exact=self._exact)

    def _span(self, row: Row, table: list[int]) -> RowSpan:
        first = first_held(table)
        held = first * self._block_size
        runs = contiguous_runs(table[first:], self._block_size, row.start + row.count - held)
        return RowSpan(0, row.count, row.start, runs, held)


class SdpaPlan:
    """A batch read as views of the pool."""

    def __init__(self, ragged: RaggedBatch, *, exact: bool) -> None:
        self._ragged = ragged
        self._exact = exact

    @property
    def pool_indices(self) -> Tensor:
        return self._ragged.pool_indices

    def attend(
        self, keys: Tensor, values: Tensor, query: Tensor, own: tuple[Tensor, Tensor], params: AttentionParams
    ) -> Tensor:
        heads, tokens, size = query.shape
        groups = heads // keys.shape[0]
        sizes = (size, values.shape[2])
        tiling = None
        if self._exact:
            capped = params.softcap is not None
            tiling = tiling_of_kind(
                tile_of(params.window), sizes, keys.dtype, capped, torch.get_num_threads()
            )
        attention = attention_of(keys.device, sizes, params.scale, params.softcap, tiling)
        sinks = None if params.sinks is None else params.sinks.view(-1, groups)
        layer = LayerAttention(keys, values, attention, tiling, sinks)
        q = query.transpose(0, 1).view(tokens, -1, groups, size)
        sections = self._ragged.sections(params.window, tiling)
        outs = [layer.attend(section, q[section.tokens]) for section in sections]
        out = outs[0] if len(outs) == 1 else torch.cat(outs)
        return out.reshape(tokens, heads, sizes[1])


@dataclass(slots=True)
class LayerAttention:
    """One layer's attention. Queries are [T, KV, G, D], with G heads to each of the KV; so is what comes
    out."""

    keys: Tensor
    values: Tensor
    attention: Attention
    tiling: Tiling | None
    sinks: Tensor | None

    def attend(self, section: Decoding | Chunk, q: Tensor) -> Tensor:
        out = self._attended(section, q)
        if self.tiling is not None and math.isnan(float(out.sum())):
            # Somebody's numbers are none. Who only carried them along, hidden, is not to have them.
            out = self._attended(section, q, unseen_as_zeros=True)
        return out

    def _attended(self, section: Decoding | Chunk, q: Tensor, *, unseen_as_zeros: bool = False) -> Tensor:
        if isinstance(section, Decoding):
            outs, lses = self._each_decoded(section, q, unseen_as_zeros)
        else:
            outs, lses = self._each_of_chunk(section, q, unseen_as_zeros)
        if section.parts > 1:
            out, lse = _join(outs.to(_wide(q.dtype)), lses)
        else:
            out, lse = outs[0], lses[0]
        return apply_sinks(out.to(q.dtype), lse, self.sinks)

    def _each_decoded(self, section: Decoding, q: Tensor, unseen_as_zeros: bool) -> Partial:
        """What each part gives to each token: [parts, tokens, KV, G, D]. Here a call costs more than what it
        reads, so what can be done for all of them is done once."""
        tokens, heads, groups, _ = q.shape
        filled = self._filled(q)
        more = filled.shape[2] - groups
        if section.rows is not None:
            filled = filled[section.rows]
        found = []
        for call, results in zip(section.calls, section.results, strict=True):
            queries = filled[results]
            if call.together:
                out, lse = self._together(call, queries[:, :, :groups], unseen_as_zeros)
                found.append((functional.pad(out[0], (0, 0, 0, more)), functional.pad(lse[0], (0, more))))
            else:
                found.append(self._call(call, queries, call.hidden, unseen_as_zeros))
        if not section.complete:  # what a token has no part in weighs nothing
            out, lse = found[0]
            found.append((torch.zeros_like(out[:1]), torch.full_like(lse[:1], -torch.inf)))
        outs, lses = found[0] if len(found) == 1 else map(torch.cat, zip(*found, strict=True))
        outs, lses = outs[:, :, :groups], lses[:, :, :groups]
        if section.places is not None:
            outs, lses = outs[section.places], lses[section.places]
        shape = (section.parts, tokens, heads, groups)
        return outs.reshape(*shape, -1), lses.reshape(shape)

    def _each_of_chunk(self, section: Chunk, q: Tensor, unseen_as_zeros: bool) -> Partial:
        found = [self._together(call, q[tokens], unseen_as_zeros) for tokens, _, call in section.calls]
        shape = (section.parts, *q.shape[:3])
        outs = q.new_zeros(*shape, self.values.shape[2])
        lses = q.new_full(shape, -torch.inf, dtype=found[0][1].dtype)
        for (tokens, depths, _), (out, lse) in zip(section.calls, found, strict=True):
            outs[depths, tokens], lses[depths, tokens] = out, lse
        return outs, lses

    def _together(self, call: Call, q: Tensor, unseen_as_zeros: bool) -> Partial:
        """One context for all: tokens and heads stand in for a length, and it is read once."""
        tokens, heads, groups, size = q.shape
        folded = self._filled(q.transpose(0, 1).reshape(1, heads, tokens * groups, size))
        mask = call.mask(groups, folded.shape[2])
        parts = call.keys.count
        out, lse = self._call(call, folded.expand(parts, -1, -1, -1), mask, unseen_as_zeros)
        out, lse = out[:, :, : tokens * groups], lse[:, :, : tokens * groups]
        shape = (parts, heads, tokens, groups)
        return out.reshape(*shape, -1).transpose(1, 2), lse.reshape(shape).transpose(1, 2)

    def _call(self, call: Call, q: Tensor, mask: Tensor | None, unseen_as_zeros: bool) -> Partial:
        keys, values = call.keys.read(self.keys), call.keys.read(self.values)
        if unseen_as_zeros and call.hidden is not None:
            unseen = call.hidden.isneginf().all(2).unsqueeze(-1)
            keys, values = keys.masked_fill(unseen, 0), values.masked_fill(unseen, 0)
        return self.attention(q, keys, values, mask)

    def _filled(self, q: Tensor) -> Tensor:
        more = 0 if self.tiling is None else -q.shape[2] % self.tiling.queries
        return functional.pad(q, (0, 0, 0, more)) if more else q


def _join(outs: Tensor, lses: Tensor) -> Partial:
    """Attention to all of the keys, from attention to each part of them, stacked along the first axis."""
    best = lses.amax(0)
    weights = torch.exp(lses - best)
    out, total = _added(outs.mul_(weights.unsqueeze(-1))), _added(weights)
    return out.div_(total.unsqueeze(-1)), best + total.log()


def _added(parts: Tensor) -> Tensor:
    """One after the other, so that parts without weight before or behind the others change nothing; in place.
    `torch.sum` adds in an order that depends on how many there are."""
    total, *others = parts.unbind(0)
    for part in others:
        total.add_(part)
    return total


# -- attention to some keys ------------------------------------------------------------------------

# Queries [B, H, T, D], keys and values [B, H, L, D], and what is added to the scores, [B, H, T, L].
Attention = Callable[[Tensor, Tensor, Tensor, Tensor | None], Partial]


@cache
def attention_of(
    device: torch.device,
    sizes: tuple[int, int],
    scale: float,
    softcap: float | None,
    tiling: Tiling | None = None,
) -> Attention:
    """How layers of a kind attend to some keys."""
    fused = device.type == "cpu"
    if fused and softcap is None and sizes[0] == sizes[1]:
        return lambda q, keys, values, mask: _fused(q, keys, values, scale, mask)
    weigh = _weigh_fused if fused else _weigh
    quantum = 1 if tiling is None else tiling.queries

    def attend(q: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> Partial:
        if fused:  # how they lie, and in which format, decides how they are multiplied
            q, keys = (tensor.to(_wide(tensor.dtype)).contiguous() for tensor in (q, keys))
        most = min(MAX_QUERIES, MAX_SCORES // (q.shape[0] * q.shape[1] * keys.shape[2]))
        step = max(quantum, most // quantum * quantum)
        parts = [
            weigh(_scores(q[:, :, rows], keys, scale, softcap, _of(mask, rows)), values)
            for rows in (slice(begin, begin + step) for begin in range(0, q.shape[2], step))
        ]
        out, lse = (torch.cat(column, 2) for column in zip(*parts, strict=True))
        return out.to(values.dtype), lse

    return attend


@cache
def tiling_of_kind(
    tile: int, sizes: tuple[int, int], dtype: torch.dtype, capped: bool, threads: int
) -> Tiling | None:
    """A fact of this machine and this build of PyTorch, with so many threads."""
    attend = attention_of(torch.device("cpu"), sizes, sizes[0] ** -0.5, 50.0 if capped else None)
    return find_tiling(attend, tile, sizes, dtype)


def _fused(q: Tensor, keys: Tensor, values: Tensor, scale: float, mask: Tensor | None) -> Partial:
    """PyTorch's fused kernel, asked for its log-sum-exp too, which `scaled_dot_product_attention` keeps to
    itself."""
    if mask is not None:
        mask = mask.expand(*q.shape[:3], keys.shape[2])
    return torch._scaled_dot_product_flash_attention_for_cpu(
        q, keys, values, 0.0, False, attn_mask=mask, scale=scale
    )


def _scores(q: Tensor, keys: Tensor, scale: float, softcap: float | None, mask: Tensor | None) -> Tensor:
    scores = (q @ keys.mT).to(_wide(q.dtype)) * scale
    if softcap is not None:
        scores = torch.tanh(scores / softcap) * softcap
    return scores if mask is None else scores + mask


def _weigh(scores: Tensor, values: Tensor) -> Partial:
    lse = scores.logsumexp(-1)
    return torch.exp(scores - lse.unsqueeze(-1)).to(values.dtype) @ values, lse


def _weigh_fused(scores: Tensor, values: Tensor) -> Partial:
    """The scores as what the fused kernel adds to its own, which are zero here."""
    values = values.to(scores.dtype)
    nothing = values.new_zeros(1, 1, scores.shape[2], values.shape[3]).expand(*scores.shape[:2], -1, -1)
    return _fused(nothing, values, values, 1.0, scores)


def _of(mask: Tensor | None, rows: slice) -> Tensor | None:
    """Of a mask that is one for all queries, or has a row for each."""
    return mask if mask is None or mask.shape[-2] == 1 else mask[..., rows, :]


def _wide(dtype: torch.dtype) -> torch.dtype:
    return torch.float32 if dtype in HALF else dtype
