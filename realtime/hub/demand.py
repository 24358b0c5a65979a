"""Demand: what one gateway's streams ask of the engines of a model, and how long their users wait for first
tokens there. Whoever decides how many engines there are adds up what all gateways say. Pure."""

from __future__ import annotations

from msgspec import Struct

NOWHERE = ""  # in place of an engine, for streams that have none yet


class Wait(Struct):
    """Before one engine."""

    work_s: float = 0.0  # that it takes to compute the contexts that wait there
    waited_s: float = 0.0  # by the stream that has waited longest for its own


class Demand(Struct):
    streams: int = 0  # that need an engine; and one where the model is wanted for another reason
    work_s: float = 0.0  # that it would take to compute all of their contexts anew
    waits: dict[str, Wait] = {}  # by engine, as all gateways know it
