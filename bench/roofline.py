"""The roofline: how near a step comes to what the hardware allows. Arithmetic alone, nothing is measured."""

from __future__ import annotations

import math
from dataclasses import dataclass

from engine.model.facts import ModelFacts


@dataclass(frozen=True)
class Shape:
    """What a model's size means for a step."""

    facts: ModelFacts
    parameters: int
    embedding: int  # numbers of the input embedding: a step reads rows of it, not all
    tied: bool  # whether it is the output's projection too
    number_bytes: int

    @property
    def weight_bytes(self) -> int:
        """That a decode step must read."""
        return (self.parameters - (0 if self.tied else self.embedding)) * self.number_bytes

    def decode_bytes(self, rows: int, context: int) -> int:
        """The fewest that a decode step must move: each weight once, and each row's keys and values."""
        return self.weight_bytes + rows * context * self.facts.kv_numbers_per_token * self.number_bytes

    def prefill_flops(self, tokens: int) -> int:
        """Of a prompt: products with every weight, and attention to what stands before, half of a square."""
        tables = self.embedding * (1 if self.tied else 2)  # the output is projected for one token
        products = 2 * (self.parameters - tables) * tokens
        width = self.facts.heads * self.facts.head_dim
        return products + 2 * self.facts.layers * width * tokens * tokens


def fraction_of_memory(moved: int, seconds: float, bytes_per_s: float) -> float:
    """Of the time that moving the bytes takes at the bandwidth that was measured."""
    return moved / bytes_per_s / seconds


def quantile(values: list[float], share: float) -> float:
    """The least value that so many are not above."""
    return sorted(values)[math.ceil(len(values) * share) - 1]


def uncovered(spans: list[tuple[float, float]]) -> float:
    """Between the first beginning and the last end, the time that lies in none of the spans."""
    idle, reached = 0.0, min(begin for begin, _ in spans)
    for begin, end in sorted(spans):
        idle += max(0.0, begin - reached)
        reached = max(reached, end)
    return idle
