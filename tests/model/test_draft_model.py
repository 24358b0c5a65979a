"""Draft models as they are served: read from folders and files, for a model with the same vocabulary."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from engine import api
from engine.build.build import build
from engine.drafts.draft_model import DraftModel
from engine.ggml.library import why_not
from engine.model.preflight import ModelError
from tests.fakes.draft_models import Nothing
from tests.fakes.engine_driver import Driver, Free
from tests.fakes.tiny_models import tiny_folder, tiny_model
from tests.unit.test_default_model import write_gguf

PROMPT = [72, 105, 300, 11, 290, 31] * 7
SAMPLINGS = [
    api.Sampling(temperature=0, max_tokens=40, ignore_eos=True),
    api.Sampling(seed=3, max_tokens=40, ignore_eos=True, logprobs=1),
    api.Sampling(seed=4, temperature=0.7, top_p=0.9, repetition_penalty=1.2, max_tokens=40, ignore_eos=True),
]


def options(folder: Path, **fields: Any) -> api.EngineOptions:
    return api.EngineOptions(model=str(folder), device="cpu", kv_tokens=1024, **fields)


def ran(asked: api.EngineOptions) -> Driver:
    """Whatever its drafts cost here."""
    engine, _ = build(asked)
    engine._drafting._cost = Free()
    for drafter in engine._drafting._drafters:
        if isinstance(drafter, DraftModel):
            drafter._cost = Nothing()
    driver = Driver(engine)
    for stream, sampling in enumerate(SAMPLINGS):
        driver.send(api.Submit(stream, [stream + 1, *PROMPT], sampling, credit=99))
    driver.settle()
    return driver


def tokens(driver: Driver) -> list[list[int]]:
    return [told.tokens for told in driver.told.values()]


@pytest.mark.parametrize("weights", ["f32", "q8"])
@pytest.mark.parametrize("file", [False, True], ids=["folder", "GGUF file"])
def test_it_drafts_whatever_computes_either(
    weights: str, file: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if (file or weights == "q8") and why_not() is not None:
        pytest.skip("ggml cannot be used here")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    if file:
        write_gguf(tiny_model("llama"), model := tmp_path / "tiny.gguf")
    else:
        model = tiny_folder(tmp_path, "llama")
    without = ran(options(model, weights=weights, drafts="off"))
    driver = ran(options(model, weights=weights, draft_model=str(model)))
    assert tokens(driver) == tokens(without)
    assert driver.stats.model_accepted_total > 0.6 * driver.stats.model_drafted_total > 0
    assert len(driver.outputs) < len(without.outputs) / 2
    memory = [memory for memory in driver.engine._idle_memory if memory.due_in_s is not None]
    assert len(memory) == 2, "what both have cached is given back in its time"


def test_another_model_of_another_shape_drafts_as_well(tmp_path: Path) -> None:
    folder = tiny_folder(tmp_path, "llama")
    small = tiny_folder(tmp_path / "small", "qwen3", num_hidden_layers=1, vocab_size=480)
    without, driver = (ran(options(folder, **asked)) for asked in ({}, {"draft_model": str(small)}))
    assert tokens(driver) == tokens(without)
    assert driver.stats.model_drafted_total > driver.stats.model_accepted_total


def test_one_of_another_vocabulary_is_refused(tmp_path: Path) -> None:
    folder, other = tiny_folder(tmp_path, "llama"), tiny_folder(tmp_path / "other", "llama")
    tokenizer = json.loads((other / "tokenizer.json").read_text())
    tokenizer["added_tokens"][-1]["content"] += "?"
    (other / "tokenizer.json").write_text(json.dumps(tokenizer))
    with pytest.raises(ModelError) as told:
        build(options(folder, draft_model=str(other)))
    assert str(told.value) == (
        f"--draft-model {other} has another vocabulary than {folder}: a model drafts for those that have its"
        " own"
    )
    (other / "tokenizer.json").write_text("{")
    with pytest.raises(ModelError, match="cannot be read"):
        build(options(folder, draft_model=str(other)))


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"drafts": "off"}, "would draft nothing with --drafts off"),
        ({"device": "cuda:0"}, "cannot draft on cuda:0, where a step is planned before"),
        ({"devices": 2}, "cannot draft where devices share the model"),
        ({"model": "toy"}, "the toy has no vocabulary of a model"),
    ],
)
def test_where_none_can_draft_that_is_said(fields: dict[str, Any], why: str, tmp_path: Path) -> None:
    folder = tiny_folder(tmp_path, "llama")
    asked = replace(options(folder, draft_model=str(folder)), **fields)
    with pytest.raises(ModelError, match=why):
        build(asked, join=lambda folder, device: pytest.fail("too late"))
