"""The default model as peers want it, made of the GGUF file that ours is and kept beside it: a folder with
safetensors in float32 for transformers, and GGUF files as wide as ours is computed for llama.cpp."""

from __future__ import annotations

from pathlib import Path

import gguf
from gguf import GGMLQuantizationType as Kind
from gguf import GGUFValueType
from safetensors.torch import save_file
from transformers import AutoConfig

from engine.model.cache_folder import make_whole
from engine.model.gguf_file import GgufFile
from engine.model.gguf_to_huggingface import convert
from engine.model.names import resolve
from engine.model.preflight import GGUF_FILE

KINDS = {"f32": Kind.F32, "q8": Kind.Q8_0}


def safetensors_folder() -> Path:
    def fill(folder: Path) -> None:
        convert(_source(), folder)
        weights = GgufFile(_source()).state_dict(AutoConfig.from_pretrained(folder))
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})

    return make_whole(_beside("safetensors"), fill)


def gguf_file(width: str) -> Path:
    """`width` is one of `KINDS`."""
    return make_whole(_beside(width), lambda folder: _write(folder / GGUF_FILE, KINDS[width])) / GGUF_FILE


def _source() -> Path:
    return resolve() / GGUF_FILE


def _beside(what: str) -> Path:
    ours = resolve()
    return ours.with_name(f"{ours.name}-{what}-for-peers")


def _write(file: Path, kind: Kind) -> None:
    """All matrices in one number format, and whatever else the file says as it is."""
    reader, source = gguf.GGUFReader(_source()), GgufFile(_source())
    writer = gguf.GGUFWriter(file, source.architecture)
    for name, field in reader.fields.items():
        if not name.startswith("GGUF.") and name != "general.architecture":
            what, *of = field.types
            writer.add_key_value(
                name, field.contents(), what, of[-1] if what == GGUFValueType.ARRAY else None
            )
    for tensor in source.tensors:
        numbers = tensor.numbers().numpy()
        of_kind = kind if numbers.ndim > 1 else Kind.F32
        writer.add_tensor(tensor.name, gguf.quantize(numbers, of_kind), raw_dtype=of_kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
