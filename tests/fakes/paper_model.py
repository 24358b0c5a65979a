"""A model's folder as far as its outline is read: what it is, and no weights. It needs no torch."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from engine import toy_model

SHAPE = {
    "vocab_size": toy_model.VOCAB,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "bos_token_id": toy_model.BOS,
    "eos_token_id": toy_model.EOS,
    "pad_token_id": toy_model.BOS,
    "tie_word_embeddings": False,
}


def paper_folder(parent: Path) -> Path:
    folder = parent / "paper"
    folder.mkdir()
    (folder / "config.json").write_text(
        json.dumps({"architectures": ["LlamaForCausalLM"], "model_type": "llama", **SHAPE})
    )
    shutil.copy(toy_model.FOLDER / "tokenizer.json", folder)
    save_file({"model.norm.weight": np.ones(64, np.float32)}, folder / "model.safetensors")
    return folder
