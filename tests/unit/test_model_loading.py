"""Model loading: a name becomes a folder, and a folder a model, or one sentence that says why not."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, GenerationConfig

from engine import api
from engine.build.build import build
from engine.model import default_model, devices, weights_digest
from engine.model import loading as models
from engine.model.default_model import DEFAULT_MODEL
from engine.model.devices import available_memory
from engine.model.facts import describe
from engine.model.loading import load
from engine.model.names import check_name, resolve
from engine.model.preflight import SUPPORTED, ModelError, check_folder, parameter_count
from tests.fakes.device_waits import NoDeviceWaits
from tests.fakes.tiny_models import ARCHITECTURES, WINDOW, tiny_folder, tiny_model


@pytest.fixture(scope="session")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_folder(tmp_path_factory.mktemp("models"), "llama")


@pytest.fixture
def folder(tmp_path: Path, pristine: Path) -> Path:
    return Path(shutil.copytree(pristine, tmp_path / "model"))


def change(folder: Path, **fields: Any) -> None:
    file = folder / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **fields}))


# -- loading ---------------------------------------------------------------------------------------


def test_every_supported_architecture_has_a_tiny_instance() -> None:
    assert set(ARCHITECTURES) == set(SUPPORTED)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_folder_is_loaded_as_it_was_saved(tmp_path: Path, architecture: str) -> None:
    saved = tiny_model(architecture)
    folder = tiny_folder(tmp_path, architecture)
    loaded = load(folder, dtype="float32", attention="eager")
    assert type(loaded).__name__ == SUPPORTED[architecture]
    assert not loaded.training
    assert loaded.config._attn_implementation == "eager"
    assert not any(weight.requires_grad for weight in loaded.parameters())
    weights = dict(saved.named_parameters())
    assert all(torch.equal(weight, weights[name]) for name, weight in loaded.named_parameters())
    assert describe(loaded.config, loaded.generation_config) == describe(
        saved.config, saved.generation_config
    )


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_greedy_output_of_a_tiny_model_wanders(architecture: str) -> None:
    model = tiny_model(architecture, dtype=torch.float64)
    prompt = torch.arange(300, 320)[None]
    output = model.generate(  # type: ignore[operator]
        prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=40, do_sample=False, eos_token_id=None
    )
    assert len(set(output[0, 20:].tolist())) > 10


@pytest.mark.parametrize("architecture", ["llama", "qwen3_moe", "gpt_oss"])
def test_float64_runs(tmp_path: Path, architecture: str) -> None:
    model = load(tiny_folder(tmp_path, architecture), dtype="float64", attention="eager")
    assert model(torch.tensor([[1, 2, 3]])).logits.dtype is torch.float64


ORIGINAL = 64
ROPES = {
    "dynamic": ("llama", {"rope_type": "dynamic", "factor": 2.0}),
    "longrope": (
        "phi3",
        {
            "rope_type": "longrope",
            "original_max_position_embeddings": ORIGINAL,
            "short_factor": [1.0 + at / 10 for at in range(8)],
            "long_factor": [4.0] * 8,
        },
    ),
}


@pytest.mark.parametrize(("architecture", "rope"), ROPES.values(), ids=ROPES)
def test_frequencies_that_would_change_with_length_are_those_of_short_sequences_and_nobody_looks(
    tmp_path: Path, architecture: str, rope: dict[str, Any]
) -> None:
    fields: dict[str, Any] = {
        "rope_parameters": {"rope_theta": 10_000.0, **rope},
        "max_position_embeddings": 4 * ORIGINAL,
        "original_max_position_embeddings": ORIGINAL,
    }
    model = load(tiny_folder(tmp_path, architecture, **fields))
    as_written = tiny_model(architecture, **fields)
    hidden, positions = torch.zeros(1, ORIGINAL, 16), torch.arange(ORIGINAL)[None]
    with NoDeviceWaits():  # type: ignore[no-untyped-call]
        found = model.model.rotary_emb(hidden, positions)
    wanted = as_written.model.rotary_emb(hidden, positions)
    assert all(map(torch.equal, found, wanted))
    assert describe(model.config).context == (ORIGINAL if architecture == "phi3" else 4 * ORIGINAL)


def test_no_progress_is_drawn_where_nobody_looks(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    load(folder)
    assert capfd.readouterr().err == ""


def test_weights_on_a_cpu_are_float32_unless_asked(folder: Path) -> None:
    assert load(folder).dtype is torch.float32
    assert load(folder, dtype="bfloat16").dtype is torch.bfloat16


def test_weights_in_several_files_are_found(tmp_path: Path) -> None:
    model = tiny_model("llama")
    folder = tiny_folder(tmp_path, "llama")
    (folder / "model.safetensors").unlink()
    model.save_pretrained(folder, max_shard_size="100KB")
    assert parameter_count(folder) == sum(weight.numel() for weight in model.parameters())
    assert torch.equal(load(folder).model.norm.weight, model.model.norm.weight)
    (folder / min(path.name for path in folder.glob("*.safetensors"))).unlink()
    with pytest.raises(ModelError, match=r"incomplete: .*00001-of-.* is missing"):
        load(folder)


# -- refusals --------------------------------------------------------------------------------------


def truncate(folder: Path) -> None:
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])


def drop_a_weight(folder: Path) -> None:
    model = tiny_model("llama", num_hidden_layers=2)
    model.save_pretrained(folder)
    change(folder, num_hidden_layers=3)


def unreadable(folder: Path) -> None:
    """Where permissions do not count, as for root: a link that leads to itself."""
    (folder / "model.safetensors").unlink()
    (folder / "loop.safetensors").symlink_to("loop.safetensors")
    index = {"weight_map": {"model.norm.weight": "loop.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


REFUSALS: dict[str, tuple[Callable[[Path], object], str]] = {
    "no folder": (shutil.rmtree, "model folder .* does not exist"),
    "no config": (lambda folder: (folder / "config.json").unlink(), "holds no config.json"),
    "broken config": (lambda folder: (folder / "config.json").write_text("{"), "config.json is broken"),
    "config no object": (lambda folder: (folder / "config.json").write_text("[]"), "is no JSON object"),
    "deep config": (
        lambda folder: (folder / "config.json").write_text("[" * 99_999),
        "config.json is broken",
    ),
    "no type": (lambda folder: change(folder, model_type=None), "names no model_type"),
    "another type": (
        lambda folder: change(folder, model_type="mamba"),
        "mamba is not supported; supported are llama,",
    ),
    "another head": (
        lambda folder: change(folder, architectures=["LlamaForSequenceClassification"]),
        "LlamaForSequenceClassification is not supported; of llama models, LlamaForCausalLM is",
    ),
    "heads of no kind": (
        lambda folder: change(folder, architectures={"a": 1}),
        r"config.json is broken: architectures is \{'a': 1\}, and must be a list",
    ),
    "quantized": (
        lambda folder: change(folder, quantization_config={"quant_method": "gptq"}),
        r"quantized \(gptq\), which is not supported",
    ),
    "both directions": (
        lambda folder: change(folder, use_bidirectional_attention=True),
        "attends in both directions",
    ),
    "a wrong field": (lambda folder: change(folder, attention_bias=3), "cannot be loaded: .*attention_bias"),
    "a wrong number": (
        lambda folder: change(folder, num_hidden_layers=-1),
        "config.json is broken: num_hidden_layers is -1, and must be a whole number from 1",
    ),
    "end tokens of no kind": (
        lambda folder: (folder / "generation_config.json").write_text('{"eos_token_id": "</s>"}'),
        "generation_config.json is broken: eos_token_id is '</s>', and must be the number of a token",
    ),
    "no tokenizer": (lambda folder: (folder / "tokenizer.json").unlink(), "holds no tokenizer.json"),
    "no weights": (
        lambda folder: (folder / "model.safetensors").unlink(),
        r"holds no weights, as safetensors or model\.gguf",
    ),
    "pickled weights": (
        lambda folder: (folder / "model.safetensors").rename(folder / "pytorch_model.bin"),
        r"holds no weights, as safetensors or model\.gguf",
    ),
    "unreadable": (unreadable, "loop.safetensors cannot be read: Too many levels"),
    "truncated": (truncate, "truncated or corrupt"),
    "no safetensors": (
        lambda folder: (folder / "model.safetensors").write_bytes(b"?" * 99),
        "truncated or corrupt",
    ),
    "incomplete": (drop_a_weight, r"incomplete: model.layers.2.* is missing \(9 in all\)"),
    "another shape": (
        lambda folder: change(folder, vocab_size=999),
        "do not fit its config.json: .* has another shape",
    ),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_what_cannot_be_served_is_refused_in_a_sentence(folder: Path, case: str) -> None:
    spoil, why = REFUSALS[case]
    spoil(folder)
    with pytest.raises(ModelError, match=why) as refused:
        load(folder)
    assert "\n" not in str(refused.value)


def test_an_index_that_maps_nothing_is_refused(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors.index.json").write_text('{"weight_map": {}}')
    with pytest.raises(ModelError, match="maps no weights to files"):
        load(folder)


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        ({"dtype": "int4"}, "the dtype int4 is not supported; float64, float32, bfloat16, float16 are"),
        ({"device": "abacus"}, "no device abacus"),
        ({"device": "meta"}, "the device meta is not supported"),
        ({"device": "cuda:99"}, r"the device cuda:99 is not there: torch sees \d+ CUDA devices"),
    ],
)
def test_where_and_as_what_it_cannot_run_is_refused(folder: Path, asked: dict[str, Any], why: str) -> None:
    with pytest.raises(ModelError, match=why):
        load(folder, **asked)


def test_weights_larger_than_the_memory_are_not_read(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    needed = parameter_count(folder) * 4
    monkeypatch.setattr(devices, "available_memory", lambda: needed)
    assert load(folder).dtype is torch.float32
    monkeypatch.setattr(devices, "available_memory", lambda: needed - 1)
    with pytest.raises(ModelError, match=r"not enough memory on cpu: the weights take \d+\.\d GiB"):
        load(folder)


STARVED = pytest.mark.parametrize(
    "error", [MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory")]
)


@STARVED
def test_memory_that_runs_out_while_loading_is_said(
    folder: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def exhausted(*_: object) -> None:
        raise error

    monkeypatch.setattr(models, "_freeze", exhausted)
    with pytest.raises(ModelError, match="not enough memory on cpu for the weights"):
        load(folder)


@STARVED
def test_memory_that_runs_out_behind_the_weights_is_said(
    folder: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def exhausted(*_: object) -> str:
        raise error

    monkeypatch.setattr(weights_digest, "weights_digest", exhausted)
    with pytest.raises(ModelError, match="not enough memory for this model and its KV cache"):
        build(api.EngineOptions(model=str(folder), kv_tokens=1024))


def test_memory_is_the_least_of_what_the_system_has_and_a_container_has_left(tmp_path: Path) -> None:
    meminfo, limit = tmp_path / "meminfo", tmp_path / "memory.max"
    assert available_memory(meminfo, tmp_path) is None
    meminfo.write_text("MemTotal:  9 kB\nMemAvailable:    4 kB\n")
    assert available_memory(meminfo, tmp_path) == 4096
    (tmp_path / "memory.current").write_text("700\n")
    (tmp_path / "memory.stat").write_text("anon 500\nfile 150\ninactive_file 120\nactive_file 30\n")
    limit.write_text("max\n")
    assert available_memory(meminfo, tmp_path) == 4096
    limit.write_text("1000\n")
    assert available_memory(meminfo, tmp_path) == 1000 - (700 - 150)


# -- names -----------------------------------------------------------------------------------------


def test_a_local_folder_is_itself(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert resolve(str(folder)) == folder
    monkeypatch.chdir(folder.parent)
    assert resolve("model") == Path("model")


def test_a_file_may_have_any_name(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its folder has a longer one, with more behind the file's own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for stem in ("n" * 250, "é" * 125):
        (file := folder / f"{stem}.gguf").touch()
        assert (resolve(str(file)) / "model.gguf").resolve() == file


def test_the_default_name_is_the_default_model(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(default_model, "ensure", lambda: folder)
    assert resolve() == resolve(DEFAULT_MODEL) == folder


@pytest.mark.parametrize("name", ["gpt-none", "/no/such/folder", "./no/folder", "a/b/c", "", "../up"])
def test_what_is_no_name_is_refused(name: str) -> None:
    with pytest.raises(ModelError, match="no folder or GGUF file here, no hub id"):
        resolve(name)


def test_a_name_that_may_be_a_hub_id_is_not_refused_by_its_looks() -> None:
    for name in ("owner/none", "owner/none/file.gguf", DEFAULT_MODEL):
        check_name(name)


@pytest.mark.parametrize("why", [errno.EACCES, errno.ENAMETOOLONG])
def test_what_cannot_be_looked_at_is_said_so(why: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: Path) -> bool:
        raise OSError(why, os.strerror(why))

    monkeypatch.setattr(Path, "is_dir", refuse)
    with pytest.raises(ModelError, match=f"/root/model cannot be looked at: {os.strerror(why)}"):
        resolve("/root/model")


def test_a_hub_id_is_fetched_without_pickles_and_code(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, list[str]]] = []

    def snapshot(name: str, *, allow_patterns: list[str]) -> str:
        asked.append((name, allow_patterns))
        return str(folder)

    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot)
    assert resolve("owner/model.v1") == folder
    assert asked == [("owner/model.v1", ["*.safetensors", "*.json", "*.jinja"])]


def test_a_hub_that_cannot_be_reached_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(ModelError, match="owner/none is no folder here, and not to be had from the hub: "):
        resolve("owner/none")


# -- facts -----------------------------------------------------------------------------------------

WINDOWS: dict[str, list[int | None]] = {
    "llama": [None] * 3,
    "mistral": [WINDOW] * 3,
    "qwen2": [None, None, WINDOW, WINDOW],
    "qwen3": [None, WINDOW, WINDOW],
    "qwen3_moe": [None] * 3,
    "gemma2": [WINDOW, None] * 2,
    "gemma3_text": [WINDOW, None] * 2,
    "phi3": [WINDOW + 3] * 3,
    "olmo2": [None] * 3,
    "gpt_oss": [WINDOW, None] * 2,
}


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_facts_are_those_of_the_modules(architecture: str) -> None:
    model = tiny_model(architecture)
    facts = describe(model.config, model.generation_config)
    assert facts.windows == WINDOWS[architecture]
    assert (facts.architecture, facts.layers) == (architecture, len(model.model.layers))
    attention = model.model.layers[0].self_attn
    assert attention.head_dim == facts.head_dim
    assert attention.o_proj.in_features == facts.heads * facts.head_dim
    assert attention.num_key_value_groups == facts.heads // facts.kv_heads == 2
    assert model.get_input_embeddings().weight.shape == (facts.vocab, facts.hidden)
    assert (facts.context, facts.eos) == (512, [463])
    assert facts.kv_numbers_per_token == 2 * facts.layers * facts.kv_heads * facts.head_dim


def test_a_window_of_every_layer_is_seen() -> None:
    config = AutoConfig.for_model("qwen3_moe", num_hidden_layers=2, use_sliding_window=True, sliding_window=8)
    assert describe(config).windows == [8, 8]


def generation_config(**fields: Any) -> GenerationConfig:
    config: GenerationConfig = GenerationConfig(**fields)  # type: ignore[no-untyped-call]
    return config


def test_the_generation_config_knows_the_end_tokens_best() -> None:
    config = AutoConfig.for_model("llama", eos_token_id=[2, 1])
    assert describe(config).eos == [1, 2]
    assert describe(config, generation_config()).eos == [1, 2]
    assert describe(config, generation_config(eos_token_id=[9, 7, 9])).eos == [7, 9]
    assert describe(AutoConfig.for_model("llama", eos_token_id=None)).eos == []


@pytest.mark.parametrize(
    ("rope", "context"),
    [
        ({"rope_type": "default"}, 4096),
        ({"rope_type": "linear", "factor": 4.0}, 4096),
        ({"rope_type": "yarn", "factor": 4.0}, 16384),
        ({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024}, 4096),
        ({"rope_type": "dynamic", "factor": 4.0}, 4096),
        (
            {
                "rope_type": "longrope",
                "factor": 4.0,
                "short_factor": [1.0] * 8,
                "long_factor": [4.0] * 8,
                "original_max_position_embeddings": 1024,
            },
            1024,
        ),
    ],
    ids=lambda value: value["rope_type"] if isinstance(value, dict) else None,
)
def test_the_context_is_as_long_as_positions_keep_their_meaning(rope: dict[str, Any], context: int) -> None:
    rope = {"rope_theta": 10_000.0, **rope}
    config = AutoConfig.for_model(
        "llama", hidden_size=64, num_attention_heads=4, max_position_embeddings=4096, rope_parameters=rope
    )
    assert describe(config).context == context


def test_a_rope_of_each_kind_of_layer_is_considered() -> None:
    full = {"rope_type": "yarn", "rope_theta": 1e6, "factor": 8.0, "original_max_position_embeddings": 1024}
    ropes = {"full_attention": full, "sliding_attention": {"rope_type": "default", "rope_theta": 1e4}}
    config = AutoConfig.for_model("gemma3_text", max_position_embeddings=4096, rope_parameters=ropes)
    assert describe(config).context == 8192


def test_inspecting_reads_no_weights(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "load", None)
    assert check_folder(folder)["model_type"] == "llama"
