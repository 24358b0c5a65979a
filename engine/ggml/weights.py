"""Weights in ggml's number formats: those of a GGUF file as they are, and those of any folder made as narrow
as was asked for.

They go by the names that GGUF files have for them. It knows files, formats and names, and no graph.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor

from engine.ggml.kinds import BFLOAT16, FLOAT32, MULTIPLIED_BY_US, NOT_MULTIPLIED, Q4_1, Q8_0
from engine.ggml.library import library
from engine.model.gguf_file import GgufFile, gguf_name
from engine.model.preflight import GGUF_FILE, parameter_count, weight_files

WIDTHS = {"f32": FLOAT32, "bf16": BFLOAT16, "q8": Q8_0, "q4": Q4_1}
AT_BOTH_ENDS = {"token_embd.weight", "output.weight"}  # which suffer most where the others have four bits
SIBLINGS = (("attn_q", "attn_k", "attn_v"), ("ffn_gate", "ffn_up"))  # which multiply the same rows


@dataclass(frozen=True, slots=True)
class Weight:
    kind: int  # as ggml numbers its types
    rows: int
    columns: int
    data: Tensor  # bytes

    @property
    def in_panels(self) -> bool:
        return self.kind in MULTIPLIED_BY_US and self.rows > 1

    @property
    def kind_name(self) -> str:
        name: bytes = library().type_name(self.kind)
        return name.decode()


@dataclass(frozen=True, slots=True)
class Weights:
    by_name: dict[str, Weight]
    rotates_neighbours: bool  # as `GgufFile` has it

    @property
    def width(self) -> str:
        """What most of its bytes are."""
        sizes: dict[str, int] = {}
        for weight in self.by_name.values():
            sizes[weight.kind_name] = sizes.get(weight.kind_name, 0) + weight.data.nbytes
        return max(sizes, key=lambda name: sizes[name])

    def join_siblings(self) -> None:
        """Those of one kind become one matrix: they multiply the same rows, which then are narrowed once."""
        weights = self.by_name
        for first in [name for name in weights if name.endswith("attn_norm.weight")]:
            layer = first.removesuffix("attn_norm.weight")
            for siblings in SIBLINGS:
                matrices, biases = (
                    [f"{layer}{name}.{part}" for name in siblings] for part in ("weight", "bias")
                )
                if len({weights[name].kind for name in matrices}) == 1:
                    _join(matrices, weights)
                    if biases[0] in weights:
                        _join(biases, weights)


def read_weights(folder: Path, width: str) -> Weights:
    """`width` is one of `WIDTHS`, or auto: as the file has them."""
    if not (folder / GGUF_FILE).is_file():
        return Weights(dict(_of_safetensors(folder, width)), rotates_neighbours=False)
    file = GgufFile(folder / GGUF_FILE)
    return Weights(dict(_of_gguf(file, width)), file.rotates_neighbours)


def weights_bytes(folder: Path, width: str) -> int:
    """How many they will take, as the headers say."""
    if width == "auto":
        return (folder / GGUF_FILE).stat().st_size
    block = library().blck_size(WIDTHS[width])
    blocks = -(-parameter_count(folder) // block)
    return int(library().row_size(WIDTHS[width], blocks * block))


def _of_gguf(file: GgufFile, width: str) -> Iterator[tuple[str, Weight]]:
    for tensor in file.tensors:
        *rows, columns = tensor.shape
        if width == "auto" and prod(rows) > 1 and tensor.kind not in NOT_MULTIPLIED:
            # A copy: pages of a file are thrown out of memory when that is short, and read anew.
            data = torch.frombuffer(bytearray(tensor.data), dtype=torch.uint8).clone()
            yield tensor.name, Weight(int(tensor.kind), prod(rows), columns, data)
        else:
            yield tensor.name, _made(tensor.name, tensor.numbers(), width)


def _of_safetensors(folder: Path, width: str) -> Iterator[tuple[str, Weight]]:
    for file in weight_files(folder):
        with safe_open(file, framework="pt") as tensors:
            for name in tensors.keys():  # noqa: SIM118
                theirs = gguf_name(name)
                if theirs is not None:
                    yield theirs, _made(theirs, tensors.get_tensor(name).float(), width)


def _made(name: str, weight: Tensor, width: str) -> Weight:
    """Vectors, and matrices whose rows no whole blocks fill, stay as they are: they are few, or tiny."""
    kind = WIDTHS.get(width, FLOAT32)
    if kind == Q4_1 and name in AT_BOTH_ENDS:
        kind = Q8_0
    rows, columns = (1, len(weight)) if weight.dim() == 1 else weight.shape
    if rows == 1 or columns % library().blck_size(kind):
        kind = FLOAT32
    data = torch.empty(rows * library().row_size(kind, columns), dtype=torch.uint8)
    numbers = weight.contiguous()
    library().quantize_chunk(kind, numbers.data_ptr(), data.data_ptr(), 0, rows, columns, None)
    return Weight(kind, rows, columns, data)


def _join(names: list[str], weights: dict[str, Weight]) -> None:
    parts = [weights.pop(name) for name in names]
    data = torch.cat([part.data for part in parts])
    rows, columns = sum(part.rows for part in parts), parts[0].columns
    if names[0].endswith("bias"):
        rows, columns = 1, sum(part.columns for part in parts)
    weights[names[0]] = Weight(parts[0].kind, rows, columns, data)
