"""A mistake of ours ends the stream that it shows in, and no other. It does not know what was done to it."""

from __future__ import annotations

import logging

from engine import api
from realtime.hub.long_texts import told
from realtime.hub.registry import LiveStream

log = logging.getLogger(__name__)


def end_by_mistake(entry: LiveStream, error: Exception, to: str, now: float) -> None:
    """What the error says may quote the text: only its kind is logged. `to`: what the server failed to do."""
    number = entry.stream.number
    log.error("stream %d failed in the gateway: %s in %s", number, *told(error))
    entry.stream.fail(f"the server failed to {to}", now)
    if entry.engine is not None:
        entry.engine.say(api.Cancel(number))
