"""How long a server may take to end, which whatever runs it must wait for before it kills it."""

from __future__ import annotations

from collections.abc import Mapping

from realtime.config import parse
from realtime.fleet import process_link
from realtime.observability import trace_export
from realtime.server import CANCEL_S, CLOSE_S

# What is left is cancelled, WebSockets and then HTTP are closed, engines end, and traces are sent.
ENGINES_S = process_link.CLOSE_S + process_link.KILLED_S
AFTER_GRACE_S = CANCEL_S + CLOSE_S + CLOSE_S + ENGINES_S + trace_export.LAST_WORDS_S


def longest_s(environ: Mapping[str, str]) -> float:
    """With these variables. Each must be one that the server knows, and right."""
    return parse([], environ).shutdown_grace_s + AFTER_GRACE_S
