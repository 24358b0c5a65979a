"""Builds an engine from its options: the one place where model, memory, scheduler and sampler meet."""

from __future__ import annotations

import logging
from collections.abc import Sequence as Several
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from engine import api, toy_model
from engine.build.budgets import MAX_CONTEXTS, check_kv_tokens, decoding_rows, step_tokens, whole_blocks
from engine.build.fingerprint import fingerprint
from engine.build.products import check_mergeable, ggml_width
from engine.drafts.interface import Drafter
from engine.drafts.lookup import Lookup
from engine.engine import Engine
from engine.forward.interface import Runner
from engine.forward.toy_runner import ToyRunner
from engine.heap import trim_heap
from engine.model.devices import lacks_memory
from engine.model.preflight import ModelError
from engine.sampling.sampler import Sampler
from engine.schedule.block_cache import BlockCache
from engine.schedule.host_cache import HostCache
from engine.schedule.scheduler import Scheduler
from engine.step.drafting import Drafting
from engine.step.matcher_threads import MatcherThreads
from engine.step.step_times import StepTimes
from engine.structure.vocabulary import Vocabulary, read_vocabulary

if TYPE_CHECKING:
    from collections.abc import Callable

    from engine.build.components import ServedModel
    from engine.memory.host_pool import HostPool
    from engine.memory.idle_memory import IdleMemory
    from engine.parallel.ranks import RankGroup

    JoinRanks = Callable[[Path, str], RankGroup]

log = logging.getLogger(__name__)

TOY = "toy"


def build(options: api.EngineOptions, join: JoinRanks | None = None) -> tuple[Engine, api.Hello]:
    """An engine and what it serves; raises `ModelError` with a sentence for whoever runs it.

    `join` makes this process one of those that share the model of a folder, on devices of one kind.
    """
    if options.threads:
        torch.set_num_threads(options.threads)
    check_kv_tokens(options.kv_tokens, options.block_size)
    try:
        return _build_toy(options) if options.model == TOY else _build_model(options, join)
    except Exception as error:
        if isinstance(error, ModelError) or not lacks_memory(error):
            raise
        raise ModelError("there is not enough memory for this model and its KV cache") from error


