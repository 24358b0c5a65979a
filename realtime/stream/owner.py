"""Whose a stream is, by the numbers that engines know."""

from __future__ import annotations

from typing import NamedTuple


class Owner(NamedTuple):
    tenant: int  # finds what was computed for it, as nobody else does
    payer: int  # shares steps and memory with others: the tenant, or without keys a network
