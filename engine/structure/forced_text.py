"""A forced text: what must come next, as far as it was looked for, and the tokens of it.

Whoever looks has a matcher follow it, piece by piece, and goes back. The library, if it is let, follows all
that is forced at once: a grammar of a few characters may force a megabyte, or without end. This follows
nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

from engine.structure.mask import allowed
from engine.structure.vocabulary import Vocabulary

MOST_TOKENS = 64  # that a mask leaves: of more nobody looks whether they begin alike


class ForcedText:
    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._text = b""
        self._allowed: dict[int, dict[int, bytes]] = {}  # tokens, behind so many bytes

    def __len__(self) -> int:
        return len(self._text)

    def go_on(self, mask: bytes) -> int | None:
        """The token that all which may come behind it begin with: it is part of it then. None where there is
        a choice, or what comes is no text."""
        tokens = allowed(mask, MOST_TOKENS)
        texts = {token: text for token in tokens if (text := self._vocabulary.text_of(token))}
        if not tokens or len(texts) < len(tokens) or len(tokens) == MOST_TOKENS:
            return None
        first = min(texts, key=lambda token: len(texts[token]))
        if not all(text.startswith(texts[first]) for text in texts.values()):
            return None
        self._allowed[len(self)] = texts
        self._text += texts[first]
        return first

    def tokens(self, before: Sequence[int]) -> list[int]:
        """Those of it that are so whatever follows: not what a token might stand for that goes on behind it.
        `before`: the tokens that it comes behind."""
        most, tokens, at = self._certain(), list[int](), 0
        for token in self._tokenized(list(before[-1:])) if most else ():
            text = self._allowed.get(at, {}).get(token)
            if text is None or at + len(text) > most:
                break
            tokens.append(token)
            at += len(text)
        return tokens

    def _certain(self) -> int:
        """How many bytes there are before any at which a token might go on behind all of it."""
        for at, texts in self._allowed.items():
            if at + max(map(len, texts.values())) > len(self):
                return at
        return len(self)

    def _tokenized(self, last: list[int]) -> list[int]:
        """As the tokenizer has it behind the last token, where it would have that one as well."""
        tokenizer = self._vocabulary.tokenizer
        tokens = tokenizer.tokenize_bytes(tokenizer.decode_bytes(last) + self._text)
        if tokens[: len(last)] == last:
            return tokens[len(last) :]
        return tokenizer.tokenize_bytes(self._text)
