"""Builds the draft model beside the model that is served: as narrow as its file has it, with a KV cache of
its own, and by the same runner.

What it computes changes no token, so that it need not be exact.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from engine import api
from engine.build.budgets import step_tokens, whole_blocks
from engine.build.products import ggml_width
from engine.drafts.draft_model import DraftModel
from engine.model.preflight import ModelError
from engine.schedule.block_cache import BlockCache

if TYPE_CHECKING:
    from engine.build.components import Components
    from engine.memory.idle_memory import IdleMemory

log = logging.getLogger(__name__)

CONTEXTS = 4  # streams of full length that its cache holds: beside more, drafts seldom pay
CPU = "cpu"


def check_draft_model(options: api.EngineOptions, folder: Path, device: str) -> None:
    """Raises `ModelError` where it cannot draft for the model in `folder`."""
    from engine.model.names import resolve
    from engine.model.same_vocabulary import have_same_vocabulary

    asked = f"--draft-model {options.draft_model}"
    if options.drafts == "off":
        raise ModelError(f"{asked} would draft nothing with --drafts off: auto lets it")
    if device != CPU:
        raise ModelError(
            f"{asked} cannot draft on {device}, where a step is planned before the last token is known: "
            "--device cpu lets it"
        )
    if options.devices > 1:
        raise ModelError(f"{asked} cannot draft where devices share the model: --devices 1 lets it")
    if not have_same_vocabulary(folder, resolve(options.draft_model)):
        raise ModelError(
            f"{asked} has another vocabulary than {options.model}: a model drafts for those that have its own"
        )


def of_drafts(options: api.EngineOptions) -> api.EngineOptions:
    """Those of the draft model itself, but for the size of its cache."""
    return replace(
        options,
        model=options.draft_model,
        adapter="",
        dtype="auto",
        weights="auto",
        exact="off",
        kv_tokens=0,
    )


def build_draft_model(
    options: api.EngineOptions, components: Components
) -> tuple[DraftModel, IdleMemory | None]:
    """For what `components` serve."""
    from engine.build.components import Components
    from engine.build.loading import load_by_width
    from engine.model.names import resolve

    tokens = min(components.kv_tokens, CONTEXTS * components.runner.context)
    own = replace(of_drafts(options), kv_tokens=whole_blocks(tokens, options.block_size, CPU))
    folder = resolve(own.model)
    model = load_by_width(own, folder, ggml_width(own, folder, CPU), CPU)
    made = Components(model, own, None)
    chunk = step_tokens(own.step_tokens, CPU)
    cache = BlockCache(
        len(made.windows) * made.kv_tokens // own.block_size,
        own.block_size,
        runs=made.attention_name == "sdpa",
        windows=made.windows,
        chunk=chunk,
    )
    log.info(
        "drafts by %s: %s; %d tokens of KV cache, %.2f GB%s",
        own.model,
        made.products,
        made.kv_tokens,
        made.kv_bytes / 1e9,
        made.kv_growth,
    )
    drafter = DraftModel(
        made.runner,
        cache,
        components.sampler,
        vocab=components.facts.vocab,
        known=made.facts.vocab,
        step_tokens=chunk,
    )
    return drafter, made.idle_memory(cache)
