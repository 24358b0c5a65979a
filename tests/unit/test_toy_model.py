"""The toy model's tokenizer is what its module says: bytes, words, specials, and a chat template."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders
from transformers import AutoTokenizer

from engine import toy_model

TOKENIZER = Tokenizer.from_file(str(toy_model.FOLDER / "tokenizer.json"))


def word(token: int) -> str:
    return str(TOKENIZER.decode([token]))


@given(st.text())
def test_it_spells_any_text(text: str) -> None:
    assert TOKENIZER.decode(TOKENIZER.encode(text).ids, skip_special_tokens=False) == text


def test_a_byte_is_the_token_of_its_value() -> None:
    assert TOKENIZER.encode("é🙂").ids == list("é🙂".encode())


@pytest.mark.parametrize("token", toy_model.WORDS)
def test_each_word_is_one_token_with_its_space(token: int) -> None:
    assert word(token).startswith(" ")
    assert word(token)[1:].isalpha()
    assert TOKENIZER.encode(word(token)).ids == [token]


def test_words_differ() -> None:
    assert len({word(token) for token in toy_model.WORDS}) == len(toy_model.WORDS) == 205


def test_specials_are_special_and_last() -> None:
    text = "<|bos|><|im_start|><|im_end|>"
    assert TOKENIZER.encode(text).ids == [toy_model.BOS, toy_model.MESSAGE, toy_model.EOS]
    assert TOKENIZER.decode([toy_model.BOS, 65, toy_model.EOS]) == "A"
    assert TOKENIZER.get_vocab_size() == toy_model.VOCAB == toy_model.EOS + 1


def test_tokens_of_a_broken_character_are_replaced_and_not_dropped() -> None:
    assert isinstance(TOKENIZER.decoder, decoders.ByteLevel)
    assert TOKENIZER.decode(list("🙂".encode())[:3]) == "\ufffd"


def test_transformers_renders_its_chat_template() -> None:
    tokenizer: Any = AutoTokenizer.from_pretrained(toy_model.FOLDER)
    message = {"role": "user", "content": "hi"}
    rendered = tokenizer.apply_chat_template([message], add_generation_prompt=True, tokenize=False)
    assert rendered == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    assert tokenizer.eos_token_id == toy_model.EOS
