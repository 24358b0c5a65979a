"""Decode speed: the engine, the engine behind the WebSocket, and peers, on the default model, one after the
other.

Everybody gets the same prompts and decodes greedily. What counts is the time from the moment that all
streams have their first token: tokens after that, a second. Order effects are kept small by going round the
contestants several times and taking medians.
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, DynamicCache, GenerationConfig

from bench import used_cache
from bench.llama_cpp import LlamaCpp
from bench.result_tables import Figure
from bench.server import ServerProcess
from bench.used_cache import Bench
from engine import api
from engine.build.build import build
from engine.engine import Engine
from engine.model.loading import DEFAULT_MODEL, resolve

STREAM_COUNTS = (1, 8, 32)
GOALS = {1: 24, 8: 115, 32: 215}
PROMPT, TOKENS, ROUNDS = 32, 48, 3
ENDLESS = GenerationConfig(  # type: ignore[no-untyped-call]
    max_new_tokens=TOKENS, do_sample=False, eos_token_id=-1
)


def prompts(count: int, salt: int) -> list[list[int]]:
    """Different ones in every round: nobody shall find them in a prefix cache."""
    return [
        [(7919 * (salt * 64 + row) + 31 * at) % 40_000 + 10 for at in range(PROMPT)] for row in range(count)
    ]


def engine_rate(engine: Engine, count: int, salt: int) -> float:
    sampling = api.Sampling(temperature=0, ignore_eos=True, max_tokens=TOKENS)
    engine.send(
        [api.Submit(row, tokens, sampling, TOKENS) for row, tokens in enumerate(prompts(count, salt))]
    )
    started: dict[int, int] = {}
    while len(started) < count:
        for news in engine.step().news:
            started[news.stream] = started.get(news.stream, 0) + len(news.tokens)
    since, tokens = time.perf_counter(), 0
    while engine.scheduler.sequences:
        tokens += sum(len(news.tokens) for news in engine.step().news)
    return tokens / (time.perf_counter() - since)


def batch_rate(model: Any, count: int, salt: int) -> float:
    """transformers' continuous batching."""
    done = model.generate_batch(
        prompts(count, salt), generation_config=ENDLESS, record_timestamps=True, progress_bar=False
    )
    stamps = [output.timestamps for output in done.values()]
    since = max(times[0] for times in stamps)
    tokens = sum(sum(at > since for at in times) for times in stamps)
    until: float = max(times[-1] for times in stamps)
    rate: float = tokens / (until - since)
    return rate


@torch.inference_mode()
def bare_rate(model: Any, count: int, salt: int) -> float:
    """The least that transformers can be asked to do: forward in a loop, one dense batch, a growing cache."""
    cache = DynamicCache(config=model.config)
    tokens = torch.tensor(prompts(count, salt))
    tokens = model(tokens, past_key_values=cache, logits_to_keep=1).logits[:, -1].argmax(-1, keepdim=True)
    since = time.perf_counter()
    for _ in range(TOKENS - 1):
        tokens = model(tokens, past_key_values=cache).logits[:, -1].argmax(-1, keepdim=True)
    return count * (TOKENS - 1) / (time.perf_counter() - since)


async def websocket_rate(server: ServerProcess, count: int, salt: int) -> float:
    async with server.connect() as socket:
        for row, tokens in enumerate(prompts(count, salt)):
            params = {"temperature": 0, "ignore_eos": True, "max_tokens": TOKENS}
            await socket.send(
                json.dumps(
                    {"type": "start", "request_id": f"{salt}-{row}", "prompt": tokens, "params": params}
                )
            )
        began: dict[str, float] = {}
        times: list[tuple[float, int]] = []
        finals = 0
        while finals < count:
            event = json.loads(await socket.recv())
            now = time.perf_counter()
            if event["type"] == "token":
                began.setdefault(event["request_id"], now)
                times.append((now, event["count"]))
            finals += event["type"] == "final"
    since = max(began.values())
    return sum(number for at, number in times if at > since) / (times[-1][0] - since)


Rates = dict[tuple[str, int], float]


def contest(name: str, rate: Callable[[int, int], float]) -> Rates:
    """The median rate at each number of streams, going round all of them several times."""
    rounds = [[rate(count, salt) for count in STREAM_COUNTS] for salt in range(1, ROUNDS + 1)]
    return {
        (name, count): statistics.median(rates)
        for count, rates in zip(STREAM_COUNTS, zip(*rounds, strict=True), strict=True)
    }


def measure() -> list[Figure]:
    # One after the other, and one at a time in memory: these machines are small.
    rates, used = _engine()
    return _figures({**rates, **_websocket(), **_transformers()}) + used + _of_file()


def _engine() -> tuple[Rates, list[Figure]]:
    """What it does with a fresh cache, and its steps with a used one."""
    engine, hello = build(api.EngineOptions(model=DEFAULT_MODEL))
    rates = contest("engine", lambda count, salt: engine_rate(engine, count, salt))
    return rates, used_cache.figures(Bench(engine.runner, hello.vocab, engine.cache.total, hello.block))


def _websocket() -> Rates:
    with ServerProcess("--model", DEFAULT_MODEL) as server:
        return contest("websocket", lambda count, salt: asyncio.run(websocket_rate(server, count, salt)))


def _transformers() -> Rates:
    plain = AutoModelForCausalLM.from_pretrained(resolve(DEFAULT_MODEL), dtype=torch.float32)
    bare = contest("bare", lambda count, salt: bare_rate(plain, count, salt))
    return bare | contest("generate_batch", lambda count, salt: batch_rate(plain, count, salt))


def _of_file() -> list[Figure]:
    """A GGUF file as wide as it is, beside llama.cpp, where there is one to measure."""
    name = os.environ.get("BENCH_GGUF")
    if not name or find_spec("xllamacpp") is None:
        return []
    with LlamaCpp(Path(name)) as peer:
        theirs = contest("theirs", lambda count, salt: asyncio.run(peer.rate(prompts(count, salt), TOKENS)))
    with ServerProcess("--model", name) as server:
        ours = contest("ours", lambda count, salt: asyncio.run(websocket_rate(server, count, salt)))
    return [
        Figure(
            f"{Path(name).name} behind the WebSocket, {count} streams",
            ours["ours", count],
            "tok/s",
            ">= 0.7 x" if count == 1 else ">= 0.9 x",
            ours["ours", count] / theirs["theirs", count],
            "llama.cpp",
        )
        for count in STREAM_COUNTS
    ]


def _figures(rates: Rates) -> list[Figure]:
    figures = []
    for count in STREAM_COUNTS:
        batch, own = rates["generate_batch", count], rates["engine", count]
        figures += [
            Figure(
                f"engine, {count} streams", own, "tok/s", f"{GOALS[count]}", own / batch, "generate_batch"
            ),
            Figure(
                f"engine behind the WebSocket, {count} streams",
                rates["websocket", count],
                "tok/s",
                ">= 0.95 x",
                rates["websocket", count] / own,
                "engine",
            ),
            Figure(
                f"bare forward loop, {count}",
                rates["bare", count],
                "tok/s",
                "",
                own / rates["bare", count],
                "engine to it",
            ),
            Figure(f"generate_batch, {count}", batch, "tok/s"),
        ]
    return figures


if __name__ == "__main__":
    from bench.__main__ import report

    sys.exit(report(measure()))
