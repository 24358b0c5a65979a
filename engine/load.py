"""From options to an engine that can step: the one place where model, memory, scheduler and sampler meet."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from engine import api, toy_model
from engine.engine import Engine
from engine.flights import Runner
from engine.forward.toy import CONTEXT, ToyRunner
from engine.memory import sizing
from engine.model.files import ModelError
from engine.sampling.sampler import Sampler
from engine.schedule.cache import BlockCache
from engine.schedule.host_cache import HostCache
from engine.schedule.scheduler import Scheduler

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from engine.forward.attention import Backend
    from engine.forward.runner import ModelRunner
    from engine.memory.host_pool import HostPool

log = logging.getLogger(__name__)

TOY = "toy"
STEP_TOKENS = {"cpu": 128, "cuda": 2048}
MEMORY_SHARE = 0.25  # of what is free behind the weights, for the KV cache
CONTEXTS_HELD = 16  # and no more than so many sequences of full length


def build(options: api.EngineOptions) -> tuple[Engine, api.Hello]:
    """An engine and what it serves; raises `ModelError` with a sentence for whoever runs it."""
    if options.threads:
        torch.set_num_threads(options.threads)
    if options.model == TOY:
        return _toy(options)
    return _model(options)


def _toy(options: api.EngineOptions) -> tuple[Engine, api.Hello]:
    context = min(options.context or CONTEXT, CONTEXT)
    tokens = _whole_blocks(options.kv_tokens or CONTEXTS_HELD * context, options.block_size, "cpu")
    context = min(context, tokens)
    sampler = Sampler(options.max_streams, toy_model.VOCAB, eos=[toy_model.EOS])
    runner = ToyRunner(tokens=tokens, block=options.block_size, context=context, step_ms=options.toy_step_ms)
    hello = api.Hello(
        model=TOY,
        folder=str(toy_model.FOLDER),
        vocab=toy_model.VOCAB,
        context=context,
        eos=[toy_model.EOS],
        kv_tokens=tokens,
        block=options.block_size,
        device="cpu",
        dtype="none",
        attention="none",
    )
    return _assemble(options, runner, sampler, hello), hello


def _model(options: api.EngineOptions) -> tuple[Engine, api.Hello]:
    # Not before a model is wanted: transformers takes longer to import than the toy to start.
    from engine.forward.attention import NAME
    from engine.model.loading import load, resolve

    device = options.device if options.device != "auto" else ("cuda" if torch.cuda.is_available() else "cpu")
    folder = resolve(options.model)
    model = load(folder, dtype=options.dtype, device=device, attention=NAME)
    return around(model, folder, options)


def around(model: PreTrainedModel, folder: Path, options: api.EngineOptions) -> tuple[Engine, api.Hello]:
    """An engine around a model that is loaded, whose tokenizer lies in `folder`."""
    from engine.forward import backends
    from engine.forward.attention import NAME, Pool
    from engine.forward.runner import ModelRunner
    from engine.memory.host_pool import STAGED_BYTES
    from engine.memory.offload import host_pool
    from engine.model.loading import available_memory, describe
    from engine.model.packing import pack

    model.set_attn_implementation(NAME)
    device = str(model.device)
    if model.device.type == "cuda":
        torch.cuda.set_device(model.device)  # graphs and streams are made where this says
    facts = describe(model.config, model.generation_config)
    weights = sum(weight.nbytes for weight in model.parameters())
    packed = pack(model)
    need = backends.Need(model.device, model.dtype, facts.head_dim, options.block_size)
    attention = backends.choose(options.attention, need)
    sampler = Sampler(options.max_streams, facts.vocab, eos=facts.eos, device=model.device)
    context = min(options.context or facts.context, facts.context)

    def runner_with(tokens: int) -> tuple[ModelRunner, Backend]:
        spare = backends.spare_tokens(attention, options.block_size)
        pool = Pool(
            facts.layers,
            facts.kv_heads,
            facts.head_dim,
            tokens=tokens + spare,
            dtype=model.dtype,
            device=device,
        )
        held = min(context, tokens)
        reader = backends.make(
            attention, pool, facts, block=options.block_size, context=held, slots=options.max_streams
        )
        eos = frozenset(facts.eos)
        runner = ModelRunner(
            model, pool, reader, sampler.latest, block=options.block_size, context=held, eos=eos
        )
        return runner, reader

    on_device = model.device.type == "cuda"
    wanted_gib = options.host_kv_gib if on_device else 0.0
    tokens = options.kv_tokens
    if not tokens and on_device:
        room = sizing.left_on_device(
            lambda tokens: runner_with(tokens)[0],
            sampler,
            chunk=_whole_blocks(min(_step_tokens(options, device), context), options.block_size, device),
            rows=options.batch_rows,
            block=options.block_size,
            fraction=options.gpu_memory_fraction,
            taken=2 * STAGED_BYTES if wanted_gib else 0,
        )
        tokens = room // (facts.kv_numbers_per_token * model.dtype.itemsize)
    elif not tokens:
        tokens = _affordable(facts.kv_numbers_per_token * model.dtype.itemsize, context)
    tokens = _whole_blocks(tokens, options.block_size, device)
    runner, reader = runner_with(tokens)
    backends.record(runner, reader, options.batch_rows)
    host = None
    if wanted_gib:
        free = available_memory()
        host = host_pool(runner.pool, runner, block=options.block_size, gib=wanted_gib, free=free)
    hello = api.Hello(
        model=Path(options.model).name,
        folder=str(folder),
        vocab=facts.vocab,
        context=runner.context,
        eos=facts.eos,
        kv_tokens=tokens,
        block=options.block_size,
        device=device,
        dtype=str(model.dtype).removeprefix("torch."),
        attention=attention,
        weights_bytes=weights,
    )
    log.info(
        "%s on %s in %s: attention by %s; %s; %d tokens of KV cache",
        hello.model,
        hello.device,
        hello.dtype,
        attention,
        packed,
        tokens,
    )
    return _assemble(options, runner, sampler, hello, host), hello


def _assemble(
    options: api.EngineOptions,
    runner: Runner,
    sampler: Sampler,
    hello: api.Hello,
    host: HostPool | None = None,
) -> Engine:
    step_tokens = _step_tokens(options, hello.device)
    cache = BlockCache(hello.kv_tokens // hello.block, hello.block)
    scheduler = Scheduler(
        cache,
        step_tokens=max(2, step_tokens),
        batch_rows=max(2, min(options.batch_rows, step_tokens)),
        tenant_prefill=max(hello.context, 4 * step_tokens),
        host=HostCache(host.total if host else 0),
    )
    return Engine(
        runner,
        sampler,
        cache,
        scheduler,
        slots=options.max_streams,
        overlap=hello.device.startswith("cuda"),
        mover=host,
    )


def _step_tokens(options: api.EngineOptions, device: str) -> int:
    return options.step_tokens or STEP_TOKENS[torch.device(device).type]


def _whole_blocks(tokens: int, block: int, device: str) -> int:
    if tokens < 2 * block:
        raise ModelError(f"there is not enough memory on {device} for the keys and values of one sequence")
    return tokens // block * block


def _affordable(bytes_per_token: int, context: int) -> int:
    """As many tokens as a fair share of the free memory holds."""
    from engine.model.loading import available_memory

    free = available_memory() or os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
    return min(int(free * MEMORY_SHARE) // bytes_per_token, CONTEXTS_HELD * context)
