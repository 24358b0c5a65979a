"""The special tokens, kept apart from what clients write and may spell alike.

Inside the tokenizers library every special token goes by a name that nobody outside can guess. A chat
template writes special tokens as text; before it runs, the same texts in messages are hidden behind
stand-ins, and afterwards what the template wrote is given the secret names and what was hidden is put back.
So one pass of one library object encodes both, and nothing is ever switched.

It knows the `tokenizer.json` format; it encodes nothing and renders nothing.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Collection, Iterable
from typing import Any

from engine.structure.special_names import rename


class SpecialTokens:
    """The special tokens of one `tokenizer.json`. `mark` is a text that no client can have written."""

    def __init__(self, definition: dict[str, Any], roles: Iterable[str]) -> None:
        """An added token that has a role, such as `eos_token`, is special even if it is not marked so."""
        nonce = secrets.token_hex(8)
        named = set(roles)
        for token in definition["added_tokens"]:
            token["special"] = token["special"] or token["content"] in named
        texts = [token["content"] for token in definition["added_tokens"] if token["special"]]
        self.mark = f"~{nonce}~"
        self.names = {text: f"~{nonce}.{n}~" for n, text in enumerate(texts)}
        self._stand_ins = {text: f"~{nonce}:{n}~" for n, text in enumerate(texts)}
        self._hidden = {stand_in: text for text, stand_in in self._stand_ins.items()}
        self._any_text = _any_of(texts)
        self._any_stand_in = _any_of(self._hidden)

    def hide(self, text: str) -> str:
        """A client's text, fit to go through the template."""
        return self._any_text.sub(lambda match: self._stand_ins[match[0]], text)

    def name(self, rendered: str) -> str:
        """What the template made, fit to be encoded."""
        return self._unhide(self._any_text.sub(lambda match: self.names[match[0]], rendered))

    def quote(self, text: str) -> str:
        """What the template complains of, fit for the client: the mark would teach it the names."""
        return self._unhide(text).replace(self.mark, "…")

    def rename(self, definition: dict[str, Any]) -> None:
        """Give the special tokens their names, wherever a `tokenizer.json` speaks of them."""
        rename(definition, self.names)

    def _unhide(self, text: str) -> str:
        return self._any_stand_in.sub(lambda match: self._hidden[match[0]], text)


def _any_of(texts: Collection[str]) -> re.Pattern[str]:
    """Matches any of the texts, the longest that is there; nothing, if there are none."""
    return re.compile(_alternatives(set(texts)) if texts else r"(?!)")


def _alternatives(texts: Collection[str]) -> str:
    """What some begin with is written once: models have hundreds that begin alike, and each of them would be
    tried wherever a client writes that beginning."""
    first, last = min(texts), max(texts)
    beside = enumerate(zip(first, last, strict=False))
    prefix = first[: next((at for at, (one, other) in beside if one != other), len(first))]
    by_next: dict[str, list[str]] = {}
    for rest in (text[len(prefix) :] for text in texts if text != prefix):
        by_next.setdefault(rest[0], []).append(rest)
    branches = "|".join(map(_alternatives, by_next.values()))
    if not branches:
        return re.escape(prefix)
    return f"{re.escape(prefix)}(?:{branches}){'?' if prefix in texts else ''}"
