"""Speed on the default model: the engine, the engine behind the WebSocket, and peers, one after the other.

Everybody gets the same prompts, and decodes greedily. Three things are asked: how many tokens a second come
from the moment that all streams have their first one; how many from the moment that all are asked, prompts
included; and how long a long prompt takes to its first token. Order effects are kept small by going round the
questions several times and taking medians.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from itertools import count

from bench.contestants import (
    Contestant,
    Prompts,
    Times,
    default_engine,
    engine_times,
    llama_cpp,
    transformers,
    websocket,
)
from bench.result_tables import Figure

STREAM_COUNTS = (1, 8, 32)
ROUNDS = 3
LONG = 1000  # tokens of a long prompt
_salts = count(1)


def tokens_a_second(times: Times) -> float:
    """From when all have their first one."""
    since, until = max(own[0] for own in times), max(own[-1] for own in times)
    return sum(at > since for own in times for at in own) / (until - since)


def tokens_a_second_in_all(times: Times) -> float:
    return sum(map(len, times)) / max(own[-1] for own in times)


def prompt_tokens_a_second(times: Times) -> float:
    return LONG / times[0][0]


@dataclass(frozen=True)
class Question:
    name: str
    streams: int
    prompt: int
    tokens: int
    answer: Callable[[Times], float]

    def asked_of(self, contestant: Contestant) -> float:
        return self.answer(contestant(self._prompts(), self.tokens))

    def _prompts(self) -> Prompts:
        """Others each time: nobody shall find them in a prefix cache."""
        salt = next(_salts)
        return [
            [(7919 * (salt * 64 + row) + 31 * at) % 40_000 + 10 for at in range(self.prompt)]
            for row in range(self.streams)
        ]


DECODING = [Question(f"decoding, {n}", n, 32, 48, tokens_a_second) for n in STREAM_COUNTS]
IN_ALL = [Question(f"in all, {n}", n, 130, 64, tokens_a_second_in_all) for n in STREAM_COUNTS]
PROMPT = [Question("a long prompt", 1, LONG, 2, prompt_tokens_a_second)]
QUESTIONS = [*DECODING, *IN_ALL, *PROMPT]
GOALS: list[
    tuple[str, str, list[Question], list[float | None]]
] = [  # of whom, beside whom, in which questions, at least so many times as fast
    ("engine", "engine in f32", QUESTIONS, [None] * len(QUESTIONS)),
    ("engine in f32", "llama.cpp in f32", DECODING + PROMPT, [0.9, 0.9, 0.9, 0.9]),
    ("WebSocket", "llama.cpp in q8", DECODING + PROMPT, [0.7, 0.9, 0.9, 0.9]),
    ("WebSocket", "engine", DECODING, [0.95, 0.95, 0.95]),
    ("WebSocket", "generate_batch", IN_ALL, [None, 2.5, 3]),
    ("engine in f32", "generate_batch", DECODING, [None, None, None]),
    ("engine in f32", "bare loop", DECODING, [None, None, None]),
]
Answers = dict[tuple[str, Question], float]


def contest(name: str, contestant: Contestant) -> Answers:
    """The median answer to each question, going round all of them several times."""
    rounds = [[question.asked_of(contestant) for question in QUESTIONS] for _ in range(ROUNDS)]
    return {
        (name, question): statistics.median(answers)
        for question, answers in zip(QUESTIONS, zip(*rounds, strict=True), strict=True)
    }


def measure() -> list[Figure]:
    # One after the other, and one at a time in memory: these machines are small.
    answers: Answers = {}
    for name, weights in (("engine", "auto"), ("engine in f32", "f32")):
        engine, _ = default_engine(weights)
        answers |= contest(name, partial(engine_times, engine))
        del engine
    with websocket() as served:
        answers |= contest("WebSocket", served)
    for name, contestant in transformers().items():
        answers |= contest(name, contestant)
    if find_spec("xllamacpp") is not None:
        for width in ("f32", "q8"):
            with llama_cpp(width) as peer:
                answers |= contest(f"llama.cpp in {width}", peer)
    return list(_figures(answers))


def _figures(answers: Answers) -> Iterator[Figure]:
    for (name, question), answer in answers.items():
        yield Figure(f"{question.name}: {name}", answer, "tok/s")
    for name, peer, questions, goals in GOALS:
        for question, goal in zip(questions, goals, strict=True):
            if (theirs := answers.get((peer, question))) is not None:
                ours = answers[name, question]
                asked = "" if goal is None else f">= {goal} x"
                yield Figure(f"{question.name}: {name}", ours, "tok/s", asked, ours / theirs, peer)


if __name__ == "__main__":
    from bench.__main__ import report

    sys.exit(report(measure()))
