"""The model runner: a forward pass of a transformers model over a ragged batch.

It turns rows into the flat tensors that the model wants, and returns the logits of those rows that sample. It
knows the model and its KV pool; it knows no scheduling and no sampling, and reads a sequence without changing
it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from collections.abc import Sequence as Rows
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor, nn

from engine.forward.attention import AttentionBackend, AttentionPlan
from engine.forward.filled_experts import fill_experts
from engine.forward.kv_pool import KvPool
from engine.nonblocking_transfer import upload
from engine.schedule.batch import Row

if TYPE_CHECKING:
    from engine.forward.by_triton import TritonBackend
    from engine.forward.cuda_graphs import Capture, DecodeGraphs


class CausalModel(Protocol):
    """What is called as transformers' models of language are."""

    @property
    def device(self) -> torch.device: ...
    def modules(self) -> Iterator[nn.Module]: ...
    def __call__(self, **arguments: Any) -> Any: ...


class ModelRunner:
    def __init__(
        self,
        model: CausalModel,
        pool: KvPool,
        attention: AttentionBackend,
        latest_tokens: Tensor,
        *,
        block_size: int,
        context: int,
        eos: frozenset[int],
        row_multiple: int = 1,
    ) -> None:
        self.context = context
        self.eos = eos
        self._model = model
        self.pool = pool
        self._attention = attention
        self._latest_tokens = latest_tokens
        self._decode_graphs: DecodeGraphs | None = None
        self._block_size = block_size
        self._device = model.device
        self._row_multiple = row_multiple
        fill_experts(model, row_multiple)

    @torch.inference_mode()
    def forward(self, rows: Rows[Row]) -> Tensor:
        if self._decode_graphs is not None and self._decode_graphs.fits(rows):
            return self._decode_graphs.logits(rows)
        order, plans = self._attention.plan(rows)
        tokens: list[int] = []
        positions: list[int] = []
        placeholders: list[tuple[int, int]] = []  # place in the batch, and whose slot
        last = [0] * len(rows)
        for at in order:
            row = rows[at]
            end = row.start + row.count
            tokens += row.tokens
            positions += range(row.start, end)
            if len(tokens) < len(positions):
                placeholders.append((len(tokens), row.sequence.slot))
                tokens.append(0)
            last[at] = len(tokens) - 1
        wanted = [at for end, row in zip(last, rows, strict=True) for at in _last(row.num_sampled, end)]
        ids = self._integers(self._filled(tokens))
        if placeholders:
            places, slots = zip(*placeholders, strict=True)
            ids[self._integers(places)] = self._latest_tokens[self._integers(slots)]
        # Somebody's logits are always computed: models are not made for a batch without any.
        logits = self._logits(
            ids, self._integers(self._filled(positions)), plans, self._integers(self._filled(wanted or [0]))
        )
        return logits[: len(wanted)]

    def _filled(self, numbers: list[int]) -> list[int]:
        """Up to as many rows as products must have for each row to be the same in any company."""
        return numbers + [0] * (-len(numbers) % self._row_multiple)

    def _logits(
        self, tokens: Tensor, positions: Tensor, plans: Rows[AttentionPlan], wanted: Tensor | None = None
    ) -> Tensor:
        output = self._model(
            input_ids=tokens[None],
            position_ids=positions[None],
            use_cache=False,
            logits_to_keep=0 if wanted is None else wanted,
            pool=self.pool,
            plans=plans,
        )
        logits: Tensor = output.logits[0]
        return logits

    @torch.inference_mode()
    def capture_decode(self, attention: TritonBackend, rows: int, capture: Capture) -> None:
        """From now on, steps that only decode are replayed from CUDA graphs."""
        from engine.forward.cuda_graphs import DecodeGraphs  # brings Triton with it

        graphs = DecodeGraphs(self._logits, attention, self._latest_tokens, rows)
        graphs.capture(capture)
        self._decode_graphs = graphs

    def _integers(self, numbers: Iterable[int]) -> Tensor:
        return upload(list(numbers), self._device)

    def _tokens_of(self, block: int) -> slice:
        return slice(block * self._block_size, (block + 1) * self._block_size)

    def copy_blocks(self, copies: list[tuple[int, int]]) -> None:
        for source, target in copies:
            self.pool.copy(self._tokens_of(source), self._tokens_of(target))

    def zero_blocks(self, blocks: list[int]) -> None:
        for block in blocks:
            self.pool.zero(self._tokens_of(block))


def _last(count: int, end: int) -> range:
    """So many numbers, of which this is the last."""
    return range(end + 1 - count, end + 1)
