"""Paged attention: the attention function that models call, and the interface of attention backends.

Models reach the function through transformers' attention interface, by the name `NAME`. It writes a layer's
keys and values to the paged pool, and leaves the reading to the plan that a backend made. It knows tensors
and layers; it knows no scheduler, no model class, and not how any backend reads.
"""

from __future__ import annotations

from collections.abc import Sequence as Rows
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import AttentionInterface

from engine.forward.kv_pool import KvPool
from engine.schedule.batch import Row

NAME = "midstream"


@dataclass(frozen=True, slots=True)
class AttentionParams:
    """How a layer attends."""

    scale: float
    window: int | None = None  # how many tokens it sees, the newest included
    softcap: float | None = None
    sinks: Tensor | None = None  # of each query head: a key without a value


class AttentionPlan(Protocol):
    """How a backend reads a step's rows. Every layer of a group reads by the same plan."""

    @property
    def pool_indices(self) -> Tensor:
        """Where in the pool each query token's own key and value are kept."""

    def attend(
        self, keys: Tensor, values: Tensor, query: Tensor, own: tuple[Tensor, Tensor], params: AttentionParams
    ) -> Tensor:
        """A layer's pool, its queries [H, T, D], and the queries' own keys and values [KV, T, D], which the
        pool holds already; gives [T, H, D]."""


class AttentionBackend(Protocol):
    @property
    def name(self) -> str: ...

    def plan(self, rows: Rows[Row]) -> tuple[list[int], Rows[AttentionPlan]]:
        """The order in which the rows are to be laid out, and the plan for them in that order, of each group
        of layers."""


def apply_sinks(out: Tensor, lse: Tensor, sinks: Tensor | None) -> Tensor:
    """A sink is a key without a value: it takes its share of the probability and gives nothing.

    out: [tokens, heads, size]; lse: [tokens, heads], of what was attended to without sinks.
    """
    if sinks is None:
        return out
    # Not by `torch.sigmoid`, which on a CPU depends on where in a tensor a number stands.
    share = 1 / (1 + torch.exp(sinks - lse))
    return out * share.unsqueeze(-1).to(out.dtype)


def paged_attention(
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
    pool: KvPool,
    plans: Rows[AttentionPlan],
    **_: Any,
) -> tuple[Tensor, None]:
    """The function that models call. query: [1, H, T, D]; key and value: [1, KV, T, D]; returns [1, T, H,
    D]."""
    layer = module.layer_idx
    assert isinstance(layer, int)
    scale = scaling if scaling is not None else query.shape[-1] ** -0.5
    params = AttentionParams(scale, sliding_window, softcap, s_aux)
    out = attend(layer, query[0], (key[0], value[0]), params, pool, plans)
    more = key.shape[2] - len(out)
    return (functional.pad(out, (0, 0, 0, 0, 0, more)) if more else out).unsqueeze(0), None


def attend(
    layer: int,
    query: Tensor,
    own: tuple[Tensor, Tensor],
    params: AttentionParams,
    pool: KvPool,
    plans: Rows[AttentionPlan],
) -> Tensor:
    """A layer's attention, for whoever computes layers. query: [H, T, D]; own keys and values: [KV, T, D];
    returns [T, H, D], without what stands behind the planned tokens: it only fills the batch up."""
    group = pool.group_of[layer]
    kept, seen = pool.groups[group].window, params.window
    assert kept is None or (seen is not None and seen <= kept), "it reads what is gone"
    plan = plans[group]
    count = plan.pool_indices.shape[0]
    own = (own[0][:, :count], own[1][:, :count])
    pool.write(layer, plan.pool_indices, *own)
    return plan.attend(pool.keys[layer], pool.values[layer], query[:, :count], own, params)


AttentionInterface.register(NAME, paged_attention)
# No mask is registered beside it, so none is made: the plan says who sees what. To make one, even of
# nothing, transformers would read the positions, for which the host would wait in every step.
