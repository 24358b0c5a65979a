"""Whether two models' folders have the same vocabulary: each token's text, and its number.

Tokens without a text, up to which a model's matrices are filled, may be more in one than in the other.
"""

from __future__ import annotations

from pathlib import Path

from tokenizers import Tokenizer

from engine.model.preflight import ModelError


def have_same_vocabulary(one: Path, other: Path) -> bool:
    return _vocabulary(one) == _vocabulary(other)


def _vocabulary(folder: Path) -> dict[str, int]:
    try:
        tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    except Exception as error:  # noqa: BLE001 - the library raises nothing more exact
        raise ModelError(f"the tokenizer.json in {folder} cannot be read: {error}") from None
    vocabulary: dict[str, int] = tokenizer.get_vocab(with_added_tokens=True)
    return vocabulary
