"""How long a server may take to end, which whatever runs it must wait for before it kills it."""

from __future__ import annotations

from collections.abc import Mapping

from realtime.config import parse

# Behind the grace what is left is cancelled, told and closed, and the engines' processes end.
AFTER_GRACE_S = 20.0


def longest_s(environ: Mapping[str, str]) -> float:
    """With these variables. Each must be one that the server knows, and right."""
    return parse([], environ).shutdown_grace_s + AFTER_GRACE_S
