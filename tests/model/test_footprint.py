"""What a model is said to take before it is loaded, held against what it takes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from msgspec.structs import replace

from engine import api
from engine.build.budgets import PROCESS_BYTES
from engine.build.components import Components
from engine.build.loading import load_by_width
from engine.build.products import ggml_width
from engine.outline import outline_of
from tests.fakes.tiny_models import tiny_folder

KV_TOKENS = 1024
ROOT = Path(__file__).parents[2]


def told(options: api.EngineOptions) -> int:
    found = outline_of(options)
    assert isinstance(found, api.Outline)
    return found.memory_bytes


def made(options: api.EngineOptions) -> Components:
    folder = Path(options.model)
    return Components(
        load_by_width(options, folder, ggml_width(options, folder, "cpu"), "cpu"), options, None
    )


@pytest.mark.parametrize(
    ("architecture", "weights", "dtype"),
    [
        ("llama", "auto", "auto"),
        ("llama", "auto", "bfloat16"),
        ("llama", "q8", "auto"),
        ("gemma3_text", "auto", "auto"),
        ("gpt_oss", "auto", "auto"),
    ],
)
def test_it_is_weights_and_cache_of_what_is_built_then(
    tmp_path: Path, architecture: str, weights: str, dtype: str
) -> None:
    options = api.EngineOptions(
        model=str(tiny_folder(tmp_path, architecture)),
        weights=weights,
        dtype=dtype,
        kv_tokens=KV_TOKENS,
        exact="off",
    )
    components = made(options)
    found = told(options) - PROCESS_BYTES
    assert found == pytest.approx(components.weights_bytes + components.kv_bytes, rel=0.05)


def test_where_no_size_of_the_cache_is_asked_for_one_sequence_of_full_length_fits(tmp_path: Path) -> None:
    options = api.EngineOptions(
        model=str(tiny_folder(tmp_path, "gemma3_text", max_position_embeddings=4096)),
        block_size=16,
        step_tokens=32,
        exact="off",
    )
    components = made(options)
    cache = told(options) - PROCESS_BYTES - components.weights_bytes
    bytes_each = components.kv_bytes // components.kv_tokens
    fits = made(replace(options, kv_tokens=cache // bytes_each // 16 * 16))
    assert fits.runner.context == 4096
    assert cache < 4096 * bytes_each * 0.6, "layers with windows keep no more than these"


def test_a_draft_model_and_each_process_count_and_what_a_gpu_holds_does_not(tmp_path: Path) -> None:
    folder = str(tiny_folder(tmp_path, "llama"))
    options = api.EngineOptions(model=folder, kv_tokens=KV_TOKENS, host_kv_gib=1.5)
    alone = told(options) - PROCESS_BYTES
    drafted = told(replace(options, kv_tokens=0, draft_model=folder)) - PROCESS_BYTES
    assert drafted == 2 * (told(replace(options, kv_tokens=0)) - PROCESS_BYTES)
    assert told(replace(options, devices=2)) == 2 * PROCESS_BYTES + alone
    assert told(replace(options, device="cuda")) == PROCESS_BYTES + 3 * 2**29, "for what paused streams leave"
    assert told(replace(options, device="cuda", devices=2)) == 2 * PROCESS_BYTES
    assert told(api.EngineOptions(model="toy")) == PROCESS_BYTES


def test_whoever_only_asks_compiles_nothing(tmp_path: Path) -> None:
    """A command of the fleet's and a gateway's start wait for it."""
    folder = tiny_folder(tmp_path, "llama")
    asks = (
        "import sys; from engine import api; from engine.outline import outline_of; "
        f"assert outline_of(api.EngineOptions(model={str(folder)!r})).memory_bytes; "
        "print(*{'numba', 'transformers.modeling_utils'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", asks], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.stderr, done.stdout.strip()) == ("", "")


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"hidden_size": "wide"}, "config.json is broken: hidden_size is 'wide', and must be a whole number"),
        ({"num_attention_heads": 0}, "config.json is broken: num_attention_heads is 0, and must be a whole"),
        ({"layer_types": 5}, "cannot be read: "),
    ],
    ids=str,
)
def test_a_configuration_that_makes_no_model_is_told_in_a_sentence(
    fields: dict[str, object], why: str, tmp_path: Path
) -> None:
    folder = tiny_folder(tmp_path, "llama")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | fields))
    told = outline_of(api.EngineOptions(model=str(folder)))
    assert isinstance(told, api.Failed)
    assert str(folder) in told.message
    assert why in told.message
    assert "\n" not in told.message


def test_a_tokenizer_that_is_no_text_has_no_grammars(tmp_path: Path) -> None:
    folder = tiny_folder(tmp_path, "llama")
    (folder / "tokenizer.json").write_bytes(b"\xff\xff")
    found = outline_of(api.EngineOptions(model=str(folder)))
    assert isinstance(found, api.Outline)
    assert not found.grammars
