"""The waiting frames: how much of each tenant and client waits to be tokenized, or behind what does. Pure.

It counts, and refuses what is beyond the limits: no more than half of what its tenant may have waiting is any
one client's. It knows no frame and no queue.
"""

from __future__ import annotations

from collections import Counter

from msgspec import Struct

from realtime.refusal import Refusal

A_WHILE_MS = 1000


class WaitingLimits(Struct, frozen=True):
    """Bytes, and frames, each of which takes more than its bytes."""

    tenant_bytes: int = 16 << 20
    tenant_frames: int = 2048
    bytes: int = 64 << 20  # of everybody
    frames: int = 8192


class WaitingFrames:
    def __init__(self, limits: WaitingLimits | None = None) -> None:
        self._limits = limits or WaitingLimits()
        self._bytes = Counter[object]()
        self._frames = Counter[object]()

    def check(self, tenant: str, client: object, size: int) -> None:
        """Refuse one frame more, of so many bytes, where that is beyond a limit."""
        limits, mine = self._limits, (tenant, client)
        self._check(mine, size, limits.tenant_bytes // 2, limits.tenant_frames // 2, "on this connection")
        self._check(tenant, size, limits.tenant_bytes, limits.tenant_frames, "of yours")
        if self._exceeds(None, size, limits.bytes, limits.frames):
            raise Refusal(
                "overloaded",
                "The server's limit of frames that wait to be tokenized is reached.",
                retry_after_ms=A_WHILE_MS,
            )

    def add(self, tenant: str, client: object, size: int) -> None:
        """One frame more, which was checked."""
        self._count(tenant, client, size, 1)

    def remove(self, tenant: str, client: object, size: int) -> None:
        self._count(tenant, client, -size, -1)

    def _count(self, tenant: str, client: object, size: int, frames: int) -> None:
        for whose in ((tenant, client), tenant, None):
            self._bytes[whose] += size
            self._frames[whose] += frames
            if not self._frames[whose]:
                del self._bytes[whose], self._frames[whose]

    def _check(self, whose: object, size: int, most_bytes: int, most_frames: int, which: str) -> None:
        if self._exceeds(whose, size, most_bytes, most_frames):
            raise Refusal(
                "rate_limited",
                f"{self._frames[whose]} frames {which} of {self._bytes[whose]} bytes wait to be "
                f"tokenized; the limit is {most_frames} frames and {most_bytes} bytes.",
                retry_after_ms=A_WHILE_MS,
            )

    def _exceeds(self, whose: object, size: int, most_bytes: int, most_frames: int) -> bool:
        # What is longer than all that may wait can only wait alone; else it never could.
        crowded = self._bytes[whose] > 0 and self._bytes[whose] + size > most_bytes
        return crowded or self._frames[whose] >= most_frames
