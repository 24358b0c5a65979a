"""Other names for special tokens in a parsed `tokenizer.json`: the library that makes tokens of text takes
whatever spells one for it, also where the text is a stranger's. Of a name that nobody knows no text is."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Any


def unknown_names(definition: Mapping[str, Any]) -> dict[str, str]:
    """For each token that a grammar's text is not: those that are special, and whatever stands in angle
    brackets, which llguidance takes for special as well."""
    nonce = secrets.token_hex(8)
    texts = [token["content"] for token in definition["added_tokens"] if _is_no_text(token)]
    return {text: f"~{nonce}.{number}~" for number, text in enumerate(texts)}


def _is_no_text(token: Mapping[str, Any]) -> bool:
    text: str = token["content"]
    return bool(token["special"]) or (text.startswith("<") and text.endswith(">"))


def rename(definition: dict[str, Any], names: Mapping[str, str]) -> None:
    """Give them these names, wherever a `tokenizer.json` speaks of them."""
    for token in definition["added_tokens"]:
        token["special"] = token["special"] or token["content"] in names
        token["content"] = names.get(token["content"], token["content"])
    model = definition["model"]
    if isinstance(model["vocab"], dict):
        model["vocab"] = {names.get(piece, piece): token for piece, token in model["vocab"].items()}
    else:  # Unigram
        model["vocab"] = [[names.get(piece, piece), score] for piece, score in model["vocab"]]
    if model.get("unk_token") in names:
        model["unk_token"] = names[model["unk_token"]]
    if "merges" in model:
        model["merges"] = [merge for merge in model["merges"] if not _spells(merge, names)]


def _spells(merge: str | list[str], names: Mapping[str, str]) -> bool:
    """Whether a merge makes a special token out of text, or goes on from one."""
    left, right = halves(merge)
    return not names.keys().isdisjoint((left, right, left + right))


def halves(merge: str | list[str]) -> list[str]:
    return merge.split(" ") if isinstance(merge, str) else merge
