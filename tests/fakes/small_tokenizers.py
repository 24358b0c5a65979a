"""Tokenizers of the two kinds that Midstream serves, trained in a moment on a few lines of many scripts."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors, trainers
from tokenizers import Tokenizer as Library

from engine import toy_model
from engine.structure.vocabulary import Vocabulary, read_vocabulary
from realtime.text.tokenizer import Tokenizer

LINES = [
    "The quick brown fox jumps over the lazy dog. Stop here, then stop there.",
    "héllo wörld, naïve café; e\u0301 o\u0308 — “quotes”",
    "こんにちは世界 你好、世界 안녕하세요 Привет мир",
    "👩\u200d👩\u200d👧 👍🏽 🇩🇪 😀😃😄 ❤️",
] * 4
SPECIAL = ["<s>", "</s>", "<|im_start|>", "<|im_end|>"]
CHATML = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n"
    "{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
INSTRUCT = (
    "{{ bos_token }}{% for message in messages %}"
    "{% if (message.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Roles must alternate, but here is ' + message.role) }}{% endif %}"
    "{% if message.role == 'user' %}[INST] {{ message.content }} [/INST]"
    "{% else %} {{ message.content | trim }}{{ eos_token }}{% endif %}{% endfor %}"
)
ROLES = {"bos_token": "<s>", "eos_token": "</s>"}


@functools.cache
def byte_level_json() -> str:
    library = Library(models.BPE())
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    _train(library, alphabet)
    return library.to_str()


@functools.cache
def sentencepiece_json() -> str:
    """As Llama's: a space before the text, unknown characters as bytes, the first space taken off again."""
    library = Library(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    library.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    library.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    byte_pieces = [f"<0x{byte:02X}>" for byte in range(256)]
    _train(library, list("▁abcdefghijklmnopqrstuvwxyzSTINP.,[]/"), ["<unk>", *byte_pieces])
    definition: dict[str, Any] = json.loads(library.to_str())
    definition["added_tokens"] = [
        token for token in definition["added_tokens"] if token["content"] not in byte_pieces
    ]
    return json.dumps(definition)


def _train(library: Library, alphabet: list[str], first: list[str] | None = None) -> None:
    trainer = trainers.BpeTrainer(
        vocab_size=700,
        initial_alphabet=alphabet,
        limit_alphabet=len(alphabet),
        special_tokens=[*SPECIAL, *(first or [])],
        show_progress=False,
    )
    library.train_from_iterator(_lines(), trainer)
    library.add_tokens([AddedToken("<tool>", special=False), AddedToken("ünït ▁x", special=False)])
    library.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", library.token_to_id("<s>"))]
    )


def _lines() -> Iterator[str]:
    yield from LINES


def byte_level(template: str | None = CHATML) -> Tokenizer:
    return Tokenizer(json.loads(byte_level_json()), template, ROLES)


def sentencepiece(template: str | None = INSTRUCT) -> Tokenizer:
    return Tokenizer(json.loads(sentencepiece_json()), template, ROLES)


def library(definition: str) -> Library:
    """The tokenizers library itself: what ours is compared with."""
    return Library.from_str(definition)


def token_of(library: Library, piece: str) -> int:
    token = library.token_to_id(piece)
    assert token is not None
    return token


@functools.cache
def toy_vocabulary() -> Vocabulary:
    """What the toy's grammars are followed by."""
    vocabulary = read_vocabulary(toy_model.FOLDER, toy_model.VOCAB, [toy_model.EOS])
    assert vocabulary is not None
    return vocabulary


@functools.cache
def merged_vocabulary() -> Vocabulary:
    """Of tokens that many bytes stand in."""
    with TemporaryDirectory() as folder:
        (Path(folder) / "tokenizer.json").write_text(byte_level_json())
        vocabulary = read_vocabulary(Path(folder), byte_level().vocab, [1])
    assert vocabulary is not None
    return vocabulary
