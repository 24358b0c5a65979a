"""The components of an engine: model runner, attention backend, sampler, and a KV cache as large as memory
allows.

It knows the model, its facts and what was asked for; it knows no step and no stream.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any

import torch
from transformers import PreTrainedModel

from engine import api
from engine.build.budgets import affordable_tokens, decoding_rows, shortage, step_tokens, whole_blocks
from engine.build.exactness import (
    NOT_EXACT,
    device_trial_tokens,
    find_row_multiple,
    is_exact,
    least_row_multiple,
    may_be_exact,
    trial_tokens,
)
from engine.build.footprint import bytes_per_token, tokens_of_longest
from engine.forward import backends
from engine.forward.attention import NAME, AttentionBackend
from engine.forward.fused_layers import fuse
from engine.forward.kv_pool import KvPool
from engine.forward.model_runner import ModelRunner
from engine.ggml.decoder import GgmlModel
from engine.ggml.reading import NAME as IN_GRAPHS
from engine.ggml.reading import GgmlBackend
from engine.heap import trim_heap
from engine.memory import kv_sizing
from engine.memory.file_pages import let_go_of_file_pages
from engine.memory.host_pool import STAGING_BYTES, HostPool
from engine.memory.idle_memory import IdleMemory
from engine.memory.offload_trial import host_pool_if_faster
from engine.model.devices import available_memory
from engine.model.facts import describe
from engine.model.layer_groups import group_layers
from engine.model.onednn import fill_lone_rows, pack
from engine.model.preflight import ModelError
from engine.sampling.readback import SampleRequest
from engine.sampling.sampler import Sampler
from engine.schedule.block_cache import BlockCache
from engine.schedule.windows import Windows

if TYPE_CHECKING:
    from engine.parallel.ranks import RankGroup

log = logging.getLogger(__name__)


ServedModel = PreTrainedModel | GgmlModel


class Components:
    """`ranks` are the processes that share the model, where there are several."""

    def __init__(self, model: ServedModel, options: api.EngineOptions, ranks: RankGroup | None) -> None:
        self.device = str(model.device)
        self._on_cuda = model.device.type == "cuda"
        if self._on_cuda:
            torch.cuda.set_device(model.device)  # graphs and streams are made where this says
        self._model, self._options, self._ranks = model, options, ranks
        self._rows = decoding_rows(options.batch_rows, options.max_streams)
        self.facts = describe(model.config, model.generation_config)
        self.weights_bytes = sum(weight.nbytes for weight in model.parameters())
        self._may_be_exact = may_be_exact(options, self.device)
        self._prepare(model)
        if not self._on_cuda:
            _let_go_of_what_was_needed_once()
        if ranks is not None:
            from engine.model import tensor_parallel

            self.facts = tensor_parallel.rank_facts(self.facts, model.config, ranks.size)
        required = backends.Requirements(
            model.device,
            model.dtype,
            self.facts.head_dim,
            options.block_size,
            exact=self._on_cuda and self._may_be_exact,
        )
        in_graphs = isinstance(model, GgmlModel)
        self.attention_name = IN_GRAPHS if in_graphs else backends.choose(options.attention, required)
        self.sampler = Sampler(
            options.max_streams,
            self.facts.vocab,
            eos=self.facts.eos,
            rows=self._rows,
            device=model.device,
            broadcast=ranks.broadcast if ranks else None,
        )
        self._context = min(options.context or self.facts.context, self.facts.context)
        self._groups = group_layers(self.facts.windows, self._context)
        self.windows = tuple(group.window for group in self._groups)
        self._row_multiple = self._exact_row_multiple()
        # What depends on measured times would make the ranks differ.
        self._host_gib = options.host_kv_gib if self._on_cuda and ranks is None else 0.0
        self.kv_tokens = self._kv_cache_tokens()
        self.runner, backend = self._runner(self.kv_tokens)
        if self._on_cuda:
            self._warm_up()
        if ranks is None:
            backends.capture_decode(self.runner, backend, self._rows)
        if self._on_cuda and self.exact:
            self._try_on_device()

    def _prepare(self, model: ServedModel) -> None:
        if isinstance(model, GgmlModel):
            self.library, self.width, self.products = model.library, model.width, model.description
            return
        model.set_attn_implementation(NAME)
        self.library, self.width = "torch", str(model.dtype).removeprefix("torch.")
        if self._on_cuda and self._may_be_exact:
            from engine.forward.batch_invariant import make_batch_invariant  # brings Triton with it

            make_batch_invariant(model)
            self.products = "products and means by our kernels, the same for any number of rows"
        elif self._on_cuda and self._ranks is None:  # ranks hold parts of a layer
            self.products = fuse(model)
        else:
            self.products = str(pack(model))

    def host_pool(self) -> HostPool | None:
        """The host's memory for the blocks of paused streams."""
        if not self._host_gib:
            return None
        return host_pool_if_faster(
            self.runner.pool,
            self.runner,
            block_size=self._options.block_size,
            chunk=self._chunk,
            gib=self._host_gib,
            free=available_memory(),
        )

    def idle_memory(self, cache: BlockCache) -> IdleMemory | None:
        """What gives the memory of idle blocks back: the host's, that of a device is ours alone."""
        if self._on_cuda or self._ranks is not None:  # as above: they would forget prefixes at other times
            return None
        pool, idle_s = self.runner.pool, self._options.kv_idle_s
        return IdleMemory(cache, pool, idle_s, at_rest=_let_go_of_what_was_needed_once)

    @property
    def kv_bytes(self) -> int:
        """What the KV cache takes at most."""
        return self.kv_tokens * self._bytes_per_token

    @property
    def kv_growth(self) -> str:
        return "" if self._on_cuda else " at most, taken as it is used"

    def _warm_up(self) -> None:
        """What has to be compiled is compiled now, and not while somebody waits for tokens."""
        tokens = min(self._chunk, self.kv_tokens)
        blocks = list(range(-(-tokens // self._options.block_size)))
        for counts in backends.warm_up_batches(tokens, self._rows):
            rows = [
                kv_sizing.trial_row(slot, count, blocks, len(self._groups))
                for slot, count in enumerate(counts)
            ]
            logits = self.runner.forward(rows)
        self.sampler.launch(logits, [SampleRequest(row.sequence, 0) for row in rows]).read()
        for row in rows:
            self.sampler.release_slot(row.sequence)
        self.runner.pool.zero(slice(0, tokens))

    @property
    def exact(self) -> bool:
        """Whether a stream's logits are known to follow from its own tokens alone, to the bit."""
        return self._row_multiple is not None

    def _exact_row_multiple(self) -> int | None:
        if not self._may_be_exact:
            return None
        if self._on_cuda:
            return 1
        began = time.perf_counter()
        fill_lone_rows(self._model)
        multiple = find_row_multiple(
            self._trial_runner,
            self.facts.vocab,
            self._options.block_size,
            least=least_row_multiple(self._model, self._model.dtype),
            groups=len(self._groups),
        )
        tried_s = time.perf_counter() - began
        if multiple is not None:
            log.info(
                "exact, which was tried in %.2f s: rows are computed in multiples of %d", tried_s, multiple
            )
        elif self._options.exact == "on":
            raise ModelError(NOT_EXACT + ": --exact auto serves it all the same")
        else:
            log.warning("%s", NOT_EXACT)
        return multiple

    def _try_on_device(self) -> None:
        from engine.forward.batch_invariant import BatchInvariant

        began, block_size, groups = time.perf_counter(), self._options.block_size, len(self._groups)
        tokens = device_trial_tokens(block_size, self.kv_tokens, self._chunk)
        with BatchInvariant():
            least = least_row_multiple(self._model, self._model.dtype, self.device)
        passes = least == 1 and is_exact(
            self.runner, self.facts.vocab, block_size, groups=groups, tokens=tokens
        )
        if not passes:
            raise ModelError(NOT_EXACT + ": --exact off serves it all the same")
        self.runner.pool.zero(slice(0, groups * trial_tokens(block_size, tokens)))
        log.info("exact, which was tried in %.2f s on %d tokens", time.perf_counter() - began, tokens)

    def _trial_runner(self, row_multiple: int) -> ModelRunner:
        self._row_multiple = row_multiple
        return self._runner(trial_tokens(self._options.block_size))[0]

    def _runner(self, tokens: int) -> tuple[ModelRunner, AttentionBackend]:
        """With a cache of so many tokens."""
        facts, block_size = self.facts, self._options.block_size
        tokens *= len(self._groups)
        pool = KvPool(
            facts.layers,
            facts.kv_heads,
            facts.head_dim,
            tokens=tokens + backends.padding_tokens(self.attention_name, block_size),
            dtype=self._model.dtype,
            device=self.device,
            groups=self._groups,
        )
        context = min(self._context, self._kept.longest(tokens // block_size))
        slots = max(2, self._options.max_streams)  # the trial has one beside others
        backend: Any = (
            GgmlBackend(block_size, facts.heads // facts.kv_heads)
            if self.attention_name == IN_GRAPHS
            else backends.make(
                self.attention_name,
                pool,
                facts,
                block_size=block_size,
                context=context,
                slots=slots,
                exact=self.exact,
            )
        )
        eos = frozenset(facts.eos)
        latest = self.sampler.latest_tokens
        runner = ModelRunner(
            self._model,
            pool,
            backend,
            latest,
            block_size=block_size,
            context=context,
            eos=eos,
            row_multiple=self._row_multiple or 1,
        )
        return runner, backend

    # -- the size of the cache ---------------------------------------------------------------------

    def _kv_cache_tokens(self) -> int:
        tokens = self._options.kv_tokens or (
            self._affordable_on_cuda() if self._on_cuda else self._affordable_on_cpu()
        )
        if not self._on_cuda and (short := shortage(tokens * self._bytes_per_token, available_memory())):
            log.warning("%s", short)
        if self._ranks is not None:
            tokens = self._ranks.minimum(tokens)
        return whole_blocks(tokens, self._options.block_size, self.device)

    @property
    def _bytes_per_token(self) -> int:
        return bytes_per_token(self.facts, self._groups, self._model.dtype)

    @property
    def _kept(self) -> Windows:
        chunk = step_tokens(self._options.step_tokens, self.device)
        return Windows(self.windows, self._options.block_size, chunk)

    @property
    def _chunk(self) -> int:
        """The most tokens of a prompt that one step computes."""
        return min(step_tokens(self._options.step_tokens, self.device), self._context)

    def _affordable_on_cuda(self) -> int:
        options = self._options
        left = kv_sizing.kv_bytes_on_device(
            lambda tokens: self._runner(tokens)[0],
            self.sampler,
            chunk=whole_blocks(self._chunk, options.block_size, self.device),
            rows=self._rows,
            block_size=options.block_size,
            groups=len(self._groups),
            fraction=options.gpu_memory_fraction,
            reserved=2 * STAGING_BYTES if self._host_gib else 0,
        )
        return left // self._bytes_per_token

    def _affordable_on_cpu(self) -> int:
        """The host's memory is shared by all processes that compute here."""
        longest = tokens_of_longest(self._kept, self._context)
        return affordable_tokens(available_memory(), self._bytes_per_token * self._options.devices, longest)


def _let_go_of_what_was_needed_once() -> None:
    """For a start, or a burst."""
    let_go_of_file_pages()
    trim_heap()
