"""Structured output: what a grammar costs a token, and what it spares, on the default model; and what calls
come of one.

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

import jsonschema

from bench.__main__ import report
from bench.result_tables import Figure
from engine import api
from engine.build.build import build
from engine.engine import Engine
from engine.model.default_model import DEFAULT_MODEL
from engine.structure.matcher import Matcher
from engine.structure.vocabulary import Vocabulary, read_vocabulary
from midstream.protocol import Function, Grammar, Message, Params, Start, Tool
from realtime.hub.output_rules import output_rules
from realtime.stream.params import resolved, sampling
from realtime.text.grammar import source_of
from realtime.text.served_model import ServedModel
from realtime.text.tokenizer import Tokenizer
from realtime.tools.offered import argument_kinds, no_texts
from realtime.tools.parts import Arguments, CallBegun, CallEnded
from realtime.tools.span_reader import SpanReader

STREAM_COUNTS, TOKENS, ROUNDS = (1, 32), 40, 3
GAP_GOAL, FORWARDS_GOAL = 1.05, 0.3
QUESTIONS = {  # and the tool that each is for
    "What is the weather in Paris?": "get_current_weather",
    "Wake me up at seven.": "set_alarm_clock",
    "Find me a flight to Rome.": "find_flight_connections",
    "Is it cold in Oslo?": "get_current_weather",
    "Set an alarm for half past six, every day.": "set_alarm_clock",
    "How do I get to Tokyo by plane?": "find_flight_connections",
    "Will it rain in London?": "get_current_weather",
    "I want to fly to Lima, in comfort.": "find_flight_connections",
}
ENDLESS: dict[str, Any] = {"type": "array", "items": {"type": "string", "minLength": 4}, "minItems": 100}
WORDS = {"type": "string", "maxLength": 30}


def tool(name: str, about: str, **arguments: dict[str, Any]) -> Tool:
    schema = {
        "type": "object",
        "properties": arguments,
        "required": list(arguments),
        "additionalProperties": False,
    }
    return Tool(function=Function(name=name, description=about, parameters=schema, strict=True))


TOOLS = [
    tool(
        "get_current_weather",
        "The weather of a city: temperature, rain, wind.",
        location=WORDS,
        temperature_unit={"enum": ["celsius", "fahrenheit"]},
    ),
    tool(
        "set_alarm_clock",
        "Wakes somebody up at a time of the day.",
        hours={"type": "integer", "minimum": 0, "maximum": 23},
        minutes={"type": "integer", "minimum": 0, "maximum": 59},
        repeat={"type": "boolean"},
    ),
    tool(
        "find_flight_connections",
        "Flights to a city.",
        destination=WORDS,
        passenger_class={"enum": ["economy", "business"]},
    ),
]


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


def calls(engine: Engine, model: ServedModel) -> tuple[float, int, int]:
    """Each question asked greedily, with a call required: rows that the model computed behind the prompts,
    against tokens that came of them; how many calls are valid, and how many of the right tool."""
    rows = tokens = valid = right = 0
    for number, (question, name) in enumerate(QUESTIONS.items()):
        start = Start(
            request_id="-",
            messages=[Message(role="user", content=question)],
            tools=TOOLS,
            tool_choice="required",
            parallel_tool_calls=False,
        )
        prompt = model.tokenizer.encode_chat(start.messages or [], TOOLS)
        params = Params(temperature=0, max_tokens=300)
        given = sampling(
            resolved(params, context_left=300, vocab=model.vocab), output_rules(start, prompt, model)
        )
        engine.send([api.Submit(number, prompt, given, 300)])
        output, computed = written(engine)
        rows, tokens = rows + computed - 1, tokens + len(output)
        called = call_in(output, prompt, model)
        valid += called is not None
        right += called == name
    return rows / tokens, valid, right


def written(engine: Engine) -> tuple[list[int], int]:
    """All that the one stream says, and the rows that were computed for it."""
    tokens, rows = list[int](), 0
    while True:
        output = engine.step()
        rows += output.stats.decode_rows + output.stats.prefill_rows
        tokens += [token for news in output.news for token in news.tokens]
        if any(news.finish for news in output.news):
            return tokens, rows
        if engine.idle:
            engine.wait()


def call_in(output: list[int], prompt: list[int], model: ServedModel) -> str | None:
    """The tool that is called, if the call is whole and fits its schema."""
    reader = SpanReader(model.tokenizer.spelling, no_texts(argument_kinds(TOOLS)), prompt)
    parts = [part for index, token in enumerate(output) for part in reader.feed(token, index)]
    names = [part.name for part in parts if isinstance(part, CallBegun)]
    arguments = "".join(part.text for part in parts if isinstance(part, Arguments))
    if len(names) != 1 or not any(isinstance(part, CallEnded) for part in parts):
        return None
    (schema,) = (tool.function.parameters for tool in TOOLS if tool.function.name == names[0])
    try:
        jsonschema.validate(json.loads(arguments), schema or {})
    except (jsonschema.ValidationError, ValueError):
        return None
    return names[0]


def mask_s(vocabulary: Vocabulary, source: str, tokens: list[int]) -> float:
    """The median time of a mask, and of taking a token, along a document."""
    matcher, took = Matcher(source, vocabulary), []
    for token in tokens:
        began = time.perf_counter()
        matcher.mask()
        matcher.accept([token])
        took.append(time.perf_counter() - began)
    return statistics.median(took)


def peers_mask_s(folder: Path, vocab: int, schema: dict[str, Any], tokens: list[int]) -> float | None:
    """The same of xgrammar, where that is installed."""
    try:
        import xgrammar  # type: ignore[import-not-found]
    except ImportError:
        return None
    from transformers import AutoTokenizer

    info = xgrammar.TokenizerInfo.from_huggingface(AutoTokenizer.from_pretrained(folder), vocab_size=vocab)
    compiled = xgrammar.GrammarCompiler(info).compile_json_schema(
        json.dumps(schema), any_whitespace=False, separators=(",", ":")
    )
    matcher, took = xgrammar.GrammarMatcher(compiled), []
    bitmask = xgrammar.allocate_token_bitmask(1, vocab)
    for token in tokens:
        began = time.perf_counter()
        matcher.fill_next_token_bitmask(bitmask)
        matcher.accept_token(token)
        took.append(time.perf_counter() - began)
    return statistics.median(took)


DOCUMENT = {"name": "Ada", "age": 36, "kind": "alpha", "tags": ["first", "poetical science", "né Byron"]}
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "age": {"type": "integer"},
        "kind": {"enum": ["alpha", "beta"]},
        "tags": {"type": "array", "items": {"type": "string"}},
    },
    "required": ["name", "age", "kind", "tags"],
    "additionalProperties": False,
}


def masks(folder: Path, tokenizer: Tokenizer, vocab: int, ends: list[int]) -> list[Figure]:
    vocabulary = read_vocabulary(folder, vocab, ends)
    assert vocabulary is not None
    text = json.dumps(DOCUMENT, separators=(",", ":"), ensure_ascii=False)
    tokens = tokenizer.encode(text, special=False)
    own = mask_s(vocabulary, source_of(Grammar(json_schema=SCHEMA)), tokens)
    peer = peers_mask_s(folder, vocab, SCHEMA, tokens)
    beside = [] if peer is None else [Figure("structure: xgrammar's mask and token", peer * 1e6, "us", "")]
    return [Figure("structure: a mask and its token", own * 1e6, "us", ""), *beside]


def main() -> int:
    engine, hello = build(api.EngineOptions(model=DEFAULT_MODEL, kv_tokens=32_768))
    folder = Path(hello.folder)
    tokenizer = Tokenizer.load(folder)
    model = ServedModel(hello.model, tokenizer, hello.vocab, hello.context, "bench")
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
    share, valid, right = calls(engine, model)
    most = len(QUESTIONS)
    figures += [
        Figure("structure: rows computed a token of a call", share, "", f"<= {FORWARDS_GOAL}"),
        Figure("structure: valid calls, where one is required", valid, "", f">= {most}"),
        Figure("structure: of the right tool", right, "", f">= {most}"),
        *masks(folder, tokenizer, hello.vocab, hello.eos),
    ]
    return report(figures)


if __name__ == "__main__":
    sys.exit(main())
