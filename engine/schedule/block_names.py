"""Block names: what a block of computed tokens is found by.

A block is known by the hash of all tokens up to its end, and by the group of layers that it keeps them for.
It knows tokens and names, and not which blocks there are.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from itertools import takewhile

from engine.block_digests import digests, salt
from engine.schedule.sequence import Sequence
from engine.schedule.windows import Windows


def block_name(digest: bytes, group: int) -> bytes:
    """Of the block that keeps these tokens for a group of layers."""
    return digest + bytes([group]) if group else digest


def block_names(hashes: list[bytes], group: int) -> list[bytes]:
    return [block_name(digest, group) for digest in hashes] if group else hashes


def new_hashes(sequence: Sequence, blocks: int, block_size: int) -> Iterable[bytes]:
    """The hashes of a sequence's first full blocks, each covering all tokens before it, but for those that it
    has. They are remembered: who finds no memory asks again in the next step, and who goes back has most of
    them still.
    """
    have, known = len(sequence.block_hashes), sequence.token_hashes
    del known[sequence.num_hashed // block_size :]
    sequence.num_hashed = sys.maxsize
    known += sequence.block_hashes[len(known) :]
    before = known[-1] if known else salt(sequence.cache_of)
    more = digests(sequence.tokens, block_size, before, first=len(known))
    for at in range(have, blocks):
        if at == len(known):
            known.append(next(more))
        yield known[at]


def longest_prefix(
    chain: Iterable[bytes], there: Callable[[bytes], object], windows: Windows, have: int = 0
) -> list[bytes]:
    """The hashes of the longest beginning of a chain of which all is there that whoever goes on behind it
    reads: all of it, or the window before its end. `there`: whether a block with this name is. `have`: so
    many stand before the chain, of which all is there."""
    if windows.sizes == (None,):
        return list(takewhile(there, chain))
    hashes: list[bytes] = []
    groups = range(len(windows.sizes))
    sliding = [group for group in groups if windows.sizes[group] is not None]
    runs = [have for _ in groups]  # of each: how many of the last are there
    longest = 0
    for at, digest in enumerate(chain, have + 1):
        for group in groups:
            runs[group] = runs[group] + 1 if there(block_name(digest, group)) else 0
            if runs[group] < at and group not in sliding:
                return hashes[:longest]
        hashes.append(digest)
        position = at * windows.block_size
        if all(runs[group] >= at - windows.first(group, position) for group in sliding):
            longest = at - have
    return hashes[:longest]
