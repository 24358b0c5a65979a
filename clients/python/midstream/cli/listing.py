"""The listing of a server's live streams: fetched over HTTP, once a call. It blocks, and draws nothing."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from midstream.cli.ask_server import ask_server

MAX_STREAMS = 1000  # streams that a server lists at once
Count = Annotated[int, Meta(le=2**63 - 1)]  # of what is divided: a server may say any number


class Listed(Struct):
    """A stream: what is drawn of it. Words that a newer server has are drawn as they are."""

    request_id: str
    tenant: str
    route: str
    state: str
    paused: str | None
    age_s: float
    tokens: Count
    tokens_per_s: float
    credit: Count
    context_tokens: Count


class Machine(Struct):
    name: str


class Engine(Struct):
    """`machine` is none while it waits for one; `why` it does, or failed."""

    name: str
    model: str
    state: str
    machine: str
    why: str


class Model(Struct):
    """`engines` are those that it is to have now, `least` to `most` those that it may have."""

    name: str
    engines: int
    least: int
    most: int
    may_sleep: bool


class Fleet(Struct):
    """Of a server whose engines are kept on many machines."""

    machines: list[Machine]
    engines: list[Engine]
    models: list[Model]


class Totals(Struct):
    """The whole server, as an admin may see it."""

    models: list[str]
    engine: bool
    connections: int
    batch_rows: int
    tokens_per_s: float
    kv_used_tokens: Count
    kv_cached_tokens: Count
    kv_free_tokens: Count
    fleet: Fleet | None = None


class Listing(Struct):
    """`streams` are the youngest of `total`."""

    streams: list[Listed]
    total: int
    states: dict[str, int]
    server: Totals | None


def fetch_listing(url: str, key: str | None) -> Listing:
    """The streams that whoever holds `key` may see."""
    return ask_server(url, f"/v1/streams?limit={MAX_STREAMS}", key, Listing, about="list its streams")
