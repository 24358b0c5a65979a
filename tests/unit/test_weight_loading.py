"""Weight loading: straight to the device where that can be, with a log line; what does not fit is refused."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
import torch

from engine.model.loading import direct_to_device, load
from engine.model.preflight import ModelError
from tests.fakes.tiny_models import tiny_folder

CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)


@pytest.mark.parametrize(
    ("installed", "place", "asked"),
    [(True, GPU, {"device_map": {"": GPU}}), (False, GPU, {}), (True, CPU, {})],
)
def test_weights_go_straight_to_a_device_where_the_package_for_it_is(
    installed: bool, place: torch.device, asked: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engine.model.loading.find_spec", lambda _: object() if installed else None)
    assert direct_to_device(place) == asked


def test_the_log_says_how_much_is_read_and_how_long_it_took(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "engine.model.loading"):
        load(tiny_folder(tmp_path, "llama"), dtype="bfloat16")
    before, after = [record.getMessage() for record in caplog.records]
    assert before == "reading 0.00 GB of weights to cpu in bfloat16"
    assert after.startswith("the weights were read in ")


def test_a_share_of_a_model_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ModelError, match=r"one of 2 .*start it without torchrun, and with --devices"):
        load(tiny_folder(tmp_path, "llama"))


def test_a_model_that_is_too_large_for_its_device_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 8)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (1000, 2000))
    with pytest.raises(
        ModelError, match=r"not enough memory on cuda: .*; --devices shares a model among more"
    ):
        load(tiny_folder(tmp_path, "llama"), device="cuda")
