"""The GPU benchmark, as far as a machine without one can tell: its arithmetic, and that all of it runs."""

from __future__ import annotations

import gc
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from bench import gpu, gpu_peers
from bench.gpu_peers import Rate, decode_rate
from bench.gpu_sizes import DRY
from bench.result_tables import table, write
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


@pytest.fixture
def small_heap(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bench looks through its heap before each model: here through what it has made itself, and not each
    time through the million objects of all tests, which were set aside when they had been collected."""
    monkeypatch.setattr(gc, "unfreeze", lambda: None)
    monkeypatch.setattr(gc, "freeze", lambda: None)


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


def test_a_peer_that_never_has_all_of_its_rows_has_no_rate() -> None:
    with pytest.raises(ValueError, match="never decode all at once"):
        decode_rate([[0.0, 1.0], [2.0, 3.0]])


def test_of_a_peers_rates_the_best_counts() -> None:
    slow, quick = Rate(3, 10.0, "sdpa"), Rate(3, 20.0, "sdpa, graphs")
    assert gpu_peers.best(iter([slow, quick, Rate(1, 5.0, "sdpa"), slow])) == {
        3: quick,
        1: Rate(1, 5.0, "sdpa"),
    }


def test_what_a_peer_said_before_it_died_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    dies = tmp_path / "python"
    dies.write_text('#!/bin/sh\necho \'{"rows":3,"tokens_per_s":7.0,"config":"sdpa"}\'\nexit 9\n')
    dies.chmod(0o755)
    monkeypatch.setattr("bench.gpu_peers.sys.executable", str(dies))
    assert gpu_peers.measure(DRY, "tiny", (3, 4)) == {3: Rate(3, 7.0, "sdpa")}
    assert "was ended with 9" in caplog.text


@pytest.mark.usefixtures("small_heap")
def test_all_of_it_runs_on_a_tiny_model() -> None:
    figures = {figure.name: figure for figure in gpu.measured(DRY)}
    assert figures["greedy tokens in float32 that are transformers'"].value == 100
    assert figures["seeded draws that are the CPU's"].value == 100
    assert figures["pause, to its effect"].value == 1
    assert figures["tiny, 3 streams"].peer == "generate_batch (sdpa)"
    wanted = ("a large copy", "of the memory's limit", "prefill", "p99", "discarded", "paused", "tinier, 2")
    assert all(any(part in name for name in figures) for part in wanted)
    assert all(figure.value is not None for figure in figures.values())


@pytest.mark.usefixtures("small_heap")
def test_what_does_not_fit_the_cache_is_left_out_and_says_so(tmp_path: Path) -> None:
    figures = list(gpu.measured(replace(DRY, kv_tokens=400, peers=())))
    missing = {figure.name: figure.peer for figure in figures if figure.value is None}
    assert set(missing) == {
        "tiny, 3 streams",
        "prefill, 512 tokens",
        "3 streams while prompts arrive, p99 between tokens",
        "a step of 4 beside 12 paused",
    }
    assert missing["tiny, 3 streams"] == "does not fit: 480 tokens, and the KV cache has room for 400"
    assert {"tiny, 1 streams", "tinier, 2 streams", "pause, to its effect"} <= {each.name for each in figures}
    assert "does not fit" in table(figures)
    assert '"value": null' in write(figures, tmp_path).read_text()


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a device here")
def test_without_a_device_it_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert gpu.main([]) == 1
    assert "needs a CUDA device" in capsys.readouterr().err
