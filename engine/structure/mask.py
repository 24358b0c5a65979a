"""A mask: a byte for each token, which says whether that may come next."""

from __future__ import annotations

from collections.abc import Iterable

ALLOWED = 200  # as the library has it


def allowed(mask: bytes, most: int) -> list[int]:
    """So many of its tokens, from the first on, and no more."""
    tokens, at = list[int](), mask.find(ALLOWED)
    while at >= 0 and len(tokens) < most:
        tokens.append(at)
        at = mask.find(ALLOWED, at + 1)
    return tokens


def alone(token: int, size: int) -> bytes:
    """The mask of one token, among so many."""
    mask = bytearray(size)
    mask[token] = ALLOWED
    return bytes(mask)


def without(mask: bytes, tokens: Iterable[int]) -> bytes:
    others = bytearray(mask)
    for token in tokens:
        others[token] = 0
    return bytes(others)
