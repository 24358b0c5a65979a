"""The served model as the gateway knows it: name, tokenizer, vocabulary, context, fingerprint. It knows no
weights."""

from __future__ import annotations

from msgspec import Struct

from realtime.text.tokenizer import Tokenizer


class ServedModel(Struct, frozen=True):
    name: str
    tokenizer: Tokenizer
    vocab: int
    context: int
    fingerprint: str
