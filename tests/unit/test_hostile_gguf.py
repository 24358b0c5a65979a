"""GGUF files from strangers: what is broken in them, on purpose or not, is told in a sentence."""

from __future__ import annotations

import struct
from math import inf, nan
from pathlib import Path

import pytest

from engine.model.gguf_file import GgufFile, huggingface_name
from engine.model.gguf_to_huggingface import convert
from engine.model.preflight import ModelError

U32, F32, TEXT, ARRAY, U64 = 4, 6, 8, 9, 10


def text(said: str) -> bytes:
    return struct.pack("<Q", len(said)) + said.encode()


def field(name: str, kind: int, value: bytes) -> bytes:
    return text(name) + struct.pack("<I", kind) + value


def gguf(*fields: bytes, tensors: tuple[bytes, ...] = (), tail: bytes = b"") -> bytes:
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(fields))
    return head + b"".join(fields) + b"".join(tensors) + tail


def tensor(name: str, shape: tuple[int, ...], kind: int, offset: int = 0) -> bytes:
    said = struct.pack(f"<I{len(shape)}Q", len(shape), *shape)
    return text(name) + said + struct.pack("<IQ", kind, offset)


NESTED = field("a", ARRAY, struct.pack("<IQ", ARRAY, 1) * 5_000 + struct.pack("<IQ", U32, 0))


@pytest.mark.parametrize(
    "said",
    [
        b"",
        b"GGUF",
        gguf(NESTED),
        gguf(field("a", ARRAY, struct.pack("<IQ", U64, 2**60))),
        gguf(field("a", ARRAY, struct.pack("<IQ", TEXT, 2**60))),
        gguf(field("a", 77, b"")),
        gguf(field("general.alignment", U32, struct.pack("<I", 0)), tensors=(tensor("t", (32,), 0),)),
        gguf(field("general.alignment", TEXT, text("wide")), tensors=(tensor("t", (32,), 0),)),
        gguf(tensors=(tensor("t", (32,), 0, 2**63),)),
        gguf(tensors=(tensor("t", (2**40, 2**40), 0),)),
        gguf(tensors=(tensor("t", (32,), 999),)),
        gguf(tensors=(tensor("t", (), 0),), tail=bytes(64)),
        gguf(tensors=(tensor("t", (33, 2), 8),), tail=bytes(640)),
        gguf(tensors=(tensor("t", (32,), 0), tensor("t", (32,), 0, 128)), tail=bytes(640)),
    ],
    ids=range(14),
)
def test_a_header_that_is_none_is_told_in_a_sentence(tmp_path: Path, said: bytes) -> None:
    file = tmp_path / "a.gguf"
    file.write_bytes(said)
    with pytest.raises(ModelError, match=r"a\.gguf is truncated, broken or no GGUF file"):
        GgufFile(file)


def number(name: str, value: int) -> bytes:
    return field(name, U32, struct.pack("<I", value))


def real(name: str, value: float) -> bytes:
    return field(name, F32, struct.pack("<f", value))


WHOLE = {
    "general.architecture": field("general.architecture", TEXT, text("llama")),
    "llama.attention.head_count": number("llama.attention.head_count", 2),
    "llama.embedding_length": number("llama.embedding_length", 8),
    "llama.feed_forward_length": number("llama.feed_forward_length", 8),
    "llama.block_count": number("llama.block_count", 1),
    "llama.context_length": number("llama.context_length", 64),
    "rms": real("llama.attention.layer_norm_rms_epsilon", 1e-5),
    "model": field("tokenizer.ggml.model", TEXT, text("gpt2")),
    "pre": field("tokenizer.ggml.pre", TEXT, text("gpt-2")),
    "tokens": field("tokenizer.ggml.tokens", ARRAY, struct.pack("<IQ", TEXT, 2) + text("a") + text("b")),
    "kinds": field("tokenizer.ggml.token_type", ARRAY, struct.pack("<IQ2I", U32, 2, 1, 1)),
    "merges": field("tokenizer.ggml.merges", ARRAY, struct.pack("<IQ", TEXT, 0)),
}


@pytest.mark.parametrize(
    "wrong",
    [
        {"kinds": field("tokenizer.ggml.token_type", ARRAY, struct.pack("<IQ1I", U32, 1, 1))},
        {"merges": field("tokenizer.ggml.merges", ARRAY, struct.pack("<IQ", TEXT, 1) + text("x y"))},
        {"tokens": number("tokenizer.ggml.tokens", 5)},
        {"bos": number("tokenizer.ggml.bos_token_id", 99)},
    ],
    ids=lambda wrong: next(iter(wrong)),
)
def test_a_fact_that_does_not_fit_is_told_in_a_sentence(tmp_path: Path, wrong: dict[str, bytes]) -> None:
    file, folder = tmp_path / "a.gguf", tmp_path / "made"
    folder.mkdir()
    file.write_bytes(gguf(*(WHOLE | wrong).values()))
    with pytest.raises(ModelError, match=r"a\.gguf is broken: what it says of its model does not fit"):
        convert(file, folder)


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        (number("llama.attention.head_count", 0), "num_attention_heads is 0, and must be"),
        (number("llama.attention.head_count", 3), r"hidden_size is 8, which num_attention_heads \(3\)"),
        (number("llama.attention.head_count_kv", 5), "num_attention_heads is 2, which num_key_value_heads"),
        (field("llama.embedding_length", TEXT, text("eight")), "hidden_size is 'eight', and must be"),
        (number("llama.block_count", 4_000_000), "num_hidden_layers is 4000000, and 1000 is the most"),
        (number("llama.context_length", 0), "max_position_embeddings is 0, and must be"),
        (real("llama.attention.layer_norm_rms_epsilon", nan), "rms_norm_eps is nan, and must be a number"),
        (real("llama.attention.layer_norm_rms_epsilon", -1), "rms_norm_eps is -1.0, and must be a number"),
        (real("llama.rope.freq_base", inf), "rope_theta is inf, and must be a number above 0"),
        (field("tokenizer.ggml.eos_token_id", TEXT, text("end")), "eos_token_id is 'end', and must be"),
    ],
    ids=range(10),
)
def test_a_number_that_no_model_can_have_is_told_before_a_library_meets_it(
    tmp_path: Path, wrong: bytes, why: str
) -> None:
    """ggml ends the process where a norm adds no number, and four million blocks take for ever to make."""
    file = tmp_path / "a.gguf"
    file.write_bytes(gguf(*WHOLE.values(), wrong))  # the later of two fields holds
    with pytest.raises(ModelError, match=rf"a\.gguf is broken: {why}"):
        convert(file, tmp_path)


@pytest.mark.parametrize(
    "name", ["blk.", "blk.0", "blk.0.attn_q", "blk.0.ffn_gate_exps.weight", "blk.0.a.b.c"]
)
def test_a_weight_that_no_model_has_is_told_by_its_name(name: str) -> None:
    with pytest.raises(ModelError, match="holds a tensor"):
        huggingface_name(name)
