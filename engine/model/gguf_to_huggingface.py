"""GGUF conversion: a file of a Llama with a byte-level BPE tokenizer becomes a Hugging Face folder.

It knows the two formats, and nothing of where the file comes from. transformers reads GGUF too, but wants
accelerate for it, marks the model as quantized, and splits text as no SmolLM tokenizer does.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import gguf
import torch
from gguf.gguf_reader import ReaderTensor
from rich.console import Console
from rich.progress import track
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import GenerationConfig, LlamaConfig, PreTrainedTokenizerFast

CONTROL = 3  # a special token, by the GGUF's own list of token types

LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
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


def convert(source: Path, folder: Path) -> None:
    """Write `source` into the empty `folder`: float32 weights, configuration, tokenizer and chat template."""
    reader = gguf.GGUFReader(source)
    fields = {name: field.contents() for name, field in reader.fields.items() if "tokenizer.ggml" not in name}
    config = _config(reader, fields)
    config.save_pretrained(folder)
    _generation(config).save_pretrained(folder)
    _tokenizer(reader, fields).save_pretrained(folder)
    weights = {_name(tensor.name): _weight(tensor, config) for tensor in _with_progress(reader.tensors)}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def _config(reader: gguf.GGUFReader, fields: dict[str, Any]) -> LlamaConfig:
    return LlamaConfig(
        vocab_size=fields["llama.vocab_size"],
        hidden_size=fields["llama.embedding_length"],
        intermediate_size=fields["llama.feed_forward_length"],
        num_hidden_layers=fields["llama.block_count"],
        num_attention_heads=fields["llama.attention.head_count"],
        num_key_value_heads=fields["llama.attention.head_count_kv"],
        head_dim=fields["llama.rope.dimension_count"],
        max_position_embeddings=fields["llama.context_length"],
        rms_norm_eps=fields["llama.attention.layer_norm_rms_epsilon"],
        rope_parameters={"rope_type": "default", "rope_theta": fields["llama.rope.freq_base"]},
        bos_token_id=_tokenizer_field(reader, "bos_token_id"),
        eos_token_id=_tokenizer_field(reader, "eos_token_id"),
        pad_token_id=_tokenizer_field(reader, "padding_token_id"),
        tie_word_embeddings=all(tensor.name != "output.weight" for tensor in reader.tensors),
        architectures=["LlamaForCausalLM"],
        dtype="float32",
    )


def _generation(config: LlamaConfig) -> GenerationConfig:
    made: GenerationConfig = GenerationConfig(  # type: ignore[no-untyped-call]
        bos_token_id=config.bos_token_id,
        eos_token_id=config.eos_token_id,
        pad_token_id=config.pad_token_id,
    )
    return made


def _tokenizer(reader: gguf.GGUFReader, fields: dict[str, Any]) -> PreTrainedTokenizerFast:
    tokens: list[str] = _tokenizer_field(reader, "tokens")
    merges = [tuple(merge.split(" ")) for merge in _tokenizer_field(reader, "merges")]
    kinds = _tokenizer_field(reader, "token_type")
    tokenizer = Tokenizer(models.BPE({token: number for number, token in enumerate(tokens)}, merges))
    # `tokenizer.ggml.pre` is "smollm": digits one by one, then as GPT-2 splits.
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    special = [token for token, kind in zip(tokens, kinds, strict=True) if kind == CONTROL]
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    made: PreTrainedTokenizerFast = PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=tokenizer,
        bos_token=tokens[_tokenizer_field(reader, "bos_token_id")],
        eos_token=tokens[_tokenizer_field(reader, "eos_token_id")],
        unk_token=tokens[_tokenizer_field(reader, "unknown_token_id")],
        pad_token=tokens[_tokenizer_field(reader, "padding_token_id")],
        model_max_length=fields["llama.context_length"],
        chat_template=fields["tokenizer.chat_template"],
        clean_up_tokenization_spaces=False,
    )
    return made


def _tokenizer_field(reader: gguf.GGUFReader, name: str) -> Any:
    return reader.fields[f"tokenizer.ggml.{name}"].contents()


def _with_progress(tensors: list[ReaderTensor]) -> Iterable[ReaderTensor]:
    console = Console(stderr=True)
    return track(tensors, "Converting the weights", console=console, disable=not console.is_terminal)


def _name(name: str) -> str:
    if name in NAMES:
        return NAMES[name]
    _, layer, part, kind = name.split(".")
    return f"model.layers.{layer}.{LAYER_NAMES[part]}.{kind}"


def _weight(tensor: ReaderTensor, config: LlamaConfig) -> torch.Tensor:
    weight = torch.from_numpy(gguf.dequantize(tensor.data, tensor.tensor_type).copy()).float()
    if tensor.name.endswith("attn_q.weight"):
        return _halves(weight, config.num_attention_heads)
    if tensor.name.endswith("attn_k.weight"):
        return _halves(weight, config.num_key_value_heads or config.num_attention_heads)
    return weight


def _halves(weight: torch.Tensor, heads: int) -> torch.Tensor:
    """llama.cpp rotates neighbours, transformers rotates a head's first half against its second."""
    rows, columns = weight.shape
    return weight.view(heads, rows // heads // 2, 2, columns).transpose(1, 2).reshape(rows, columns)
