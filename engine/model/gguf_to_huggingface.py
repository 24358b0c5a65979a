"""GGUF conversion: what a file says of its model becomes a Hugging Face folder, without the weights.

It knows the two formats, and nothing of where the file comes from. transformers reads GGUF too, but wants
accelerate for it, marks the model as quantized, and splits text as no SmolLM tokenizer does.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoConfig, GenerationConfig, PreTrainedConfig, PreTrainedTokenizerFast

from engine.model.config_check import flaw
from engine.model.gguf_file import ARCHITECTURES, GgufFile
from engine.model.preflight import SUPPORTED, ModelError

CONTROL = 3  # a special token, by the GGUF's own list of token types
_WORDS = (  # as Llama 3 splits text; so does Qwen, but digits one by one
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
SPLITS = {  # by `tokenizer.ggml.pre`
    "llama-bpe": _WORDS.format(digits=r"\p{N}{1,3}"),
    "qwen2": _WORDS.format(digits=r"\p{N}"),
}
DIGITS_ALONE = {"smollm"}  # and for the rest as GPT-2 splits
AS_GPT2 = {"gpt-2", "default", *DIGITS_ALONE}


def convert(source: Path, folder: Path) -> None:
    """Write what stands in `source` of configuration and tokenizer into the empty `folder`; raises
    `ModelError`."""
    file = GgufFile(source)
    try:
        config, tokenizer = _config(file), _tokenizer(file)
    except ModelError:
        raise
    except Exception as error:  # where a fact is of another kind, whichever library notices
        raise ModelError(f"{source} is broken: what it says of its model does not fit ({error})") from error
    config.save_pretrained(folder)
    _generation(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _config(file: GgufFile) -> PreTrainedConfig:
    kind = file.architecture
    if kind not in ARCHITECTURES:
        raise ModelError(
            f"the architecture {kind} of {file.path} is not supported as GGUF; {', '.join(ARCHITECTURES)} are"
        )
    names = {tensor.name for tensor in file.tensors}
    if "rope_freqs.weight" in names or file.fields.get(f"{kind}.rope.scaling.type") not in (None, "none"):
        raise ModelError(f"{file.path} stretches its rotary positions, which is not supported as GGUF")

    def fact(name: str) -> Any:
        found = file.fields.get(f"{kind}.{name}")
        if found is None:
            raise ModelError(f"{file.path} is broken: it says nothing of {kind}.{name}")
        return found

    heads, hidden = fact("attention.head_count"), fact("embedding_length")
    said: dict[str, Any] = {
        "vocab_size": len(_tokenizer_fact(file, "tokens")),
        "hidden_size": hidden,
        "intermediate_size": fact("feed_forward_length"),
        "num_hidden_layers": fact("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": file.fields.get(f"{kind}.attention.head_count_kv") or heads,
        "head_dim": file.fields.get(f"{kind}.attention.key_length")
        or file.fields.get(f"{kind}.rope.dimension_count"),
        "max_position_embeddings": fact("context_length"),
        "rms_norm_eps": fact("attention.layer_norm_rms_epsilon"),
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": file.fields.get(f"{kind}.rope.freq_base") or 10_000.0,
        },
        "bos_token_id": _tokenizer_field(file, "bos_token_id"),
        "eos_token_id": _tokenizer_field(file, "eos_token_id"),
        "pad_token_id": _tokenizer_field(file, "padding_token_id"),
    }
    if wrong := flaw(said):
        raise ModelError(f"{file.path} is broken: {wrong}")
    said["head_dim"] = said["head_dim"] or hidden // heads
    config: PreTrainedConfig = AutoConfig.for_model(
        kind,
        **said,
        tie_word_embeddings="output.weight" not in names,
        architectures=[SUPPORTED[kind]],
        dtype="float32",
    )
    return config


def _generation(config: PreTrainedConfig) -> GenerationConfig:
    made: GenerationConfig = GenerationConfig(  # type: ignore[no-untyped-call]
        bos_token_id=config.bos_token_id,
        eos_token_id=config.eos_token_id,
        pad_token_id=config.pad_token_id,
    )
    return made


def _tokenizer(file: GgufFile) -> PreTrainedTokenizerFast:
    kind, split = _tokenizer_field(file, "model"), _tokenizer_field(file, "pre")
    if kind != "gpt2" or split not in {*SPLITS, *AS_GPT2}:
        raise ModelError(
            f"the tokenizer of {file.path} ({kind}, {split}) is not supported: with the model's own "
            "tokenizer.json and config.json beside it, the file is served"
        )
    tokens: list[str] = _tokenizer_fact(file, "tokens")
    merges = [tuple(merge.split(" ")) for merge in _tokenizer_fact(file, "merges")]
    kinds = _tokenizer_fact(file, "token_type")
    tokenizer = Tokenizer(models.BPE({token: number for number, token in enumerate(tokens)}, merges))
    tokenizer.pre_tokenizer = _pre_tokenizer(split)
    tokenizer.decoder = decoders.ByteLevel()
    special = [token for token, kind in zip(tokens, kinds, strict=True) if kind == CONTROL]
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])

    def named(name: str) -> str | None:
        number = _tokenizer_field(file, name)
        return None if number is None else tokens[number]

    made: PreTrainedTokenizerFast = PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=tokenizer,
        bos_token=named("bos_token_id"),
        eos_token=named("eos_token_id"),
        unk_token=named("unknown_token_id"),
        pad_token=named("padding_token_id"),
        model_max_length=file.fields.get(f"{file.architecture}.context_length"),
        chat_template=file.fields.get("tokenizer.chat_template"),
        clean_up_tokenization_spaces=False,
    )
    return made


def _pre_tokenizer(split: str) -> pre_tokenizers.PreTokenizer:
    if split in SPLITS:
        words = pre_tokenizers.Split(Regex(SPLITS[split]), "isolated")
        return pre_tokenizers.Sequence(
            [words, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
        )
    as_gpt2 = pre_tokenizers.ByteLevel(add_prefix_space=False)
    if split not in DIGITS_ALONE:
        return as_gpt2
    return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), as_gpt2])


def _tokenizer_fact(file: GgufFile, name: str) -> Any:
    found = _tokenizer_field(file, name)
    if found is None:
        raise ModelError(f"{file.path} is broken: it holds no tokenizer.ggml.{name}")
    return found


def _tokenizer_field(file: GgufFile, name: str) -> Any:
    return file.fields.get(f"tokenizer.ggml.{name}")
