"""A model's folder for mock workers that write numbers of tokens by chance: no weights, and each number is a
word, so that whatever they write is text."""

from __future__ import annotations

import json
from pathlib import Path

from tokenizers import Tokenizer
from tokenizers.models import WordLevel

VOCAB = 8192
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "max_position_embeddings": 4096,
    "bos_token_id": 0,
    "eos_token_id": 1,
}
SPOKEN = {"tokenizer_class": "PreTrainedTokenizerFast", "chat_template": "{{ messages[0].content }}"}


def words_model(folder: Path) -> Path:
    folder.mkdir()
    words = {f"w{number}": number for number in range(VOCAB)}
    Tokenizer(WordLevel(words, unk_token="w0")).save(str(folder / "tokenizer.json"))
    (folder / "config.json").write_text(json.dumps(CONFIG))
    (folder / "tokenizer_config.json").write_text(json.dumps(SPOKEN))
    return folder
