"""The digests of blocks: what the tokens of a context are known by, block by block, on either side of the
border.

Each covers all tokens up to its block's end. They are salted by tenant: one tenant's timing must tell nothing
of another's prompts.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from hashlib import blake2b

PIECE = 16  # blocks whose tokens become bytes together: mostly few are asked for
SHORT = 8  # bytes of a digest that are told: enough to guess by, not to rely on


def salt(tenant: int) -> bytes:
    """What stands before a tenant's first block."""
    return tenant.to_bytes(8, "big", signed=True)


def digests(tokens: Sequence[int], block_size: int, before: bytes, first: int = 0) -> Iterator[bytes]:
    """Of the full blocks from number `first` on; `before` is the digest of the one before, or the salt."""
    for start in range(first * block_size, len(tokens) - block_size + 1, PIECE * block_size):
        piece = array("q", tokens[start : start + PIECE * block_size])
        data, size = piece.tobytes(), block_size * piece.itemsize
        for at in range(0, len(data) - size + 1, size):
            before = blake2b(before + data[at : at + size], digest_size=16).digest()
            yield before
