"""The bytes of each token: the table that the detokenizer works from.

Reads the decoder of a `tokenizer.json` and turns every piece of its vocabulary into the bytes that the piece
adds to the output. Two families exist among causal language models: byte-level BPE, where a piece spells
bytes in a visible alphabet, and SentencePiece, where `▁` is a space and `<0x0A>` a byte. Everything else is
refused. It knows no text and no stream.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from realtime.text.chat_template import TextError

_BYTE_PIECE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_UNSUPPORTED = (
    "The tokenizer's decoder is neither byte-level nor of the SentencePiece kind "
    "(Replace, ByteFallback, Fuse, Strip), so its tokens cannot be turned into text one by one."
)


class TokenBytes:
    """Bytes by token id, and how many leading spaces the decoder takes off the output's beginning.

    `whole` holds the tokens that are valid text by themselves: nearly all of them, and the fast way.
    """

    def __init__(self, decoder: Any, vocab: Mapping[str, int], special: frozenset[int]) -> None:
        steps = _steps(decoder)
        self.leading_spaces = _leading_spaces(steps)
        spell = _byte_level if steps[0]["type"] == "ByteLevel" else _sentencepiece
        self.bytes = {token: b"" if token in special else spell(piece) for piece, token in vocab.items()}
        self.whole: dict[int, str] = {}
        for token, data in self.bytes.items():
            try:
                self.whole[token] = data.decode()
            except UnicodeDecodeError:  # part of a character: the stream waits for the rest
                continue


def _steps(decoder: Any) -> list[dict[str, Any]]:
    """The decoder's steps, flattened; raises unless they are one of the two families."""
    if not isinstance(decoder, dict):
        raise TextError(_UNSUPPORTED)
    steps = decoder["decoders"] if decoder.get("type") == "Sequence" else [decoder]
    kinds = [step.get("type") for step in steps]
    if kinds == ["ByteLevel"]:
        return list(steps)
    sentencepiece = kinds[:3] == ["Replace", "ByteFallback", "Fuse"] and kinds[3:] in ([], ["Strip"])
    if sentencepiece and _makes_spaces(steps[0]) and all(map(_strips_start, steps[3:])):
        return list(steps)
    raise TextError(_UNSUPPORTED)


def _makes_spaces(replace: dict[str, Any]) -> bool:
    return bool(replace["pattern"] == {"String": "▁"} and replace["content"] == " ")


def _strips_start(strip: dict[str, Any]) -> bool:
    return bool(strip["content"] == " " and strip["stop"] == 0)


def _leading_spaces(steps: list[dict[str, Any]]) -> int:
    return int(steps[-1]["start"]) if steps[-1]["type"] == "Strip" else 0


def _byte_level(piece: str) -> bytes:
    """A piece with any character outside the alphabet is literal, as an added token may be."""
    try:
        return bytes([BYTE_ALPHABET[char] for char in piece])
    except KeyError:
        return piece.encode()


def _sentencepiece(piece: str) -> bytes:
    match = _BYTE_PIECE.fullmatch(piece)
    return bytes([int(match[1], 16)]) if match else piece.replace("▁", " ").encode()


def _visible_alphabet() -> dict[str, int]:
    """GPT-2's: a printable Latin-1 character stands for its own byte, the other bytes for U+0100 onwards."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(0x100) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + n): byte for n, byte in enumerate(others)}


BYTE_ALPHABET = _visible_alphabet()
