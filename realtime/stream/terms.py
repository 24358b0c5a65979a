"""What a start asks for that holds for as long as its stream lives."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from midstream import protocol

GRACE_MS = 30_000  # that a stream waits for somebody to attach


class Terms(Struct, frozen=True):
    on_disconnect: Literal["cancel", "pause", "continue"]
    grace_s: float
    tool_hold_s: float | None
    priority: int


def terms_of(start: protocol.Start) -> Terms:
    return Terms(
        start.on_disconnect,
        (GRACE_MS if start.grace_ms is None else start.grace_ms) / 1000,
        None if start.tool_hold_ms is None else start.tool_hold_ms / 1000,
        start.priority,
    )
