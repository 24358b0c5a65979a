"""Models that ggml computes: they say what transformers says but for what their width rounds off, and a
stream's tokens follow from its own start and steering."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from gguf import GGMLQuantizationType as Kind
from gguf import GGUFWriter, quantize
from safetensors.torch import load_file, save_file

from bench.exact import Engines, alone, differing, scripts, ways
from engine import api, toy_model
from engine.build.build import build
from engine.build.products import ggml_width
from engine.ggml.family import FAMILY
from engine.ggml.kinds import BFLOAT16, Q8_0
from engine.ggml.library import library, why_not
from engine.ggml.loading import load
from engine.ggml.weights import Weight, Weights, read_weights
from engine.model.loading import load as load_plain
from engine.model.preflight import GGUF_FILE, ModelError
from tests.fakes.engine_driver import Driver, greedy
from tests.fakes.tiny_models import tiny_folder, tiny_model
from tests.unit.test_default_model import write_gguf

pytestmark = pytest.mark.skipif(why_not() is not None, reason="ggml cannot be used here")

PROMPT = [72, 105, 300, 11, 290, 31] * 7


def options(folder: Path, **fields: object) -> api.EngineOptions:
    return api.EngineOptions(model=str(folder), device="cpu", kv_tokens=1024, **fields)  # type: ignore[arg-type]


def stretched(folder: Path) -> Path:
    """Positions that are stretched as Llama 3 stretches them."""
    return tiny_folder(
        folder,
        "llama",
        rope_parameters={
            "rope_type": "llama3",
            "rope_theta": 500_000.0,
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        },
    )


def spoken(folder: Path, **fields: object) -> list[int]:
    engine, _ = build(options(folder, **fields))
    driver = Driver(engine)
    driver.settle(api.Submit(1, PROMPT, greedy(24), credit=1000))
    return driver.told[1].tokens


def test_wide_as_it_is_it_says_what_transformers_says(tmp_path: Path) -> None:
    """Every way in which weights and positions go through a graph, without what a narrow width rounds off."""
    folders = [*(tiny_folder(tmp_path, architecture) for architecture in FAMILY)]
    folders += [
        stretched(tmp_path / "stretched"),
        tiny_folder(tmp_path / "biased", "llama", attention_bias=True),
    ]
    folders.append(tiny_folder(tmp_path / "tied", "llama", tie_word_embeddings=True))
    for folder in folders:
        assert spoken(folder) == spoken(folder, attention="sdpa"), folder


@pytest.mark.parametrize(("width", "kind"), [("bf16", "bf16"), ("q8", "q8_0"), ("q4", "q4_1")])
def test_a_width_rounds_to_what_its_name_says(width: str, kind: str, tmp_path: Path) -> None:
    folder = tiny_folder(tmp_path, "qwen3")
    weights = read_weights(folder, width)
    plain = tiny_model("qwen3").state_dict()["model.layers.0.mlp.down_proj.weight"]
    narrow = weights.by_name["blk.0.ffn_down.weight"]
    assert narrow.kind_name == kind
    assert narrow.data.nbytes == plain.shape[0] * library().row_size(narrow.kind, plain.shape[1])
    _, hello = build(options(folder, weights=width))
    assert (hello.weights, hello.products, hello.dtype) == (weights.width, "ggml", "float32")


@pytest.mark.parametrize(
    ("architecture", "width"), [*((one, "q8") for one in FAMILY), ("mistral", "bf16"), ("mistral", "q4")]
)
def test_every_width_is_exact(architecture: str, width: str, tmp_path: Path) -> None:
    folder = tiny_folder(tmp_path, architecture)
    engines = Engines.of(options(folder, weights=width, exact="on"))
    wanted = scripts(5, 9, engines.vocab, longest=150)
    expected = alone(engines, wanted)
    for name in ("staggered", "in a third of the memory", "in three engines", "with drafts, in two engines"):
        assert differing(expected, ways(wanted)[name](engines, wanted)) == (0, 0), name


def test_a_gguf_file_is_served_as_wide_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    write_gguf(tiny_model("llama"), tmp_path / "tiny.gguf")
    _, hello = build(options(tmp_path / "tiny.gguf"))
    assert (hello.model, hello.weights, hello.products) == ("tiny.gguf", "f32", "ggml")
    assert spoken(tmp_path / "tiny.gguf") == spoken(tiny_folder(tmp_path, "llama"))
    _, plain = build(options(tmp_path / "tiny.gguf", attention="sdpa"))
    assert (plain.weights, plain.products) == ("float32", "torch")
    assert plain.fingerprint != hello.fingerprint


def test_what_is_narrower_than_eight_bits_is_computed_in_eight_while_that_is_small(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    write_gguf(tiny_model("llama"), tmp_path / "tiny.gguf", Kind.Q4_1)
    _, hello = build(options(tmp_path / "tiny.gguf"))
    assert hello.weights == "q8_0"
    monkeypatch.setattr("engine.build.products.SMALL", 1)
    _, hello = build(options(tmp_path / "tiny.gguf"))
    assert hello.weights == "q4_1"


def told_as(file: Path, name: str, kind: Kind) -> None:
    """Have the header call a matrix's numbers by another kind."""
    said = bytearray(file.read_bytes())
    at = said.index(name.encode()) + len(name) + 4 + 2 * 8  # behind how many sizes it has, and those
    said[at : at + 4] = kind.to_bytes(4, "little")
    file.write_bytes(said)


