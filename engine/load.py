"""From options to an engine that can step: the one place where model, memory, scheduler and sampler meet."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import torch

from engine import api, toy_model
from engine.cache import BlockCache
from engine.engine import Engine
from engine.flights import Runner
from engine.model_files import ModelError
from engine.sampler import Sampler
from engine.scheduler import Scheduler
from engine.toy import CONTEXT, ToyRunner

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
    from engine import backends
    from engine.attention import NAME, Pool
    from engine.models import describe, load, resolve
    from engine.packing import pack
    from engine.runner import ModelRunner

    device = options.device if options.device != "auto" else ("cuda" if torch.cuda.is_available() else "cpu")
    folder = resolve(options.model)
    model = load(folder, dtype=options.dtype, device=device, attention=NAME)
    facts = describe(model.config, model.generation_config)
    weights = sum(weight.nbytes for weight in model.parameters())
    packed = pack(model)
    context = min(options.context or facts.context, facts.context)
    tokens = options.kv_tokens or _affordable(
        model.device, facts.kv_numbers_per_token * model.dtype.itemsize, context
    )
    tokens = _whole_blocks(tokens, options.block_size, device)
    context = min(context, tokens)
    attention = backends.choose(options.attention, model.device, model.dtype)
    layers = [(facts.kv_heads, facts.head_dim)] * facts.layers
    spare = backends.spare_tokens(attention, options.block_size)
    pool = Pool(layers, tokens + spare, model.dtype, str(model.device))
    sampler = Sampler(options.max_streams, facts.vocab, eos=facts.eos, device=model.device)
    reader = backends.make(
        attention, pool, facts, block=options.block_size, context=context, slots=options.max_streams
    )
    runner = ModelRunner(
        model,
        pool,
        reader,
        sampler.latest,
        block=options.block_size,
        context=context,
        eos=frozenset(facts.eos),
    )
    backends.record(runner, reader, options.batch_rows)
    hello = api.Hello(
        model=Path(options.model).name,
        folder=str(folder),
        vocab=facts.vocab,
        context=runner.context,
        eos=facts.eos,
        kv_tokens=tokens,
        block=options.block_size,
        device=str(model.device),
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
    return _assemble(options, runner, sampler, hello), hello


def _assemble(options: api.EngineOptions, runner: Runner, sampler: Sampler, hello: api.Hello) -> Engine:
    kind = torch.device(hello.device).type
    step_tokens = options.step_tokens or STEP_TOKENS[kind]
    cache = BlockCache(hello.kv_tokens // hello.block, hello.block)
    scheduler = Scheduler(
        cache,
        step_tokens=max(2, step_tokens),
        batch_rows=max(2, min(options.batch_rows, step_tokens)),
        tenant_prefill=max(hello.context, 4 * step_tokens),
    )
    return Engine(runner, sampler, cache, scheduler, slots=options.max_streams, overlap=kind == "cuda")


def _whole_blocks(tokens: int, block: int, device: str) -> int:
    if tokens < 2 * block:
        raise ModelError(f"there is not enough memory on {device} for the keys and values of one sequence")
    return tokens // block * block


def _affordable(device: torch.device, bytes_per_token: int, context: int) -> int:
    """As many tokens as a fair share of the free memory holds."""
    if device.type == "cuda":
        free = torch.cuda.mem_get_info(device)[0]
    else:
        from engine.models import available_memory

        free = available_memory() or os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
    return min(int(free * MEMORY_SHARE) // bytes_per_token, CONTEXTS_HELD * context)
