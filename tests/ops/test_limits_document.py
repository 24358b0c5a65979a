"""The sizes that docs/operations.md proposes: each is one that its option takes, and the sums are right."""

from __future__ import annotations

import re
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path

import pytest

from realtime.config import parse
from realtime.hub.departures import LEFT_A_TURN
from realtime.hub.incoming_news import FINAL_NEWS, NEWS_A_TURN
from realtime.keys_command import main as keys
from realtime.transport.acceptor import KEPT_DESCRIPTORS
from realtime.transport.http_protocol import HttpLimits
from realtime.websocket.connection import UNREAD_REPLY_BYTES
from realtime.work_budget import BURST_S, SHARE, TURN_S

CLIENTS, _, SECTION = (
    (Path(__file__).parents[2] / "docs/operations.md").read_text().partition("## Which limits to set first")
)
ROWS = [row.strip("| ").split(" | ") for row in SECTION.splitlines() if row.startswith("| ")]
SIZES = ROWS[0][-3:]
TABLE = {row[0].strip("` "): dict(zip(SIZES, row[1:], strict=True)) for row in ROWS[2:] if len(row) == 4}
IDLE_KIB = 33
MIB = 2**20


def said(row: str, size: str) -> float:
    """A number of the table, in MiB where it has a unit."""
    number, *unit = TABLE[row][size].split()
    return float(number) * (1024 if unit == ["GiB"] else 1)


def options(size: str) -> dict[str, float]:
    return {row[2:]: said(row, size) for row in TABLE if row.startswith("--")}


def of_a_key(size: str) -> dict[str, str]:
    return {
        found[1]: cells[size] for row, cells in TABLE.items() if (found := re.match(r"a key's `(--.*)", row))
    }


@pytest.mark.parametrize("size", SIZES)
def test_the_options_take_what_is_proposed(size: str, tmp_path: Path) -> None:
    parse([f"--{name}={value:g}" for name, value in options(size).items()], {})
    words = [word for pair in of_a_key(size).items() for word in pair]
    with redirect_stdout(StringIO()), redirect_stderr(StringIO()):
        assert keys(["add", "alice", *words, "--file", str(tmp_path / "keys.toml")], {}) == 0
    assert int(of_a_key(size)["--max-connections"]) <= options(size)["max-connections"] / 2, "a part of it"
    assert int(of_a_key(size)["--max-streams"]) <= options(size)["max-streams"] / 2


@pytest.mark.parametrize("size", SIZES)
def test_the_sums_are_right(size: str) -> None:
    given = options(size)
    connections = given["max-connections"]
    each = (parse([], {}).max_message_bytes + UNREAD_REPLY_BYTES) / MIB

    def hostile(count: float, share: float = 1) -> float:
        streams = min(count * given["stream-memory-mib"], share * given["total-stream-memory-mib"])
        return streams + count * each

    assert said("gateway, every connection idle", size) == round(connections * IDLE_KIB / 1024)
    of_one_key = hostile(int(of_a_key(size)["--max-connections"]), share=0.5)
    assert said("gateway, one key's connections all hostile", size) == of_one_key
    everybody = said("gateway, every connection hostile", size) / 1024
    assert everybody == round(hostile(connections) / 1024, 1)
    descriptors = said("descriptors (`ulimit -n`) at least", size)
    pending = HttpLimits(handshake_timeout_s=1, send_timeout_s=1).pending_limit
    lingering = connections + pending
    assert descriptors == 2 * connections + pending + lingering + KEPT_DESCRIPTORS


def test_what_a_client_has_done_in_a_turn_is_as_it_says() -> None:
    ends = NEWS_A_TURN // FINAL_NEWS
    assert f"some {NEWS_A_TURN} a turn, {ends} where they end, {LEFT_A_TURN} are left in one" in CLIENTS
    assert f"{100 * SHARE:.0f} % of the gateway's time for all its connections" in CLIENTS
    assert f"a burst of {BURST_S} s, and others have their turn every {1000 * TURN_S:g} ms" in CLIENTS
