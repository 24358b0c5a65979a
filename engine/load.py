"""From options to an engine that can step: the one place where model, memory, scheduler and sampler meet."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from engine import api, memory, toy_model
from engine.cache import BlockCache
from engine.engine import Engine
from engine.flights import Runner
from engine.model_files import ModelError
from engine.sampler import Sampler
from engine.scheduler import Scheduler
from engine.toy import CONTEXT, ToyRunner

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from engine.attention import Backend
    from engine.runner import ModelRunner

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
    from engine.attention import NAME
    from engine.models import load, resolve

    device = options.device if options.device != "auto" else ("cuda" if torch.cuda.is_available() else "cpu")
    folder = resolve(options.model)
    model = load(folder, dtype=options.dtype, device=device, attention=NAME)
    return around(model, folder, options)


def around(model: PreTrainedModel, folder: Path, options: api.EngineOptions) -> tuple[Engine, api.Hello]:
    """An engine around a model that is loaded, whose tokenizer lies in `folder`."""
    from engine import backends
    from engine.attention import NAME, Pool
    from engine.models import describe
    from engine.packing import pack
    from engine.runner import ModelRunner

    model.set_attn_implementation(NAME)
    device = str(model.device)
    if model.device.type == "cuda":
        torch.cuda.set_device(model.device)  # graphs and streams are made where this says
    facts = describe(model.config, model.generation_config)
    weights = sum(weight.nbytes for weight in model.parameters())
    packed = pack(model)
    attention = backends.choose(options.attention, model.device, model.dtype)
    sampler = Sampler(options.max_streams, facts.vocab, eos=facts.eos, device=model.device)
    context = min(options.context or facts.context, facts.context)

    def runner_with(tokens: int) -> tuple[ModelRunner, Backend]:
        spare = backends.spare_tokens(attention, options.block_size)
        layers = [(facts.kv_heads, facts.head_dim)] * facts.layers
        pool = Pool(layers, tokens + spare, model.dtype, str(model.device))
        held = min(context, tokens)
        reader = backends.make(
            attention, pool, facts, block=options.block_size, context=held, slots=options.max_streams
        )
        eos = frozenset(facts.eos)
        runner = ModelRunner(
            model, pool, reader, sampler.latest, block=options.block_size, context=held, eos=eos
        )
        return runner, reader

    tokens = options.kv_tokens
    if not tokens and model.device.type == "cuda":
        room = _beside(options, lambda tokens: runner_with(tokens)[0], sampler, context)
        tokens = room // (facts.kv_numbers_per_token * model.dtype.itemsize)
    elif not tokens:
        tokens = _affordable(facts.kv_numbers_per_token * model.dtype.itemsize, context)
    tokens = _whole_blocks(tokens, options.block_size, device)
    runner, reader = runner_with(tokens)
    backends.record(runner, reader, options.batch_rows)
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


def _affordable(bytes_per_token: int, context: int) -> int:
    """As many tokens as a fair share of the free memory holds."""
    from engine.models import available_memory

    free = available_memory() or os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
    return min(int(free * MEMORY_SHARE) // bytes_per_token, CONTEXTS_HELD * context)


def _beside(
    options: api.EngineOptions, runner_with: Callable[[int], Runner], sampler: Sampler, context: int
) -> int:
    """Bytes of a CUDA device that are left beside the weights and the largest steps."""
    block = options.block_size
    chunk = _whole_blocks(min(options.step_tokens or STEP_TOKENS["cuda"], context), block, "cuda")
    trial = runner_with(chunk)
    step = memory.step_bytes(
        trial, sampler, chunk=chunk, rows=options.batch_rows, block=block, meter=memory.cuda_meter
    )
    del trial
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info()
    left = memory.kv_bytes(memory.Device(total, free), step, options.gpu_memory_fraction)
    log.info(
        "of %.1f GiB, %.1f are free beside the weights, steps take up to %.1f, and %.1f are for the KV cache",
        *(number / 2**30 for number in (total, free, step, left)),
    )
    return left
