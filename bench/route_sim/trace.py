"""Traces: requests with their arrival, their prompt as digests of its blocks, and the length of their output.

A file is of the form of Mooncake's traces: a JSON object a line with `timestamp` in milliseconds,
`input_length`, `output_length` and `hash_ids`, of blocks of 512 tokens. Without one, conversations are made
up: some systems' prompts, on which turns follow that each begin with all that stands.
"""

from __future__ import annotations

import json
import random
from itertools import count
from pathlib import Path
from typing import NamedTuple

BLOCK = 512
BUCKET_S = 3.0  # Mooncake's timestamps are so coarse: arrivals are spread within it
CONVERSATIONS, MINUTES, SYSTEMS = 2500, 30.0, 12


class Request(NamedTuple):
    at_s: float
    blocks: tuple[int, ...]  # digests of its full blocks
    tokens: int
    output: int


def read(path: Path, seed: int) -> list[Request]:
    chance, requests = random.Random(seed), list[Request]()
    for line in path.read_text().splitlines():
        row = json.loads(line)
        at_s = row["timestamp"] / 1000 + chance.random() * BUCKET_S
        requests.append(Request(at_s, tuple(row["hash_ids"]), row["input_length"], row["output_length"]))
    return sorted(requests)


def made_up(seed: int, conversations: int = CONVERSATIONS, minutes: float = MINUTES) -> list[Request]:
    """`minutes`: within which they begin."""
    chance, names = random.Random(seed), count()
    systems = [[next(names) for _ in range(chance.randrange(1, 8))] for _ in range(SYSTEMS)]
    requests = list[Request]()
    for _ in range(conversations):
        at_s = chance.random() * 60 * minutes
        context = list(systems[min(int(chance.expovariate(0.4)), SYSTEMS - 1)])
        while True:
            grown = 1 + min(int(chance.lognormvariate(1.3, 1.0)), 60)
            context += [next(names) for _ in range(grown)]
            output = 1 + min(int(chance.lognormvariate(5.3, 0.9)), 4000)
            requests.append(
                Request(at_s, tuple(context), BLOCK * len(context) + chance.randrange(BLOCK), output)
            )
            if chance.random() < 0.35:
                break
            context += [next(names) for _ in range(output // BLOCK)]
            at_s += 5 + chance.expovariate(1 / 40)
    return sorted(requests)
