"""Who decodes in `bench decode`: the engine, the engine behind the WebSocket, transformers, llama.cpp.

Each is given prompts, all at once, and how many tokens to write greedily to each of them, and tells when
every token came, in seconds from when it was asked.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any
from uuid import uuid4

import torch
from transformers import AutoModelForCausalLM, DynamicCache, GenerationConfig

from bench.llama_cpp import LlamaCpp
from bench.peer_model import gguf_file, safetensors_folder
from bench.server import ServerProcess
from engine import api
from engine.build.build import build
from engine.engine import Engine
from engine.model.default_model import DEFAULT_MODEL

Prompts = list[list[int]]
Times = list[list[float]]  # by stream
Contestant = Callable[[Prompts, int], Times]


def default_engine(weights: str) -> tuple[Engine, api.Hello]:
    # What decodes greedily without having been asked anything repeats itself: no step is to be spared by it.
    return build(api.EngineOptions(model=DEFAULT_MODEL, device="cpu", weights=weights, drafts="off"))


def engine_times(engine: Engine, prompts: Prompts, tokens: int) -> Times:
    sampling = api.Sampling(temperature=0, ignore_eos=True, max_tokens=tokens)
    times: Times = [[] for _ in prompts]
    since = time.perf_counter()
    engine.send([api.Submit(row, prompt, sampling, tokens) for row, prompt in enumerate(prompts)])
    while any(len(own) < tokens for own in times):
        for news in engine.step().news:
            times[news.stream] += [time.perf_counter() - since] * len(news.tokens)
    return times


@contextmanager
def websocket() -> Iterator[Contestant]:
    with ServerProcess("--model", DEFAULT_MODEL, "--drafts", "off") as server:
        yield lambda prompts, tokens: asyncio.run(_over_websocket(server, prompts, tokens))


async def _over_websocket(server: ServerProcess, prompts: Prompts, tokens: int) -> Times:
    params = {"temperature": 0, "ignore_eos": True, "max_tokens": tokens}
    times: dict[str, list[float]] = {uuid4().hex: [] for _ in prompts}
    async with server.connect() as socket:
        since = time.perf_counter()
        for name, prompt in zip(times, prompts, strict=True):
            start = {"type": "start", "request_id": name, "prompt": prompt, "params": params}
            await socket.send(json.dumps(start))
        finals = 0
        while finals < len(prompts):
            event = json.loads(await socket.recv())
            if event["type"] == "token":
                times[event["request_id"]] += [time.perf_counter() - since] * event["count"]
            finals += event["type"] == "final"
    return list(times.values())


@contextmanager
def llama_cpp(width: str) -> Iterator[Contestant]:
    with LlamaCpp(gguf_file(width)) as server:
        yield lambda prompts, tokens: asyncio.run(server.times(prompts, tokens))


def transformers() -> dict[str, Contestant]:
    plain = AutoModelForCausalLM.from_pretrained(safetensors_folder(), dtype=torch.float32)
    return {"bare loop": partial(_bare_loop, plain), "generate_batch": partial(_generate_batch, plain)}


def _generate_batch(model: Any, prompts: Prompts, tokens: int) -> Times:
    """transformers' continuous batching."""
    endless = GenerationConfig(max_new_tokens=tokens, do_sample=False, eos_token_id=-1)  # type: ignore[no-untyped-call]
    since = time.perf_counter()
    done = model.generate_batch(
        prompts, generation_config=endless, record_timestamps=True, progress_bar=False
    )
    return [[at - since for at in output.timestamps] for output in done.values()]


@torch.inference_mode()
def _bare_loop(model: Any, prompts: Prompts, tokens: int) -> Times:
    """The least that transformers can be asked to do: forward in a loop, one dense batch, a growing cache."""
    since, times = time.perf_counter(), []
    cache, rows = DynamicCache(config=model.config), torch.tensor(prompts)
    for _ in range(tokens):
        logits = model(rows, past_key_values=cache, logits_to_keep=1).logits
        rows = logits[:, -1].argmax(-1, keepdim=True)
        times.append(time.perf_counter() - since)
    return [times] * len(prompts)
