"""The vocabulary: the bytes of every token of a model, as grammars are followed by them.

It is read from the model folder's own `tokenizer.json`, when the engine is built: that takes the interpreter
for some tenths of a second, which would be every stream's later. Special tokens have no bytes that a grammar
of text could mean: they go by other names here, since the library makes tokens of the text that is forced,
and that may spell one. Tokens that the model has no weights for, as a tokenizer may have some, are taken out:
nothing is forced to be one. End tokens are allowed where a grammar may end.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from llguidance import LLTokenizer

from engine.structure.special_names import halves, rename, unknown_names

# Of these tokens all are allowed at once wherever a grammar allows any such text, as in a string of JSON:
# there a mask takes a tenth as long, and twenty times less where the string has a bound.
SLICES = LLTokenizer.general_slices()


class Vocabulary:
    def __init__(self, tokenizer: LLTokenizer, ends: frozenset[int]) -> None:
        self.tokenizer = tokenizer
        self.ends = ends  # tokens that end a text
        self._texts: dict[int, bytes | None] = {}  # of those that were asked for

    def text_of(self, token: int) -> bytes | None:
        """None of one that is no text."""
        try:
            return self._texts[token]
        except KeyError:
            is_text = token not in self.ends and not self.tokenizer.is_special_token(token)
            text = self._texts[token] = self.tokenizer.decode_bytes([token]) if is_text else None
            return text


def read_vocabulary(folder: Path, size: int, ends: Iterable[int]) -> Vocabulary | None:
    """`size`: how many tokens the model has weights for. None where grammars cannot be followed by these
    tokens."""
    known = sorted(token for token in set(ends) if 0 <= token < size)
    try:
        definition = json.loads((folder / "tokenizer.json").read_bytes())
        rename(definition, unknown_names(definition))
        _cut(definition, size)
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return None
    try:
        tokenizer = LLTokenizer(json.dumps(definition), n_vocab=size, eos_token=known, slices=SLICES)
    except BaseException:  # of the library, which is of another language  # noqa: BLE001
        return None
    return Vocabulary(tokenizer, frozenset(known))


def _cut(definition: dict[str, Any], size: int) -> None:
    """Leave the first so many tokens of a parsed `tokenizer.json`."""
    definition["added_tokens"] = [token for token in definition["added_tokens"] if token["id"] < size]
    model = definition["model"]
    if not isinstance(model["vocab"], dict):  # Unigram
        del model["vocab"][size:]
    elif max(model["vocab"].values(), default=0) >= size:
        kept = model["vocab"] = {piece: token for piece, token in model["vocab"].items() if token < size}
        model["merges"] = [merge for merge in model["merges"] if "".join(halves(merge)) in kept]
