"""The fewest tokens of a text: never more than it has, whatever it holds; none where that is not known."""

from __future__ import annotations

import json
import sys
import unicodedata
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine import toy_model
from midstream.protocol import Message
from realtime.text.length_bound import LengthBound
from realtime.text.tokenizer import Tokenizer, TooManyTokensError
from tests.fakes import small_tokenizers as small

SMOLLM2 = Path.home() / ".cache/midstream/models/smollm2-135m-instruct"
Change = Callable[[dict[str, Any]], None]


def swallowing_blanks(definition: dict[str, Any]) -> None:
    for token in definition["added_tokens"]:
        token["lstrip"] = token["rstrip"] = True


def composing(definition: dict[str, Any]) -> None:
    definition["normalizer"] = {"type": "Sequence", "normalizers": [{"type": "NFC"}]}


def without_some_bytes(definition: dict[str, Any]) -> None:
    for char in "ñĄĆ":  # U+40000 and above, and two control characters: SmolLM2 has no tokens for them either
        del definition["model"]["vocab"][char]


def unchanged(definition: dict[str, Any]) -> None: ...


def tokenizer_of(source: str, change: Change) -> tuple[Tokenizer, LengthBound]:
    definition = json.loads(source)
    change(definition)
    bound = LengthBound(definition, small.library(json.dumps(definition)).get_vocab())
    return Tokenizer(definition), bound


def toy() -> str:
    return (toy_model.FOLDER / "tokenizer.json").read_text()


BOUNDED = [
    tokenizer_of(source, change)
    for source, change in [
        (small.byte_level_json(), unchanged),
        (small.byte_level_json(), swallowing_blanks),
        (small.byte_level_json(), composing),
        (small.byte_level_json(), without_some_bytes),
        (small.sentencepiece_json(), unchanged),
        (small.sentencepiece_json(), swallowing_blanks),
        (toy(), unchanged),
    ]
]
GROWING = [
    *small.SPECIAL,
    *small.LINES[:4],
    "ünït ▁x",
    "<tool>",
    "e\u0301",
    "\u212a",
    "\u1fbe\u0308\u0301",
    "▁",
]
texts = st.lists(
    st.text(max_size=5) | st.sampled_from([*GROWING, " " * 50, "\n\t", 9 * "\x04", 9 * "\U00040000"])
).map("".join)


@pytest.mark.parametrize(("tokenizer", "bound"), BOUNDED)
@given(text=texts)
def test_no_text_has_fewer_tokens(tokenizer: Tokenizer, bound: LengthBound, text: str) -> None:
    assert bound.fewest_tokens(text) <= len(tokenizer.encode(text, special=False))


@pytest.mark.parametrize(("tokenizer", "bound"), BOUNDED)
def test_a_long_text_is_known_to_be_long(tokenizer: Tokenizer, bound: LengthBound) -> None:
    del tokenizer
    assert bound.fewest_tokens("word " * 10_000) > 300
    assert bound.fewest_tokens("\ud800" * 10_000) > 100, "what is no text has a length too"


def test_what_composing_takes_off_is_within_its_bound() -> None:
    """Of every character, written as long as it can be."""
    alone: dict[str, int] = {}  # of each character that is no composition, the longest that becomes it
    characters = [chr(code) for code in range(sys.maxunicode + 1) if not 0xD800 <= code < 0xE000]
    for character in characters:
        parts = unicodedata.normalize("NFD", character)
        if len(parts) == 1:
            alone[parts] = max(alone.get(parts, 0), len(character.encode()))
    for character in characters:
        parts = unicodedata.normalize("NFD", character)
        longest = sum(alone.get(part, len(part.encode())) for part in parts)
        assert longest <= 4 * len(unicodedata.normalize("NFC", character).encode())


@pytest.mark.parametrize(
    "fields",
    [
        {"normalizer": {"type": "Lowercase"}},
        {"normalizer": {"type": "Strip", "strip_left": True, "strip_right": True}},
        {"normalizer": {"type": "Replace", "pattern": {"Regex": " +"}, "content": ""}},
        {"normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": ""}},
        {"pre_tokenizer": {"type": "WhitespaceSplit"}},
        {"pre_tokenizer": None},  # then bytes are no tokens of their own
        {
            "pre_tokenizer": {
                "type": "Sequence",
                "pretokenizers": [
                    {"type": "Split", "pattern": {"String": "a"}, "behavior": "Removed", "invert": False},
                    {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
                ],
            }
        },
    ],
)
def test_where_text_may_be_dropped_nothing_is_promised(fields: dict[str, Any]) -> None:
    definition = json.loads(small.byte_level_json()) | fields
    vocabulary = small.library(small.byte_level_json()).get_vocab()
    assert LengthBound(definition, vocabulary).fewest_tokens("word " * 10_000) == 0


def test_where_a_byte_has_no_token_nothing_is_promised() -> None:
    for source, piece in (  # of those that are common
        (small.byte_level_json(), "!"),
        (small.sentencepiece_json(), "<0x21>"),
    ):
        vocabulary = small.library(source).get_vocab()
        del vocabulary[piece]
        assert LengthBound(json.loads(source), vocabulary).fewest_tokens("word " * 10_000) == 0


def test_models_other_than_bpe_promise_nothing() -> None:
    definition = json.loads(small.byte_level_json())
    vocabulary = small.library(small.byte_level_json()).get_vocab()
    definition["model"]["type"] = "WordLevel"
    assert LengthBound(definition, vocabulary).fewest_tokens("word " * 10_000) == 0


def test_a_text_that_is_too_long_is_not_encoded(monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = small.byte_level()
    long = "word " * 10_000
    assert len(tokenizer.encode("few", below=10)) < 10
    monkeypatch.setattr(tokenizer, "_library", None)
    chat = [Message(role="user", content=long)]
    encodings = [partial(tokenizer.encode, long), partial(tokenizer.encode_chat, chat)]
    for encode in (*encodings, partial(tokenizer.encode_turns, chat)):
        with pytest.raises(TooManyTokensError) as refusal:
            encode(below=100)
        assert refusal.value.fewest >= 100


def test_a_byte_level_vocabulary_s_pieces_count_by_their_bytes_and_added_tokens_by_their_text() -> None:
    definition = json.loads(small.byte_level_json())
    vocabulary = [*small.library(small.byte_level_json()).get_vocab(), 500 * "Ġ"]
    assert LengthBound(definition, vocabulary).fewest_tokens(1000 * " ") == 2
    definition["added_tokens"][0]["content"] = 500 * "é"
    assert LengthBound(definition, [*vocabulary, 500 * "é"]).fewest_tokens(1000 * " ") == 1


@pytest.mark.skipif(not SMOLLM2.is_dir(), reason="the default model is not in the cache folder")
def test_the_default_model_s_longest_texts() -> None:
    tokenizer = Tokenizer.load(SMOLLM2)
    for text in ("word " * 1000, " " * 5000, "-" * 5000, "=" * 5000, "\n" * 5000):
        encoded = tokenizer.encode(text)
        tokenizer.check_length(text, below=len(encoded) + 1)
        with pytest.raises(TooManyTokensError):
            tokenizer.check_length(1000 * text, below=8192)
