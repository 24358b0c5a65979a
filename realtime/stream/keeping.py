"""What a stream asks of whoever keeps it: that is the hub's, and no stream knows how."""

from __future__ import annotations

from typing import Protocol

from engine import api


class Keeping(Protocol):
    """What is kept of a stream for whoever may adopt it."""

    is_found: bool  # by others, who ask that engine: it has said that it has it

    @property
    def is_there(self) -> bool:
        """With the engine that computes it, or on its way there."""

    @property
    def history_bytes(self) -> int: ...
    @property
    def heard(self) -> int:
        """News of it."""

    def hear(self, news: api.News) -> None: ...
    def note(self, told: bytes) -> None: ...
    def submitted(self, fingerprint: str) -> api.Keep | None:
        """To this engine, which is told so to keep it; None where that is over."""

    def lost(self, *, lacks_credit: bool) -> None:
        """Its engine."""
