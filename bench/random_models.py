"""Random models: known shapes with random weights, made on the device. Nothing is downloaded, and speed needs
no more."""

from __future__ import annotations

from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from bench.roofline import Shape
from engine.model.facts import describe

SHAPES: dict[str, dict[str, Any]] = {
    "llama-3.1-8b": {
        "vocab_size": 128256,
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "max_position_embeddings": 131072,
        "rope_theta": 500000.0,
        "tie_word_embeddings": False,
    },
    "smollm2-135m": {
        "vocab_size": 49152,
        "hidden_size": 576,
        "intermediate_size": 1536,
        "num_hidden_layers": 30,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "max_position_embeddings": 8192,
        "rope_theta": 100000.0,
        "tie_word_embeddings": True,
    },
    "tiny": {
        "vocab_size": 512,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 4096,
        "tie_word_embeddings": False,
    },
    "tinier": {
        "vocab_size": 512,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "max_position_embeddings": 4096,
        "tie_word_embeddings": True,
    },
}


def random_model(name: str, device: torch.device, dtype: torch.dtype) -> PreTrainedModel:
    config = AutoConfig.for_model("llama", eos_token_id=1, bos_token_id=0, **SHAPES[name])
    torch.manual_seed(0)
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with device:
            auto: Any = AutoModelForCausalLM
            model: PreTrainedModel = auto.from_config(config)
    finally:
        torch.set_default_dtype(before)
    return model.to(dtype).eval().requires_grad_(False)  # type: ignore[arg-type, no-any-return]


def shape_of(model: PreTrainedModel) -> Shape:
    return Shape(
        facts=describe(model.config),
        parameters=sum(weight.numel() for weight in model.parameters()),
        embedding=model.get_input_embeddings().weight.numel(),  # type: ignore[operator]
        tied=bool(model.config.tie_word_embeddings),
        number_bytes=model.dtype.itemsize,
    )
