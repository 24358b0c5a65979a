"""The length bound: the fewest tokens that a text can become, without making them. Pure.

A token stands for so many bytes at most, so a text of more becomes several. That holds where nothing of a
text is dropped or made shorter on its way into the model: it is read from a `tokenizer.json` whether that is
so, and where it is not known to be, nothing is promised.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from realtime.text.token_bytes import BYTE_ALPHABET

# Splitters that keep all of a text.
_KEEPING = {"ByteLevel", "Digits", "Metaspace", "Punctuation", "Split"}
# The bytes that texts consist of. No other is in a character that NFC makes: they are of planes 3 and up,
# control characters, or no UTF-8.
_COMMON = frozenset([*range(0x20, 0x7F), *range(0x80, 0xC0), *range(0xC2, 0xF1)])
# Bytes that NFC makes one of, at most: it writes U+0390 in two, and what it writes so in seven.
_COMPOSED_BYTES = 4


class LengthBound:
    """Of one `tokenizer.json`, and the pieces of its vocabulary."""

    def __init__(self, definition: Mapping[str, Any], pieces: Iterable[str]) -> None:
        normalizers = _flat(definition.get("normalizer"), "normalizers")
        splitters = _flat(definition.get("pre_tokenizer"), "pretokenizers")
        vocabulary = set(pieces)
        self._dropped = _dropped_bytes(definition["model"], splitters, vocabulary)
        self._holds = (
            all(map(_keeps_length, normalizers))
            and all(step["type"] in _KEEPING and step.get("behavior") != "Removed" for step in splitters)
            and _COMMON.isdisjoint(self._dropped)
        )
        # Words are made tokens of each by itself, so that what a text is cut into says how much it has.
        self.splits = self._holds and any(map(_splits, splitters))
        self._composes = any(step["type"] == "NFC" for step in normalizers)
        tokens = definition["added_tokens"]
        self._swallows_blanks = any(token["lstrip"] or token["rstrip"] for token in tokens)
        spelled = vocabulary - {token["content"] for token in tokens} if _by_bytes(splitters) else set()
        # Others are literal; and SentencePiece writes a space as three bytes, and a text may do so too.
        literal = (len(piece.replace(" ", "▁").encode()) for piece in vocabulary - spelled)
        self._longest = max([1, *map(len, spelled), *literal])

    def fewest_tokens(self, text: str) -> int:
        if not self._holds:
            return 0
        if self._swallows_blanks:
            text = "".join(text.split())
        longest = self._longest * (_COMPOSED_BYTES if self._composes and not text.isascii() else 1)
        length = len(text.encode(errors="surrogatepass").translate(None, delete=self._dropped))
        return -(-length // longest)


def _flat(step: Mapping[str, Any] | None, parts: str) -> list[Mapping[str, Any]]:
    if step is None:
        return []
    if step["type"] == "Sequence":
        return [part for inner in step[parts] for part in _flat(inner, parts)]
    return [step]


def _keeps_length(normalizer: Mapping[str, Any]) -> bool:
    """Or makes it longer, or shorter by no more than `_COMPOSED_BYTES`."""
    if normalizer["type"] == "Replace":
        return bool(normalizer["pattern"] == {"String": " "} and normalizer["content"] == "▁")
    return normalizer["type"] in ("NFC", "Prepend")


def _splits(splitter: Mapping[str, Any]) -> bool:
    return bool(
        splitter["type"] == "Split" or (splitter["type"] == "ByteLevel" and splitter.get("use_regex", True))
    )


def _by_bytes(splitters: list[Mapping[str, Any]]) -> bool:
    """Whether the vocabulary writes each byte as one character."""
    return any(step["type"] == "ByteLevel" for step in splitters)


def _dropped_bytes(
    model: Mapping[str, Any], splitters: list[Mapping[str, Any]], vocabulary: set[str]
) -> bytes:
    """Those without a token: they are skipped, or many of them are one unknown."""
    if model["type"] != "BPE" or model.get("continuing_subword_prefix") or model.get("end_of_word_suffix"):
        spelled: Mapping[str, int] = {}
    elif _by_bytes(splitters):
        spelled = BYTE_ALPHABET
    else:  # and where one is missing, its whole character is unknown
        names = {f"<0x{byte:02X}>": byte for byte in range(256)}
        spelled = names if model.get("byte_fallback") and vocabulary.issuperset(names) else {}
    return bytes(set(range(256)) - {byte for piece, byte in spelled.items() if piece in vocabulary})
