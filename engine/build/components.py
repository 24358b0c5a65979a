"""What an engine around a model is made of, but for its scheduler: the sampler, what reads the KV cache, and
the cache, as large as the memory allows.

It knows the model, its facts and what was asked for; it knows no step and no stream.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from transformers import PreTrainedModel

from engine import api
from engine.build.budgets import affordable, decoding_rows, step_tokens, whole_blocks
from engine.forward import backends
from engine.forward.kv_pool import KvPool
from engine.forward.attention import NAME, Backend
from engine.forward.model_runner import ModelRunner
from engine.memory import kv_sizing
from engine.memory.host_pool import STAGED_BYTES, HostPool
from engine.memory.offload_trial import host_pool
from engine.model.loading import available_memory, describe
from engine.model.onednn import pack
from engine.sampling.sampler import Sampler

if TYPE_CHECKING:
    from engine.parallel.ranks import Ranks


class Parts:
    """`ranks` are the processes that share the model, where there are several."""

    def __init__(self, model: PreTrainedModel, options: api.EngineOptions, ranks: Ranks | None) -> None:
        model.set_attn_implementation(NAME)
        self.device = str(model.device)
        self._on_cuda = model.device.type == "cuda"
        if self._on_cuda:
            torch.cuda.set_device(model.device)  # graphs and streams are made where this says
        self._model, self._options, self._ranks = model, options, ranks
        self._rows = decoding_rows(options.batch_rows, options.max_streams)
        self.facts = describe(model.config, model.generation_config)
        self.weights_bytes = sum(weight.nbytes for weight in model.parameters())
        self.packed = pack(model)
        if ranks is not None:
            from engine.model import tensor_parallel

            self.facts = tensor_parallel.held(self.facts, model.config, ranks.size)
        need = backends.Need(model.device, model.dtype, self.facts.head_dim, options.block_size)
        self.attention = backends.choose(options.attention, need)
        self.sampler = Sampler(
            options.max_streams,
            self.facts.vocab,
            eos=self.facts.eos,
            rows=self._rows,
            device=model.device,
            agree=ranks.agree if ranks else None,
        )
        self._context = min(options.context or self.facts.context, self.facts.context)
        # What is measured, and what takes its time, would part the ranks.
        self._host_gib = options.host_kv_gib if self._on_cuda and ranks is None else 0.0
        self.tokens = self._cache_tokens()
        self.runner, reader = self._runner(self.tokens)
        if self._on_cuda:
            self._warm_up()
        if ranks is None:
            backends.record(self.runner, reader, self._rows)

    def host(self) -> HostPool | None:
        """The host's memory for what paused streams leave."""
        if not self._host_gib:
            return None
        free, block, chunk = available_memory(), self._options.block_size, self._chunk
        return host_pool(
            self.runner.pool, self.runner, block=block, chunk=chunk, gib=self._host_gib, free=free
        )

    def _warm_up(self) -> None:
        """What has to be compiled is compiled now, and not while somebody waits for tokens."""
        most = min(self._chunk, self.tokens)
        blocks = list(range(-(-most // self._options.block_size)))
        for counts in backends.shapes(most, self._rows):
            self.runner.forward([kv_sizing.trial_row(slot, count, blocks) for slot, count in enumerate(counts)])
        self.runner.pool.scrub(slice(0, most))

    def _runner(self, tokens: int) -> tuple[ModelRunner, Backend]:
        facts, block = self.facts, self._options.block_size
        pool = KvPool(
            facts.layers,
            facts.kv_heads,
            facts.head_dim,
            tokens=tokens + backends.spare_tokens(self.attention, block),
            dtype=self._model.dtype,
            device=self.device,
        )
        held = min(self._context, tokens)
        slots = self._options.max_streams
        reader = backends.make(self.attention, pool, facts, block=block, context=held, slots=slots)
        eos = frozenset(facts.eos)
        latest = self.sampler.latest
        runner = ModelRunner(self._model, pool, reader, latest, block=block, context=held, eos=eos)
        return runner, reader

    # -- the size of the cache ---------------------------------------------------------------------

    def _cache_tokens(self) -> int:
        tokens = self._options.kv_tokens or (self._left() if self._on_cuda else self._fair())
        if self._ranks is not None:
            tokens = self._ranks.least(tokens)
        return whole_blocks(tokens, self._options.block_size, self.device)

    @property
    def _bytes_per_token(self) -> int:
        return self.facts.kv_numbers_per_token * self._model.dtype.itemsize

    @property
    def _chunk(self) -> int:
        """The most tokens of a prompt that one step computes."""
        return min(step_tokens(self._options.step_tokens, self.device), self._context)

    def _left(self) -> int:
        options = self._options
        room = kv_sizing.left_on_device(
            lambda tokens: self._runner(tokens)[0],
            self.sampler,
            chunk=whole_blocks(self._chunk, options.block_size, self.device),
            rows=self._rows,
            block=options.block_size,
            fraction=options.gpu_memory_fraction,
            taken=2 * STAGED_BYTES if self._host_gib else 0,
        )
        return room // self._bytes_per_token

    def _fair(self) -> int:
        """The host's memory is for all that compute here."""
        return affordable(available_memory(), self._bytes_per_token * self._options.devices, self._context)
