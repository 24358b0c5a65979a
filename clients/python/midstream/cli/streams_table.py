"""The table of streams, and the server in two lines above it. Pure: rows of pieces, each with its style.

How wide a text is, the terminal's library knows better: it is asked by `width_of`. Names come from clients,
and are sanitized here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from midstream.cli.fleet_lines import fleet_lines
from midstream.cli.listing import Listed, Listing, Totals
from midstream.cli.sanitize import sanitize

Row = list[tuple[str, str]]
MAX_NAME_WIDTH = 40


class Order(NamedTuple):
    """What streams are sorted by, the most of it first."""

    label: str
    key: Callable[[Listed], float]


ORDERS: Mapping[str, Order] = {
    "r": Order("rate", lambda one: round(one.tokens_per_s)),
    "t": Order("tokens", lambda one: one.tokens),
    "c": Order("context", lambda one: one.context_tokens),
    "a": Order("age", lambda one: one.age_s),
}
_SYMBOLS = {"running": "●", "paused": "‖", "stalled": "○", "queued": "…"}
_NUMBERS = ("age", "tokens", "tok/s", "credit", "context")
_NAMES = ("request", "tenant", "state")


def header_lines(listing: Listing) -> list[str]:
    """The lines above the table, about all streams and the server."""
    counts = ", ".join(f"{count} {sanitize(state)}" for state, count in listing.states.items())
    shown = f"; the youngest {len(listing.streams)} of them" if listing.total > len(listing.streams) else ""
    streams = f"{listing.total} {'stream' if listing.total == 1 else 'streams'}: {counts}{shown}"
    if listing.server is None:
        return [streams]
    fleet = listing.server.fleet
    return [_server(listing.server), *(() if fleet is None else fleet_lines(fleet)), streams]


def _server(server: Totals) -> str:
    room = server.kv_used_tokens + server.kv_cached_tokens + server.kv_free_tokens
    share = f" ({server.kv_used_tokens / room:.0%})" if room else ""
    parts = [
        sanitize(", ".join(server.models) or "no model yet"),
        f"{server.tokens_per_s:.1f} tok/s",
        f"{server.batch_rows} in the batch",
        f"KV {format_count(server.kv_used_tokens)} of {format_count(room)} tokens{share}",
        f"{format_count(server.kv_cached_tokens)} cached",
        f"{server.connections} {'connection' if server.connections == 1 else 'connections'}",
    ]
    return " · ".join(parts if server.engine else ["no engine", *parts])


def table_rows(streams: list[Listed], order: Order, width_of: Callable[[str], int]) -> list[Row]:
    """The names of the columns, and a row for each stream."""
    ordered = sorted(streams, key=order.key, reverse=True)
    named = [_name_cells(one, width_of) for one in ordered]
    numbers = [_number_cells(one) for one in ordered]
    left = _column_widths([_NAMES, *named], width_of)
    right = _column_widths([_NUMBERS, *numbers], width_of)

    def row(style: str, names: tuple[str, ...], figures: tuple[str, ...], route: str) -> Row:
        *cells, state = (
            name + " " * (width - width_of(name)) for name, width in zip(names, left, strict=True)
        )
        words = [figure.rjust(width) for figure, width in zip(figures, right, strict=True)]
        return [("", "  ".join(cells) + "  "), (style, state), ("", "  " + "  ".join([*words, route]))]

    columns = row("", _NAMES, _NUMBERS, "route")
    return [
        [("columns", "".join(text for _, text in columns))],
        *(
            row(one.state if one.state in _SYMBOLS else "", names, figures, sanitize(one.route))
            for one, names, figures in zip(ordered, named, numbers, strict=True)
        ),
    ]


def _name_cells(one: Listed, width_of: Callable[[str], int]) -> tuple[str, ...]:
    state = f"{_SYMBOLS.get(one.state, '?')} {one.state}" + (f" ({one.paused})" if one.paused else "")
    return _name(one.request_id, width_of), _name(one.tenant, width_of), sanitize(state)


def _name(text: str, width_of: Callable[[str], int]) -> str:
    """In one line, and no longer than there is room for."""
    text = sanitize(text).replace("\n", "␊").replace("\t", "␉")
    if width_of(text) <= MAX_NAME_WIDTH:
        return text
    while width_of(text) >= MAX_NAME_WIDTH:
        text = text[:-1]
    return text + "…"


def _number_cells(one: Listed) -> tuple[str, ...]:
    rate = f"{one.tokens_per_s:.1f}" if one.state == "running" else "-"
    return (
        format_age(one.age_s),
        format_count(one.tokens),
        rate,
        format_count(one.credit),
        format_count(one.context_tokens),
    )


def _column_widths(table: list[tuple[str, ...]], width_of: Callable[[str], int]) -> list[int]:
    return [max(map(width_of, column)) for column in zip(*table, strict=True)]


def format_age(seconds: float) -> str:
    whole = int(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def format_count(count: int) -> str:
    """With three digits, where all of them would be too many."""
    if count < 10_000:
        return f"{count:,}"
    if count < 999_500:
        return f"{count / 1000:.3g}k"
    return f"{count / 1_000_000:.3g}M"
