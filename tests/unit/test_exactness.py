"""The trial of exactness: it finds what makes a row differ, and the rows that have to be filled up."""

from __future__ import annotations

from collections.abc import Sequence as Rows

import pytest
import torch
from torch import Tensor, nn

from engine import api
from engine.build.build import build
from engine.build.exactness import (
    device_trial_tokens,
    find_row_multiple,
    is_exact,
    may_be_exact,
    trial_tokens,
)
from engine.forward.filled_experts import fill_experts
from engine.model.preflight import ModelError
from engine.schedule.batch import Row

VOCAB, BLOCK = 50, 4


class Machine:
    """A runner whose logits say what they were computed from, and what else `shows`."""

    context, eos = 100, frozenset[int]()
    logits: Tensor

    def __init__(self, multiple: int, shows: str) -> None:
        self.multiple, self.shows = multiple, shows

    def copy_blocks(self, copies: list[tuple[int, int]]) -> None: ...
    def zero_blocks(self, blocks: list[int]) -> None: ...

    def forward(self, rows: Rows[Row]) -> Tensor:
        filled = -(-sum(row.count for row in rows) // self.multiple) * self.multiple
        seen = {
            "nothing": 0,
            "one row": filled == 1,
            "rows by fours": filled % 4,
            "the company": filled,
            "who stands first": rows[0].sequence.stream,
        }
        return torch.stack([self._logits(row, seen) for row in rows])

    def _logits(self, row: Row, seen: dict[str, int]) -> Tensor:
        own = {"chunks": row.count, "blocks": row.sequence.blocks[0]}
        return torch.tensor([*row.sequence.tokens[: row.end], (seen | own)[self.shows]]).sum()[None]


@pytest.mark.parametrize(
    ("shows", "multiple"),
    [
        ("nothing", 1),
        ("one row", 2),
        ("rows by fours", 4),
        ("the company", None),
        ("who stands first", None),
        ("chunks", None),
        ("blocks", None),
    ],
)
def test_it_is_the_least_multiple_at_which_nothing_shows(shows: str, multiple: int | None) -> None:
    assert find_row_multiple(lambda tried: Machine(tried, shows), VOCAB, BLOCK) == multiple


def test_it_begins_where_it_is_told_to() -> None:
    assert find_row_multiple(lambda tried: Machine(tried, "nothing"), VOCAB, BLOCK, least=4) == 4


@pytest.mark.parametrize("block_size", [1, 4, 16, 1024])
def test_its_blocks_fit_into_what_it_asks_for(block_size: int) -> None:
    class Watching(Machine):
        def forward(self, rows: Rows[Row]) -> Tensor:
            for row in rows:
                assert row.end <= len(row.sequence.blocks) * block_size
                assert max(row.sequence.blocks) < trial_tokens(block_size) // block_size
            return super().forward(rows)

    assert find_row_multiple(lambda tried: Watching(tried, "nothing"), VOCAB, block_size) == 1


@pytest.mark.parametrize("shows", ["nothing", "the company", "chunks", "blocks"])
def test_a_runner_is_tried_as_it_stands(shows: str) -> None:
    assert is_exact(Machine(1, shows), VOCAB, BLOCK, groups=2, tokens=50) == (shows == "nothing")


def test_a_captured_step_may_write_to_the_same_place() -> None:
    class Captured(Machine):
        def forward(self, rows: Rows[Row]) -> Tensor:
            self.logits[: len(rows)] = super().forward(rows)
            return self.logits[: len(rows)]

    machine = Captured(1, "nothing")
    machine.logits = torch.zeros(100, 1)
    assert is_exact(machine, VOCAB, BLOCK, groups=1, tokens=50)


@pytest.mark.parametrize(
    ("held", "longest", "tokens"), [(100_000, 9000, 1500), (100_000, 512, 512), (160, 512, 48), (47, 512, 0)]
)
def test_a_device_is_tried_on_as_long_a_sequence_as_it_holds(held: int, longest: int, tokens: int) -> None:
    assert device_trial_tokens(16, held, longest) == tokens
    assert trial_tokens(16, tokens) <= held


def test_too_little_memory_is_no_proof() -> None:
    assert not is_exact(Machine(1, "nothing"), VOCAB, BLOCK, groups=1, tokens=0)


# -- experts -----------------------------------------------------------------------------------------


class Experts(nn.Module):
    """What each gives is its number and what it was given; it notes how many rows that were."""

    def __init__(self) -> None:
        super().__init__()
        self.gate_up_proj = nn.Parameter(torch.zeros(5, 2, 2))
        self.rows: list[int] = []

    def forward(self, states: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
        out = torch.zeros_like(states)
        for expert in range(5):
            tokens, places = torch.where(chosen == expert)
            self.rows.append(len(tokens))
            out[tokens] += (states[tokens] + expert) * weights[tokens, places, None]
        return out


@pytest.mark.parametrize("multiple", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("each", [1, 2, 3, 4])
@pytest.mark.parametrize("tokens", [1, 2, 7])
def test_every_expert_computes_a_multiple_and_gives_the_same(tokens: int, each: int, multiple: int) -> None:
    dice = torch.Generator().manual_seed(tokens)
    states = torch.randn(tokens, 6, generator=dice)
    chosen = torch.stack([torch.randperm(5, generator=dice)[:each] for _ in range(tokens)])
    weights = torch.rand(tokens, each, generator=dice)
    plain, filled = Experts(), Experts()
    fill_experts(filled, 7)
    fill_experts(filled, multiple)
    assert torch.equal(filled(states, chosen, weights), plain(states, chosen, weights))
    assert all(rows % multiple == 0 for rows in filled.rows)
    assert sum(filled.rows) < tokens * each + 5 * multiple + each * multiple


# -- the option --------------------------------------------------------------------------------------


def test_where_it_is_tried() -> None:
    def tried(exact: str, device: str, devices: int = 1) -> bool:
        return may_be_exact(api.EngineOptions(model="m", exact=exact, devices=devices), device)

    assert tried("auto", "cpu")
    assert tried("on", "cpu")
    assert not tried("off", "cpu")
    assert not tried("auto", "cuda:0")
    assert tried("on", "cuda:0")
    assert not tried("auto", "cpu", 2)
    with pytest.raises(ModelError, match=r"--exact on is not to be had on 2 devices: it is on one CPU"):
        tried("on", "cuda", 2)


@pytest.mark.parametrize("exact", ["auto", "on", "off"])
def test_an_engine_says_whether_it_is(exact: str) -> None:
    _, hello = build(api.EngineOptions(model="toy", exact=exact))
    assert hello.exact == (exact != "off")
