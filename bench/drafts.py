"""Drafts: tokens a second with and without, of the default model, where it quotes and where it does not.

Three tasks quote: a file is edited, a question is answered with citations, a table is repeated. Free text
does not, and is to lose nothing by it; nor does a story in JSON. What quotes is tried under a grammar of any
text as well. With and without take turns, and say the same, token by token.

`python -m bench.drafts WEIGHTS DRAFT_MODEL MODEL` measures it with weights of another width, with a model
that drafts, and of another model that is asked as the default one is.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from bench.result_tables import Figure
from engine import api
from engine.build.build import build
from engine.engine import Engine
from engine.model.default_model import DEFAULT_MODEL

ROUNDS = 3
TOKENS = 256
STREAM_COUNTS = (1, 8, 32)
FREE_TOKENS = 96

FILE = """\
[server]
host = "127.0.0.1"
port = 8000
workers = 4
log_level = "info"
max_connections = 1000
handshake_timeout_s = 15.0

[database]
url = "postgresql://localhost:5432/orders"
pool_size = 16
statement_timeout_s = 30.0
retry_on_conflict = true

[cache]
backend = "redis"
url = "redis://localhost:6379/0"
expires_after_s = 3600
compress = false
"""
TEXT = """\
[1] The lighthouse at Kessel Point was lit for the first time in 1871, after six years of work.
[2] Its lamp burned colza oil until 1896, and then paraffin, which could be seen for nineteen miles.
[3] Three keepers lived there with their families, and each of them kept a watch of four hours in turn.
[4] In the storm of January 1928 the sea broke the lower windows, and the oil was carried up by hand.
[5] The station was electrified in 1951 and automated in 1984; the last keeper was Anna Dorn.
[6] Since 1999 the tower belongs to the county, and visitors may climb its 214 steps.
"""
TABLE = """\
| city | country | people | height in m | founded |
| --- | --- | --- | --- | --- |
| Graz | Austria | 291072 | 353 | 1128 |
| Lyon | France | 522250 | 173 | 43 |
| Porto | Portugal | 231962 | 104 | 868 |
| Turku | Finland | 197900 | 27 | 1229 |
| Bergen | Norway | 291940 | 12 | 1070 |
| Gdansk | Poland | 486022 | 7 | 997 |
| Leipzig | Germany | 616093 | 113 | 1015 |
| Valencia | Spain | 807693 | 15 | 138 |
"""
EDIT = f"Set `workers` to 8 in this file, and answer with the whole file.\n\n```toml\n{FILE}```"
CITE = f"{TEXT}\nWhat happened to the lighthouse, and when? Answer by quoting each numbered sentence."
REPEAT = f"Repeat this table exactly as it is, row by row.\n\n{TABLE}"
QUOTING = {  # what is asked, and how the answer begins: the model is a small one
    "a file is edited": (EDIT, "Here is the whole file, with 8 workers:\n\n```toml\n[server]\n"),
    "answered with citations": (CITE, "According to the text:\n\n[1]"),
    "a table is repeated": (REPEAT, "Here is the table again:\n\n| city | country |"),
}
ANY_TEXT = {"lark_grammar": "start: /(?s:.)*/"}
STORY = {
    "json_schema": {"type": "object", "properties": {"story": {"type": "string"}}, "required": ["story"]}
}
FREE = "Tell me a story about {}, in your own words."
THINGS = ("a fox", "the sea", "a clockmaker", "two sisters", "a lost letter", "winter", "a train", "a garden")
_salts = count(1)


class Bench:
    def __init__(self, weights: str, draft_model: str, model: str) -> None:
        self._engines = {}
        for drafts in ("off", "auto"):
            self._engines[drafts], hello = build(
                api.EngineOptions(
                    model=model,
                    device="cpu",
                    weights=weights,
                    drafts=drafts,
                    draft_model=draft_model if drafts == "auto" else "",
                )
            )
        self.weights = hello.weights
        self._tokenizer = Tokenizer.from_file(str(Path(hello.folder) / "tokenizer.json"))

    def prompt(self, question: str, answer: str = "") -> list[int]:
        told = f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n{answer}"
        tokens: list[int] = self._tokenizer.encode(told, add_special_tokens=False).ids
        return tokens

    def rates(self, prompts: list[list[int]], sampling: api.Sampling) -> tuple[float, float]:
        """Tokens a second without drafts and with; both say the same."""
        rates: dict[str, list[float]] = {"off": [], "auto": []}
        for _ in range(ROUNDS):
            said = []
            for drafts, engine in self._engines.items():
                rate, tokens = decode(engine, prompts, sampling)
                rates[drafts].append(rate)
                said.append(tokens)
            assert said[0] == said[1], "drafts have changed a token"
        off, on = (statistics.median(each) for each in rates.values())
        return off, on


def decode(engine: Engine, prompts: list[list[int]], sampling: api.Sampling) -> tuple[float, list[list[int]]]:
    """Tokens a second from the moment that all streams have their first one; and the tokens."""
    said: dict[int, list[int]] = {next(_salts): [] for _ in prompts}
    for stream, tokens in zip(said, prompts, strict=True):
        own = api.Submit(stream, tokens, sampling, credit=sampling.max_tokens)
        engine.send([own])
    while not all(said.values()):
        _step(engine, said)
    since, before = time.perf_counter(), sum(map(len, said.values()))
    while engine.scheduler.sequences:
        _step(engine, said)
    return (sum(map(len, said.values())) - before) / (time.perf_counter() - since), list(said.values())


def _step(engine: Engine, said: dict[int, list[int]]) -> None:
    for news in engine.step().news:
        said[news.stream] += news.tokens


def measure(weights: str = "auto", draft_model: str = "", model: str = DEFAULT_MODEL) -> list[Figure]:
    return list(_figures(Bench(weights, draft_model, model)))


def _figures(bench: Bench) -> Iterator[Figure]:
    for under, grammar in (("", None), (", under a grammar", _grammar(ANY_TEXT))):
        greedy = api.Sampling(temperature=0, max_tokens=TOKENS, grammar=grammar)
        for name, asked in QUOTING.items():
            rates = bench.rates([bench.prompt(*asked)], greedy)
            yield _figure(f"{name}{under}, {bench.weights}", rates, ">= 1.8 x")
    for kind, grammar in (("free text", None), ("a story in JSON", _grammar(STORY))):
        free = api.Sampling(max_tokens=FREE_TOKENS, ignore_eos=True, seed=1, grammar=grammar)
        for streams in STREAM_COUNTS:
            prompts = [bench.prompt(FREE.format(THINGS[at % len(THINGS)])) for at in range(streams)]
            rates = bench.rates(prompts, free)
            yield _figure(f"{kind}, {streams} streams, {bench.weights}", rates, ">= 0.97 x")


def _grammar(source: dict[str, Any]) -> api.Grammar:
    return api.Grammar(json.dumps({"grammars": [source]}))


def _figure(what: str, rates: tuple[float, float], goal: str) -> Figure:
    off, on = rates
    return Figure(what, on, "tok/s", goal, on / off, "without drafts")


if __name__ == "__main__":
    from bench.__main__ import report

    sys.exit(report(measure(*sys.argv[1:])))
