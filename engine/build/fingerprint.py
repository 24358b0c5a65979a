"""The fingerprint: a short name for everything that tokens follow from beside a stream's start and steering.

Engines of one fingerprint give the same start, steered the same, the same tokens. Another fingerprint
promises nothing, and forbids nothing. So whatever might matter goes in, and what cannot stays out: where
blocks lie, who is computed beside whom, how large the cache is.
"""

from __future__ import annotations

import json
import platform
import re
from hashlib import blake2b
from importlib.metadata import version
from pathlib import Path

import torch

ARITHMETIC = 3  # of ours: raised by every change after which the same start may give other tokens
FINGERPRINT_BYTES = 8
TEXT_FILES = (  # what makes tokens of a prompt
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
)


def fingerprint(
    *,
    weights: str,
    folder: Path,
    eos: list[int],
    device: str,
    dtype: str,
    attention: str,
    exact: bool,
    devices: int = 1,
    products: str = "torch",
) -> str:
    """`weights` is their digest, which tells quantised ones too; in `folder` lies the tokenizer; `products`
    is the library that multiplies, with its version where that is not torch."""
    inputs = {
        "arithmetic": ARITHMETIC,
        "weights": weights,
        "text": text_digest(folder),
        "eos": eos,
        "dtype": dtype,
        "attention": attention,
        "exact": exact,
        "devices": devices,
        "products": products,
        "machine": machine(device),
        "torch": torch.__version__,
        "transformers": version("transformers"),
        "llguidance": version("llguidance"),  # by which grammars are followed
    }
    encoded = json.dumps(inputs, sort_keys=True).encode()
    return f"fp_{blake2b(encoded, digest_size=FINGERPRINT_BYTES).hexdigest()}"


def text_digest(folder: Path) -> str:
    digest = blake2b(digest_size=FINGERPRINT_BYTES)
    for file in (folder / name for name in TEXT_FILES):
        content = file.read_bytes() if file.is_file() else b""
        digest.update(f"{file.name} {len(content)}\n".encode())
        digest.update(content)
    return digest.hexdigest()


def machine(device: str) -> list[str]:
    """What computes: libraries choose their kernels by it."""
    if device.startswith("cuda"):
        return [torch.cuda.get_device_name(device), f"CUDA {torch.version.cuda}"]
    kernels = torch.backends.cpu.get_cpu_capability()
    return [platform.machine(), *processor(), kernels, f"{torch.get_num_threads()} threads"]


def processor(cpuinfo: Path = Path("/proc/cpuinfo")) -> list[str]:
    """The model's name, or on Arm its numbers; nothing where the system does not say."""
    if not cpuinfo.is_file():
        return []
    return sorted(set(re.findall(r"^(?:model name|CPU part)\s*: (.+)$", cpuinfo.read_text(), re.MULTILINE)))
