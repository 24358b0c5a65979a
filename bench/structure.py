"""Structured output: what a grammar costs a token, and what it spares, on the default model.

Rows with a grammar, whose forced tokens are sampled too, decode beside nobody else, and so do as many without
one, in turn; what counts is the median of the time between two of their steps. Then documents are written
greedily, and what the model computed is counted: that needs no clock.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

from bench.__main__ import report
from bench.result_tables import Figure
from engine import api
from engine.build.build import build
from engine.engine import Engine
from engine.model.loading import DEFAULT_MODEL
from realtime.text.tokenizer import Tokenizer

STREAM_COUNTS, TOKENS, ROUNDS = (1, 32), 40, 3
GAP_GOAL, FORWARDS_GOAL = 1.05, 0.3
QUESTIONS = [
    "What is the weather in Paris?",
    "Wake me up at seven.",
    "Find me a flight to Rome.",
    "Is it cold in Oslo?",
    "Set an alarm for half past six, every day.",
    "How do I get to Tokyo by plane?",
    "Will it rain in London?",
    "I want to fly to Lima, in comfort.",
]
ENDLESS: dict[str, Any] = {"type": "array", "items": {"type": "string", "minLength": 4}, "minItems": 100}


def tool(name: str, **arguments: dict[str, Any]) -> dict[str, Any]:
    """A call of it."""
    return {
        "type": "object",
        "properties": {"name": {"const": name}, "arguments": closed(arguments)},
        "required": ["name", "arguments"],
        "additionalProperties": False,
    }


def closed(properties: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


WORDS = {"type": "string", "maxLength": 30}
CALL = {
    "anyOf": [
        tool("get_current_weather", location=WORDS, temperature_unit={"enum": ["celsius", "fahrenheit"]}),
        tool(
            "set_alarm_clock",
            hours={"type": "integer"},
            minutes={"type": "integer"},
            repeat={"type": "boolean"},
        ),
        tool("find_flight_connections", destination=WORDS, passenger_class={"enum": ["economy", "business"]}),
    ]
}


def grammar(schema: dict[str, Any], *, force: bool) -> api.Grammar:
    options = {"x-guidance": {"whitespace_flexible": False}}
    return api.Grammar(json.dumps({"grammars": [{"json_schema": schema | options}]}), force)


def gap_s(engine: Engine, prompts: list[list[int]], given: api.Grammar | None, seed: int) -> float:
    """The median step of as many rows as there are prompts, once all of them decode."""
    for row, prompt in enumerate(prompts):
        sampling = api.Sampling(seed=seed + row, ignore_eos=True, max_tokens=TOKENS, grammar=given)
        engine.send([api.Submit(row, prompt, sampling, TOKENS)])
    steps, last = [], None
    finished = 0
    while finished < len(prompts):
        output = engine.step()
        finished += sum(news.finish is not None for news in output.news)
        now = time.perf_counter()
        if last is not None and output.stats.decode_rows == len(prompts) and not output.stats.prefill_tokens:
            steps.append(now - last)
        last = now
        if engine.idle and finished < len(prompts):
            engine.wait()
    return statistics.median(steps)


def gap_ratio(engine: Engine, prompts: list[list[int]]) -> tuple[float, float]:
    """What a step takes with a grammar, and that against one without, in the median of rounds."""
    given = grammar(ENDLESS, force=False)
    gaps = [
        (gap_s(engine, prompts, given, at), gap_s(engine, prompts, None, at)) for at in range(ROUNDS + 1)
    ][1:]  # the first warms up
    ratio = statistics.median(own / free for own, free in gaps)
    return statistics.median(own for own, _ in gaps), ratio


def forwards_a_token(engine: Engine, prompts: list[list[int]]) -> float:
    """Rows that the model computed behind the prompts, against tokens that came of them."""
    sampling = api.Sampling(temperature=0, max_tokens=300, grammar=grammar(CALL, force=True))
    rows = tokens = 0
    for number, prompt in enumerate(prompts):
        engine.send([api.Submit(number, prompt, sampling, 300)])
        while True:
            output = engine.step()
            rows += output.stats.decode_rows + output.stats.prefill_rows
            tokens += sum(len(news.tokens) for news in output.news)
            if any(news.finish for news in output.news):
                break
            if engine.idle:
                engine.wait()
    return (rows - len(prompts)) / tokens


def main() -> int:
    engine, hello = build(api.EngineOptions(model=DEFAULT_MODEL, kv_tokens=32_768))
    tokenizer = Tokenizer.load(Path(hello.folder))
    asked = [tokenizer.encode(f"Question: {question}\nCall:") for question in QUESTIONS]
    figures = []
    for count in STREAM_COUNTS:
        prompts = [asked[row % len(asked)] for row in range(count)]
        own, ratio = gap_ratio(engine, prompts)
        figures.append(
            Figure(
                f"structure: token gap with a grammar, {count} rows",
                own * 1000,
                "ms",
                f"<= {GAP_GOAL} x",
                ratio,
                "without one",
            )
        )
    share = forwards_a_token(engine, asked)
    figures.append(Figure("structure: rows computed a token", share, "", f"<= {FORWARDS_GOAL}"))
    return report(figures)


if __name__ == "__main__":
    sys.exit(main())
