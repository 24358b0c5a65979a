"""Generated JSON schemas, at a temperature at which nobody would write JSON: whatever text comes to its own
end is a document of its schema. On a tiny model with random weights, and on the default model.

The same streams are run with forced tokens sampled as well: the texts must be the same. And how many rows the
model computed is counted, against how many tokens came of them.
"""

from __future__ import annotations

import asyncio
import json
import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jsonschema

from engine import api, toy_model
from engine.build.build import build
from engine.engine import Engine
from engine.model.default_model import DEFAULT_MODEL
from midstream.protocol import Grammar
from realtime.text.tokenizer import Tokenizer
from tests.fakes.engine_driver import Limits, engine_of
from tests.fakes.grammars import made_schema, told
from tests.fakes.small_tokenizers import toy_vocabulary

SCHEMAS, SEED = 1000, 70_000
AT_ONCE, TOKENS, TEMPERATURE = 16, 300, 2.0
DEFAULT_PROMPT = "<|im_start|>user\nAnswer in JSON.<|im_end|>\n<|im_start|>assistant\n"


@dataclass
class Found:
    ended: int = 0
    cut: int = 0
    tokens: int = 0
    forced: int = 0
    rows: int = 0
    wrong: list[str] = field(default_factory=list)


async def measure(scale: float) -> dict[str, Any]:
    count = max(AT_ONCE, int(SCHEMAS * scale))
    tiny = await asyncio.to_thread(on_the_tiny_model, count)
    default = await asyncio.to_thread(on_the_default_model, count)
    return {
        "name": "grammars",
        "schemas": count,
        "ended (tiny, default)": [tiny.ended, default.ended],
        "cut by max_tokens": [tiny.cut, default.cut],
        "forced": [round(found.forced / found.tokens, 2) for found in (tiny, default)],
        "rows a token": [round(found.rows / found.tokens, 2) for found in (tiny, default)],
        "wrong": (tiny.wrong + default.wrong)[:5],
        "goal": f"{SCHEMAS} schemas at temperature {TEMPERATURE}: all that ended are documents of theirs, "
        "and none differs with forced tokens sampled",
        "met": not tiny.wrong + default.wrong,
    }


def on_the_tiny_model(count: int) -> Found:
    limits = Limits(kv_tokens=16_384, step_tokens=512, batch_rows=AT_ONCE)
    engine = engine_of("llama", limits, vocabulary=toy_vocabulary())
    return tried(engine, Tokenizer.load(toy_model.FOLDER), [72, 101, 300], count)


def on_the_default_model(count: int) -> Found:
    engine, hello = build(api.EngineOptions(model=DEFAULT_MODEL, kv_tokens=16_384, batch_rows=AT_ONCE))
    tokenizer = Tokenizer.load(Path(hello.folder))
    return tried(engine, tokenizer, tokenizer.encode(DEFAULT_PROMPT), count)


def tried(engine: Engine, tokenizer: Tokenizer, prompt: list[int], count: int) -> Found:
    found = Found()
    for begin in range(0, count, AT_ONCE):
        numbers = range(begin, min(begin + AT_ONCE, count))
        schemas = [made_schema(random.Random(SEED + number)) for number in numbers]
        texts = run(engine, tokenizer, prompt, schemas, found, force=True)
        for schema, (text, finish) in zip(schemas, texts, strict=True):
            judge(schema, text, finish, found)
        if begin % (8 * AT_ONCE) == 0:
            sampled = run(engine, tokenizer, prompt, schemas, Found(), force=False)
            found.wrong += [
                f"{one} and {other}" for one, other in zip(texts, sampled, strict=True) if one != other
            ]
    return found


def judge(schema: dict[str, Any], text: str, finish: api.Finish, found: Found) -> None:
    if finish.reason == "length":
        found.cut += 1
        return
    found.ended += 1
    try:
        jsonschema.validate(json.loads(text), schema)
    except (jsonschema.ValidationError, ValueError) as error:
        found.wrong.append(f"{finish}: {text!r} for {schema}: {str(error)[:200]}")


def run(
    engine: Engine,
    tokenizer: Tokenizer,
    prompt: list[int],
    schemas: list[dict[str, Any]],
    found: Found,
    *,
    force: bool,
) -> list[tuple[str, api.Finish]]:
    """All at once, each to its end."""
    for number, schema in enumerate(schemas):
        grammar = told(Grammar(json_schema=schema), force=force)
        sampling = api.Sampling(temperature=TEMPERATURE, seed=number, max_tokens=TOKENS, grammar=grammar)
        engine.send([api.Submit(number, prompt, sampling, TOKENS)])
    tokens: dict[int, list[int]] = {number: [] for number in range(len(schemas))}
    finishes: dict[int, api.Finish] = {}
    while len(finishes) < len(schemas):
        output = engine.step()
        found.rows += output.stats.decode_rows + output.stats.prefill_rows
        for news in output.news:
            tokens[news.stream] += news.tokens
            found.tokens += len(news.tokens)
            found.forced += news.forced
            if news.finish is not None:
                finishes[news.stream] = news.finish
        if engine.idle and len(finishes) < len(schemas):
            engine.wait()
    texts = [b"".join(map(tokenizer.token_bytes, one)).decode(errors="replace") for one in tokens.values()]
    return [(text, finishes[number]) for number, text in enumerate(texts)]
