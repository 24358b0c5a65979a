"""The GPU benchmark's peers: transformers' `generate_batch` as fast as it gets, on the same model in the same
run; and `generate` and the sampler on the CPU, by which the engine's tokens are judged.

`generate_batch` runs in a process of its own, `python -m bench.gpu_peers PLAN MODEL ROWS...`, which prints a
line of JSON for each rate: what fails while a graph is recorded leaves torch's memory in disorder.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import subprocess
import sys
from collections.abc import Iterator
from collections.abc import Sequence as Some
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from msgspec import Struct, json
from transformers import PreTrainedModel
from transformers.generation.configuration_utils import ContinuousBatchingConfig, GenerationConfig

from bench.gpu_sizes import PLANS, Plan
from bench.random_models import random_model
from engine import api
from engine.sampling.sampler import Sampler
from engine.schedule.sequence import Sequence

log = logging.getLogger(__name__)

ATTENTION = ("flash_attention_2", "sdpa")
TRIAL_TOKENS = 16
TIMEOUT_S = 300


class Rate(Struct, frozen=True):
    """Of so many rows; `config` says how."""

    rows: int
    tokens_per_s: float
    config: str


@dataclass(frozen=True)
class BatchConfig:
    """A configuration of `generate_batch`: one that was found, or how much of the machine any may take."""

    attention: str = "sdpa"
    graphs: bool = False
    room: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.attention}{', graphs' if self.graphs else ''}"


def measure(plan: Plan, model: str, batches: tuple[int, ...]) -> dict[int, Rate]:
    """The best rates of `generate_batch`, those that there are, by the number of rows."""
    command = [sys.executable, "-m", "bench.gpu_peers", plan.name, model, *map(str, batches)]
    folder = Path(__file__).parent.parent
    try:
        done = subprocess.run(command, cwd=folder, stdout=subprocess.PIPE, timeout=TIMEOUT_S, check=False)
        lines, ended = done.stdout, f"with {done.returncode}" if done.returncode else ""
    except subprocess.TimeoutExpired as late:
        lines, ended = late.stdout or b"", f"because {TIMEOUT_S} s were over"
    if ended:
        log.warning("generate_batch of %s was ended %s", model, ended)
    return best(json.decode(line, type=Rate) for line in lines.splitlines())


def best(rates: Iterator[Rate]) -> dict[int, Rate]:
    found: dict[int, Rate] = {}
    for rate in rates:
        if rate.rows not in found or rate.tokens_per_s > found[rate.rows].tokens_per_s:
            found[rate.rows] = rate
    return found


def main(arguments: Some[str]) -> None:
    plan, name, batches = PLANS[arguments[0]], arguments[1], [int(rows) for rows in arguments[2:]]
    out = sys.stdout
    with contextlib.redirect_stdout(sys.stderr):  # whatever else is printed
        for rate in rates(random_model(name, plan.device, plan.dtype), plan, batches):
            print(json.encode(rate).decode(), file=out, flush=True)


def rates(model: PreTrainedModel, plan: Plan, batches: Some[int]) -> Iterator[Rate]:
    """For each batch; once more with graphs, behind everything else, where they are quicker."""
    vocab = model.config.vocab_size
    prompts = [
        [(31 * at + 7919 * row) % (vocab - 2) + 2 for at in range(plan.context)]
        for row in range(max(batches))
    ]
    trial, quickest = prompts[: batches[min(1, len(batches) - 1)]], 0.0
    for graphs in (False, True) if model.device.type == "cuda" else (False,):
        configs = [BatchConfig(attention, graphs, plan.peer_room) for attention in ATTENTION]
        tried = [(rate, config) for config in configs if (rate := _tried(model, trial, TRIAL_TOKENS, config))]
        most, config = max(tried, key=lambda entry: entry[0], default=(0.0, BatchConfig()))
        if most > quickest:
            quickest = most
            for rows in batches:
                if rate := _tried(model, prompts[:rows], plan.peer_tokens, config):
                    yield Rate(rows, rate, str(config))


def _tried(model: Any, prompts: list[list[int]], tokens: int, config: BatchConfig) -> float | None:
    try:
        return batch_rate(model, prompts, tokens, config)
    except Exception as error:  # noqa: BLE001 - a kernel that is not installed, or does not know the model
        log.warning("generate_batch does not run by %s: %s", config, str(error).splitlines()[:1])
        return None


def batch_rate(model: Any, prompts: list[list[int]], tokens: int, config: BatchConfig) -> float:
    """Tokens a second, from when everybody has the first one to when the first has the last: all decode."""
    model.set_attn_implementation(config.attention)
    try:
        done = model.generate_batch(
            prompts,
            generation_config=GenerationConfig(  # type: ignore[no-untyped-call]
                max_new_tokens=tokens, do_sample=False, eos_token_id=-1
            ),
            continuous_batching_config=ContinuousBatchingConfig(use_cuda_graph=config.graphs, **config.room),
            record_timestamps=True,
            progress_bar=False,
        )
    finally:
        release(model.device)
    return decode_rate([output.timestamps for output in done.values()])


def decode_rate(stamps: list[list[float]]) -> float:
    since, until = max(times[0] for times in stamps), min(times[-1] for times in stamps)
    if until <= since:
        raise ValueError("they never decode all at once")
    return sum(since < at <= until for times in stamps for at in times) / (until - since)


def release(device: torch.device) -> None:
    gc.unfreeze()  # an engine that was settled is looked at again, now that it is over
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
    parameters = [
        api.Sampling(temperature=0.5 + row % 3, seed=row, top_p=0.9 if row % 2 else 1.0, top_k=40 * (row % 4))
        for row in range(rows)
    ]
    chosen = []
    for place in (torch.device("cpu"), device):
        sampler = Sampler(rows, vocab, eos=[], device=place)
        sequences = [Sequence(row, [1], parameters[row], credit=9, context=99) for row in range(rows)]
        for row, sequence in enumerate(sequences):
            sequence.slot = row
        chosen.append([sampled.token for sampled in sampler.sample(logits.to(place), sequences)])
    equal: int = sum(a == b for a, b in zip(*chosen, strict=True))
    return equal / rows


if __name__ == "__main__":
    main(sys.argv[1:])
