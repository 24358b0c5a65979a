"""The GPU's bench, as far as a machine without one can tell: its arithmetic, and that all of it runs."""

from __future__ import annotations

import pytest
import torch

from bench import gpu
from bench.gpu_peers import decode_rate
from bench.roofline import Shape, fraction_of_memory, quantile, uncovered
from engine.model.facts import ModelFacts

SHAPE = Shape(
    ModelFacts(
        architecture="llama",
        layers=2,
        heads=4,
        kv_heads=2,
        head_dim=8,
        hidden=32,
        vocab=100,
        context=64,
        windows=[None, None],
        eos=[],
    ),
    parameters=10_000,
    embedding=3_200,
    tied=False,
    number_bytes=2,
)


def test_a_decode_step_moves_each_weight_and_every_rows_context_once() -> None:
    assert SHAPE.decode_bytes(0, 1000) == 2 * 6_800
    assert SHAPE.decode_bytes(3, 10) - SHAPE.decode_bytes(0, 10) == 3 * 10 * (2 * 2 * 2 * 8) * 2


def test_a_prompt_is_multiplied_with_every_weight_and_half_of_a_square() -> None:
    products, attention = 2 * (10_000 - 6_400) * 16, 2 * 2 * 32 * 16 * 16
    assert SHAPE.prefill_flops(16) == products + attention


def test_the_share_of_the_limit_is_one_where_nothing_but_moving_takes_time() -> None:
    assert fraction_of_memory(moved=3_000, seconds=3.0, bytes_per_s=1_000) == 1
    assert fraction_of_memory(moved=3_000, seconds=6.0, bytes_per_s=1_000) == 0.5


def test_kernels_that_overlap_leave_no_gap_and_count_once() -> None:
    assert uncovered([(0, 4), (1, 2), (3, 5), (7, 8), (8, 9)]) == 2
    assert uncovered([(3, 4)]) == 0


def test_quantiles_are_values_that_were_seen() -> None:
    assert quantile([float(value) for value in range(1, 101)], 0.99) == 99
    assert quantile([7.0], 0.99) == 7


def test_a_peers_rate_counts_while_everybody_decodes() -> None:
    first, second = [0.0, 1.0, 2.0, 3.0], [1.0, 2.0, 3.0, 4.0]
    assert decode_rate([first, second]) == 4 / 2  # from 1 to 3: what comes behind 1, up to 3


def test_all_of_it_runs_on_a_tiny_model() -> None:
    figures = {figure.name: figure for figure in gpu.measured(gpu.DRY)}
    assert figures["greedy tokens in float32 that are transformers'"].value == 100
    assert figures["seeded draws that are the CPU's"].value == 100
    assert figures["pause, to its effect"].value == 1
    assert figures["tiny, 3 streams"].peer == "generate_batch (sdpa)"
    wanted = ("a large copy", "of the memory's limit", "prefill", "p99", "discarded", "paused", "tinier, 2")
    assert all(any(part in name for name in figures) for part in wanted)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a device here")
def test_without_a_device_it_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert gpu.main([]) == 1
    assert "needs a CUDA device" in capsys.readouterr().err
