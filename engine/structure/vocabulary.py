"""The vocabulary: the bytes of every token of a model, as grammars are followed by them.

It is read from the model folder's own `tokenizer.json`, when the engine is built: that takes the interpreter
for some tenths of a second, which would be every stream's later. Special tokens have no bytes that a grammar
of text could mean: they go by other names here, since the library makes tokens of the text that is forced,
and that may spell one. End tokens are allowed where a grammar may end.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from llguidance import LLTokenizer

from engine.structure.special_names import rename, unknown_names

# Of these tokens all are allowed at once wherever a grammar allows any such text, as in a string of JSON:
# there a mask takes a tenth as long, and twenty times less where the string has a bound.
SLICES = LLTokenizer.general_slices()


class Vocabulary:
    def __init__(self, tokenizer: LLTokenizer, ends: frozenset[int]) -> None:
        self.tokenizer = tokenizer
        self.ends = ends  # tokens that end a text


def read_vocabulary(folder: Path, size: int, ends: Iterable[int]) -> Vocabulary | None:
    """`size`: how many tokens the model has logits for. None where grammars cannot be followed by these
    tokens."""
    known = sorted(token for token in set(ends) if 0 <= token < size)
    try:
        definition = json.loads((folder / "tokenizer.json").read_bytes())
        rename(definition, unknown_names(definition))
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return None
    for rows in (size, None):  # a tokenizer may have tokens that the model has no logits for
        try:
            tokenizer = LLTokenizer(json.dumps(definition), n_vocab=rows, eos_token=known, slices=SLICES)
        except Exception:  # noqa: BLE001 - the library raises nothing more exact
            continue
        return Vocabulary(tokenizer, frozenset(known))
    return None