@pytest.mark.parametrize("name", ["token_embd.weight", "blk.0.attn_q.weight", "blk.0.ffn_down.weight"])
def test_numbers_that_ggml_does_not_multiply_are_refused_in_a_sentence(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would end the process."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    write_gguf(tiny_model("llama"), tmp_path / "tiny.gguf")
    told_as(tmp_path / "tiny.gguf", name, Kind.I32)
    with pytest.raises(ModelError, match=r"cannot be loaded: .*I32"):
        build(options(tmp_path / "tiny.gguf"))


@pytest.mark.parametrize("width", ["auto", "q8"])
def test_a_vector_that_is_told_as_a_matrix_of_one_row_is_a_vector(
    width: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    plain, rows = tmp_path / "plain.gguf", tmp_path / "rows.gguf"
    model = tiny_model("llama", dtype=torch.float16).float()  # type: ignore[no-untyped-call]
    write_gguf(model, plain, Kind.F16)
    add = GGUFWriter.add_tensor

    def as_row(writer: GGUFWriter, name: str, numbers: Any, raw_dtype: Kind) -> None:
        if numbers.ndim == 1:
            numbers, raw_dtype = quantize(numbers[None], Kind.F16), Kind.F16
        add(writer, name, numbers, raw_dtype=raw_dtype)

    monkeypatch.setattr(GGUFWriter, "add_tensor", as_row)
    write_gguf(model, rows, Kind.F16)
    assert spoken(rows, weights=width) == spoken(plain, weights=width)


def wide(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "hidden_size": "wide"}))


def no_heads(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "num_attention_heads": 0}))


def flat(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    weights["model.norm.weight"] = torch.ones(())
    save_file(weights, folder / "model.safetensors")


def listed(folder: Path) -> None:
    (folder / "generation_config.json").write_text("[]")


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (wide, "config.json is broken: hidden_size is 'wide'"),
        (no_heads, "config.json is broken: num_attention_heads is 0"),
        (flat, "cannot be loaded"),
        (listed, "generation_config.json is broken: it is no JSON object"),
    ],
)
def test_what_is_broken_is_told_in_a_sentence(
    spoil: Callable[[Path], None], why: str, tmp_path: Path
) -> None:
    folder = tiny_folder(tmp_path, "llama")
    spoil(folder)
    with pytest.raises(ModelError, match=why) as told:
        build(options(folder))
    assert "\n" not in str(told.value)


def test_what_lies_beside_a_gguf_file_makes_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = tiny_folder(tmp_path, "llama")
    (folder / "model.safetensors").unlink()
    write_gguf(tiny_model("llama"), folder / "any.gguf")
    _, hello = build(options(folder / "any.gguf"))
    assert hello.eos == [toy_model.EOS]
    assert (Path(hello.folder) / "tokenizer.json").read_bytes() == (folder / "tokenizer.json").read_bytes()


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"weights": "q8", "dtype": "bfloat16"}, "ggml computes in float32, and --dtype is bfloat16"),
        ({"weights": "q3"}, "no weights q3"),
    ],
)
def test_what_cannot_be_had_is_said(fields: dict[str, str], why: str, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=why):
        build(options(tiny_folder(tmp_path, "llama"), **fields))


