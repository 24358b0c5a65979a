"""The KV read plan of a ragged batch: which keys and values each row reads, and which of them are read in one
call.

Pure arithmetic on positions in the pool, done once a step and used by every layer. It knows spans and where
their tokens lie; it knows no model and computes no attention.

A row's context is read in parts, whose results the caller joins. With a `Tiling` they are tiles, cut at fixed
positions of the context, so that what is computed for a token follows from its position alone and not from
where its context lies; a tile that lies in several runs is gathered. Without one they are the runs.

Parts are read together where they begin evenly spaced in the pool, which is how the block cache lays
sequences out: such parts are one strided view, filled up to the longest. A distance of zero is a part that
rows share.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from copy import copy
from dataclasses import dataclass, field
from itertools import accumulate

import torch
from torch import Tensor

from engine.forward.tiling import Tiling
from engine.nonblocking_transfer import upload

PADDING = 2.0  # a call may read at most so many times what its rows really see
SMALL = 64  # tokens of padding a row that are cheaper than another call
CALL = 160  # tokens that are read in the time that a call takes beside reading
MAX_PARTIAL = 4096  # tokens times parts of a chunk that are computed before they are joined
LEAST_QUERIES = 64  # tokens of a chunk that are computed at once however many parts there are


@dataclass(slots=True)
class RowSpan:
    """One row's share of the batch: `count` query tokens from row `first`, at positions from `start`
    on."""

    first: int
    count: int
    start: int
    # Where positions from `held` to start + count lie, or further: (first token, tokens).
    runs: list[tuple[int, int]]
    held: int = 0  # the first position that its table holds
    _begins: list[int] = field(init=False)  # the first position of each run, and the one behind the last

    def __post_init__(self) -> None:
        self._begins = list(accumulate((tokens for _, tokens in self.runs), initial=self.held))

    @property
    def end(self) -> int:
        return self.start + self.count

    @property
    def tokens(self) -> slice:
        return slice(self.first, self.first + self.count)

    def slices(self, begin: int, end: int) -> list[slice]:
        """Where positions `begin` to `end` lie."""
        found = []
        at = max(0, bisect_right(self._begins, begin) - 1)
        while at < len(self.runs) and (position := self._begins[at]) < end:
            first, tokens = self.runs[at]
            low, high = max(begin, position), min(end, position + tokens)
            if low < high:
                found.append(slice(first + low - position, first + high - position))
            at += 1
        return found

    def seen_from(self, window: int | None) -> int:
        """The first position that any of its queries sees."""
        return 0 if window is None else max(0, self.start + 1 - window)


def contiguous_runs(blocks: list[int], block_size: int, tokens: int) -> list[tuple[int, int]]:
    """Where the first `tokens` of a table lie, neighbours joined."""
    runs: list[tuple[int, int]] = []
    for at, number in enumerate(blocks[: -(-tokens // block_size)]):
        here = min(block_size, tokens - at * block_size)
        if runs and sum(runs[-1]) == number * block_size:
            runs[-1] = (runs[-1][0], runs[-1][1] + here)
        else:
            runs.append((number * block_size, here))
    return runs


@dataclass(frozen=True, slots=True)
class Part:
    """Keys that a row reads as one: `lead` that are not its own, those in `slices`, and what fills them up to
    `length`."""

    depth: int  # which of the row's parts it is
    position: int  # of its first key
    lead: int
    slices: list[slice]
    length: int

    @property
    def end(self) -> int:
        """Behind the last key of its own, counted in it."""
        own: int = sum(part.stop - part.start for part in self.slices)
        return self.lead + own

    @property
    def full(self) -> bool:
        return self.lead == 0 and self.end == self.length

    def place(self, pool_tokens: int) -> int | None:
        """Where in the pool it begins, or None where it has to be gathered."""
        first = self.slices[0].start - self.lead
        whole = len(self.slices) == 1 and first >= 0 and first + self.length <= pool_tokens
        return first if whole else None

    def filled(self, length: int, pool_tokens: int) -> list[slice]:
        """What to gather. What fills it up is never seen, but has to be numbers: the pool's first tokens
        will do, again and again where it has few."""

        def any_tokens(count: int) -> list[slice]:
            return [slice(0, min(pool_tokens, count - at)) for at in range(0, count, pool_tokens)]

        return [*any_tokens(self.lead), *self.slices, *any_tokens(length - self.end)]


def parts_of(span: RowSpan, window: int | None, tiling: Tiling | None) -> list[Part]:
    begin = span.seen_from(window)
    if tiling is None:
        # A chunk's own tokens are a part of themselves: of what stands before, all is seen by all.
        cuts = sorted({begin, max(begin, span.start) if span.count > 1 else begin})
        ends = [*cuts[1:], span.end]
        runs = [run for low, high in zip(cuts, ends, strict=True) for run in span.slices(low, high)]
        parts = []
        for depth, run in enumerate(runs):
            parts.append(Part(depth, begin, 0, [run], run.stop - run.start))
            begin = begin + run.stop - run.start
        return parts
    tiles = range(begin // tiling.tile, (span.end - 1) // tiling.tile + 1)
    return [_tile(span, begin, number, number - tiles.start, tiling) for number in tiles]


def _tile(span: RowSpan, begin: int, number: int, depth: int, tiling: Tiling) -> Part:
    first = number * tiling.tile
    low, high = max(begin, first), min(span.end, first + tiling.tile)
    return Part(depth, first, low - first, span.slices(low, high), tiling.length(high - first))


# -- what is read in one call ----------------------------------------------------------------------


@dataclass(slots=True)
class Strided:
    """Keys of `count` parts as one view of the pool: the i-th begins at `first + i * pitch`."""

    first: int
    pitch: int
    count: int
    length: int

    def read(self, pool: Tensor) -> Tensor:
        """[parts, KV, length, D], without moving anything."""
        head, token, number = pool.stride()
        return pool.as_strided(
            (self.count, pool.shape[0], self.length, pool.shape[2]),
            (self.pitch * token, head, token, number),
            pool.storage_offset() + self.first * token,
        )


@dataclass(slots=True)
class Gathered:
    """Keys of `count` parts that lie in pieces."""

    slices: list[slice]
    count: int
    length: int

    def read(self, pool: Tensor) -> Tensor:
        whole = torch.cat([pool[:, piece] for piece in self.slices], 1)
        return whole.view(len(whole), self.count, self.length, -1).transpose(0, 1)


@dataclass(slots=True)
class Call:
    """Queries and parts that meet in one call. With `together` each of the queries reads each of the parts;
    without, each has a part of its own."""

    keys: Strided | Gathered
    together: bool
    hidden: Tensor | None = None  # what to add to the scores: [parts, 1, queries or 1, length]
    _folded: dict[tuple[int, int], Tensor] = field(default_factory=dict)

    def mask(self, groups: int, queries: int) -> Tensor | None:
        """For `groups` of heads, folded behind each query and filled up to so many."""
        if self.hidden is None or self.hidden.shape[2] == 1:
            return self.hidden
        if (groups, queries) not in self._folded:
            folded = self.hidden.repeat_interleave(groups, 2)
            more = folded[:, :, -1:].expand(-1, -1, queries - folded.shape[2], -1)
            self._folded[groups, queries] = torch.cat([folded, more], 2)
        return self._folded[groups, queries]


@dataclass(slots=True)
class Decoding:
    """Rows of one token each, and their parts. One behind the other, the calls give a result for each part of
    each row."""

    tokens: slice
    parts: int  # the most that any of them has
    calls: list[Call]
    results: list[slice]  # of each call: which of all results it gives
    rows: Tensor | None  # of each result: whose it is; None where each row has one, in their order
    places: (
        Tensor | None
    )  # of each row's first part, then of their second ...: which result it is; None as above
    complete: bool  # whether each row has as many parts; else the place of those it lacks is behind the last


@dataclass(slots=True)
class Chunk:
    """Neighbouring tokens of one row, and the parts of its context."""

    tokens: slice
    parts: int
    calls: list[tuple[slice, Tensor, Call]]  # which of the tokens, and which parts


@dataclass(slots=True)
class _Together:
    """Parts that are read in one call, each with its row, and filled up to the longest of them."""

    rows: list[int] = field(default_factory=list)
    parts: list[Part] = field(default_factory=list)
    length: int = 0  # of the longest
    _seen: int = 0  # tokens of all of them

    @property
    def cost(self) -> int:
        """In tokens that are read."""
        return CALL + self.length * len(self.parts)

    def is_worth_it(self, part: Part) -> bool:
        """To read one more beside them."""
        count, seen = len(self.parts) + 1, self._seen + part.length
        return max(self.length, part.length) * count <= PADDING * seen + SMALL * count

    def add(self, row: int, part: Part) -> None:
        self.rows.append(row)
        self.parts.append(part)
        self.length = max(self.length, part.length)
        self._seen += part.length


@dataclass(slots=True)
class _Line(_Together):
    """They begin evenly spaced."""

    first: int = 0
    pitch: int = 0

    def try_add(self, row: int, part: Part, place: int, pool_tokens: int) -> bool:
        """Add one more part, if it fits the pattern at a price worth paying."""
        count = len(self.parts)
        pitch = place - self.first if count == 1 else self.pitch
        last = self.first + count * pitch
        inside = last + max(self.length, part.length) <= pool_tokens
        fits = place == last and pitch >= 0 and inside and self.is_worth_it(part)
        if fits:
            self.add(row, part)
            self.pitch = pitch
        return fits


# -- the plan --------------------------------------------------------------------------------------


@dataclass(slots=True)
class RaggedBatch:
    """A batch as attention sees it. Its first `decoding` rows are spans of one token each."""

    pool_indices: Tensor  # where each query token's own key and value are kept
    spans: list[RowSpan]
    pool_tokens: int
    dtype: torch.dtype
    decoding: int = 0
    _sections: dict[tuple[int | None, Tiling | None], list[Decoding | Chunk]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        while self.decoding < len(self.spans) and self.spans[self.decoding].count == 1:
            self.decoding += 1

    def sections(self, window: int | None, tiling: Tiling | None) -> list[Decoding | Chunk]:
        """For layers with one window."""
        key = (window, tiling)
        if key not in self._sections:
            sections: list[Decoding | Chunk] = [self._decode(window, tiling)] if self.decoding else []
            for span in self.spans[self.decoding :]:
                sections += [self._chunk(piece, window, tiling) for piece in _pieces(span, tiling)]
            self._sections[key] = sections
        return self._sections[key]

    # -- rows of one token -------------------------------------------------------------------------

    def _decode(self, window: int | None, tiling: Tiling | None) -> Decoding:
        rows = [parts_of(span, window, tiling) for span in self.spans[: self.decoding]]
        every = [(row, part) for row, parts in enumerate(rows) for part in parts]
        placed = [(row, part, at) for row, part in every if (at := part.place(self.pool_tokens)) is not None]
        scattered = [(row, part) for row, part in every if part.place(self.pool_tokens) is None]
        by_row = self._lines(placed)
        by_depth = self._lines(sorted(placed, key=lambda one: (one[1].depth, one[0])))
        lines = min(by_row, by_depth, key=lambda lines: sum(line.cost for line in lines))
        calls = [self._along(line) for line in lines]
        order = [one for line in lines for one in zip(line.rows, line.parts, strict=True)]
        counts = [len(line.parts) for line in lines]
        for some in _of_like_length(scattered):
            calls.append(self._gathered(some))
            counts.append(len(some.parts))
            order += zip(some.rows, some.parts, strict=True)
        return self._joined(calls, counts, order, max(map(len, rows)))

    def _joined(
        self, calls: list[Call], counts: list[int], order: list[tuple[int, Part]], parts: int
    ) -> Decoding:
        places = [len(order)] * (parts * self.decoding)
        for place, (row, part) in enumerate(order):
            places[part.depth * self.decoding + row] = place
        ends = list(accumulate(counts))
        results = [slice(end - count, end) for end, count in zip(ends, counts, strict=True)]
        tokens, complete = slice(0, self.decoding), len(order) == len(places)
        rows, in_order = [row for row, _ in order], list(range(self.decoding))
        if rows == places == in_order:
            return Decoding(tokens, parts, calls, results, None, None, complete)
        device = self.pool_indices.device
        return Decoding(tokens, parts, calls, results, upload(rows, device), upload(places, device), complete)

    def _lines(self, placed: list[tuple[int, Part, int]]) -> list[_Line]:
        lines: list[_Line] = []
        for row, part, at in placed:
            if not lines or not lines[-1].try_add(row, part, at, self.pool_tokens):
                lines.append(_Line(first=at))
                lines[-1].add(row, part)
        return lines

    def _along(self, line: _Line) -> Call:
        hidden = self._beyond(line.parts, line.length)
        shared = len(line.parts) > 1 and line.pitch == 0 and hidden is None
        keys = Strided(line.first, line.pitch, 1 if shared else len(line.parts), line.length)
        return Call(keys, shared, hidden)

    def _gathered(self, some: _Together) -> Call:
        slices = [piece for part in some.parts for piece in part.filled(some.length, self.pool_tokens)]
        keys = Gathered(slices, len(some.parts), some.length)
        return Call(keys, False, self._beyond(some.parts, some.length))

    def _beyond(self, parts: list[Part], length: int) -> Tensor | None:
        """Hides what the parts only carry along."""
        if all(part.lead == 0 and part.end == length for part in parts):
            return None
        device = self.pool_indices.device
        leads, ends = upload([[part.lead for part in parts], [part.end for part in parts]], device)
        at = torch.arange(length, device=device)
        return self._hides((at < leads.view(-1, 1, 1, 1)) | (at >= ends.view(-1, 1, 1, 1)))

    def _hides(self, hidden: Tensor) -> Tensor:
        return torch.zeros(hidden.shape, dtype=self.dtype, device=hidden.device).masked_fill_(
            hidden, -torch.inf
        )

    # -- chunks of a prompt ------------------------------------------------------------------------

    def _chunk(self, span: RowSpan, window: int | None, tiling: Tiling | None) -> Chunk:
        parts = parts_of(span, window, tiling)
        last_seen_from = 0 if window is None else span.end - window
        seen_by_all = [
            (0, part, at)
            for part in parts
            if part.full
            and part.position + part.length <= span.start
            and part.position >= last_seen_from
            and (at := part.place(self.pool_tokens)) is not None
        ]
        lines = self._lines(seen_by_all)
        calls = [self._behind(span, line) for line in lines]
        behind = {part.depth for line in lines for part in line.parts}
        calls += [self._causal(span, part, window) for part in parts if part.depth not in behind]
        return Chunk(span.tokens, len(parts), calls)

    def _behind(self, span: RowSpan, line: _Line) -> tuple[slice, Tensor, Call]:
        """Parts of the context before the chunk, all of which every query sees. Others may lie between them,
        which are evenly spaced all the same."""
        keys = Strided(line.first, line.pitch, len(line.parts), line.length)
        depths = upload([part.depth for part in line.parts], self.pool_indices.device)
        hidden = self._beyond(line.parts, line.length)
        return slice(0, span.count), depths, Call(keys, True, hidden)

    def _causal(self, span: RowSpan, part: Part, window: int | None) -> tuple[slice, Tensor, Call]:
        """A part of which each query sees what stands before it, for those that see any."""
        low = max(span.start, part.position + part.lead)
        high = span.end if window is None else min(span.end, part.position + part.end - 1 + window)
        at = part.place(self.pool_tokens)
        keys = (
            Strided(at, 0, 1, part.length)
            if at is not None
            else Gathered(part.filled(part.length, self.pool_tokens), 1, part.length)
        )
        device = self.pool_indices.device
        seen = torch.arange(part.position, part.position + part.length, device=device)
        distance = torch.arange(low, high, device=device).unsqueeze(1) - seen
        hidden = (distance < 0) if window is None else (distance < 0) | (distance >= window)
        tokens = slice(low - span.start, high - span.start)
        return tokens, upload([part.depth], device), Call(keys, True, self._hides(hidden[None, None]))


def _of_like_length(scattered: list[tuple[int, Part]]) -> Iterator[_Together]:
    """Those that are gathered together, without filling up more than it is worth."""
    some = _Together()
    for row, part in sorted(scattered, key=lambda one: one[1].length):
        if some.parts and not some.is_worth_it(part):
            yield some
            some = _Together()
        some.add(row, part)
    if some.parts:
        yield some


def _pieces(span: RowSpan, tiling: Tiling | None) -> Iterator[RowSpan]:
    """A chunk in as many pieces as keep what is computed before it is joined in bounds."""
    parts = len(span.runs) if tiling is None else -(-span.end // tiling.tile)
    most = max(LEAST_QUERIES, MAX_PARTIAL // max(1, parts))
    for at in range(0, span.count, most):
        piece = copy(span)
        piece.first, piece.start = span.first + at, span.start + at
        piece.count = min(most, span.count - at)
        yield piece
