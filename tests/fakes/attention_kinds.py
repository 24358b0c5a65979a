"""The kinds of layers that attention is tried with."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Kind:
    window: int | None = None
    softcap: float | None = None
    sinks: bool = False


def kinds(window: int) -> dict[str, Kind]:
    return {
        "plain": Kind(),
        "window": Kind(window=window),
        "softcap": Kind(softcap=2.0),
        "sinks": Kind(sinks=True),
        "all": Kind(window=window, softcap=2.0, sinks=True),
    }