def test_a_gguf_file_is_not_shared(tmp_path: Path) -> None:
    (tmp_path / GGUF_FILE).touch()
    with pytest.raises(ModelError, match="cannot be shared among devices"):
        ggml_width(options(tmp_path, devices=2), tmp_path, "cuda")


def test_an_architecture_that_is_not_of_the_family_is_said(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"--weights q8 cannot be had: .* the architecture is gemma2"):
        build(options(tiny_folder(tmp_path, "gemma2"), weights="q8"))


def test_without_the_package_a_gguf_file_is_computed_by_torch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("engine.ggml.library.why_not", lambda: "the package is not installed")
    write_gguf(tiny_model("llama"), tmp_path / "tiny.gguf")
    _, hello = build(options(tmp_path / "tiny.gguf"))
    assert (hello.weights, hello.products) == ("float32", "torch")
    with pytest.raises(ModelError, match="the package is not installed"):
        build(options(tmp_path / "tiny.gguf", weights="q8"))


def test_a_processor_for_which_it_is_not_built_does_without(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    monkeypatch.setattr("torch.backends.cpu.get_cpu_capability", lambda: "DEFAULT")
    assert "AVX2" in str(why_not())


def test_weights_that_do_not_fit_are_refused_before_ggml_sees_them(tmp_path: Path) -> None:
    folder = tiny_folder(tmp_path, "llama")
    config = folder / "config.json"
    config.write_text(config.read_text().replace('"intermediate_size": 96', '"intermediate_size": 128'))
    with pytest.raises(ModelError, match="has another shape"):
        load(folder, "q8")
    config.write_text(config.read_text().replace('"num_hidden_layers": 3', '"num_hidden_layers": 4'))
    with pytest.raises(ModelError, match=r"incomplete: blk\.3"):
        load(folder, "q8")


def test_a_token_that_is_none_ends_its_stream_and_nothing_else(tmp_path: Path) -> None:
    engine, _ = build(options(tiny_folder(tmp_path, "llama"), weights="q8"))
    driver = Driver(engine)
    driver.settle(
        api.Submit(1, [5, 10**6, 7], greedy(4), credit=9), api.Submit(2, [5, 6, 7], greedy(4), credit=9)
    )
    assert driver.ended("error")
    assert len(driver.told[2].tokens) == 4


def test_siblings_of_one_kind_are_one_product(tmp_path: Path) -> None:
    weights = read_weights(tiny_folder(tmp_path, "qwen2"), "q8")
    mixed = Weights(dict(weights.by_name), rotates_neighbours=False)
    value = weights.by_name["blk.0.attn_v.weight"]
    mixed.by_name["blk.0.attn_v.weight"] = Weight(BFLOAT16, value.rows, value.columns, value.data)
    weights.join_siblings()
    joined = weights.by_name
    assert "blk.0.attn_k.weight" not in joined
    assert joined["blk.0.attn_q.bias"].columns == joined["blk.0.attn_q.weight"].rows
    mixed.join_siblings()
    assert "blk.0.attn_k.weight" in mixed.by_name
    assert value.kind == Q8_0


def test_siblings_of_several_kinds_give_what_one_kind_gives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tiny_folder(tmp_path, "qwen3")
    together = spoken(folder, weights="q8")
    monkeypatch.setattr(Weights, "join_siblings", lambda weights: None)
    assert spoken(folder, weights="q8") == together


def test_a_file_that_is_none_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    write_gguf(tiny_model("llama"), tmp_path / "whole.gguf")
    whole = (tmp_path / "whole.gguf").read_bytes()
    for name, content in {"text": b"no model", "cut": whole[:5000], "empty": b"", "end": whole[:-64]}.items():
        file = tmp_path / f"{name}.gguf"
        file.write_bytes(content)
        with pytest.raises(ModelError, match=rf"{name}.gguf"):
            build(options(file))


def test_a_folder_may_hold_gguf_in_place_of_safetensors(tmp_path: Path) -> None:
    folder = tiny_folder(tmp_path, "llama")
    write_gguf(tiny_model("llama"), folder / GGUF_FILE)
    (folder / "model.safetensors").unlink()
    tokens = torch.tensor([PROMPT])
    assert torch.equal(load_plain(folder)(tokens).logits, tiny_model("llama")(tokens).logits)
    shutil.rmtree(folder)
