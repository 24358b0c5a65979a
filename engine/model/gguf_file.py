"""GGUF files: how they are read, and what llama.cpp calls a model's weights.

A model folder may hold one in place of safetensors. The header is read here and not by the package gguf,
which takes seconds for a vocabulary; the package knows the number formats. It knows no tokenizer.
"""

from __future__ import annotations

import mmap
import struct
from collections import Counter
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import gguf
import torch
from gguf import GGMLQuantizationType as Kind
from torch import Tensor
from transformers import PreTrainedConfig

from engine.model.preflight import ModelError

VERSIONS = (2, 3)
ALIGNMENT = 32  # of the tensors, where the file names none
NUMBERS = "BbHhIif?__Qqd"  # as `struct` has them, by the format's own numbers
STRING, ARRAY = 8, 9
LENGTH = struct.Struct("<Q")  # of a string, before it
ARCHITECTURES = ("llama", "qwen2", "qwen3")  # by the file's own names
LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}


@dataclass(frozen=True, slots=True)
class GgufTensor:
    name: str
    shape: tuple[int, ...]  # rows before columns
    kind: Kind
    data: memoryview  # where it lies in the file

    def numbers(self) -> Tensor:
        """In float32."""
        whole = torch.frombuffer(bytearray(self.data), dtype=torch.uint8).numpy()
        *rows, columns = self.shape
        block, size = gguf.GGML_QUANT_SIZES[self.kind]
        if self.kind == Kind.F32:
            return torch.from_numpy(whole).view(torch.float32).view(self.shape)
        lines = whole.reshape(prod(rows), columns // block * size)
        return torch.from_numpy(gguf.dequantize(lines, self.kind).copy()).float().view(self.shape)


class GgufFile:
    """What the header says, and the tensors where they lie; raises `ModelError` where it is none."""

    def __init__(self, file: Path) -> None:
        self.path = file
        self.fields: dict[str, Any] = {}
        self.tensors: list[GgufTensor] = []
        try:
            with file.open("rb") as opened:
                self._bytes = memoryview(mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ))
            self._at = 0
            self._read()
        except OSError as error:
            raise ModelError(f"{file} cannot be read: {error.strerror}") from error
        except (struct.error, ValueError, LookupError, ArithmeticError, TypeError, RecursionError) as error:
            raise ModelError(f"{file} is truncated, broken or no GGUF file ({error})") from error

    @property
    def architecture(self) -> str:
        return str(self.fields.get("general.architecture"))

    @property
    def rotates_neighbours(self) -> bool:
        """Whether rows of queries and keys lie so that neighbours are rotated together, as llama.cpp has them
        for this architecture; transformers rotates a head's first half against its second."""
        return self.architecture == "llama"

    @property
    def parameter_count(self) -> int:
        return sum(prod(tensor.shape) for tensor in self.tensors)

    def state_dict(self, config: PreTrainedConfig) -> dict[str, Tensor]:
        """The weights as transformers wants them, in float32."""
        named = ((huggingface_name(tensor.name), tensor) for tensor in self.tensors)
        return {name: self._weight(tensor, config) for name, tensor in named if name is not None}

    def _weight(self, tensor: GgufTensor, config: PreTrainedConfig) -> Tensor:
        weight = tensor.numbers()
        if self.rotates_neighbours and ".attn_q." in tensor.name:
            return _halves(weight, config.num_attention_heads)
        if self.rotates_neighbours and ".attn_k." in tensor.name:
            return _halves(weight, config.num_key_value_heads or config.num_attention_heads)
        return weight

    # -- the format ----------------------------------------------------------------------------------

    def _read(self) -> None:
        if bytes(self._take(4)) != b"GGUF" or self._number("I") not in VERSIONS:
            raise ValueError("it begins otherwise")
        tensors, fields = self._number("Q"), self._number("Q")
        for _ in range(fields):
            name = self._string()
            self.fields[name] = self._value(self._number("I"))
        described = [self._tensor() for _ in range(tensors)]
        for name, count in Counter(name for name, *_ in described).items():
            if count > 1:  # nobody knows which of them is meant
                raise ValueError(f"it holds {name} {count} times")
        alignment = self.fields.get("general.alignment", ALIGNMENT)
        first = -(-self._at // alignment) * alignment
        for name, shape, kind, offset in described:
            block, size = gguf.GGML_QUANT_SIZES[kind]
            if not shape or shape[-1] % block:
                raise ValueError(f"{name} has no rows of whole blocks")
            begin, count = first + offset, prod(shape) // block * size
            if begin + count > len(self._bytes):
                raise ValueError(f"{name} ends behind its end")
            self.tensors.append(GgufTensor(name, shape, kind, self._bytes[begin : begin + count]))

    def _tensor(self) -> tuple[str, tuple[int, ...], Kind, int]:
        name = self._string()
        shape = tuple(self._number("Q") for _ in range(self._number("I")))[::-1]
        return name, shape, Kind(self._number("I")), self._number("Q")

    def _value(self, kind: int) -> Any:
        if kind == STRING:
            return self._string()
        if kind != ARRAY:
            return self._number(NUMBERS[kind])
        kind, count = self._number("I"), self._number("Q")
        if kind == STRING:
            return self._strings(count)
        if kind == ARRAY:
            return [self._value(kind) for _ in range(count)]
        size = struct.calcsize("<" + NUMBERS[kind])
        return list(struct.unpack(f"<{count}{NUMBERS[kind]}", self._take(count * size)))

    def _string(self) -> str:
        return self._strings(1)[0]

    def _strings(self, count: int) -> list[str]:
        """In one loop: a vocabulary is nearly all of a header, which is read more than once."""
        data, at, strings = self._bytes, self._at, list[str]()
        for _ in range(count):
            begin = at + LENGTH.size
            at = begin + LENGTH.unpack_from(data, at)[0]
            strings.append(str(data[begin:at], "utf-8"))
        self._take(at - self._at)
        return strings

    def _number(self, kind: str) -> Any:
        return struct.unpack("<" + kind, self._take(struct.calcsize("<" + kind)))[0]

    def _take(self, count: int) -> memoryview:
        self._at += count
        if self._at > len(self._bytes):
            raise ValueError("it ends in its header")
        return self._bytes[self._at - count : self._at]


def gguf_name(name: str) -> str | None:
    """What a GGUF file calls the weight that transformers calls so; None for what it does not hold."""
    for theirs, ours in NAMES.items():
        if name == ours:
            return theirs
    if not name.startswith("model.layers."):
        return None
    layer, part = name.removeprefix("model.layers.").split(".", 1)
    part, kind = part.rsplit(".", 1)
    found = [theirs for theirs, ours in LAYER_NAMES.items() if ours == part]
    return f"blk.{layer}.{found[0]}.{kind}" if found else None


def huggingface_name(name: str) -> str | None:
    if name in NAMES:
        return NAMES[name]
    if not name.startswith("blk."):  # tables that follow from the configuration
        return None
    match name.split("."):
        case _, layer, part, kind if part in LAYER_NAMES:
            return f"model.layers.{layer}.{LAYER_NAMES[part]}.{kind}"
    raise ModelError(f"the GGUF file holds a tensor {name!r}, which is none of {', '.join(ARCHITECTURES)}")


def _halves(weight: Tensor, heads: int) -> Tensor:
    """From the order of neighbours to that of halves."""
    rows = len(weight)
    return weight.view(heads, rows // heads // 2, 2, -1).transpose(1, 2).reshape(weight.shape)
