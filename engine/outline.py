"""What models are, read from their files without their weights, in a process of its own that ends at once:
`python -m engine.outline`. Options come through stdin, and outlines go to stdout.

So the gateway can take streams for a model that is not loaded, and needs neither torch nor the knowledge of
where a model's files are.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import msgpack

from engine import api, toy_model
from engine.build.budgets import PROCESS_BYTES
from engine.model.names import resolve
from engine.model.preflight import ModelError, check_folder, one_line
from engine.structure.vocabulary import read_vocabulary

if TYPE_CHECKING:
    from engine.model.facts import ModelFacts

TOY = "toy"


def main() -> int:
    asked = msgpack.decode(sys.stdin.buffer.read(), type=list[api.EngineOptions])
    sys.stdout.buffer.write(msgpack.encode([outline_of(options) for options in asked]))
    return 0


def outline_of(options: api.EngineOptions) -> api.Outline | api.Failed:
    try:
        return _toy(options) if options.model == TOY else _of_files(options)
    except ModelError as error:
        return api.Failed(str(error))


def _toy(options: api.EngineOptions) -> api.Outline:
    facts = toy_model.FOLDER, toy_model.VOCAB, toy_model.CONTEXT, [toy_model.EOS]
    return _told(options, *facts, memory_bytes=PROCESS_BYTES)


def _of_files(options: api.EngineOptions) -> api.Outline:
    folder = resolve(options.model)
    # Not before there is a model: torch and transformers take long to import.
    from engine.build.footprint import least_bytes
    from engine.model.devices import GIB

    facts = _facts(folder)
    if options.adapter:
        from engine.build.products import check_mergeable, ggml_width
        from engine.model import adapter

        ggml_width(options, folder, options.device)
        check_mergeable(options, folder)
        adapter.check(resolve(options.adapter))
    taken = options.devices * PROCESS_BYTES
    if options.device.startswith("cuda"):  # weights and cache lie in memory of its own
        taken += int(options.host_kv_gib * GIB) if options.devices == 1 else 0
    else:
        taken += least_bytes(options, folder, facts)
        if options.draft_model:
            from engine.build.draft_model import of_drafts

            drafts = resolve(options.draft_model)
            taken += least_bytes(of_drafts(options), drafts, _facts(drafts))
    return _told(options, folder, facts.vocab, facts.context, facts.eos, memory_bytes=taken)


def _told(
    options: api.EngineOptions, folder: Path, vocab: int, context: int, eos: list[int], *, memory_bytes: int
) -> api.Outline:
    most = min(context, options.context or context, options.kv_tokens or context)
    grammars = read_vocabulary(folder, vocab, eos) is not None
    return api.Outline(str(folder), vocab, most, grammars, memory_bytes)


def _facts(folder: Path) -> ModelFacts:
    from transformers import AutoConfig, GenerationConfig

    from engine.model.facts import describe

    check_folder(folder)
    try:
        config = AutoConfig.from_pretrained(folder)
        has_generation = (folder / "generation_config.json").is_file()
        generation = GenerationConfig.from_pretrained(folder) if has_generation else None
        return describe(config, generation)
    except Exception as error:  # a broken file may make transformers raise anything
        raise ModelError(f"the configuration in {folder} cannot be read: {one_line(error)}") from error


if __name__ == "__main__":
    sys.exit(main())
