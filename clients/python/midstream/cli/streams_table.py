"""Streams as a table, and the server in two lines above it. Pure: rows of pieces, each with its style.

How wide a text is, the terminal's library knows better: it is asked by `width_of`. Names come from clients,
and are made harmless here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from midstream.cli.listing import Listed, Listing, Totals
from midstream.cli.sanitize import inert

Row = list[tuple[str, str]]
LONGEST_NAME = 40


class Order(NamedTuple):
    """What streams are sorted by, the most of it first."""

    word: str
    of: Callable[[Listed], float]


ORDERS: Mapping[str, Order] = {
    "r": Order("rate", lambda one: round(one.tokens_per_s)),
    "t": Order("tokens", lambda one: one.tokens),
    "c": Order("context", lambda one: one.context_tokens),
    "a": Order("age", lambda one: one.age_s),
}
_SIGNS = {"running": "●", "paused": "‖", "stalled": "○", "queued": "…"}
_NUMBERS = ("age", "tokens", "tok/s", "credit", "context")
_NAMES = ("request", "tenant", "state")


def head(listing: Listing) -> list[str]:
    """What is to be said of all of them."""
    counts = ", ".join(f"{count} {state}" for state, count in listing.states.items())
    shown = f"; the youngest {len(listing.streams)} of them" if listing.total > len(listing.streams) else ""
    streams = f"{listing.total} {'stream' if listing.total == 1 else 'streams'}: {counts}{shown}"
    return [streams] if listing.server is None else [_server(listing.server), streams]


def _server(server: Totals) -> str:
    room = server.kv_used_tokens + server.kv_cached_tokens + server.kv_free_tokens
    share = f" ({server.kv_used_tokens / room:.0%})" if room else ""
    parts = [
        inert(server.model or "no model yet"),
        f"{server.tokens_per_s:.1f} tok/s",
        f"{server.batch_rows} in the batch",
        f"KV {brief(server.kv_used_tokens)} of {brief(room)} tokens{share}",
        f"{brief(server.kv_cached_tokens)} cached",
        f"{server.connections} {'connection' if server.connections == 1 else 'connections'}",
    ]
    return " · ".join(parts if server.engine else ["no engine", *parts])


def rows(streams: list[Listed], order: Order, width_of: Callable[[str], int]) -> list[Row]:
    """The names of the columns, and a row for each stream."""
    ordered = sorted(streams, key=order.of, reverse=True)
    named = [_named(one, width_of) for one in ordered]
    numbers = [_numbers(one) for one in ordered]
    left = _widths([_NAMES, *named], width_of)
    right = _widths([_NUMBERS, *numbers], width_of)

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
            row(one.state, names, figures, inert(one.route))
            for one, names, figures in zip(ordered, named, numbers, strict=True)
        ),
    ]


def _named(one: Listed, width_of: Callable[[str], int]) -> tuple[str, ...]:
    state = f"{_SIGNS.get(one.state, '?')} {one.state}" + (f" ({one.paused})" if one.paused else "")
    return _name(one.request_id, width_of), _name(one.tenant, width_of), inert(state)


def _name(text: str, width_of: Callable[[str], int]) -> str:
    """In one line, and no longer than there is room for."""
    text = inert(text).replace("\n", "␊").replace("\t", "␉")
    if width_of(text) <= LONGEST_NAME:
        return text
    while width_of(text) >= LONGEST_NAME:
        text = text[:-1]
    return text + "…"


def _numbers(one: Listed) -> tuple[str, ...]:
    pace = f"{one.tokens_per_s:.1f}" if one.state == "running" else "-"
    return age(one.age_s), brief(one.tokens), pace, brief(one.credit), brief(one.context_tokens)


def _widths(table: list[tuple[str, ...]], width_of: Callable[[str], int]) -> list[int]:
    return [max(map(width_of, column)) for column in zip(*table, strict=True)]


def age(seconds: float) -> str:
    whole = int(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def brief(count: int) -> str:
    """With three digits, where all of them would be too many."""
    if count < 10_000:
        return f"{count:,}"
    if count < 999_500:
        return f"{count / 1000:.3g}k"
    return f"{count / 1_000_000:.3g}M"
