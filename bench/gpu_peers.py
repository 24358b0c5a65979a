"""transformers beside the engine, on the same model in the same run: `generate_batch` as fast as it gets, and
`generate` and the sampler on the CPU as the judges of what is said."""

from __future__ import annotations

import contextlib
import gc
import itertools
import logging
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers import PreTrainedModel
from transformers.generation.configuration_utils import ContinuousBatchingConfig, GenerationConfig

from engine import api
from engine.sampling.sampler import Sampler
from engine.schedule.sequence import Sequence

log = logging.getLogger(__name__)

ATTENTION = ("flash_attention_2", "sdpa")


@dataclass(frozen=True)
class Way:
    """A configuration of `generate_batch`: one that was found, or how much of the machine any may take."""

    attention: str = "sdpa"
    graphs: bool = False
    room: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.attention}{', graphs' if self.graphs else ''}"


def fastest(model: Any, prompts: list[list[int]], tokens: int, room: dict[str, Any]) -> Way | None:
    """The best of those that run here; None if none does."""
    graphs = (True, False) if model.device.type == "cuda" else (False,)
    found: list[tuple[float, Way]] = []
    for attention, graph in itertools.product(ATTENTION, graphs):
        way = Way(attention, graph, room)
        try:
            found.append((batch_rate(model, prompts, tokens, way), way))
        except Exception as error:  # noqa: BLE001 - a kernel that is not installed, or does not know the model
            log.warning("generate_batch does not run by %s: %s", way, str(error).splitlines()[:1])
    return max(found, key=lambda entry: entry[0])[1] if found else None


def batch_rate(model: Any, prompts: list[list[int]], tokens: int, way: Way) -> float:
    """Tokens a second, from when everybody has the first one to when the first has the last: all decode."""
    model.set_attn_implementation(way.attention)
    try:
        done = model.generate_batch(
            prompts,
            generation_config=GenerationConfig(  # type: ignore[no-untyped-call]
                max_new_tokens=tokens, do_sample=False, eos_token_id=-1
            ),
            continuous_batching_config=ContinuousBatchingConfig(use_cuda_graph=way.graphs, **way.room),
            record_timestamps=True,
            progress_bar=False,
        )
    finally:
        release(model.device)
    return decode_rate([output.timestamps for output in done.values()])


def decode_rate(stamps: list[list[float]]) -> float:
    since, until = max(times[0] for times in stamps), min(times[-1] for times in stamps)
    return sum(since < at <= until for times in stamps for at in times) / (until - since)


def release(device: torch.device) -> None:
    gc.collect()
    if device.type == "cuda":
        with contextlib.suppress(RuntimeError):
            torch.cuda.empty_cache()


@torch.inference_mode()
def greedy(model: PreTrainedModel, prompt: list[int], tokens: int) -> list[int]:
    """What plain forwards over everything say."""
    model.set_attn_implementation("sdpa")
    known = list(prompt)
    for _ in range(tokens):
        row = torch.tensor([known], device=model.device)
        known.append(int(model(row, logits_to_keep=1, use_cache=False).logits[0, -1].argmax()))
    return known[len(prompt) :]


def draws_agree(device: torch.device, vocab: int, rows: int) -> float:
    """The share of seeded draws that are the CPU's, from equal logits."""
    logits = torch.randn(rows, vocab, generator=torch.Generator().manual_seed(1)) * 4
    asked = [
        api.Sampling(temperature=0.5 + row % 3, seed=row, top_p=0.9 if row % 2 else 1.0, top_k=40 * (row % 4))
        for row in range(rows)
    ]
    chosen = []
    for place in (torch.device("cpu"), device):
        sampler = Sampler(rows, vocab, eos=[], device=place)
        sequences = [Sequence(row, [1], asked[row], credit=9, context=99) for row in range(rows)]
        for row, sequence in enumerate(sequences):
            sequence.slot = row
            sampler.adopt(sequence)
        chosen.append([choice.token for choice in sampler.sample(logits.to(place), sequences)])
    equal: int = sum(a == b for a, b in zip(*chosen, strict=True))
    return equal / rows
