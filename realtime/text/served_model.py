"""The served model as the gateway knows it: name, tokenizer, vocabulary, context, fingerprint. It knows no
weights."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from realtime.text.tokenizer import Tokenizer


class ServedModel(Struct, frozen=True):
    name: str
    tokenizer: Tokenizer
    vocab: int
    context: int
    fingerprint: str | None  # None until an engine has it
    grammars: bool = True  # whether its engine can follow them
    exact: bool = False  # whether equal starts and steering give equal tokens, in any company
    weights: str | None = None  # how wide they are, and what multiplies them

    def highest_beyond(self, tokens: Iterable[int]) -> int | None:
        """Of those that the model has no weights for, as a tokenizer may have some: the step that was to
        compute one would fail, and be computed again in parts, for everybody."""
        highest = max(tokens, default=0)
        return highest if highest >= self.vocab else None
