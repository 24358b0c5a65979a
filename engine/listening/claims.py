"""Claims: of several gateways that are about to begin a stream of one name, one may, and the others wait
until it has, or will not.

A name is all that is known of a stream here, and a gateway is an owner alone. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

G = TypeVar("G")


@dataclass(frozen=True, slots=True)
class Claim(Generic[G]):
    gateway: G
    stream: int  # the gateway's number for it


class Claims(Generic[G]):
    def __init__(self) -> None:
        self._lines: dict[bytes, list[Claim[G]]] = {}  # by name: who may begin it, and behind it who waits

    def __len__(self) -> int:
        return len(self._lines)

    def make(self, name: bytes, claim: Claim[G]) -> Claim[G]:
        """Returns whose the name is now."""
        line = self._lines.setdefault(name, [])
        if claim not in line:
            line.append(claim)
        return line[0]

    def settle(self, name: bytes, claim: Claim[G]) -> Claim[G] | None:
        """A claim is no more; returns who has the name instead, if somebody has waited for it."""
        line = self._lines.get(name, [])
        if claim not in line:
            return None
        first = line[0] == claim
        line.remove(claim)
        if not line:
            del self._lines[name]
        return line[0] if first and line else None

    def leave(self, gateway: G) -> list[Claim[G]]:
        """All that a gateway claimed is no more, and it may have claimed a name twice; returns who has those
        names instead."""
        left = [(name, one) for name, line in self._lines.items() for one in line if one.gateway == gateway]
        next_ones = [self.settle(name, claim) for name, claim in left]
        return [one for one in next_ones if one is not None and one.gateway != gateway]
