"""Perplexity: what it costs in quality that weights are narrow, on a text that lies in the repository.

Windows of the text are read from their first token on; how surprised the model was by each is counted from
the `WARM`-th on. The same tokens for every width, through the runner. `python -m bench.perplexity
MODEL` measures another model than the default one.
"""

from __future__ import annotations

import math
import sys
from pathlib import Path

import torch
from tokenizers import Tokenizer

from bench.result_tables import Figure
from engine import api
from engine.build.build import build
from engine.forward.interface import Runner
from engine.model.default_model import DEFAULT_MODEL
from engine.schedule.batch import Row
from engine.schedule.sequence import Sequence

TEXT = Path(__file__).parents[1] / "docs"
WINDOWS, TOKENS, WARM = 16, 256, 32
WIDTHS = ("f32", "bf16", "q8", "q4")


def windows(folder: Path) -> list[list[int]]:
    """Evenly spaced pieces of the documents."""
    text = "\n\n".join(file.read_text() for file in sorted(TEXT.glob("*.md")))
    ids = Tokenizer.from_file(str(folder / "tokenizer.json")).encode(text).ids
    pitch = (len(ids) - TOKENS) // WINDOWS
    return [ids[at * pitch : at * pitch + TOKENS] for at in range(WINDOWS)]


def perplexity(runner: Runner, texts: list[list[int]], block_size: int) -> float:
    blocks = -(-TOKENS // block_size)
    sequences = []
    for slot, tokens in enumerate(texts):
        sequence = Sequence(slot, tokens, api.Sampling(), credit=1, context=TOKENS + 1)
        sequence.slot, sequence.blocks = slot, list(range(slot * blocks, (slot + 1) * blocks))
        sequences.append(sequence)
    surprises = []
    for start, count in [(0, WARM), *((at, 1) for at in range(WARM, TOKENS - 1))]:
        logits = runner.forward(
            [Row(sequence, start, count, True, sequence.sampling) for sequence in sequences]
        )
        following = torch.tensor([sequence.tokens[start + count] for sequence in sequences])
        told = torch.log_softmax(logits.double(), -1)
        surprises.append(-told.gather(1, following[:, None]).mean())
    return math.exp(float(torch.stack(surprises).mean()))


def measure(model: str = DEFAULT_MODEL) -> list[Figure]:
    figures: list[Figure] = []
    for width in WIDTHS:
        tokens = WINDOWS * (TOKENS + 16)
        options = api.EngineOptions(model=model, device="cpu", weights=width, kv_tokens=tokens, exact="off")
        engine, hello = build(options)
        found = perplexity(engine.runner, windows(Path(hello.folder)), hello.block)
        wide = figures[0].value if figures else None
        ratio = None if wide is None else found / wide
        figures.append(Figure(f"perplexity, {width} ({hello.weights})", found, "", "", ratio, "f32"))
        figures.append(Figure(f"weights, {width}", hello.weights_bytes / 1e6, "MB"))
    return figures


if __name__ == "__main__":
    from bench.__main__ import report

    sys.exit(report(measure(*sys.argv[1:2])))
