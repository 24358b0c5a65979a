"""A place where an engine is to be had, and the exception that says why none is. It knows neither links nor
streams, so whoever keeps engines on machines brings nothing of them along.
"""

from __future__ import annotations

from typing import NamedTuple

from realtime.fleet.watched_engine import Connect

NEEDS_RAY = "needs Ray; in a clone of Midstream, install it with: pip install ./clients/python '.[ray]'"
NEEDS_GRPC = "needs grpcio; in a clone of Midstream, install it with: pip install ./clients/python '.[grpc]'"


class PlaceError(Exception):
    """Where engines are, or how to come in, cannot be told; the message is a sentence."""


class EnginePlace(NamedTuple):
    name: str  # as the log is to say it, with its article
    connect: Connect
    ours: bool = True  # whether it is there because we start it
    model: str = ""  # that ours is to have
