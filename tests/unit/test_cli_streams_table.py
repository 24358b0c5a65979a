"""The table of streams: what stands in which column, in which order, and what clients' names can do to it."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from midstream.cli.listing import Engine, Fleet, Listed, Listing, Machine, Model, Totals
from midstream.cli.streams_table import ORDERS, format_age, format_count, header_lines, table_rows
from midstream.url import http_url

ONE = Listed(
    request_id="one",
    tenant="local",
    route="websocket",
    state="running",
    paused=None,
    age_s=12.5,
    tokens=240,
    tokens_per_s=19.84,
    credit=52,
    context_tokens=271,
)
SERVER = Totals(
    models=["toy"],
    engine=True,
    connections=1,
    batch_rows=3,
    tokens_per_s=60.0,
    kv_used_tokens=1024,
    kv_cached_tokens=2048,
    kv_free_tokens=62464,
)
STATES = {"queued": 0, "running": 1, "paused": 0, "stalled": 0}


def lines(*streams: Listed, by: str = "r") -> list[str]:
    return ["".join(text for _, text in row) for row in table_rows([*streams], ORDERS[by], len)]


def test_a_stream_is_a_row() -> None:
    columns, row = lines(ONE)
    assert columns.split() == [
        *("request", "tenant", "state", "age", "tokens", "tok/s", "credit", "context", "route")
    ]
    assert row.split() == ["one", "local", "●", "running", "12", "s", "240", "19.8", "52", "271", "websocket"]


def test_a_stream_that_does_not_run_says_why_and_has_no_rate() -> None:
    paused = replace(ONE, state="paused", paused="detached", tokens_per_s=3.0)
    _, row = lines(paused)
    assert "‖ paused (detached)" in row
    assert " - " in row
    assert "3.0" not in row
    ((style, text),) = [piece for piece in table_rows([paused], ORDERS["r"], len)[1] if piece[0]]
    assert (style, text.strip()) == ("paused", "‖ paused (detached)")


def test_columns_stand_below_one_another_whatever_is_in_them() -> None:
    other = replace(ONE, request_id="a much longer name", tokens=123_456, state="stalled")
    table = lines(ONE, other)
    assert len({len(line) for line in table}) <= 2, "the last column alone may differ"
    assert len({line.index("local") for line in table[1:]}) == 1
    assert len({line.index("websocket") for line in table[1:]}) == 1


@pytest.mark.parametrize(("by", "first"), [("r", "fast"), ("t", "long"), ("c", "large"), ("a", "old")])
def test_the_most_of_what_it_is_sorted_by_stands_first(by: str, first: str) -> None:
    streams = [
        replace(ONE, request_id="fast", tokens_per_s=99.0),
        replace(ONE, request_id="long", tokens=999),
        replace(ONE, request_id="large", context_tokens=9999),
        replace(ONE, request_id="old", age_s=999.0),
    ]
    assert lines(*streams, by=by)[1].startswith(first)


def test_streams_of_one_rate_keep_their_places() -> None:
    streams = [replace(ONE, request_id=name, tokens_per_s=pace) for name, pace in (("a", 20.1), ("b", 20.4))]
    assert [line[0] for line in lines(*streams)[1:]] == ["a", "b"]


def test_a_name_moves_no_cursor_breaks_no_line_and_takes_no_more_room_than_there_is() -> None:
    _, row = lines(replace(ONE, request_id="\x1b[2J\nx\ty\u202e", tenant="t" * 100))
    assert row.startswith("␛[2J␊x␉y<202E>")
    assert f" {'t' * 39}… " in row


def test_wide_letters_take_two_places() -> None:
    def width_of(text: str) -> int:
        return sum(2 if ord(letter) > 0x2FFF else 1 for letter in text)

    _, wide, plain = table_rows([replace(ONE, request_id="日本"), ONE], ORDERS["r"], width_of)
    assert width_of(wide[0][1]) == width_of(plain[0][1])


def test_the_server_is_said_in_a_line_where_it_may_be_seen() -> None:
    listing = Listing([ONE], 1, STATES, SERVER)
    assert header_lines(listing) == [
        "toy · 60.0 tok/s · 3 in the batch · KV 1,024 of 65.5k tokens (2%) · 2,048 cached · 1 connection",
        "1 stream: 0 queued, 1 running, 0 paused, 0 stalled",
    ]
    assert header_lines(replace(listing, server=None)) == [
        "1 stream: 0 queued, 1 running, 0 paused, 0 stalled"
    ]
    away = replace(SERVER, engine=False, models=[], kv_used_tokens=0, kv_cached_tokens=0, kv_free_tokens=0)
    assert header_lines(replace(listing, server=away))[0].startswith("no engine · no model yet · ")


def test_a_fleet_on_many_machines_is_said_in_a_few_lines_more() -> None:
    fleet = Fleet(
        [Machine("gpu1 0a"), Machine("gpu2 0b"), Machine("head")],
        [
            Engine("a#0", "a", "ready", "gpu1 0a", ""),
            Engine("a#1", "a", "loading", "gpu1 0a", ""),
            Engine("b#0", "b", "failed", "gpu2 0b", "no memory\x1b[2J"),
            Engine("b#1", "b", "waiting", "", "no machine has 1 CPU and 8 GPUs"),
        ],
        [Model("a", 2, 1, 4, False), Model("b", 2, 2, 2, False), Model("c", 0, 1, 1, True)],
    )
    listing = Listing([ONE], 1, STATES, replace(SERVER, fleet=fleet))
    assert header_lines(listing)[1:-1] == [
        "3 machines: a 1 of 2 (up to 4) · b 0 of 2 · c 0 of 0, sleeps",
        "  gpu1 0a: a#0, a#1 (loading)",
        "  gpu2 0b: b#0 (failed)",
        "  b#0 failed: no memory␛[2J",
        "  b#1 waiting: no machine has 1 CPU and 8 GPUs",
    ]
    machines = [Machine(str(number)) for number in range(20)]
    engines = [Engine(f"a#{number}", "a", "ready", str(number), "") for number in range(20)]
    many = replace(SERVER, fleet=Fleet(machines, engines, []))
    assert header_lines(replace(listing, server=many))[8:-1] == ["  6: a#6", "  … and 13 more"]


def test_a_servers_word_for_a_state_does_nothing_to_a_terminal() -> None:
    strange = "\x1b[2J bg:none"
    assert header_lines(Listing([], 0, {strange: 2}, None)) == ["0 streams: 2 ␛[2J bg:none"]
    (_, (_, (style, state), _)) = table_rows([replace(ONE, state=strange)], ORDERS["r"], len)
    assert (style, state) == ("", "? ␛[2J bg:none")


def test_it_says_how_many_there_are_where_not_all_are_listed() -> None:
    assert header_lines(Listing([ONE], 4096, STATES, None))[0].endswith("; the youngest 1 of them")


@pytest.mark.parametrize(
    ("seconds", "said"), [(0.9, "0 s"), (59.9, "59 s"), (60, "1:00"), (3599, "59:59"), (3601, "1:00:01")]
)
def test_ages(seconds: float, said: str) -> None:
    assert format_age(seconds) == said


@pytest.mark.parametrize(
    ("count", "said"),
    [(0, "0"), (9999, "9,999"), (10_000, "10k"), (65_536, "65.5k"), (999_499, "999k"), (1_234_567, "1.23M")],
)
def test_counts(count: int, said: str) -> None:
    assert format_count(count) == said


@pytest.mark.parametrize(
    ("url", "streams"),
    [
        ("http://a:1", "http://a:1/v1/streams"),
        ("wss://a/v1/realtime", "https://a/v1/streams"),
        ("https://a/below/", "https://a/below/v1/streams"),
    ],
)
def test_any_address_of_the_server_leads_to_its_streams(url: str, streams: str) -> None:
    assert http_url(url, "/v1/streams") == streams
