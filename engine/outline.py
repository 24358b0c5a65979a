"""What models are, read from their files without their weights, in a process of its own that ends at once:
`python -m engine.outline`. Options come through stdin, and outlines go to stdout.

So the gateway can take streams for a model that is not loaded, and needs neither torch nor the knowledge of
where a model's files are.
"""

from __future__ import annotations

import sys
from pathlib import Path

from msgspec import msgpack

from engine import api, toy_model
from engine.model.preflight import ModelError, check_folder
from engine.structure.vocabulary import read_vocabulary

TOY = "toy"


def main() -> int:
    asked = msgpack.decode(sys.stdin.buffer.read(), type=list[api.EngineOptions])
    sys.stdout.buffer.write(msgpack.encode([_outline(options) for options in asked]))
    return 0


def _outline(options: api.EngineOptions) -> api.Outline | api.Failed:
    try:
        folder, vocab, context, eos = _facts(options)
    except ModelError as error:
        return api.Failed(str(error))
    most = min(context, options.context or context, options.kv_tokens or context)
    return api.Outline(str(folder), vocab, most, read_vocabulary(folder, vocab, eos) is not None)


def _facts(options: api.EngineOptions) -> tuple[Path, int, int, list[int]]:
    if options.model == TOY:
        return toy_model.FOLDER, toy_model.VOCAB, toy_model.CONTEXT, [toy_model.EOS]
    # Not before a model is wanted: transformers takes long to import.
    from transformers import AutoConfig, GenerationConfig

    from engine.model.facts import describe
    from engine.model.loading import resolve

    folder = resolve(options.model)
    check_folder(folder)
    if options.adapter:
        from engine.build.products import check_mergeable, narrow_width
        from engine.model import adapter

        check_mergeable(options, folder, narrow_width(options, folder, options.device))
        adapter.check(resolve(options.adapter))
    try:
        config = AutoConfig.from_pretrained(folder)
        has_generation = (folder / "generation_config.json").is_file()
        generation = GenerationConfig.from_pretrained(folder) if has_generation else None
    except (OSError, ValueError) as error:
        raise ModelError(f"the configuration in {folder} cannot be read: {error}") from error
    facts = describe(config, generation)
    return folder, facts.vocab, facts.context, facts.eos


if __name__ == "__main__":
    sys.exit(main())