def _build_toy(options: api.EngineOptions) -> tuple[Engine, api.Hello]:
    if options.adapter:
        raise ModelError("the toy has no weights for an adapter to change")
    if options.draft_model:
        raise ModelError(f"the toy has no vocabulary of a model: --draft-model {options.draft_model} has")
    if options.devices > 1:
        raise ModelError(f"the toy has no weights to share among {options.devices} devices: --devices 1 does")
    context = min(options.context or toy_model.CONTEXT, toy_model.CONTEXT)
    tokens = whole_blocks(options.kv_tokens or MAX_CONTEXTS * context, options.block_size, "cpu")
    context = min(context, tokens)
    rows = decoding_rows(options.batch_rows, options.max_streams)
    sampler = Sampler(options.max_streams, toy_model.VOCAB, eos=[toy_model.EOS], rows=rows)
    runner = ToyRunner(
        tokens=tokens, block_size=options.block_size, context=context, step_ms=options.toy_step_ms
    )
    hello = api.Hello(
        model=options.name or TOY,
        folder=str(toy_model.FOLDER),
        vocab=toy_model.VOCAB,
        context=context,
        eos=[toy_model.EOS],
        kv_tokens=tokens,
        block=options.block_size,
        device="cpu",
        dtype="none",
        attention="none",
        grammars=True,
        fingerprint=fingerprint(
            weights=TOY,
            folder=toy_model.FOLDER,
            eos=[toy_model.EOS],
            device="cpu",
            dtype="none",
            attention="none",
            exact=options.exact != "off",
        ),
        exact=options.exact != "off",
    )
    vocabulary = read_vocabulary(toy_model.FOLDER, toy_model.VOCAB, [toy_model.EOS])
    cache = BlockCache(tokens // options.block_size, options.block_size, runs=False)
    return _assemble(options, runner, sampler, hello, cache, vocabulary, [Lookup()]), hello


def _build_model(options: api.EngineOptions, join: JoinRanks | None) -> tuple[Engine, api.Hello]:
    # Not before a model is wanted: transformers takes longer to import than the toy to start.
    from engine.build.draft_model import check_draft_model
    from engine.build.loading import load_by_width
    from engine.model.names import resolve

    device = options.device if options.device != "auto" else ("cuda" if torch.cuda.is_available() else "cpu")
    folder = resolve(options.model)
    width = ggml_width(options, folder, device)
    if options.adapter:
        check_mergeable(options, folder)
    if options.draft_model:
        check_draft_model(options, folder, device)
    ranks = _join_ranks(join, folder, device, options.devices)
    place = ranks.device if ranks else device
    return build_around(load_by_width(options, folder, width, place), folder, options, ranks)


def _join_ranks(join: JoinRanks | None, folder: Path, device: str, devices: int) -> RankGroup | None:
    """The processes that share the model, once it is known that it can be shared."""
    if devices == 1:
        return None
    if join is None:
        raise ModelError(f"--devices {devices} needs an engine in a process of its own: --engine process")
    from engine.model import tensor_parallel

    tensor_parallel.check(folder, device, devices)
    return join(folder, device)


def build_around(
    model: ServedModel, folder: Path, options: api.EngineOptions, ranks: RankGroup | None = None
) -> tuple[Engine, api.Hello]:
    """An engine for a model that is loaded, whose tokenizer lies in `folder`."""
    from engine.build.components import Components
    from engine.build.draft_model import build_draft_model
    from engine.model.weights_digest import weights_digest

    weights = weights_digest(model)
    components = Components(model, options, ranks)
    vocabulary = read_vocabulary(folder, components.facts.vocab, components.facts.eos)
    trim_heap()  # of what reading it took
    dtype = str(model.dtype).removeprefix("torch.")
    hello = api.Hello(
        model=options.name or Path(options.model).name,
        folder=str(folder),
        vocab=components.facts.vocab,
        context=components.runner.context,
        eos=components.facts.eos,
        kv_tokens=components.kv_tokens,
        block=options.block_size,
        device=components.device,
        dtype=dtype,
        attention=components.attention_name,
        weights_bytes=components.weights_bytes,
        grammars=vocabulary is not None,
        fingerprint=fingerprint(
            weights=weights,
            folder=folder,
            eos=components.facts.eos,
            device=components.device,
            dtype=dtype,
            attention=components.attention_name,
            exact=components.exact,
            devices=options.devices,
            products=components.library,
        ),
        exact=components.exact,
        weights=components.width,
        products=components.library.partition(" ")[0],
    )
    log.info(
        "%s on %s in %s: %s; attention by %s; %s; %d tokens of KV cache, %.2f GB%s",
        hello.model,
        hello.device if ranks is None else f"{ranks.size} devices",
        hello.dtype,
        hello.fingerprint,
        hello.attention,
        components.products,
        hello.kv_tokens,
        components.kv_bytes / 1e9,
        components.kv_growth,
    )
    cache = BlockCache(
        len(components.windows) * hello.kv_tokens // hello.block,
        hello.block,
        runs=hello.attention == "sdpa",
        windows=components.windows,
        chunk=step_tokens(options.step_tokens, hello.device),
    )
    drafters: list[Drafter] = [Lookup()]
    idle_memory = [components.idle_memory(cache)]
    if options.draft_model:
        draft_model, own_idle_memory = build_draft_model(options, components)
        drafters.append(draft_model)
        idle_memory.insert(0, own_idle_memory)
    engine = _assemble(
        options,
        components.runner,
        components.sampler,
        hello,
        cache,
        vocabulary,
        drafters,
        components.host_pool(),
        ranks,
        list(filter(None, idle_memory)),
    )
    return engine, hello


def _assemble(
    options: api.EngineOptions,
    runner: Runner,
    sampler: Sampler,
    hello: api.Hello,
    cache: BlockCache,
    vocabulary: Vocabulary | None,
    drafters: Several[Drafter],
    host_pool: HostPool | None = None,
    ranks: RankGroup | None = None,
    idle_memory: Several[IdleMemory] = (),
) -> Engine:
    budget = step_tokens(options.step_tokens, hello.device)
    times = StepTimes(budget) if ranks is None else None  # what hangs on them would make ranks differ
    scheduler = Scheduler(
        cache,
        step_tokens=budget,
        batch_rows=max(2, min(options.batch_rows, budget)),
        tenant_prefill=max(hello.context, 4 * budget),
        host_cache=HostCache(host_pool.total_blocks if host_pool else 0),
        prompt_tokens=times.prompt_tokens if times else None,
        most_rows=times.rows.most_of if times else None,
    )
    overlap = hello.device.startswith("cuda")
    # Where steps overlap the last token is not known when the next is planned.
    drafts = options.drafts != "off" and not overlap
    return Engine(
        runner,
        sampler,
        cache,
        scheduler,
        slots=options.max_streams,
        overlap=overlap,
        copier=host_pool,
        commands=ranks.commands if ranks else None,
        make_lookout=ranks.make_lookout if ranks else MatcherThreads,
        retry=ranks is None,
        idle_memory=idle_memory,
        vocabulary=vocabulary,
        drafting=Drafting(scheduler, drafters, times.decode) if drafts and times else None,
        times=times,
    )
