"""The Triton backend: our own attention kernels, which read through block tables.

A plan is a few numbers a row, made without looking at a single block: none depends on where blocks lie, so a
step over them can be captured and replayed. It knows rows, tables and the shape of a launch; the
arithmetic is in `triton_kernels.py`.

Where it is to be exact, one shape of program reads for whoever decodes and for chunks, and contexts are cut
at fixed positions. How many programs share the parts follows from the batch as ever, and changes no bit.
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence as Rows
from dataclasses import dataclass
from itertools import accumulate

import torch
import triton.language as tl
from torch import Tensor
from triton import knobs
from triton.runtime import driver

from engine.forward.attention import AttentionParams
from engine.forward.block_tables import BlockTables, GroupTables
from engine.forward.triton_kernels import join, read
from engine.nonblocking_transfer import upload
from engine.schedule.batch import Row

MAX_SPLITS = 64
SHARE = 1024  # tokens from cut to cut, where cuts are fixed
EXACT_ROWS = 64  # of a program's queries then: what decodes fills few of them, and waits for memory anyway
KEPT_PARTS = 4096  # at once, of all tokens: what they take is the same in every step, and so in those tried
_SIZES = ((128, 64), (64, 64), (64, 32), (32, 32), (16, 16))  # query rows and keys, the largest first
_NAMES = {torch.float32: tl.float32, torch.float64: tl.float64}


@dataclass(frozen=True, slots=True)
class LaunchConfig:
    """How large a program is, and how many of them keep the device busy."""

    tile_rows: int  # query rows of a chunk, grouped heads included
    keys: int  # read in one turn of the loop
    programs: int


def launch_config(dtype: torch.dtype, size: int) -> LaunchConfig:
    """For heads of this size, on the device that this process uses."""
    properties = driver.active.utils.get_device_properties(driver.active.get_current_device())
    rows, keys = largest_tile(properties["max_shared_mem"], dtype, size)
    return LaunchConfig(rows, keys, programs=2 * properties["multiprocessor_count"])


def largest_tile(shared: int, dtype: torch.dtype, size: int) -> tuple[int, int]:
    """Query rows and keys of a program that fit into so many bytes of its processor's memory."""
    width = max(16, _power(size))
    if dtype.itemsize > 2:
        # No tensor core multiplies it unrounded: what is multiplied stands in registers, and they are few.
        return max(16, 4096 // width), max(16, 2048 // width)
    for rows, keys in _SIZES:
        # The queries, keys and values of this turn and of the next, and the table of the one after it.
        if dtype.itemsize * width * (rows + 4 * keys) + 16 * keys <= shared:
            return rows, keys
    return _SIZES[-1]


@dataclass(slots=True)
class Tiles:
    """Query tokens that one program reads for: [4, tiles] of table row, first token, position, count."""

    numbers: Tensor
    longest: int  # the most tokens of any tile
    first: int  # of the batch's tokens that the tiles hold
    tokens: int
    splits: int  # programs that share a tile's context
    parts: int = 0  # that a context has where cuts are fixed, of the longest one


@dataclass(slots=True)
class TritonPlan:
    """A batch read through block tables."""

    pool_indices: Tensor
    positions: Tensor
    parts: list[Tiles]
    tables: GroupTables
    launch: LaunchConfig

    def attend(
        self, keys: Tensor, values: Tensor, query: Tensor, own: tuple[Tensor, Tensor], params: AttentionParams
    ) -> Tensor:
        heads, tokens, _ = query.shape
        out = query.new_empty(tokens, heads, values.shape[-1])
        for tiles in self.parts:
            self._read(tiles, keys, values, query, out, params)
        return out

    def _read(
        self, tiles: Tiles, keys: Tensor, values: Tensor, query: Tensor, out: Tensor, params: AttentionParams
    ) -> None:
        heads, _, size = query.shape
        kv_heads, value_size = keys.shape[0], values.shape[-1]
        groups, splits, count = heads // kv_heads, tiles.splits, tiles.numbers.shape[1]
        wide = torch.float64 if query.dtype == torch.float64 else torch.float32
        sinks = out if params.sinks is None else params.sinks
        share = SHARE if tiles.parts else 0
        in_parts = bool(share) or splits > 1
        parts, lses = out, out
        if in_parts:
            places = max(KEPT_PARTS, tiles.parts * tiles.tokens) if share else splits * tiles.tokens
            parts = query.new_empty(places, heads, value_size, dtype=wide)
            lses = query.new_empty(places, heads, dtype=wide)
        matrix = max(16, tiles.longest * _power(groups))
        read[(count, kv_heads, splits)](
            query,
            keys,
            values,
            self.tables.tensor,
            tiles.numbers,
            sinks,
            parts,
            lses,
            params.scale,
            params.softcap or 1.0,
            tiles.numbers.stride(0),
            tiles.first,
            tiles.tokens,
            splits,
            query.stride(0),
            query.stride(1),
            keys.stride(0),
            values.stride(0),
            self.tables.tensor.stride(0),
            window=params.window or 0,
            block=self.tables.block_size,
            size=size,
            value_size=value_size,
            groups=groups,
            SPLIT=in_parts,
            SHARE=share,
            CAPPED=params.softcap is not None,
            SINKS=params.sinks is not None,
            PRECISION="ieee",  # of float32, which tensor cores would otherwise round
            WIDE=_NAMES[wide],
            WIDEN=knobs.runtime.interpret and query.dtype == torch.bfloat16,
            M=matrix,
            G=_power(groups),
            N=self.launch.keys,
            D=max(16, _power(size)),
            V=max(16, _power(value_size)),
            num_warps=4 if matrix <= 64 else 8,
            num_stages=3,  # the table is read two turns ahead, so that keys are asked for one turn ahead
        )
        if in_parts:
            join[(tiles.tokens * heads,)](
                parts,
                lses,
                self.positions,
                sinks,
                out,
                splits,
                tiles.first,
                tiles.tokens * heads,
                heads,
                value_size=value_size,
                window=params.window or 0,
                SHARE=share,
                SINKS=params.sinks is not None,
                WIDE=_NAMES[wide],
                S=MAX_SPLITS,
                V=_power(value_size),
            )


Numbers = tuple[int, int, int, int]  # of a tile


class TritonBackend:
    """`exact` where what is computed for a token is to follow from its own context alone."""

    name = "triton"

    def __init__(
        self, tables: BlockTables, heads: int, kv_heads: int, launch: LaunchConfig, *, exact: bool = False
    ) -> None:
        self.tables = tables
        self._kv_heads = kv_heads
        self.launch = launch
        self._exact = exact
        rows = min(launch.tile_rows, EXACT_ROWS) if exact else launch.tile_rows
        self._tile_tokens = max(1, rows // _power(heads // kv_heads))

    def plan(self, rows: Rows[Row]) -> tuple[list[int], list[TritonPlan]]:
        """Rows of one token first: their context is split among programs, a chunk has programs enough."""
        order = sorted(range(len(rows)), key=lambda at: rows[at].count > 1)
        self.tables.update(rows)
        owners: list[int] = []
        positions: list[int] = []
        single: list[Numbers] = []
        chunks: list[Numbers] = []
        for row in (rows[at] for at in order):
            slot, first = row.sequence.slot, len(owners)
            for begin in range(0, row.count, self._tile_tokens):
                count = min(self._tile_tokens, row.count - begin)
                tile = (slot, first + begin, row.start + begin, count)
                (single if row.count == 1 else chunks).append(tile)
            owners += [slot] * row.count
            positions += range(row.start, row.start + row.count)
        slots, at = upload([owners, positions], self.tables.device)
        if self._exact:
            tiles = [
                self._uploaded(some, self._tile_tokens, _parts(some)) for some in _pieces(single + chunks)
            ]
        else:
            tiles = [self._uploaded(single, 1)] if single else []
            tiles += [self._uploaded(chunks, self._tile_tokens)] if chunks else []
        return order, self._plans(slots, at, tiles)

    def plan_decoding(self, slots: Tensor, positions: Tensor) -> list[TritonPlan]:
        """For a token at each of these positions, which nobody has to know: a plan for any context."""
        order = torch.arange(len(slots), device=slots.device)
        numbers = torch.stack([slots, order, positions, torch.ones_like(slots)]).int()
        if not self._exact:
            return self._plans(slots, positions, [self._tiles(numbers, 0, len(slots), 1)])
        parts = -(-self.tables.tokens // SHARE)
        pieces = torch.split(numbers, max(1, KEPT_PARTS // parts), dim=1)
        firsts = accumulate((piece.shape[1] for piece in pieces), initial=0)
        tiles = [
            self._tiles(piece, first, piece.shape[1], self._tile_tokens, parts)
            for piece, first in zip(pieces, firsts, strict=False)
        ]
        return self._plans(slots, positions, tiles)

    def _plans(self, slots: Tensor, positions: Tensor, parts: list[Tiles]) -> list[TritonPlan]:
        return [
            self.plan_of(tables.pool_indices(slots, positions), positions, parts, tables)
            for tables in self.tables.groups
        ]

    def plan_of(
        self, pool_indices: Tensor, positions: Tensor, parts: list[Tiles], tables: GroupTables
    ) -> TritonPlan:
        return TritonPlan(pool_indices, positions, parts, tables, self.launch)

    def _tiles(self, numbers: Tensor, first: int, tokens: int, longest: int, parts: int = 0) -> Tiles:
        programs = numbers.shape[1] * self._kv_heads
        splits = max(1, min(parts or MAX_SPLITS, self.launch.programs // programs))
        return Tiles(numbers, longest, first, tokens, splits, parts)

    def _uploaded(self, tiles: list[Numbers], longest: int, parts: int = 0) -> Tiles:
        columns = [list(column) for column in zip(*tiles, strict=True)]
        numbers = upload(columns, self.tables.device, torch.int32)
        return self._tiles(numbers, tiles[0][1], sum(columns[3]), longest, parts)


def _parts(tiles: list[Numbers]) -> int:
    """Of the longest context, where cuts are fixed."""
    return max(-(-(position + count) // SHARE) for _, _, position, count in tiles)


def _pieces(tiles: list[Numbers]) -> Iterator[list[Numbers]]:
    """As many tiles at once as their parts can be kept of."""
    some: list[Numbers] = []
    tokens, parts = 0, 0
    for tile in tiles:
        own = _parts([tile])
        tokens, parts = tokens + tile[3], max(parts, own)
        if some and tokens * parts > KEPT_PARTS:
            yield some
            some, tokens, parts = [], tile[3], own
        some.append(tile)
    yield some


def _power(number: int) -> int:
    return 1 << (number - 1).bit_length()
